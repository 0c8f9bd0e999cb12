"""Helpers of several commands: record files, shares, ``--require``, workloads and the command line as text."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfmodel.study.workloads import Workload

SHIPPED = "shipped"
RUNS = "shipped-serving"
"""The name of the records that come with the package."""


def record_paths(names: Sequence[str]) -> list[Path]:
    """Files of records, the shipped ones under their name, and runs of engines under another."""
    from perfmodel.validation.records import SERVING_RUNS, shipped_records

    shipped: dict[str, tuple[str, ...]] = {SHIPPED: (), RUNS: (SERVING_RUNS,)}
    return [path for name in names for path in (shipped_records(*shipped[name]) if name in shipped else [Path(name)])]


LARGEST_SHARE = 1000


def share_of(option: str, text: str) -> float:
    """``25%`` or ``0.25`` as a share; UsageError names the option."""
    from perfmodel.core.errors import UsageError

    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= LARGEST_SHARE:
        raise UsageError(f"{option} is {text!r}", "give a share such as 25% or 0.25")
    return value


def require(least: int | None, found: int, what: str, reasons: Sequence[str] = ()) -> None:
    """UsageError if only ``found`` of ``what`` count and ``--require`` (``least``, 1 if None) asks for more.

    ``reasons``: one text for each that does not count.
    """
    from collections import Counter

    from perfmodel.core.errors import UsageError

    least = 1 if least is None else least
    if found < least:
        listed = [f"{count}: {reason}" for reason, count in Counter(filter(None, reasons)).most_common(3)]
        why = "; ".join(listed or ["there is none in it"] * (not found))
        fix = f"{why}\n  " * bool(why) + f"to take what there is: --require {found}"
        raise UsageError(f"{found or 'no'} {what}, and --require is {least}", fix)


def workloads_of(asked: Any, implementation: str | None = None) -> list[Workload]:
    """The workloads of ``--attention``, ``--matmul`` and ``--model``, in that order."""
    from perfmodel.study.options import workload_of

    kinds = ("attention", "matmul", "model")
    return [workload_of(kind, text, implementation) for kind in kinds for text in getattr(asked, kind) or ()]


def command_line(*words: str, **options: object) -> str:
    """The command as a user types it, without outputs: lists repeat their option, None is left out."""
    found = ["perfmodel", *words]
    for name, value in options.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is not None:
                found += [f"--{name.replace('_', '-')}", str(one)]
    return shlex.join(found)
