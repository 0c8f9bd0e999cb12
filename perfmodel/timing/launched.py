"""The kernels that an implementation of attention (such as torch-sdpa-flash) launches, with their memory traffic and roofline.

An implementation runs an algorithm in its own way, so that its kernels move other bytes than the algorithm's:

- Fused kernels have the tile that the library chooses. Their backward pass adds up dQ in fp32 by atomics, so that no block reads dQ back;
  one kernel zeroes it before, another converts it after.
- Kernels that load by TMA (cuDNN, FlashAttention-3, nvjet) load whole tiles, also past the end of the sequence.
- PyTorch's memory-efficient kernels load Q again for every key tile.
- Eager attention has separate kernels for scale and mask, and matmuls that read each operand once per tile of the other.

FLOP, bounds and memory remain the algorithm's. Sources: Dao-AILab/flash-attention @0251105a csrc/flash_attn/src/flash_bwd_kernel.h,
flash_bwd_preprocess_kernel.h; PyTorch, aten/src/ATen/native/cuda/SoftMax.cu (softmax_backward_cuda_out multiplies by the probabilities in a
kernel before) and mem_eff_attention/kernel_forward.h; L2-to-SM counters of all of them on an H200.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from perfmodel.core.architectures import Traits, traits_of, wide_matrix
from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.cost import GROUP_SUM, READ, WRITE, Access, Kernel, Tile, Work, once
from perfmodel.core.errors import PerfmodelError, UnavailableError
from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.plugins import plugins
from perfmodel.core.roofline import estimate, total
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.algorithms import find
from perfmodel.kernels.attention.algorithms.flash2 import computed_widths
from perfmodel.kernels.attention.algorithms.standard import PRODUCTS, product
from perfmodel.kernels.attention.base import key_rows_stored, query_rows, query_write
from perfmodel.kernels.attention.evaluate import BOTH, AttentionResult, both, evaluate_tile
from perfmodel.kernels.attention.request import Comparison
from perfmodel.kernels.attention.walk import key_tiles, streamed_query_rows, visited_tiles
from perfmodel.kernels.attention.walk import row_tiles as row_count
from perfmodel.kernels.matmul import Matmul, MatmulResult, column_tiles, evaluate, library_tile, row_tiles
from perfmodel.kernels.tile import GIVEN, tile_threads
from perfmodel.timing.base import MODELS, Case, Model, calibrations
from perfmodel.timing.implementations import FUSED, algorithm_of, kernel_name
from perfmodel.timing.models import gemm
from perfmodel.timing.models._attention_grid import WGMMA, AttentionLaunch, padded, with_tile
from perfmodel.timing.models.gemm import SLICE_BYTES, WIDE_COPY, copy_bytes
from perfmodel.timing.operand_copies import operand_copies
from perfmodel.timing.predict import Prediction
from perfmodel.timing.reference_devices import FallbackDevices, reference_device

EAGER, EFFICIENT, MATMUL = "torch-eager", "torch-sdpa-efficient", "torch-matmul"
ACCUMULATOR_SIZE = 4
"""Bytes per element of the fp32 accumulators of dQ and O."""


def implementation_kernels(
    comparison: Comparison, implementation: str | None, fallbacks: FallbackDevices = tuple
) -> tuple[Comparison, list[str]]:
    """``comparison`` with traffic and roofline of ``implementation``'s kernels for the algorithm that it runs, and notes for the report."""
    if implementation is None:
        return comparison, []
    results: dict[tuple[str, str], AttentionResult] = {}
    notes: list[str] = []
    for result in comparison.results:
        algorithm = result.algorithm.name
        key = (algorithm, result.direction)
        results[key] = result
        if algorithm_of(implementation) != algorithm:
            continue
        try:
            if result.direction == BOTH:
                results[key] = both(results[algorithm, FORWARD], results[algorithm, BACKWARD])
            else:
                results[key] = _launched(comparison, result, implementation, fallbacks)
                notes.append(f"{' '.join(key)}: traffic, intensity and roofline are those of {implementation}'s kernels.")
        except PerfmodelError as error:
            notes.append(f"{' '.join(key)}: {error.message}.")
    return replace(comparison, results=list(results.values())), notes


