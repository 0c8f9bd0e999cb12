"""Workloads, measurements and profiled kernels on a device's roofline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.commands._report_options import (
    AttentionOption,
    BaselineOption,
    DevicesOption,
    MatmulOption,
    ModelOption,
    based,
    command_line,
    workloads_of,
)
from perfmodel.commands._shared import (
    DEFAULT_DEVICE,
    OFFERS,
    Command,
    ImplementationOption,
    JsonOption,
    PictureOption,
    RequireOption,
    check_outputs,
    emit,
    new_app,
    require,
)

if TYPE_CHECKING:
    from perfmodel.report import Report
    from perfmodel.study.base import Scope
    from perfmodel.study.recorded import RecordChoice

app = new_app()


@app.command(cls=Command)
def roofline(
    study: Annotated[
        str | None, typer.Argument(metavar="STUDY", help="The rooflines of a study: its name or its .yaml.", show_default=False)
    ] = None,
    attention: AttentionOption = None,
    matmul: MatmulOption = None,
    model: ModelOption = None,
    records: Annotated[
        list[str] | None, typer.Option(help="Measurements: a .jsonl, or 'shipped hardware=h200 implementation=torch-sdpa-flash most=12'.")
    ] = None,
    ncu: Annotated[str | None, typer.Option(help="What 'ncu --csv' wrote: its kernels at their measured intensity and rate.")] = None,
    flops: Annotated[
        list[str] | None, typer.Option(help="FLOP that --ncu lacks: KERNEL=137.4GFLOP@fp16, by part of a name or by #ID. Repeatable.")
    ] = None,
    ncu_command: Annotated[bool, typer.Option("--ncu-command", help="Print the ncu command that collects what --ncu reads.")] = False,
    hardware: DevicesOption = None,
    implementation: ImplementationOption = None,
    baseline: BaselineOption = None,
    required: RequireOption = None,
    json: JsonOption = False,
    output: PictureOption = None,
) -> None:
    """Workloads, measurements and profiled kernels on a device's roofline.

    Example: perfmodel roofline --attention 'n=4096 d=64 heads=16 batch=8' --matmul 8192x8192x8192 --hardware h200 -o roofline.svg
    """
    outputs = check_outputs(output, OFFERS)
    given: dict[str, Any] = {"attention": attention, "matmul": matmul, "model": model, "records": records, "ncu": ncu, "flops": flops}
    if ncu_command:
        from perfmodel.core.errors import UsageError
        from perfmodel.validation.ncu_points import COMMAND

        if study or json or outputs or hardware or implementation or baseline or any(given.values()):
            raise UsageError("--ncu-command only prints a command", "give it alone")
        typer.echo(COMMAND)
        return
    line = command_line(*([study] if study else []), **given, hardware=hardware, implementation=implementation, baseline=baseline).replace(
        "perfmodel", "perfmodel roofline", 1
    )
    if study is not None:
        found = _of_study(study, line, given | {"hardware": hardware, "implementation": implementation})
    else:
        found = _of_options(given, hardware, implementation, required, line)
    emit(based(found, baseline), json, outputs)


def _of_study(name: str, line: str, others: dict[str, Any]) -> Report:
    from perfmodel.core.errors import UsageError
    from perfmodel.study.build import build
    from perfmodel.study.schema import read_study

    clash = next((option for option, value in others.items() if value), None)
    if clash is not None:
        raise UsageError(f"--{clash} with a study", "a study names its own workloads and devices")
    found = build(read_study(name), line, ["roofline"])
    if not found.charts:
        raise UsageError(f"study {name!r} has no section of kind roofline", f"see all of it: perfmodel report {name}")
    return found


def _of_options(
    given: dict[str, Any], hardware: Sequence[str] | None, implementation: str | None, required: int | None, line: str
) -> Report:
    from perfmodel.core.errors import UsageError
    from perfmodel.report.charts.schema import Roofline
    from perfmodel.study.base import Scope
    from perfmodel.study.build import joined
    from perfmodel.study.kinds.roofline import Section
    from perfmodel.study.recorded import NcuFile, records_of

    if given["flops"] and not given["ncu"]:
        raise UsageError("--flops without --ncu", "FLOP are told of kernels that ncu counted")
    if given["ncu"] and not hardware:
        raise UsageError("--ncu: which device was profiled?", "say so with --hardware, such as --hardware h200")
    scope = Scope()
    told = dict(_told(text) for text in given["flops"] or ())
    workloads = workloads_of(given["attention"], given["matmul"], given["model"], implementation)
    choices = [records_of(text) for text in given["records"] or ()]
    absent = list[str]()
    if hardware:
        choices, absent = _on(choices, hardware, scope)
    devices = list(hardware or ([] if choices and not workloads else [DEFAULT_DEVICE]))
    sections = (
        [Section(devices, workloads, ncu=NcuFile(given["ncu"], told) if given["ncu"] else None)]
        if workloads or given["ncu"] or not choices
        else []
    )
    sections += [Section([], records=choice) for choice in choices]
    parts = [section.build(scope) for section in sections]
    if given["records"] or given["ncu"]:
        drawn = [chart for part in parts for chart in part.charts if isinstance(chart, Roofline)]
        measured = sum(point.measured is not None for chart in drawn for point in chart.points)
        require(required, measured, "measurements are on the roofline", [note for part in parts for note in part.verdict])
    return joined(_title(parts), _one_chart_each(parts), scope, line, absent)


def _on(choices: Sequence[RecordChoice], hardware: Sequence[str], scope: Scope) -> tuple[list[RecordChoice], list[str]]:
    """Those of ``choices`` that name no device on those of --hardware, and which of these have no record. UsageError if none has."""
    from dataclasses import replace

    from perfmodel.core.errors import UsageError
    from perfmodel.study.recorded import devices_of

    found, absent = [], []
    for choice in choices:
        known = devices_of(choice, scope) if choice.hardware is None else []
        if not known:
            found.append(choice)
            continue
        wanted = [device.id for device in scope.devices(hardware)]
        there = [device for device in wanted if device in known]
        if not there:
            message = f"--hardware: no record in --records {choice.file} is of {' or '.join(wanted)}"
            raise UsageError(message, f"its records are of {', '.join(known)}")
        absent += [f"No record in {choice.file} is of {device}." for device in wanted if device not in there]
        found.append(replace(choice, hardware=there))
    return found, absent


def _told(text: str) -> tuple[str, str]:
    from perfmodel.core.errors import UsageError

    name, equals, count = text.rpartition("=")
    if not equals or not name:
        raise UsageError(f"--flops {text!r} names no kernel", "write it like flash=137.4GFLOP@fp16")
    return name, count


def _title(parts: Sequence[Any]) -> str:
    names = dict.fromkeys(chart.device_name for part in parts for chart in part.charts)
    return f"Roofline of {' and '.join(names)}"


def _one_chart_each(parts: Sequence[Any]) -> list[Any]:
    """``parts`` with the points of one device in one picture."""
    from dataclasses import replace

    from perfmodel.report.roofline_chart import at_one_level

    charts: dict[str, Any] = {}
    for part in parts:
        for chart in part.charts:
            known = charts.get(chart.device)
            charts[chart.device] = chart if known is None else replace(known, points=[*known.points, *chart.points])
    first, *others = parts
    return [replace(first, charts=at_one_level(list(charts.values()))), *(replace(part, charts=[]) for part in others)]
