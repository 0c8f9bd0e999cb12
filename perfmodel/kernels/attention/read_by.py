"""Which algorithms and passes read an option: one that nothing asked for reads is refused, not ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from perfmodel.core.errors import UsageError
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.kernels.attention.base import Algorithm

Rule = tuple[str, str, Callable[[Algorithm, str], bool]]
"""What reads an option, in words; what to add; whether an algorithm does in a pass."""


def _only(name: str) -> Rule:
    return name, f"--algorithm {name}", lambda algorithm, direction: algorithm.name == name


_TILED: Rule = "algorithms with tiles", "--algorithm flash", lambda algorithm, direction: algorithm.tiling is not None
_IN_MEMORY: Rule = (
    "algorithms that leave scores in memory",
    "--algorithm standard",
    lambda algorithm, direction: algorithm.name in ("standard", "memory-efficient"),
)

READ_BY: dict[str, Rule] = {
    "block_q": _TILED,
    "block_kv": _TILED,
    "sram": (
        "the forward pass, and algorithms with tiles in SRAM",
        "--algorithm flash",
        lambda algorithm, direction: direction == FORWARD or (algorithm.tiling is not None and algorithm.tiling.in_sram),
    ),
    "masked_fill": _IN_MEMORY,
    "unfused_scale": _IN_MEMORY,
    "printed_backward": (
        "the backward pass of flash2",
        "--algorithm flash2 --pass backward",
        lambda algorithm, direction: (algorithm.name, direction) == ("flash2", BACKWARD),
    ),
    "splits": _only("split-kv"),
    "sparsity": _only("block-sparse"),
    "pattern": _only("block-sparse"),
}
"""Options that are absent here are read by every algorithm in every pass."""


def is_read(option: str, algorithms: Sequence[Algorithm], passes: Sequence[str]) -> bool:
    """Whether some of ``algorithms`` reads ``option`` in some of ``passes``."""
    reads = READ_BY[option][2]
    return any(reads(algorithm, direction) for algorithm in algorithms for direction in passes)


def check_read(given: Iterable[str], algorithms: Sequence[Algorithm], passes: Sequence[str]) -> None:
    """UsageError for the first of ``given`` that none of ``algorithms`` reads in any of ``passes``."""
    for option in given:
        words, addition, _ = READ_BY[option]
        if not is_read(option, algorithms, passes):
            raise UsageError(f"--{option.replace('_', '-')} is for {words}", f"add {addition}, or leave it out")