def _launched(comparison: Comparison, result: AttentionResult, implementation: str, fallbacks: FallbackDevices) -> AttentionResult:
    """``result`` with the kernels of ``implementation``; counts and bounds stay those of the algorithm."""
    w, device, tile = comparison.workload, comparison.device, result.tile
    given = {"br": int(tile.br), "bc": int(tile.bc)} if tile and comparison.tile_given else {}
    case = Case(w, implementation, result.direction, launch=given)
    kernels, library_tile = kernels_of(case, device, fallbacks)
    if library_tile is not None and not comparison.tile_given:
        result = evaluate_tile(result.algorithm, w, device, result.direction, library_tile)
    pairs = [(kernel, estimate(kernel, device)) for kernel in kernels]
    counts = ("flops", "reads", "writes", "zero_fill", "zero_fill_bytes", "group_sum", "access_bytes", "needs")
    kernels_total = replace(total(cost for _, cost in pairs), **{name: getattr(result.total, name) for name in counts})
    return result._replace(kernels=pairs, total=kernels_total, implementation=implementation)


def kernels_of(case: Case, device: Device, fallbacks: FallbackDevices = tuple) -> tuple[list[Kernel], Tile | None]:
    """(kernels that ``case.implementation`` launches, in order; tile of the main one). UnavailableError if they are unknown."""
    w: Attention = case.workload
    kernel = kernel_name(case.implementation)
    if kernel == EAGER and w.group == 1:
        return eager(w, case.direction, lambda matmul: matmul_tile(matmul, device, fallbacks)), None
    plan = plan_of(case, device) if _has_known_traffic(case) else None
    if plan is None:
        raise UnavailableError(f"what {case.implementation} loads is not known: traffic is the algorithm's")
    w = replace(w, packed=plan.packed, printed_backward=False)
    width = plan.width or padded(max(w.d, w.dv))
    tile = Tile(plan.br, plan.bc, plan.threads, f"{case.implementation}'s", width, plan.splits)
    if case.direction == BACKWARD:
        copies = zip(operand_copies(case), ("O", "dO"), strict=False)
        copy_kernels = [copy.kernels(tile)[0]._replace(name=f"copy of {name}") for copy, name in copies]
        kernels = [*copy_kernels, *accumulated(find("flash2").backward(w, tile), w)]
    else:
        kernels = find("split-kv" if plan.splits > 1 else "flash2").forward(w, tile)
    if plan.rows >= WGMMA:
        kernels = [_with_whole_tiles(launched, w, tile, case.direction) for launched in kernels]
    if kernel == EFFICIENT:
        kernels = [_with_queries_reread(launched, w, tile) for launched in kernels]
    if plan.writes_cache:  # K and V are copied into a paged cache first
        elements = key_rows_stored(w) * (w.d + w.dv)
        moved = (once("K, V", READ, elements, w.dtype.size, compulsory=0), once("cache", WRITE, elements, w.dtype.size, compulsory=0))
        kernels = [Kernel("append to the cache", w.dtype, moved), *kernels]
    return kernels, tile


def _has_known_traffic(case: Case) -> bool:
    """Whether the traffic of a fused implementation is that of FlashAttention-2's kernels with another tile."""
    if kernel_name(case.implementation) == EFFICIENT and case.direction == BACKWARD:
        return False  # it loads three to seven times what the algorithm does
    if algorithm_of(case.implementation) != FUSED:
        return False  # FlashAttention 1 passes its O through memory in fp32
    return bool(case.workload.n > 1 and case.workload.sparsity is None)


def plan_of(case: Case, device: Device) -> AttentionLaunch | None:
    """Launch of ``case.implementation``, with the tile of the case if it names one; None if no time model knows the launch."""
    model = _model_with_launch(case.implementation, traits_of(device))
    return None if model is None or model.launch is None else with_tile(case, device, model.launch)


@cache
def _model_with_launch(implementation: str, traits: Traits) -> Model | None:
    """The first model of ``implementation`` that knows its launch on devices with these traits. Few other modules are loaded."""
    for _, plugin in plugins(MODELS, "MODEL", "MODELS", implementation):
        model: Model = plugin
        if model.launch is not None and implementation in model.implementations and model.runs_on(implementation, traits):
            return model
    return None


