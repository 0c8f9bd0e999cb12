"""Options that commands with pictures share."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from perfmodel.report import Report
    from perfmodel.study.workloads import Workload

BaselineOption = Annotated[str | None, typer.Option(help="A saved report (.json): arrows from its points to those of the same name.")]
AttentionOption = Annotated[list[str] | None, typer.Option(help="Attention, such as 'n=4096 d=64 heads=16 batch=8 causal'. Repeatable.")]
MatmulOption = Annotated[list[str] | None, typer.Option(help="Matmul, such as 8192x128x8192 or 'm=64 n=64 k=64 batch=8'. Repeatable.")]
ModelOption = Annotated[list[str] | None, typer.Option(help="Phase of a model: 'llama-3-8b decode batch=8 kv_len=2048'. Repeatable.")]
DevicesOption = Annotated[list[str] | None, typer.Option(help="Device: id, words of one, or a profile's path. Repeatable.")]


def workloads_of(
    attention: list[str] | None, matmul: list[str] | None, model: list[str] | None, implementation: str | None = None
) -> list[Workload]:
    """What the options name, in that order."""
    from perfmodel.study.workloads import workload_of

    given = {"attention": attention, "matmul": matmul, "model": model}
    return [workload_of(kind, text, implementation) for kind, texts in given.items() for text in texts or ()]


def command_line(*words: str, **options: object) -> str:
    """The command as a user types it, without outputs: lists repeat their option, None is left out."""
    found = ["perfmodel", *words]
    for name, value in options.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is not None:
                found += [f"--{name.replace('_', '-')}", str(one)]
    return shlex.join(found)


def based(report: Report, baseline: str | None) -> Report:
    """``report`` with the arrows of ``--baseline``."""
    if baseline is None:
        return report
    from perfmodel.report.saved import read_report
    from perfmodel.study.build import with_base

    path = Path(baseline)
    return with_base(report, read_report(path), path.stem)
