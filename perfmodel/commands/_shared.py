"""Helpers of several commands: record files, shares, ``--require``, workloads and the command line as text."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfmodel.study.workloads import Workload

SHIPPED = "shipped"
RUNS = "shipped-serving"
"""Name of the shipped records of engine runs."""


def record_paths(names: Sequence[str]) -> list[Path]:
    """Files of the records called ``names``: paths, ``shipped``, or the shipped runs of engines."""
    from perfmodel.validation.records import SERVING_RUNS, shipped_records

    paths: list[Path] = []
    for name in names:
        if name == SHIPPED:
            paths += shipped_records()
        elif name == RUNS:
            paths += shipped_records(SERVING_RUNS)
        else:
            paths.append(Path(name))
    return paths


LARGEST_SHARE = 1000
"""Largest share that an option takes: 100,000 %."""


def share_of(option: str, text: str) -> float:
    """The share that ``text`` states, as in ``25%`` or ``0.25``; UsageError names the option."""
    from perfmodel.core.errors import UsageError

    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= LARGEST_SHARE:
        raise UsageError(f"{option} is {text!r}", "give a share such as 25% or 0.25")
    return value


def require(least: int | None, count: int, what: str, reasons: Sequence[str] = ()) -> None:
    """UsageError if ``count`` of ``what`` is below ``least`` (the option ``--require``, 1 if None).

    ``reasons``: a text for each that does not count.
    """
    from perfmodel.core.errors import UsageError

    least = 1 if least is None else least
    if count >= least:
        return
    listed = [f"{times}: {reason}" for reason, times in Counter(filter(None, reasons)).most_common(3)]
    if not listed and count == 0:
        listed = ["there is none in it"]
    lines = ["; ".join(listed)] if listed else []
    lines.append(f"to take what there is: --require {count}")
    raise UsageError(f"{count or 'no'} {what}, and --require is {least}", "\n  ".join(lines))


def workloads_of(options: Any, implementation: str | None = None) -> list[Workload]:
    """The workloads of ``--attention``, ``--matmul`` and ``--model``, in that order."""
    from perfmodel.study.options import workload_of

    kinds = ("attention", "matmul", "model")
    return [workload_of(kind, text, implementation) for kind in kinds for text in getattr(options, kind) or ()]


def command_line(*words: str, **options: object) -> str:
    """A command line as a user would type it: lists repeat their option, None is left out."""
    line = ["perfmodel", *words]
    for name, value in options.items():
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if item is not None:
                line += [f"--{name.replace('_', '-')}", str(item)]
    return shlex.join(line)
