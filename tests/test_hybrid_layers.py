"""Linear and sparse attention: counts against loops over tokens, heads and keys, and against the tensors of a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from each import each
from hybrid_models import CONFIGS, NEMOTRON, QWEN, TENSORS
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.catalog import find_device, find_model, model_names
from perfmodel.core.cost import READ, WRITE
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import DataError, UsageError
from perfmodel.core.trace import Trace, plain
from perfmodel.transformer import generation, kv_cache, parameters
from perfmodel.transformer.architectures._parts import HfFields, grouped
from perfmodel.transformer.estimate import run_pass
from perfmodel.transformer.explain import explain, traced
from perfmodel.transformer.hf import parse
from perfmodel.transformer.linear_attention import GatedDeltaNet, Mamba2
from perfmodel.transformer.op import CACHE, WEIGHTS, Op, total_bytes
from perfmodel.transformer.ops import step_ops
from perfmodel.transformer.sparse_rows import blocks_seen, seen
from perfmodel.transformer.spec import AttentionLayer, DenseMlp, Indexer, LatentAttention, Layer, ModelSpec
from perfmodel.transformer.state_rows import chunk_flops
from perfmodel.transformer.step import DECODE, ModelPass, Split, decode, prefill
from perfmodel.transformer.training.question import TrainingConfig, checked

HYBRID = ("qwen3_next", "nemotron_h", "glm_moe_dsa", "minimax_m3")


def test_a_kind_of_layer_that_only_one_rule_knows_is_what_it_makes_of_it() -> None:
    """A common kind keeps its meaning, and a kind without a rule is refused."""
    values = {"model_type": "mine", "num_hidden_layers": 2, "layer_types": ["scan", "full_attention"]}
    scan, full = (Layer(mixer, DenseMlp(64)) for mixer in (Mamba2(4, 16, 1, 32), grouped(4, 2, 16, None)))
    fields = HfFields(values)
    assert fields.kinds({"scan": scan, "full_attention": full}) == [scan, full]
    fields.check_kinds([scan, full])
    for knowing, layers, place in ((fields, [scan, scan], 1), (HfFields(values), [scan, full], 0)):
        with pytest.raises(DataError, match=rf"layer_types\.{place}"):
            knowing.check_kinds(layers)


@each("name", model_names())
def test_every_field_of_a_shipped_model_is_read(name: str) -> None:
    assert find_model(name).unread == ()


def small(kind: str, **fields: object) -> ModelSpec:
    return parse({**CONFIGS[kind], **fields}, kind, "test")


def rows(ops: list[Op], start: str) -> list[Op]:
    return [op for op in ops if op.name.startswith(start)]


def moved(op: Op, tensor: str, kind: str) -> int:
    return int(sum(a.bytes for a in op.kernel.accesses if a.tensor == tensor and a.kind == kind))


# Parameters


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_tensor_is_counted(kind: str) -> None:
    c = CONFIGS[kind]
    ends = 2 * c["vocab_size"] * c["hidden_size"] + c["hidden_size"]
    assert parameters.total(small(kind)) == sum(prod(shape) for shape in TENSORS[kind](c)) + ends


# The rules of linear attention, token by token and in chunks


class Products:
    """Matrix products that count their FLOP."""

    def __init__(self) -> None:
        self.flops = 0

    def __call__(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        self.flops += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b


def delta_rule(q, k, v, decay, rate, times: Products) -> tuple[np.ndarray, np.ndarray]:
    """One head: each token decays the state, corrects what it recalls, and is read."""
    state, out = np.zeros((v.shape[1], k.shape[1])), []
    for t in range(len(q)):
        state = decay[t] * state
        recalled = times(state, k[t][:, None])
        state = state + times(rate[t] * (v[t][:, None] - recalled), k[t][None, :])
        out.append(times(state, q[t][:, None])[:, 0])
    return np.array(out), state


def inverse(lower: np.ndarray, times: Products) -> np.ndarray:
    """Of the identity plus a strictly lower triangle, row by row."""
    made = np.eye(len(lower))
    for i in range(len(lower)):
        for j in range(i):
            made[i, : j + 1] -= lower[i, j] * made[j, : j + 1]
            times.flops += 2 * (j + 1)
    return made


def delta_chunk(q, k, v, decay, rate, state, times: Products) -> tuple[np.ndarray, np.ndarray]:
    """All tokens of one chunk at once (arXiv 2412.06464, section 3.3)."""
    total = np.cumprod(decay)
    between = np.tril(total[:, None] / total[None, :])
    solved = inverse(np.tril(rate[:, None] * times(k, k.T) * between, -1), times)
    new, reads = times(solved, rate[:, None] * v), times(solved, (rate * total)[:, None] * k)
    new = new - times(reads, state.T)
    out = times(total[:, None] * q, state.T) + times(times(q, k.T) * between, new)
    return out, total[-1] * state + times(new.T, (total[-1] / total)[:, None] * k)


def test_the_delta_rule_in_chunks_is_the_rule_of_each_token_and_its_flop_are_counted() -> None:
    random, chunk, heads, dk, dv = np.random.default_rng(0), 64, 2, 3, 5
    one_by_one, at_once = Products(), Products()
    for _ in range(heads):
        q, k, v = random.normal(size=(chunk, dk)), random.normal(size=(chunk, dk)), random.normal(size=(chunk, dv))
        k /= np.linalg.norm(k, axis=1)[:, None]
        decay, rate = random.uniform(0.8, 1, chunk), random.uniform(0, 1, chunk)
        out, state = delta_rule(q, k, v, decay, rate, one_by_one)
        again, last = delta_chunk(q, k, v, decay, rate, np.zeros_like(state), at_once)
        assert np.allclose(out, again)
        assert np.allclose(state, last)
    layer = GatedDeltaNet(key_heads=1, value_heads=heads, key_head_dim=dk, value_head_dim=dv)
    assert one_by_one.flops == chunk * layer.token_flops
    assert (at_once.flops, chunk) == chunk_flops(layer)


def test_the_scan_in_chunks_is_the_scan_of_each_token_and_its_flop_are_counted() -> None:
    random, chunk, groups, per_group, p, n = np.random.default_rng(1), 8, 2, 3, 4, 5
    one_by_one, at_once = Products(), Products()
    for _ in range(groups):
        b, c = random.normal(size=(chunk, n)), random.normal(size=(chunk, n))
        scores = at_once(c, b.T)
        for _ in range(per_group):
            x, decay, state = random.normal(size=(chunk, p)), random.uniform(0.5, 1, chunk), np.zeros((p, n))
            out = []
            for t in range(chunk):
                state = decay[t] * state + one_by_one(x[t][:, None], b[t][None, :])
                out.append(one_by_one(state, c[t][:, None])[:, 0])
            total = np.cumprod(decay)
            between, before = np.tril(total[:, None] / total[None, :]), np.zeros((p, n))
            again = at_once(scores * between, x) + at_once(total[:, None] * c, before.T)
            last = total[-1] * before + at_once((total[-1] / total * x.T), b)
            assert np.allclose(out, again)
            assert np.allclose(state, last)
    layer = Mamba2(heads=groups * per_group, head_dim=p, groups=groups, state_size=n, chunk=chunk)
    assert one_by_one.flops == chunk * layer.token_flops
    assert (at_once.flops, chunk) == chunk_flops(layer)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 200))
def test_prefill_runs_whole_chunks_and_needs_what_single_tokens_need(batch: int, n: int) -> None:
    for kind, name, chunk in (("qwen3_next", "gated delta rule", 64), ("nemotron_h", "state-space scan", 8)):
        model = small(kind)
        layers = [layer.attention for layer in model.layers if isinstance(layer.attention, GatedDeltaNet | Mamba2)]
        [op] = rows(step_ops(model, prefill(batch, n)), name)
        assert op.count == len(layers)
        assert op.kernel.flops == batch * n * layers[0].token_flops
        if n > 1:
            assert op.kernel.executed_flops == batch * -(-n // chunk) * chunk_flops(layers[0])[0]


# Their bytes


def test_a_decode_step_reads_and_writes_each_state_once() -> None:
    batch = 3
    for kind, c, heads, sizes in (
        ("qwen3_next", QWEN, 4, (4 * 3 * 5, 2 * 2 * 3 + 4 * 5, 3)),
        ("nemotron_h", NEMOTRON, 4, (4 * 3 * 5, 4 * 3 + 2 * 2 * 5, 4)),
    ):
        state, channels, kernel = sizes
        ops = step_ops(small(kind), decode(batch, 90))
        [rule], [conv] = rows(ops, "gated delta rule") or rows(ops, "state-space scan"), rows(ops, "short convolution")
        for access in (READ, WRITE):
            assert moved(rule, CACHE, access) == batch * state * 4
            assert moved(conv, CACHE, access) == batch * channels * (kernel - 1) * 2
        gates = 2 * heads if c is QWEN else heads
        assert moved(rule, "activations", READ) == batch * (channels + gates) * 2
        assert moved(rule, "activations", WRITE) == batch * (20 if c is QWEN else 12) * 2
        assert moved(conv, "activations", READ) == moved(conv, "activations", WRITE) == batch * channels * 2


def test_a_state_takes_no_more_room_in_a_longer_sequence() -> None:
    qwen = small("qwen3_next")
    state = 3 * (4 * 3 * 5 * 4 + (2 * 2 * 3 + 4 * 5) * 2 * 2)
    per_token = 2 * 2 * 2 * 6 * 2
    for n in (1, 10, 1000):
        assert kv_cache.sequence_bytes(qwen, n, kv_cache.CacheFormat()) == state + n * per_token
        assert kv_cache.sequence_bytes(qwen, n, kv_cache.CacheFormat("fp8")) == state + n * per_token // 2
    assert small("qwen3_next", mamba_ssm_dtype="bfloat16").layers[0].attention.state_bytes == 4 * 3 * 5 * 2 + 32 * 2 * 2


@pytest.mark.parametrize("kind", HYBRID)
def test_a_decode_step_reads_the_cache_and_writes_one_token(kind: str) -> None:
    """Of latents only those that the indexer picks."""
    model, length, form = small(kind), 40, kv_cache.CacheFormat()
    read = written = 0
    for layer in model.layers:
        a = layer.attention
        read += a.state_bytes + a.index_bytes * length + kv_cache.attended_bytes(a, form) * attended(a, length)
        written += a.state_bytes + kv_cache.layer_token_bytes(a, form)
    assert total_bytes(step_ops(model, decode(2, length)), CACHE) == 2 * (read + written)


# Sparse attention, query by query


def attended(a: AttentionLayer, length: int) -> int:
    """Keys that the last of ``length`` tokens sees: all of its own block up to itself, whole ones before."""
    if a.topk is None or length <= a.topk:
        return length
    block = a.indexer.block
    return a.topk - block + (length - 1) % block + 1


@given(st.integers(0, 40), st.integers(1, 30), st.integers(1, 4), st.integers(1, 6))
def test_keys_and_blocks_that_queries_see(before: int, n: int, blocks: int, block: int) -> None:
    kv_len, keys, sets, picked = before + n, 0, 0, 0
    for query in range(before, kv_len):
        seen_by_it = range(query // block + 1)  # blocks, the own one last
        chosen = seen_by_it if len(seen_by_it) <= blocks else [*seen_by_it][-1:] + [*seen_by_it][: blocks - 1]
        keys += sum(1 for one in chosen for key in range(one * block, (one + 1) * block) if key <= query)
        sets, picked = sets + len(seen_by_it), picked + len(chosen)
    assert seen(n, kv_len, blocks * block, block) == keys
    assert (blocks_seen(n, kv_len, block), blocks_seen(n, kv_len, block, blocks)) == (sets, picked)


@given(st.integers(0, 60), st.integers(1, 4), st.integers(1, 6))
def test_keys_seen_anew(n: int, blocks: int, block: int) -> None:
    lengths = range(1, n + 1)
    assert generation.picked_anew(n, blocks * block, block) == sum(seen(t, t, blocks * block, block) for t in lengths)


@given(st.integers(0, 30), st.integers(1, 20), st.integers(1, 25))
def test_keys_that_queries_see(before: int, n: int, most: int) -> None:
    lengths = range(before + 1, before + n + 1)
    assert seen(n, before + n) == sum(lengths)
    assert seen(n, before + n, most) == sum(min(length, most) for length in lengths)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 12), st.integers(0, 12))
def test_flop_and_bytes_of_sparse_attention(batch: int, n: int, before: int) -> None:
    model, kv_len = small("glm_moe_dsa"), n + before
    ops = step_ops(model, ModelPass("prefill", batch, n, kv_len, dtype=DTYPES["bf16"]))
    scores = selected = picked = 0
    for _ in range(batch):
        for query in range(before, kv_len):
            for key in range(query + 1):
                scores += 2 * 3 * 4
                if key < 5:
                    picked += 1
                    selected += 2 * 4 * (8 + 2 + 8)
    [score], [choice] = rows(ops, "indexer scores"), rows(ops, "selection of tokens")
    assert score.kernel.flops == scores == score.kernel.needed.tensor + score.kernel.needed.vector  # the sum over heads is no matmul
    assert (moved(choice, "activations", READ), moved(choice, "activations", WRITE)) == (4 * scores // 24, 4 * picked)
    kept = "KV cache" if before else "K and V"
    assert moved(score, kept, READ) == batch * kv_len * (4 + 4)
    if kv_len > 5:
        [attention] = rows(ops, "attention, top 5")
        assert attention.kernel.flops == selected
        [latents] = [access for access in attention.kernel.accesses if access.tensor == kept]
        assert latents.elements == picked * 10
        assert latents.compulsory == min(picked, batch * kv_len) * 10


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 20), st.integers(0, 20))
def test_flop_and_bytes_of_block_sparse_attention(batch: int, n: int, before: int) -> None:
    model, kv_len = small("minimax_m3"), n + before
    ops = step_ops(model, ModelPass("prefill", batch, n, kv_len, dtype=DTYPES["bf16"]))
    a = model.layers[1].attention
    pairs = sum(attended(a, query + 1) for query in range(before, kv_len))
    [score], [choice] = rows(ops, "indexer scores"), rows(ops, "selection of tokens")
    assert score.kernel.flops == batch * sum(2 * 2 * 3 * (query + 1) for query in range(before, kv_len))
    assert moved(score, "KV cache" if before else "K and V", READ) == batch * kv_len * 3 * 2
    assert moved(choice, "activations", READ) == batch * 4 * 2 * sum(query // 4 + 1 for query in range(before, kv_len))
    assert moved(choice, "activations", WRITE) == batch * 4 * 2 * sum(min(query // 4 + 1, 2) for query in range(before, kv_len))
    sparse = rows(ops, "attention, top 8")
    assert len(sparse) == (kv_len > 8)
    assert sum(op.count * op.kernel.flops for op in sparse) == (2 * batch * 4 * 4 * 6 * pairs if sparse else 0)


def test_up_to_topk_tokens_prefill_is_dense() -> None:
    ops = step_ops(small("glm_moe_dsa"), prefill(2, 5))
    plain = step_ops(small("glm_moe_dsa", model_type="deepseek_v3"), prefill(2, 5))
    assert rows(ops, "attention") == rows(plain, "attention")
    assert rows(ops, "KV up projection") == rows(plain, "KV up projection")


def test_published_bytes_of_an_indexer() -> None:
    """132 B a token: vllm-project/vllm, DeepseekV32IndexerCache."""
    index = Indexer(64, 128, 2048)
    assert index.key_bytes == 132
    latent = LatentAttention(128, 512, 1536, 64, 128, 128, indexer=index)
    assert kv_cache.layer_token_bytes(latent, kv_cache.CacheFormat()) == 1152 + 132


# Generation and mixed passes


@pytest.mark.parametrize("name", [*CONFIGS, "gpt2", "llama-3.2-1b", "mixtral-8x7b", "gemma-2-9b", "deepseek-v2"])
def test_flop_of_generation_step_by_step(name: str) -> None:
    model, count = small(name) if name in CONFIGS else find_model(name), 12
    steps = [sum(op.count * op.kernel.flops for op in step_ops(model, decode(1, length))) for length in range(1, count + 1)]
    assert sum(steps) == generation.with_cache(model, count, "fp16", kv_cache.CacheFormat()).flops
    anew = [sum(op.count * op.kernel.flops for op in step_ops(model, prefill(1, n, cached=False))) for n in range(1, count + 1)]
    assert sum(anew) == generation.without_cache(model, count, "fp16").flops


@pytest.mark.parametrize("kind", HYBRID)
def test_cache_read_by_generation(kind: str) -> None:
    model, count, form = small(kind), 9, kv_cache.CacheFormat()
    read = sum(op.count * moved(op, CACHE, READ) for length in range(2, count + 1) for op in step_ops(model, decode(1, length)))
    first = sum(kv_cache.layer_token_bytes(layer.attention, form) for layer in model.layers)  # a first token sees itself alone
    assert read + first == generation.cache_read(model, count, form)


@pytest.mark.parametrize("kind", HYBRID)
def test_a_mixed_pass_has_the_attention_of_both(kind: str) -> None:
    """Prompts beside decoding sequences: as many FLOP, as many bytes of cache, and weights once."""
    model, decoding, prompt = small(kind), decode(3, 40), prefill(1, 16)
    apart, both = [*step_ops(model, decoding), *step_ops(model, prompt)], step_ops(model, replace(prompt, beside=decoding))
    assert total_bytes(both, CACHE) == total_bytes(apart, CACHE)
    assert sum(op.count * op.kernel.flops for op in both) == sum(op.count * op.kernel.flops for op in apart)
    assert total_bytes(both, WEIGHTS) < total_bytes(apart, WEIGHTS)


@pytest.mark.parametrize("kind", HYBRID)
def test_drafted_tokens_share_one_reading_of_the_state(kind: str) -> None:
    model = small(kind)
    one, four = decode(2, 40), replace(decode(2, 40), n=4, phase=DECODE)
    for name in ("gated delta rule", "state-space scan"):
        for single, drafted in zip(rows(step_ops(model, one), name), rows(step_ops(model, four), name), strict=True):
            assert moved(drafted, CACHE, READ) == moved(single, CACHE, READ)
            assert drafted.kernel.flops == 4 * single.kernel.flops
            assert drafted.name == single.name


# What has no rule


@pytest.mark.parametrize(
    ("kind", "words"), [("qwen3_next", "gated delta net"), ("nemotron_h", "Mamba-2"), ("glm_moe_dsa", "DSA"), ("minimax_m3", "MSA")]
)
def test_training_is_refused(kind: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        checked(TrainingConfig(small(kind), n=64, batch=1))


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        ("nemotron_h", {"hybrid_override_pattern": "EMEMEM*E"}, "hybrid_override_pattern.0: no rule for 'E' there"),
        ("nemotron_h", {"hybrid_override_pattern": "ME"}, "has 2 blocks, num_hidden_layers is 8"),
        ("nemotron_h", {"moe_latent_size": 64}, "moe_latent_size"),
        ("glm_moe_dsa", {"indexer_types": ["full", "shared", "full"]}, "indexer_types"),
        ("qwen3_next", {"linear_num_value_heads": 3}, "linear_num_key_heads is 2"),
        ("qwen3_next", {"mamba_ssm_dtype": "float8"}, "mamba_ssm_dtype is 'float8'"),
        ("qwen3_next", {"layer_types": ["linear_attention"] * 4}, "one entry for each of the 5 layers"),
        ("qwen3_next", {"layer_types": ["sliding_attention"] * 5}, "layer_types.0: no rule for 'sliding_attention'"),
        ("minimax_m2", {"shared_intermediate_size": 8}, "shared_intermediate_size"),
    ],
)
def test_what_no_rule_reads(kind: str, fields: dict[str, object], words: str) -> None:
    with pytest.raises(DataError) as error:
        small(kind, **fields)
    assert words in error.value.message


def test_heads_that_a_split_cannot_divide() -> None:
    with pytest.raises(UsageError, match="--tp 4 does not divide 2 heads"):
        Split(4).check(small("qwen3_next"))


@each("kind", CONFIGS)
@each("step", [prefill(2, 20), decode(2, 30)])
def test_explained_numbers_are_the_counted_ones(kind: str, step: ModelPass) -> None:
    """Sizes as symbols go through every formula."""
    found = run_pass(small(kind), step, find_device("h200"))
    steps = {one.name: one.value for one in explain(found)}
    assert steps["total FLOP"] == sum(op.count * op.kernel.flops for op in step_ops(small(kind), step))
    assert all(row.seconds > 0 for row in found.rows)


@pytest.mark.parametrize("kind", CONFIGS)
def test_explained_caches_are_the_counted_ones(kind: str) -> None:
    model, form = small(kind), kv_cache.CacheFormat()
    trace = Trace()
    symbols = traced(model, trace)
    n = trace.symbol("n", 40, "tokens", "given")
    assert plain(kv_cache.sequence_bytes(symbols, n, form)) == kv_cache.sequence_bytes(model, 40, form)
    for generated in (generation.with_cache, lambda spec, count, weights, _: generation.without_cache(spec, count, weights)):
        assert plain(generated(symbols, n, "fp16", form).flops) == generated(model, 40, "fp16", form).flops
