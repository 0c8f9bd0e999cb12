"""Common parts of sweeps over kernels, and sweeps over matrix multiplications, by the formulas of ``perfmodel matmul``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.checks import MOST_SRAM, dtype_on
from perfmodel.core.cost import Tile, memory_bytes
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate, Traffic, estimate, total
from perfmodel.kernels.matmul import Matmul, default_tile, extra_memory_bytes, io_lower_bound, library_tile
from perfmodel.kernels.question import MatmulQuestion
from perfmodel.kernels.tile import TENSOR_TILE, WIDE_COLUMNS, OnChip, choose_tile, on_chip, with_sram
from perfmodel.sweep.base import (
    DTYPE,
    FITS,
    HARDWARE,
    SweepColumn,
    SweepInput,
    SweepVariant,
    SweepWorkload,
    choice,
    count,
    device_named,
    fallbacks,
    fits,
    read_columns,
    with_question_defaults,
)
from perfmodel.timing.select_kernel import check_implementation, select_product


class TileSizes:
    """Sizes of tiles for blocks of rows. ``choose``: gives sizes by name, or the reason why there are none; called once for each case."""

    MOST_BLOCKS = 64
    """Blocks of which the sizes are kept."""

    def __init__(self, names: Sequence[str], choose: Callable[..., Mapping[str, Number] | str]) -> None:
        self.names, self.choose = names, cache(choose)
        self._blocks: dict[Any, tuple[dict[str, Any], dict[str, Any]]] = {}

    def of(self, *axes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Sizes for all rows of the broadcast ``axes`` (1 where there are none), and masks of the rows without sizes, by reason."""
        import numpy as np

        arrays = [np.asarray(axis, float) for axis in axes]
        arrays = [array.flat[0] if (array == array.flat[0]).all() else array for array in arrays]
        key = tuple((np.shape(array), array.tobytes()) for array in arrays)
        if key not in self._blocks:
            if len(self._blocks) >= self.MOST_BLOCKS:
                self._blocks.clear()
            self._blocks[key] = self._of_rows(np.broadcast_arrays(*arrays))
        return self._blocks[key]

    def _of_rows(self, arrays: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Sizes, and masks of rows without sizes, for ``arrays`` of one shape."""
        import numpy as np

        cases, case_of_row = np.unique(np.stack([array.reshape(-1) for array in arrays]), axis=1, return_inverse=True)
        case_of_row = case_of_row.reshape(arrays[0].shape)
        chosen = [self.choose(*map(int, case)) for case in cases.T]
        sizes = {}
        for name in self.names:
            by_case = [1.0 if isinstance(tile, str) else tile[name] for tile in chosen]
            sizes[name] = np.array(by_case, float)[case_of_row]
        reasons = dict.fromkeys(tile for tile in chosen if isinstance(tile, str))
        missing = {reason: np.array([tile == reason for tile in chosen])[case_of_row] for reason in reasons}
        return sizes, missing


def _intensity(cost: Estimate, level: Traffic) -> Number:
    """FLOP/B; NaN if no byte crosses the level."""
    return float("nan") if isinstance(level.total, int) and level.total == 0 else cost.intensity(level)


COSTS = (
    count("flops", "FLOP", "matmul FLOP on visible scores; a multiply-add counts 2", of=lambda e: e.flops),
    count("executed_flops", "FLOP", "matmul FLOP as run: recomputation, masked parts of tiles, padding", of=lambda e: e.executed_flops),
    count("tensor_flops", "FLOP", "executed on the tensor unit", of=lambda e: e.work.tensor),
    count("vector_flops", "FLOP", "executed on the vector unit", of=lambda e: e.work.vector),
    count("exponentials", "OP", "executed on the special function unit", of=lambda e: e.work.sfu),
    count("accesses_elements", "elements", "loads and stores of the two-level model", of=lambda e: e.reads + e.writes),
    count("reads_elements", "elements", "loads among them", of=lambda e: e.reads),
    count("writes_elements", "elements", "stores among them", of=lambda e: e.writes),
    count("sram_bytes", "B", "bytes between L2 and SMs", of=lambda e: e.sram.total),
    count("sram_read_bytes", "B", "those read", of=lambda e: e.sram.read),
    count("sram_write_bytes", "B", "those written", of=lambda e: e.sram.write),
    count("dram_bytes", "B", "bytes that pass the memory pins", of=lambda e: e.dram.total),
    count("dram_read_bytes", "B", "those read", of=lambda e: e.dram.read),
    count("dram_write_bytes", "B", "those written", of=lambda e: e.dram.write),
    SweepColumn("sram_intensity_flop_per_byte", "FLOP/B", "flops over sram_bytes", of=lambda e: _intensity(e, e.sram)),
    SweepColumn("dram_intensity_flop_per_byte", "FLOP/B", "flops over dram_bytes", of=lambda e: _intensity(e, e.dram)),
    SweepColumn("lower_s", "s", "lower bound, inputs cold", of=lambda e: e.lower_s),
    SweepColumn("lower_warm_s", "s", "lower bound, inputs and outputs in the caches", of=lambda e: e.lower_warm_s),
    SweepColumn("roofline_s", "s", "roof: all terms overlap", of=lambda e: e.roofline_s),
    SweepColumn("no_overlap_s", "s", "terms of the roof added up", of=lambda e: e.no_overlap_s),
    count("memory_bytes", "B", "every tensor allocated at once"),
    count("extra_memory_bytes", "B", "the part beyond inputs and outputs"),
    count(FITS, "", "1 if every tensor at once fits the memory, 0 if not: then times are those of a GPU with more of it", more=True),
)
PREDICTED = (
    SweepColumn("predicted_s", "s", "predicted time of a kernel that exists", pointwise=True),
    SweepColumn("predicted_low_s", "s", "lower end of its 80 % interval", pointwise=True),
    SweepColumn("predicted_high_s", "s", "upper end of its 80 % interval", pointwise=True),
)


def costs(cost: Estimate) -> Mapping[str, Number]:
    """The columns of ``COSTS`` that an estimate gives."""
    return read_columns(COSTS, cost)


def predicted_columns(prediction: Any) -> dict[str, float | None]:
    """The columns of ``PREDICTED``; None without a prediction."""
    if prediction is None:
        return dict.fromkeys(column.name for column in PREDICTED)
    return {"predicted_s": prediction.seconds, "predicted_low_s": prediction.low, "predicted_high_s": prediction.high}


def kernel_workload(question: type[Any], inputs: Sequence[SweepInput], columns: Sequence[SweepColumn], **more: Any) -> SweepWorkload:
    """A workload of kernels with ``inputs`` besides device and format, and ``columns`` besides costs, memory and predicted times."""
    return SweepWorkload(
        inputs=with_question_defaults(question, HARDWARE, DTYPE, *inputs),
        columns=(*COSTS, *columns, *PREDICTED),
        shown=("flops", "executed_flops", "accesses_elements", "sram_bytes", "dram_bytes", "lower_s", "roofline_s", FITS),
        objective="roofline_s",
        words={"time": "roofline_s", "io": "sram_bytes", "memory": "memory_bytes"},
        **more,
    )


# Matrix multiplications

_TILE = ("br", "bc", "threads")
_EDGES = ("tile_m", "tile_n")


@dataclass(frozen=True)
class MatmulVariant(SweepVariant):
    """One device and number format. ``device``: with the SRAM that is given; ``profile``: with its own. ``chip``: what a tile may take.

    ``probe``: a matmul with the format and the split of k.
    """

    device: Device
    profile: Device
    chip: OnChip
    probe: Matmul
    implementation: str | None = None

    @cached_property
    def sizes(self) -> TileSizes:
        """Sizes of tiles, computed once."""
        return TileSizes(_TILE, self._tile)

    def _tile(self, rows: int, columns: int, br: int, bc: int) -> Mapping[str, Number] | str:
        """Sizes of a product's tile, or the reason why there is none; ``br``, ``bc``: given edges, else 0."""
        largest = library_tile(self.device, self.probe.dtype)
        try:
            tile = choose_tile(self.probe.dtype, self.chip, (rows, columns), largest, br or None, bc or None)
        except PerfmodelError as error:
            return error.message
        return {name: getattr(tile, name) for name in _TILE}

    def prepare(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Sizes of the tile, and masks of rows in which it does not fit or k cannot be split."""
        import numpy as np

        rows, columns = np.minimum(values["m"], TENSOR_TILE), np.minimum(values["n"], WIDE_COLUMNS)  # more of them change nothing
        sizes, left_out = self.sizes.of(rows, columns, *(values.get(edge, 0) for edge in _EDGES))
        return sizes, {"split_k is more than k": values["k"] < self.probe.split_k, **left_out}

    def _workload(self, numbers: Mapping[str, Number]) -> Matmul:
        return replace(self.probe, **{name: numbers[name] for name in ("m", "n", "k", "batch")})

    def formulas(self, numbers: Mapping[str, Number]) -> Mapping[str, Number]:
        """Columns other than predicted times, by name."""
        w = self._workload(numbers)
        cluster = library_tile(self.device, w.dtype).cluster
        kernels = w.kernels(Tile(**{name: numbers[name] for name in _TILE}, cluster=cluster))
        size = memory_bytes(kernels)
        return {
            **costs(total(estimate(kernel, self.device) for kernel in kernels)),
            "memory_bytes": size,
            "extra_memory_bytes": extra_memory_bytes(w),
            FITS: fits(size, self.device),
            "tile_rows": numbers["br"],
            "tile_columns": numbers["bc"],
            "io_lower_bound_elements": io_lower_bound(w, self.chip.total / w.dtype.size),
        }

    def point(self, values: Mapping[str, int], columns: Sequence[str]) -> Mapping[str, float | None]:
        """Predicted seconds and their interval; None if no calibration covers the row."""
        w = self._workload(values)
        tile_sizes, _ = self.prepare(values)
        lower_s = float(self.formulas({**values, **{name: int(size) for name, size in tile_sizes.items()}})["lower_s"])
        try:
            tile = default_tile(w, self.device, values.get("tile_m"), values.get("tile_n"))
            prediction = select_product(w, tile, self.profile, lower_s, fallbacks, self.implementation)
        except PerfmodelError:
            return predicted_columns(None)
        return predicted_columns(prediction)


def variant(choices: Mapping[str, Any]) -> MatmulVariant:
    """The variant for one combination of choices; PerfmodelError says why there is none."""
    profile = device_named(choices["hardware"])
    device = profile if choices["sram"] is None else with_sram(profile, choices["sram"])
    probe = Matmul(1, 1, choices["split_k"], 1, choices["split_k"], dtype_on(choices["dtype"], device)).check()
    if choices["implementation"] is not None:
        check_implementation(choices["implementation"], "matmul", device, fallbacks)
    return MatmulVariant(device, profile, on_chip(device), probe, choices["implementation"])


MATMUL = kernel_workload(
    MatmulQuestion,
    (
        choice("split_k", "blocks that share the k of a tile"),
        choice("sram", "SRAM per block", unit="B", most=MOST_SRAM),
        choice("implementation", "kernel of the predicted columns", kind="name", columns=tuple(column.name for column in PREDICTED)),
        SweepInput("m", "rows of A and C", required=True),
        SweepInput("n", "columns of B and C", required=True),
        SweepInput("k", "columns of A, rows of B", required=True),
        SweepInput("batch", "independent matmuls"),
        SweepInput("tile_m", "tile rows"),
        SweepInput("tile_n", "tile columns"),
    ),
    (
        SweepColumn("io_lower_bound_elements", "elements", "what any schedule moves with the device's fast memory"),
        count("tile_rows", "rows", "rows of the tile"),
        count("tile_columns", "columns", "columns of the tile"),
    ),
    name="matmul",
    variant=variant,
    always=("hardware", "m", "n", "k"),
)