def _with_whole_tiles(kernel: Kernel, w: Attention, tile: Tile, direction: str) -> Kernel:
    """``kernel`` with every tile of Q, K, V and dO loaded whole; unchanged if it has no tiles."""
    if kernel.launch is None:
        return kernel
    d, dv = computed_widths(w, tile)
    visited = visited_tiles(w, tile.br, tile.bc)
    if direction == FORWARD:
        query_loads, key_loads = row_count(w, tile.br), visited
    else:
        query_loads, key_loads = visited, key_tiles(w, tile.bc)
    query_rows_loaded, key_rows_loaded = query_loads * tile.br, key_loads * tile.bc
    loaded = {"Q": query_rows_loaded * d, "dO": query_rows_loaded * dv, "K": key_rows_loaded * d, "V": key_rows_loaded * dv}
    reads = [access for access in kernel.accesses if access.kind == READ and access.tensor in loaded]
    beyond = [_past_the_end(access, w.row_heads * loaded[access.tensor]) for access in reads]
    return kernel._replace(accesses=(*kernel.accesses, *beyond))


def _past_the_end(access: Access, elements: Number) -> Access:
    """The loads beyond ``access`` if tiles load ``elements`` in total: past the end of the tensor, so they cause no DRAM traffic."""
    beyond = elements - access.elements
    return access._replace(tensor=f"{access.tensor}, past the end", elements=beyond, footprint=0, compulsory=0, reread=False)


WIDEST_IN_REGISTERS = 128
"""Head dim up to which the memory-efficient kernel keeps O in registers."""


def _with_queries_reread(kernel: Kernel, w: Attention, tile: Tile) -> Kernel:
    """``kernel`` with Q loaded for every key tile; an O too wide for registers goes through memory between key tiles, in fp32."""
    rows = w.row_heads * streamed_query_rows(w, tile.br, tile.bc)
    accesses = [a._replace(elements=rows * w.d, reread=True) if a.tensor == "Q" else a for a in kernel.accesses]
    if max(w.d, w.dv) > WIDEST_IN_REGISTERS:
        moved, distinct = (rows - query_rows(w)) * w.dv, query_rows(w) * w.dv
        for kind in (READ, WRITE):
            access = Access("O accumulator", kind, moved, ACCUMULATOR_SIZE, distinct, compulsory=0, reread=True, handoff=True)
            accesses.append(access)
    return kernel._replace(accesses=tuple(accesses))


def accumulated(kernels: Sequence[Kernel], w: Attention) -> list[Kernel]:
    """FlashAttention-2's backward kernels with dQ accumulated by atomics in fp32, and dK, dV of grouped heads summed by another kernel."""
    row_sums, main = kernels
    elements = query_rows(w) * w.d
    zeroing = once("dQ accumulator", WRITE, elements, ACCUMULATOR_SIZE, compulsory=0, handoff=True)
    accesses: list[Access] = []
    group_sums: list[Kernel] = []
    for access in main.accesses:
        if access.kind == GROUP_SUM:
            if access.elements:
                stored = key_rows_stored(w) * (w.d + w.dv)
                parts = once("dK, dV by head", READ, access.elements - stored, access.element_size, compulsory=0, handoff=True)
                results = once("dK, dV", WRITE, stored, access.element_size, compulsory=0)
                group_sums.append(Kernel("sum over the group", w.dtype, (parts, results)))
        elif access.tensor != "dQ":
            accesses.append(access)
        elif access.kind == WRITE:
            accesses.append(access._replace(tensor=zeroing.tensor, element_size=ACCUMULATOR_SIZE, compulsory=0, handoff=True))
    read = once(zeroing.tensor, READ, elements, ACCUMULATOR_SIZE, compulsory=0, handoff=True)
    conversion = Kernel("convert dQ", w.dtype, (read, query_write(w, "dQ", w.d)))
    row_sums = row_sums._replace(accesses=(*row_sums.accesses, zeroing))
    return [row_sums, main._replace(accesses=tuple(accesses)), conversion, *group_sums]


# Eager attention

