"""Sweeps over attention: one row per configuration and algorithm, by the formulas of ``perfmodel attention``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import Any

from perfmodel.core.arith import Number, minimum
from perfmodel.core.checks import MOST_SRAM
from perfmodel.core.cost import Tile
from perfmodel.core.errors import PerfmodelError, UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.kernels.attention.algorithms import find, names
from perfmodel.kernels.attention.base import Algorithm
from perfmodel.kernels.attention.evaluate import AttentionResult, both, evaluate_tile, sram_bytes_for
from perfmodel.kernels.attention.question import PASSES, AttentionQuestion
from perfmodel.kernels.attention.request import READ_BY, Comparison, check_read
from perfmodel.kernels.attention.tiles import LARGEST_EDGE, fitting_tile, tallest
from perfmodel.sweep.base import FITS, SweepInput, SweepVariant, choice, count, device_named, fallbacks, fits
from perfmodel.sweep.kernels import TileSizes, costs, kernel_workload, predicted_columns
from perfmodel.timing.implementations import algorithm_of
from perfmodel.timing.select_kernel import answered, check_compared, check_implementation

_SIZES = ("n", "kv_len", "d", "dv", "batch", "heads", "kv_heads")
_TILE = ("br", "bc", "threads", "head_dim")


@dataclass(frozen=True)
class AttentionVariant(SweepVariant):
    """One algorithm on one device in one number format.

    ``passes``: forward, backward, or both. ``probe``: a workload with all choices and small sizes. ``sram_bytes``: SRAM of a block unless
    rows give it. ``implementation``: the kernel that is predicted, None for any.
    """

    algorithm: Algorithm
    device: Device
    passes: Sequence[str]
    probe: Attention
    sram_bytes: int | None
    implementation: str | None = None

    @cached_property
    def sizes(self) -> TileSizes:
        """Sizes of the tiles of every pass, computed once."""
        return TileSizes([f"{direction} {name}" for direction in self.passes for name in _TILE], self._tiles)

    def _tiles(self, rows: int, d: int, dv: int, br: int, bc: int, sram_bytes: int) -> Mapping[str, Number] | str:
        """Sizes of the tiles of every pass, or the reason why there are none. ``br``, ``bc``: given edges, else 0."""
        rows = tallest(rows)
        w = replace(self.probe, n=rows, kv_len=rows, d=d, dv=dv)
        sizes: dict[str, Number] = {}
        for direction in self.passes:
            try:
                tile = fitting_tile(self.algorithm, w, self.device, direction, sram_bytes, br or None, bc or None)
            except PerfmodelError as error:
                return error.message
            sizes |= {f"{direction} {name}": getattr(tile, name) for name in _TILE}
        return sizes

    def prepare(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tile sizes; rows whose heads do not form groups, or for which no tile fits, are left out."""
        sizes: dict[str, Any] = {}
        left_out: dict[str, Any] = {}
        if self.algorithm.tiling is not None:
            rows = values["n"] * (values["heads"] // values["kv_heads"] if self.probe.packed else 1)
            edges = (values.get(name, 0) for name in ("d", "dv", "block_q", "block_kv"))
            sram_bytes = values.get("sram", self.sram_bytes or 0)
            tile_sizes, no_tile = self.sizes.of(minimum(rows, LARGEST_EDGE), *edges, sram_bytes)  # a tile has no more rows
            sizes, left_out = dict(tile_sizes), dict(no_tile)
        if values["heads"] is not values["kv_heads"]:
            left_out["kv_heads does not divide heads"] = values["heads"] % values["kv_heads"] != 0
            if self.grouped:
                left_out[self.grouped] = values["heads"] != values["kv_heads"]
                sizes["kv_heads"] = values["heads"] + 0 * values["kv_heads"]  # so that formulas have a meaning in the rows left out
        return sizes, left_out

    @property
    def grouped(self) -> str | None:
        """Reason why query heads cannot share K and V here; None if they can."""
        return self.algorithm.obstacle(replace(self.probe, heads=2), self.passes[0])

    def formulas(self, numbers: Mapping[str, Number]) -> Mapping[str, Number]:
        """Columns other than predicted times, by name."""
        return _columns(self._results(self._workload(numbers), numbers), self.device)

    def _results(self, w: Attention, numbers: Mapping[str, Number]) -> list[AttentionResult]:
        """Results of each pass, and of the sum of two."""
        results = [self._result(w, direction, numbers) for direction in self.passes]
        return [*results, both(*results)] if len(results) == 2 else results

    def _workload(self, numbers: Mapping[str, Number]) -> Attention:
        """The workload of a row, or of all rows as recorded numbers."""
        options = {name: numbers[name] for name in ("window", "splits") if name in numbers}
        sizes = {name: numbers[name] for name in _SIZES}
        heads, kv_heads = sizes["heads"], sizes["kv_heads"]
        if isinstance(heads, int) and isinstance(kv_heads, int) and heads % kv_heads:
            sizes["kv_heads"] = heads  # all rows are left out; formulas only must not divide by 0 groups of heads
        return replace(self.probe, **sizes, **options)

    def _result(self, w: Attention, direction: str, numbers: Mapping[str, Number]) -> AttentionResult:
        """The result of one pass, with the tile sizes among ``numbers``."""
        if self.algorithm.tiling is None:
            return evaluate_tile(self.algorithm, w, self.device, direction, Tile(1, 1))
        br, bc, threads, head_dim = (numbers[f"{direction} {name}"] for name in _TILE)
        tile = self.algorithm.tiling.complete(w, self.device, Tile(br, bc, threads, head_dim=head_dim))
        return evaluate_tile(self.algorithm, w, self.device, direction, tile)

    def point(self, values: Mapping[str, int], columns: Sequence[str]) -> Mapping[str, float | None]:
        """Predicted seconds and their interval, None if no calibration covers the row; with an implementation every column."""
        w = self._workload(values)
        tile_sizes, _ = self.prepare(values)
        results = self._results(w, {**values, **{name: int(size) for name, size in tile_sizes.items()}})
        direction = results[-1].direction
        br, bc = values.get("block_q"), values.get("block_kv")
        comparison = Comparison(w, self.device, direction, self.sram_bytes, results, block_q=br, block_kv=bc)
        shown, predictions, _ = answered(comparison, self.implementation, fallbacks)
        row = _columns(shown.results, self.device) | predicted_columns(predictions.get((self.algorithm.name, direction)))
        return {name: None if row[name] is None else float(row[name]) for name in columns}


def _columns(results: Sequence[AttentionResult], device: Device) -> dict[str, Any]:
    """Columns of the last of ``results``, with the tile of the first."""
    result, tile = results[-1], results[0].tile
    return {
        **costs(result.total),
        "memory_bytes": result.memory_bytes,
        "extra_memory_bytes": result.extra_memory_bytes,
        FITS: fits(result.memory_bytes, device),
        "tile_br": 0 if tile is None else tile.br,
        "tile_bc": 0 if tile is None else tile.bc,
    }


def variant(choices: Mapping[str, Any]) -> AttentionVariant:
    """The variant for one combination of choices; PerfmodelError says why there is none."""
    device, algorithm = device_named(choices["hardware"]), find(choices["algorithm"])
    if choices["pass"] not in PASSES:
        raise UsageError(f"--pass: unknown pass {choices['pass']!r}", suggest(choices["pass"], list(PASSES)))
    windowed = choices["windowed"]
    if windowed and choices["causal"] is False:
        raise UsageError("a window is of the last keys, so it implies a causal mask")
    options = {name: value for name, value in choices.items() if name not in ("packed", "algorithm")}
    probe = AttentionQuestion(n=LARGEST_EDGE, d=1, window=1 if windowed else None).updated(options).workload()
    dtype = probe.dtype._replace(matmul_unit=device.matmul_unit(probe.dtype.name, probe.dtype.matmul_unit))
    probe = replace(probe, dtype=dtype, packed=choices["packed"])
    for direction in PASSES[choices["pass"]]:
        obstacle = algorithm.obstacle(probe, direction)
        if obstacle:
            raise UsageError(f"{algorithm.name}: {obstacle}")
    implementation = choices["implementation"]
    if implementation is not None:
        check_implementation(implementation, "attention", device, fallbacks)
        if algorithm_of(implementation) != algorithm.name:
            implementation = None
    sram = sram_bytes_for([algorithm], device) if not choices["sram_given"] else None
    return AttentionVariant(algorithm, device, PASSES[choices["pass"]], probe, sram, implementation)


def split(
    choices: Mapping[str, Any], numbers: Mapping[str, Any], derived: Mapping[str, Any]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Parts of the grid; rows of a single query are a separate part, as heads that share K and V are packed there by default."""
    chosen = {**choices, "windowed": "window" in {*numbers, *derived}, "sram_given": "sram" in {*numbers, *derived}}
    if choices["causal"] is None:
        chosen["causal"] = chosen["windowed"]
    shares_kv = "kv_heads" in numbers or derived["kv_heads"].alias != "heads"
    if choices["packed"] is not None or not shares_kv:
        return [({**chosen, "packed": bool(choices["packed"])}, dict(numbers))]
    if "n" in derived:
        raise UsageError("--n is derived: whether K and V are packed cannot be told from it", "say --packed true or --packed false")
    n = numbers["n"]
    parts = []
    for packed, lengths in ((True, n[n == 1]), (False, n[n != 1])):
        if len(lengths):
            parts.append(({**chosen, "packed": packed}, {**numbers, "n": lengths}))
    return parts


def check(choices: Mapping[str, Sequence[Any]], axes: Mapping[str, Any]) -> None:
    """UsageError for an option that none of the algorithms reads, as in ``perfmodel attention``."""
    given = [option for option in READ_BY if axes.get(option) is not None and choices.get(option) != [False]]
    passes = [direction for name in choices["pass"] for direction in PASSES.get(name, ())]
    algorithms = [find(name) for name in choices["algorithm"]]
    check_read(given, algorithms, passes)
    uses_sram = any(algorithm.tiling is not None and algorithm.tiling.in_sram for algorithm in algorithms)
    if axes.get("sram") is not None and not uses_sram:
        raise UsageError("--sram is for algorithms with tiles in SRAM", "add --algorithm flash, or leave it out")
    if axes.get("packed") is not None and axes.get("kv_heads") is None:
        raise UsageError("--packed is for query heads that share K and V", "give --kv-heads too, or leave it out")
    for implementation in filter(None, choices["implementation"]):
        check_compared(implementation, choices["algorithm"])


_flag = partial(choice, default=False)
ATTENTION = kernel_workload(
    AttentionQuestion,
    (
        choice("pass", "forward, backward or both", FORWARD, names=lambda: list(PASSES)),
        choice("algorithm", "algorithm", ["standard", "flash2"], names=names, canonical=cache(lambda name: find(name).name)),
        choice("causal", "causal mask, aligned bottom right; by default where there is a window"),
        _flag("mask", "additive mask, an input of n x kv_len entries"),
        _flag("masked_fill", "causal mask by a kernel of its own, as masked_fill in PyTorch"),
        choice("dropout", "dropout probability", 0.0, least=0, most=1, below=1),
        _flag("unfused_scale", "1/sqrt(d) in a kernel of its own"),
        _flag("printed_backward", "flash2 backward loads as Algorithm 2 prints them"),
        choice("packed", "K, V read once per KV head; by default where n is 1"),
        choice("sparsity", "share of nonzero blocks, block-sparse", least=0, most=1),
        choice("pattern", "nonzero blocks, block-sparse"),
        choice("implementation", "kernel that is predicted, and whose traffic and roof its algorithm has", kind="name", pointwise=True),
        SweepInput("n", "query length", required=True),
        SweepInput("kv_len", "key/value length", "n"),
        SweepInput("d", "head dim of Q and K", required=True),
        SweepInput("dv", "head dim of V", "d"),
        SweepInput("batch", "sequences", 1),
        SweepInput("heads", "query heads", 1),
        SweepInput("kv_heads", "key/value heads", "heads"),
        SweepInput("window", "sliding window, implies causal"),
        SweepInput("splits", "parts of the keys, split-kv"),
        SweepInput("block_q", "tile rows"),
        SweepInput("block_kv", "tile columns"),
        SweepInput("sram", "SRAM per block", unit="B", most=MOST_SRAM),
    ),
    (
        count("tile_br", "rows", "rows of the tile, 0 for none; that of the forward pass where both are asked for"),
        count("tile_bc", "rows", "keys of the tile"),
    ),
    name="attention",
    variant=variant,
    compared="algorithm",
    always=("hardware", "algorithm", "n", "d"),
    split=split,
    check=check,
)
