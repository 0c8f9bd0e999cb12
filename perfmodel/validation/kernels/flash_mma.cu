// One query tile of attention's forward pass on tensor cores: FlashAttention-2, Dao 2023, arXiv 2307.08691, Algorithm 1.
// flash_mma.py puts the constants before this text: D (head dim), BR x BC (tile), WARPS, SLOTS, CAUSAL, DTYPE (f16 or bf16).
// A warp owns ROWS = BR / WARPS query rows as TILES_M fragments of 16 rows. Fragment layouts of mma.m16n8k16 and ldmatrix:
// PTX ISA 8.7, 9.7.14.5.8 and 9.7.14.5.15. Scores, probabilities and outputs never leave registers.

typedef unsigned int u32;
typedef unsigned long long u64;

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define INLINE __device__ __forceinline__

constexpr int THREADS = 32 * WARPS, ROWS = BR / WARPS, TILES_M = ROWS / 16, TILES_N = BC / 8, TILES_D = D / 8;
constexpr int PITCH = 2 * D, CHUNKS = D / 8;  // bytes of a row; 16-byte chunks of a row
constexpr float LOWEST = -1e30f;              // running maximum before the first score: finite, so that differences are no nan
#define INFINITE __int_as_float(0x7f800000)
constexpr float LN2 = 0.693147180559945f;

extern __shared__ __align__(1024) unsigned char shared_memory[];

// Byte offset of a 16-byte chunk: the eight rows that ldmatrix reads at once lie in eight different sets of banks.
INLINE u32 place(u32 row, u32 chunk) { return row * PITCH + ((chunk ^ (row & 7)) << 4); }

// 16 bytes from global to shared memory, past L1; zeros, and nothing read, if !real.
INLINE void copy_chunk(u32 to, u64 from, bool real) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0) : "memory");
}

// The first `real` rows of a tile, the rest cleared; each element is loaded once.
template <int TILE_ROWS> INLINE void copy_tile(u32 to, u64 from, int real) {
    u32 row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
#pragma unroll
    for (int i = 0; i < TILE_ROWS * CHUNKS / THREADS; i++) {
        u32 own = row + i * (THREADS / CHUNKS);
        bool exists = (int)own < real;
        copy_chunk(to + place(own, chunk), from + (exists ? own * PITCH + chunk * 16 : 0), exists);
    }
}

INLINE void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> INLINE void wait_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