TileOf = Callable[[Matmul], tuple[Tile, bool]]
"""Function that gives the tile of a product, and whether its kernel loads whole tiles."""


def eager(w: Attention, direction: str, tile_of: TileOf) -> list[Kernel]:
    """Kernels of torch.matmul, *, + and torch.softmax under autograd; a causal mask is a tensor that is added, like any mask."""
    standard = find("standard").forward if direction == FORWARD else find("standard").backward
    kernels: list[Kernel] = []
    for kernel in standard(replace(w, unfused_scale=True, mask=w.mask or w.causal), Tile(1, 1)):
        if kernel.name == "softmax backward":
            kernels.append(kernel._replace(name="dP * P", work=Work(0, w.query_heads * w.n * w.kv_len)))
        kernels.append(_product(kernel, w, tile_of) if kernel.name in PRODUCTS else kernel)
    return kernels


def _product(kernel: Kernel, w: Attention, tile_of: TileOf) -> Kernel:
    """``kernel``, a matmul, with each operand read once per tile of the other."""
    matmul = product(w, kernel.name)
    tile, loads_whole_tiles = tile_of(matmul)
    rows, columns = row_tiles(matmul, tile), column_tiles(matmul, tile)
    a, b = (access for access in kernel.accesses if access.kind == READ)
    a = a._replace(elements=a.elements * columns, reread=True)
    b = b._replace(elements=b.elements * rows, reread=True)
    accesses = [a, b, *(access for access in kernel.accesses if access.kind != READ)]
    if loads_whole_tiles:
        slices = ceil_div(matmul.k * w.dtype.size, SLICE_BYTES)
        loaded_k = slices * SLICE_BYTES // w.dtype.size * w.query_heads
        accesses.append(_past_the_end(a, rows * columns * tile.br * loaded_k))
        accesses.append(_past_the_end(b, rows * columns * tile.bc * loaded_k))
    return kernel._replace(accesses=tuple(accesses), launch=matmul.kernels(tile)[0].launch)


def matmul_tile(w: Matmul, device: Device, fallbacks: FallbackDevices = tuple) -> tuple[Tile, bool]:
    """(tile that the calibrated model of torch.matmul finds fastest, else a default one; whether TMA loads whole tiles)."""
    case = Case(w, MATMUL)

    def blocks_of(candidate: Device) -> list[Calibration]:
        return [block for block in calibrations(candidate, "matmul", w.dtype.name, case) if block.model in gemm.MODELS]

    reference = reference_device(device, fallbacks, blocks_of)
    loads_whole_tiles = wide_matrix(device) and copy_bytes(w.n, w.k, w.dtype.size) == WIDE_COPY
    if reference is None:
        return library_tile(device, w.dtype), loads_whole_tiles
    return _fastest_tile(case, device, blocks_of(reference)[0].parameters), loads_whole_tiles


def as_predicted(result: MatmulResult, prediction: Prediction | None) -> MatmulResult:
    """``result``, which was given no tile, with the tile of the predicted library if that is known."""
    tile = None if prediction is None or result.tile.origin == GIVEN else product_tile(prediction)
    return result if tile is None else evaluate(result.workload, result.device, tile=tile)


def product_tile(prediction: Prediction) -> Tile | None:
    """The tile of a product in the predicted library; None if its time model has no tiles."""
    case, device, block = prediction.case, prediction.device, prediction.calibration
    if case is None or device is None or block.model not in gemm.MODELS or not isinstance(case.workload, Matmul):
        return None
    origin = f"the one that {block.implementation} runs, by its time model"
    return _fastest_tile(case, device, block.parameters)._replace(origin=origin)


def _fastest_tile(case: Case, device: Device, parameters: Mapping[str, float]) -> Tile:
    """The fastest tile by the model of cuBLAS; kernels whose blocks share a multiprocessor have no clusters."""
    _, plan = gemm.fastest(case, device, parameters)
    default = library_tile(device, case.workload.dtype)
    cluster = default.cluster if gemm.fed_by_tma(case.workload, device, plan) else 1
    return default._replace(br=plan.br, bc=plan.bc, threads=tile_threads(plan.br, plan.bc), splits=plan.parts, cluster=cluster)
