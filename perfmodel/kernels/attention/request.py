"""A resolved question about attention (see ``question.py``) and its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.algorithms import find
from perfmodel.kernels.attention.base import Algorithm
from perfmodel.kernels.attention.evaluate import BOTH, AttentionResult


@dataclass(frozen=True, slots=True)
class Comparison:
    """A resolved question about attention, and its results.

    ``sram_bytes``: M, None if not needed; ``sram_sizes``: the sizes to compare, empty without a comparison. ``predictions``: by algorithm
    and pass, if a kernel was named.
    """

    workload: Attention
    device: Device
    direction: str
    sram_bytes: int | None
    results: list[AttentionResult]
    sram_sizes: tuple[int, ...] = ()
    block_q: int | None = None
    block_kv: int | None = None
    predictions: Mapping[tuple[str, str], Any] = field(default_factory=dict)

    @property
    def tile_given(self) -> bool:
        """Whether an edge of the tile was asked for."""
        return self.block_q is not None or self.block_kv is not None

    def passes(self) -> list[str]:
        """The single passes asked for."""
        return [FORWARD, BACKWARD] if self.direction == BOTH else [self.direction]

    def shown(self) -> list[AttentionResult]:
        """Results of the pass asked for, or the sums if both were."""
        return [result for result in self.results if result.direction == self.direction]

    def standard(self, direction: str) -> AttentionResult | None:
        """The result of standard attention for one pass, None if it was not asked for."""
        matching = (result for result in self.results if result.algorithm.name == "standard" and result.direction == direction)
        return next(matching, None)

    def tiled_in_sram(self) -> list[Algorithm]:
        """The algorithms with a forward result whose tiles live in SRAM."""
        forward = {r.algorithm.name: r.algorithm for r in self.results if r.direction == FORWARD}
        return [algorithm for algorithm in forward.values() if algorithm.tiling and algorithm.tiling.in_sram]


class OptionRule(NamedTuple):
    """A rule for an option: ``readers`` in words, the ``addition`` that helps, and whether an algorithm reads it in a pass."""

    readers: str
    addition: str
    reads: Callable[[Algorithm, str], bool]


def _only(name: str) -> OptionRule:
    return OptionRule(name, f"--algorithm {name}", lambda algorithm, direction: algorithm.name == name)


_TILED = OptionRule("algorithms with tiles", "--algorithm flash", lambda algorithm, direction: algorithm.tiling is not None)
_IN_MEMORY = OptionRule(
    "algorithms that leave scores in memory",
    "--algorithm standard",
    lambda algorithm, direction: algorithm.name in ("standard", "memory-efficient"),
)
READ_BY: dict[str, OptionRule] = {
    "block_q": _TILED,
    "block_kv": _TILED,
    "sram": OptionRule(
        "the forward pass, and algorithms with tiles in SRAM",
        "--algorithm flash",
        lambda algorithm, direction: direction == FORWARD or (algorithm.tiling is not None and algorithm.tiling.in_sram),
    ),
    "masked_fill": _IN_MEMORY,
    "unfused_scale": _IN_MEMORY,
    "printed_backward": OptionRule(
        "the backward pass of flash2, which others share",
        "--algorithm flash2 --pass backward",
        lambda algorithm, direction: direction == BACKWARD and algorithm.backward is find("flash2").backward,
    ),
    "layout": OptionRule(
        "the backward pass of flash2",
        "--algorithm flash2 --pass backward",
        lambda algorithm, direction: direction == BACKWARD and algorithm.name == "flash2",
    ),
    "splits": _only("split-kv"),
    "sparsity": _only("block-sparse"),
    "pattern": _only("block-sparse"),
}
"""Rules by option. An option without a rule is read by every algorithm in every pass."""


def is_read(option: str, algorithms: Sequence[Algorithm], passes: Sequence[str]) -> bool:
    """Whether some of ``algorithms`` reads ``option`` in some of ``passes``."""
    return any(READ_BY[option].reads(algorithm, direction) for algorithm in algorithms for direction in passes)


def check_read(given: Iterable[str], algorithms: Sequence[Algorithm], passes: Sequence[str]) -> None:
    """UsageError for the first of ``given`` that none of ``algorithms`` reads in any of ``passes``."""
    for option in given:
        if not is_read(option, algorithms, passes):
            rule = READ_BY[option]
            raise UsageError(f"--{option.replace('_', '-')} is for {rule.readers}", f"add {rule.addition}, or leave it out")