INLINE void load_fragments(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

INLINE void load_transposed(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

INLINE void add_product(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TEXT(DTYPE) "." TEXT(DTYPE) ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

INLINE u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn." TEXT(DTYPE) "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

INLINE float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

INLINE float logarithm(float x) {  // to base 2
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

INLINE float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

INLINE float other(float x, int lane_mask) { return __shfl_xor_sync(0xffffffffu, x, lane_mask); }

// q, o: first row of the query tile; k, v: first row of the KV head; lse: first row of the tile. All are addresses.
// rows: query rows that exist. kv_len: keys of the head. tiles: key tiles to visit. seen: keys that the tile's first row sees
// under a causal mask, each later row one more; may be negative. scale = log2(e) / sqrt(D): exponentials are powers of two.
extern "C" __device__ int flash_mma_tile(int *result, u64 q, u64 k, u64 v, u64 o, u64 lse, int rows, int kv_len, int tiles, int seen, float scale) {
    const u32 q_at = (u32)__cvta_generic_to_shared(shared_memory), ring = q_at + BR * PITCH;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int own_row = warp * ROWS + lane / 4, own_column = 2 * (lane % 4);  // in a fragment of 16 x 8 results; the other row is own_row + 8
    const u32 q_lane = q_at + place(warp * ROWS + lane % 16, lane / 16);
    const u32 k_lane = place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    const u32 v_lane = place(lane % 16, lane / 16);

    // Step 2 j is K_j, step 2 j + 1 is V_j; SLOTS - 1 of them are on their way while one is used.
    auto fetch = [&](int step) {
        int begin = step / 2 * BC;
        if (step < 2 * tiles) copy_tile<BC>(ring + step % SLOTS * (BC * PITCH), (step % 2 ? v : k) + (u64)begin * PITCH, kv_len - begin);
        end_group();
    };
    auto arrived = [&](int step) {
        wait_groups<SLOTS - 2>();
        __syncthreads();  // all copies of this step are there, nobody uses the slot of the step before
        fetch(step + SLOTS - 1);
        return ring + step % SLOTS * (BC * PITCH);
    };

    float out[TILES_M][TILES_D][4], top[TILES_M][2], total[TILES_M][2];
#pragma unroll
    for (int m = 0; m < TILES_M; m++) {
        top[m][0] = top[m][1] = LOWEST;
        total[m][0] = total[m][1] = 0;
#pragma unroll
        for (int n = 0; n < TILES_D; n++) out[m][n][0] = out[m][n][1] = out[m][n][2] = out[m][n][3] = 0;
    }

    copy_tile<BR>(q_at, q, rows);
#pragma unroll
    for (int step = 0; step < SLOTS - 1; step++) fetch(step);

#pragma unroll 1
    for (int j = 0; j < tiles; j++) {
        float s[TILES_M][TILES_N][4];
#pragma unroll
        for (int m = 0; m < TILES_M; m++)
#pragma unroll
            for (int n = 0; n < TILES_N; n++) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;

        // S = Q K^T. Offsets of k are exclusive ors in bits 4 to 6 (place) and plain additions above.
        u32 at = arrived(2 * j) + k_lane;
#pragma unroll
        for (int x = 0; x < D / 16; x++) {
            u32 a[TILES_M][4], b[4];
#pragma unroll
            for (int m = 0; m < TILES_M; m++) load_fragments(a[m], (q_lane ^ (x % 4 * 32)) + x / 4 * 128 + m * 16 * PITCH);
#pragma unroll
            for (int n = 0; n < TILES_N; n += 2) {
                load_fragments(b, (at ^ (x % 4 * 32)) + x / 4 * 128 + n * 8 * PITCH);
#pragma unroll
                for (int m = 0; m < TILES_M; m++) {
                    add_product(s[m][n], a[m], b[0], b[1]);
                    add_product(s[m][n + 1], a[m], b[2], b[3]);
                }
            }
        }

        const int begin = j * BC;
        if (begin + BC > kv_len || (CAUSAL && begin + BC > seen + warp * ROWS)) {
#pragma unroll
            for (int m = 0; m < TILES_M; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int limit = CAUSAL ? min(kv_len, seen + own_row + 16 * m + 8 * half) : kv_len;
                    limit -= begin + own_column;
#pragma unroll
                    for (int n = 0; n < TILES_N; n++) {
                        if (n * 8 >= limit) s[m][n][2 * half] = -INFINITE;
                        if (n * 8 + 1 >= limit) s[m][n][2 * half + 1] = -INFINITE;
                    }
                }
        }

        // P = 2^(scale S - top), O and its row sums rescaled where the maximum has grown.
#pragma unroll
        for (int m = 0; m < TILES_M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float highest = s[m][0][2 * half];
#pragma unroll
                for (int n = 0; n < TILES_N; n++) highest = fmaxf(highest, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
                highest = fmaxf(highest, other(highest, 1));
                highest = fmaxf(highest, other(highest, 2));
                highest = fmaxf(top[m][half], highest * scale);
                float decay = power_of_two(top[m][half] - highest), sum = 0;
                top[m][half] = highest;
#pragma unroll
                for (int n = 0; n < TILES_N; n++)
#pragma unroll
                    for (int x = 2 * half; x < 2 * half + 2; x++) {
                        s[m][n][x] = power_of_two(fmaf(s[m][n][x], scale, -highest));
                        sum += s[m][n][x];
                    }
                total[m][half] = total[m][half] * decay + sum;
#pragma unroll
                for (int n = 0; n < TILES_D; n++) {
                    out[m][n][2 * half] *= decay;
                    out[m][n][2 * half + 1] *= decay;
                }
            }

        // O += P V. Two score fragments of 8 keys, as they lie in the registers, are one left operand of 16 keys.
        at = arrived(2 * j + 1) + v_lane;
#pragma unroll
        for (int y = 0; y < BC / 16; y++) {
            u32 a[TILES_M][4], b[4];
#pragma unroll
            for (int m = 0; m < TILES_M; m++) {
                a[m][0] = pack(s[m][2 * y][0], s[m][2 * y][1]);
                a[m][1] = pack(s[m][2 * y][2], s[m][2 * y][3]);
                a[m][2] = pack(s[m][2 * y + 1][0], s[m][2 * y + 1][1]);
                a[m][3] = pack(s[m][2 * y + 1][2], s[m][2 * y + 1][3]);
            }
#pragma unroll
            for (int n = 0; n < TILES_D; n += 2) {
                load_transposed(b, (at ^ (n / 2 % 4 * 32)) + n / 8 * 128 + y * 16 * PITCH);
#pragma unroll
                for (int m = 0; m < TILES_M; m++) {
                    add_product(out[m][n], a[m], b[0], b[1]);
                    add_product(out[m][n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }

    wait_groups<0>();
    __syncthreads();  // Q is there even if no key was visited; its place takes O, each warp its own rows
#pragma unroll
    for (int m = 0; m < TILES_M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float whole = total[m][half];
            whole += other(whole, 1);
            whole += other(whole, 2);
            float inverse = whole > 0 ? reciprocal(whole) : 0;
            int row = own_row + 16 * m + 8 * half;
#pragma unroll
            for (int n = 0; n < TILES_D; n++) {
                u32 both = pack(out[m][n][2 * half] * inverse, out[m][n][2 * half + 1] * inverse);
                *(u32 *)(shared_memory + place(row, n) + 2 * own_column) = both;
            }
            if (own_column == 0 && row < rows)
                ((float *)lse)[row] = whole > 0 ? (top[m][half] + logarithm(whole)) * LN2 : -INFINITE;
        }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ROWS * CHUNKS / 32; i++) {
        int row = warp * ROWS + (lane + 32 * i) / CHUNKS, chunk = (lane + 32 * i) % CHUNKS;
        if (row < rows) *(uint4 *)(o + row * PITCH + chunk * 16) = *(uint4 *)(shared_memory + place(row, chunk));
    }
    *result = 0;
    return 0;
}
