"""Workloads, measurements, profiled kernels on a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from perfmodel.commands._command import Pictured, command
from perfmodel.commands._shared import command_line, require, workloads_of
from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import DEFAULT_DEVICE, Common, Condition, Question, argument, as_in, option

if TYPE_CHECKING:
    from perfmodel.report import Report
    from perfmodel.study.recorded import RecordChoice
    from perfmodel.study.schema import Scope

_TIMED = Condition(
    "is for attention and matmuls",
    "add --attention or --matmul, or leave it out",
    lambda options: bool(options.study or options.ncu_command or options.attention or options.matmul),
)
_MEASURED = Condition("is for --records and --ncu", "leave it out", lambda options: bool(options.records or options.ncu))


@dataclass(frozen=True, slots=True)
class RooflineQuestion(Question):
    """Workloads, records and profiled kernels to draw, and the devices."""

    study: str | None = argument("STUDY", "The rooflines of a study: its name or its .yaml.", None)
    attention: list[str] | None = as_in(Common, "attention")
    matmul: list[str] | None = as_in(Common, "matmul")
    model: list[str] | None = as_in(Common, "model")
    records: list[str] | None = option("Measurements: a .jsonl(.gz), or 'shipped hardware=h200 implementation=torch-sdpa-flash most=12'.")
    ncu: str | None = option("What 'ncu --csv' wrote: its kernels at their measured intensity and rate.")
    flops: list[str] | None = option("FLOP that --ncu lacks: KERNEL=137.4GFLOP@fp16, by part of a name or by #ID. Repeatable.")
    ncu_command: bool = option("Print the ncu command that collects what --ncu reads.", default=False)
    hardware: list[str] | None = option("Device: id, words of one, or a profile's path. Repeatable.")
    implementation: str | None = as_in(Common, "implementation", reader=_TIMED)
    baseline: str | None = as_in(Common, "baseline")
    required: int | None = as_in(Common, "required", reader=_MEASURED)


@command
def roofline(options: RooflineQuestion, to: Pictured) -> None:
    """Workloads, measurements and profiled kernels on a device's roofline.

    Example: perfmodel roofline --attention 'n=4096 d=64 heads=16 batch=8' --matmul 8192x8192x8192 --hardware h200 -o roofline.svg
    """
    values = options.given()
    if options.ncu_command:
        from perfmodel.program.ncu_points import COMMAND

        if len(values) > 1 or to.given():
            raise UsageError("--ncu-command only prints a command", "give it alone")
        typer.echo(COMMAND)
        return
    from perfmodel.report.baseline import against_saved

    others = {name: value for name, value in values.items() if name not in ("study", "required")}
    study = [options.study] if options.study else []
    line = command_line("roofline", *study, **others)
    report = _of_options(options, line) if options.study is None else _of_study(options.study, line, others)
    to.emit(against_saved(report, options.baseline))


def _of_study(name: str, line: str, others: dict[str, Any]) -> Report:
    """The rooflines of the study called ``name``; UsageError if ``others``, the other options, have more than a baseline."""
    from perfmodel.study.document import build
    from perfmodel.study.schema import read_study

    clashing = [other for other in others if other != "baseline"]
    if clashing:
        raise UsageError(f"--{clashing[0]} with a study", "a study names its own workloads and devices")
    document = build(read_study(name), line, ["roofline"])
    if not document.charts:
        raise UsageError(f"study {name!r} has no section of kind roofline", f"see all of it: perfmodel report {name}")
    return document


def _of_options(options: RooflineQuestion, line: str) -> Report:
    """The rooflines of the workloads, records and profiled kernels that the options name."""
    from perfmodel.study.document import joined
    from perfmodel.study.kinds.roofline import NcuFile, RooflineSection
    from perfmodel.study.recorded import records_of
    from perfmodel.study.schema import Scope

    if options.flops and not options.ncu:
        raise UsageError("--flops without --ncu", "FLOP are told of kernels that ncu counted")
    if options.ncu and not options.hardware:
        raise UsageError("--ncu: which device was profiled?", "say so with --hardware, such as --hardware h200")
    scope = Scope()
    workloads = workloads_of(options, options.implementation)
    choices = [records_of(text) for text in options.records or ()]
    absent = list[str]()
    if options.hardware:
        choices, absent = _on(choices, options.hardware, scope)
    sections = [RooflineSection([], records=choice) for choice in choices]
    if workloads or options.ncu or not choices:
        devices = options.hardware or [DEFAULT_DEVICE]
        ncu = NcuFile(options.ncu, _flops_by_kernel(options.flops or ())) if options.ncu else None
        sections.insert(0, RooflineSection(devices, workloads, ncu=ncu))
    parts = [section.build(scope) for section in sections]
    if options.records or options.ncu:
        measured = sum(point.measured is not None for part in parts for chart in part.rooflines for point in chart.points)
        require(options.required, measured, "measurements are on the roofline", [note for part in parts for note in part.reasons])
    drawn = list({chart.device: chart.device_name for part in parts for chart in part.rooflines}.values())
    return joined(f"Roofline of {' and '.join(drawn)}", _one_chart_each(parts), scope, line, absent)


def _flops_by_kernel(texts: Sequence[str]) -> dict[str, str]:
    """FLOP as written by part of a kernel's name, from the values of --flops."""
    counts = {}
    for text in texts:
        name, _, count = text.rpartition("=")
        if not name:
            raise UsageError(f"--flops {text!r} names no kernel", "write it like flash=137.4GFLOP@fp16")
        counts[name] = count
    return counts


def _on(choices: Sequence[RecordChoice], hardware: Sequence[str], scope: Scope) -> tuple[list[RecordChoice], list[str]]:
    """``choices`` on the devices of --hardware unless they name some, and notes on those without records. UsageError if none has any."""
    from perfmodel.study.recorded import devices_of

    chosen, absent = [], []
    for choice in choices:
        with_records = devices_of(choice, scope) if choice.hardware is None else []
        if not with_records:
            chosen.append(choice)
            continue
        wanted = {scope.device(name).id: name for name in hardware}
        available = [name for device, name in wanted.items() if device in with_records]
        if not available:
            message = f"--hardware: no record in --records {choice.file} is of {' or '.join(wanted)}"
            raise UsageError(message, f"its records are of {', '.join(with_records)}")
        absent += [f"No record in {choice.file} is of {device}." for device, name in wanted.items() if name not in available]
        chosen.append(replace(choice, hardware=available))
    return chosen, absent


def _one_chart_each(parts: Sequence[Any]) -> list[Any]:
    """``parts`` with one chart per device."""
    from perfmodel.report.roofline_chart import at_one_level

    charts: dict[str, Any] = {}
    for part in parts:
        for chart in part.charts:
            first_chart = charts.get(chart.device)
            charts[chart.device] = chart if first_chart is None else replace(first_chart, points=[*first_chart.points, *chart.points])
    first, *later = parts
    return [replace(first, charts=at_one_level(list(charts.values()))), *(replace(part, charts=[]) for part in later)]
