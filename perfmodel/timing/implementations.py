"""Implementations by name: whose calibration serves each, and which algorithm it runs (``implementations.yaml``).

Two kernels have a calibration apart from that of their library, as measurements ask for it: FlashAttention-2 over a paged cache (vLLM on
compute capability 8.x), which the parameters of its plain kernel miss by 9 % on an A100, and cuDNN's forward kernels of 2024, as published
for the H100, which today's beat by a fifth.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from perfmodel.core.files import read_yaml

if TYPE_CHECKING:
    from perfmodel.core.hardware import Device

FILE = Path(__file__).with_name("implementations.yaml")
FUSED = "flash2"
"""Attention algorithm of an implementation where the file names no other: one kernel, scores never stored."""


class Implementation(NamedTuple):
    """One entry of ``implementations.yaml``, where its fields are explained."""

    kernel: str = ""
    like: str = ""
    port: str = ""
    serves: str = ""
    runs: str = FUSED
    launches: int = 1
    published: bool = False
    named: bool = False


@cache
def listed() -> dict[str, Implementation]:
    """Entries of the file by implementation name."""
    return {name: Implementation(**fields) for name, fields in read_yaml(FILE)[0].items()}


_PLAIN = Implementation()


def find(name: str) -> Implementation:
    """The entry of the implementation ``name``; an empty one if the file does not list it."""
    return listed().get(name, _PLAIN)


def kernel_name(name: str) -> str:
    """The name under which the kernel of an implementation is calibrated.

    >>> kernel_name("fa2"), kernel_name("torch-sdpa-cudnn")
    ('torch-sdpa-flash', 'torch-sdpa-cudnn')
    """
    return find(name).kernel or name


def calibrated_as(name: str, workload: str) -> list[str]:
    """Names of calibrations that serve an implementation of ``workload``, its own first.

    >>> calibrated_as("nccl", "collective"), calibrated_as("torch-matmul", "matmul"), calibrated_as("torch-matmul", "attention")
    (['nccl', 'rccl'], ['torch-matmul', 'aiter'], ['torch-matmul'])
    """
    entry = find(name)
    if entry.serves not in ("", workload):
        return [name]
    return [name, *(alias for alias in (entry.kernel, entry.port, entry.like) if alias)]


def implementations(devices: Iterable[Device]) -> dict[str, set[str]]:
    """Implementations, by workload, that calibrations of ``devices`` serve."""
    by_workload: dict[str, set[str]] = {}
    for device in devices:
        for block in device.calibration:
            by_workload.setdefault(block.workload, set()).add(block.implementation)
    for workload, names in by_workload.items():
        names |= {name for name in listed() if not names.isdisjoint(calibrated_as(name, workload))}
    return by_workload


def is_variant(name: str, reference: str) -> bool:
    """Whether an implementation takes the parameters of ``reference`` but runs other code, or another version of it."""
    entry = find(name)
    return reference not in (name, entry.kernel, entry.port)


def algorithm_of(name: str) -> str:
    """The attention algorithm that an implementation runs."""
    return find(name).runs


def is_fused(name: str) -> bool:
    """Whether an implementation runs attention in one kernel, scores never stored."""
    return algorithm_of(name) == FUSED
