"""What every command does the same way: answer ``--help`` at once, and hand out its report."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from perfmodel.core.errors import visible_lines

if TYPE_CHECKING:
    from perfmodel.core.hardware import Device
    from perfmodel.report import Report

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ExplainOption = Annotated[bool, typer.Option("--explain", help="Show every number as its formula, with values and source.")]
OutputOption = Annotated[
    list[str] | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the report to FILE: .html, .json, .md or .txt; - is stdout. Repeatable."),
]

OFFERS = ("charts",)
"""Fields that their reports fill: .svg and .png are written from them."""

PictureOption = Annotated[
    list[str] | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to FILE: .html, .md, .json, .svg, .png or .txt; - is stdout. Repeatable."),
]

DEFAULT_DEVICE = "nvidia-a100-sxm-80gb"
DtypeOption = Annotated[str | None, typer.Option(help="fp32, tf32, fp16, bf16 or fp8. [default: fp16]")]
ImplementationOption = Annotated[
    str | None,
    typer.Option(
        help="Kernel to predict and, of attention, to count the traffic of, such as torch-sdpa-flash. "
        "[default: the fastest calibrated on the device, else the most certain one borrowed]"
    ),
]
HardwareOption = Annotated[str | None, typer.Option(help=f"Device: id, words of one, or a profile's path. [default: {DEFAULT_DEVICE}]")]


RequireOption = Annotated[
    int | None, typer.Option("--require", help="Exit code 2 if fewer than so many count; 0 accepts none. [default: 1]")
]


def require(least: int | None, found: int, what: str, reasons: Sequence[str] = ()) -> None:
    """UsageError if ``found`` of ``what`` are fewer than ``--require``; ``reasons``: why others do not count, one each."""
    from collections import Counter

    from perfmodel.core.errors import UsageError

    least = 1 if least is None else least
    if found < least:
        told = [f"{count}: {reason}" for reason, count in Counter(filter(None, reasons)).most_common(3)]
        why = "; ".join(told or ["there is none in it"] * (not found))
        fix = f"{why}\n  " * bool(why) + f"to take what there is: --require {found}"
        raise UsageError(f"{found or 'no'} {what}, and --require is {least}", fix)


def device_for(name: str | None) -> Device:
    """The device that ``--hardware`` names, or the default one."""
    from perfmodel.catalog import find_device

    return find_device(DEFAULT_DEVICE if name is None else name)


def pictured(outputs: list[str]) -> bool:
    """Whether any of the files shows pictures."""
    return any(name.endswith((".html", ".svg", ".png")) for name in outputs)


def say(text: str) -> None:
    """Progress, on stderr."""
    print(visible_lines(text), file=sys.stderr, flush=True)


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


class _Conversion:
    """Text to the type of an option: int, float, str, bool or a list of str.

    Typer builds a schema for every option, which takes as long as all the rest of a short command; these need none.
    """

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """``value`` converted; a usage error that names the option otherwise."""
        if value is None or self.annotation not in _WORDS:
            return value
        try:
            return self.annotation(value)
        except ValueError:
            raise typer.BadParameter(f"{value[:40]!r} is not {_WORDS[self.annotation]}", ctx=ctx, param=param) from None


_WORDS = {int: "a whole number", float: "a number"}


_ZERO = re.compile(r"-0+(\.0*)?")


def _check_words(args: Sequence[str]) -> None:
    """UsageError for an empty word, which an unset variable of a shell leaves, and for a zero below zero."""
    from perfmodel.core.errors import UsageError

    for before, word in zip(["", *args], args, strict=False):
        name, equals, value = word.partition("=") if word.startswith("--") else (before if before.startswith("-") else "", "=", word)
        if equals and not value.strip():
            where = f"the value of {name}" if name else "an argument"
            raise UsageError(f"{where} is empty", "give one, or leave it out; a variable of the shell that is not set is empty")
        if _ZERO.fullmatch(value):
            raise UsageError(f"{name or 'an argument'} is {value}", "give a number without a minus")


def _check_values(command: TyperCommand, ctx: Any) -> None:
    """UsageError for a number that no option takes, and for an option that the question does not read."""
    from perfmodel.commands._read_by import check_read

    for param in command.params:
        value = ctx.params.get(param.name)
        if value in (None, (), [], param.default):
            continue
        option = _written(param, value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            _check_number(option, value)
        check_read(str(command.name), option, str(param.name), ctx.params)


def _written(param: Any, value: Any) -> str:
    """The option as a user writes it: of a pair the one that was chosen."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name)
    names = param.secondary_opts if value is False and param.secondary_opts else param.opts
    return str(max(names, key=len))


def _check_number(option: str, value: float) -> None:
    from perfmodel.core.errors import UsageError, cut
    from perfmodel.core.workload import LARGEST_SIZE

    if value > LARGEST_SIZE and value != float("inf"):
        raise UsageError(f"{option} is too large", f"give a number up to {LARGEST_SIZE:.0e}")
    if not 0 <= value <= LARGEST_SIZE:
        raise UsageError(f"{option} is {cut(str(value))}", "give a number that is finite and not below zero")


_EXAMPLE = re.compile(r"\s*\b(?:Example|Or): (?=perfmodel )")


def examples_apart(text: str) -> tuple[str, list[str]]:
    """``text`` of a help page without its examples, and those.

    >>> examples_apart("Adds numbers. Example: perfmodel add 1 2. Or: perfmodel add")
    ('Adds numbers.', ['perfmodel add 1 2', 'perfmodel add'])
    """
    rest, *found = _EXAMPLE.split(text)
    return rest, [" ".join(example.split()).removesuffix(".") for example in found]


class Command(TyperCommand):
    """A command that starts fast: ``--help`` answers before anything is converted, and plain types convert plainly."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """The text, then each example on a line of its own, whole, so that it can be copied."""
        full = self.help or ""
        self.help, examples = examples_apart(full)
        super().format_help_text(ctx, formatter)
        self.help = full
        formatter.write("".join(f"\n  Example: {example}\n" for example in examples))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print help at once if asked for; else parse as usual."""
        if "--help" in args:
            typer.echo(self.get_help(ctx))
            ctx.exit()
        _check_words(args)
        parsed: list[str] = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            _check_values(self, ctx)
        return parsed

    def get_params(self, ctx: Any) -> list[Any]:
        """All options, with plain conversions."""
        params: list[Any] = super().get_params(ctx)
        for param in params:
            if hasattr(param, "get_runtime_param"):
                conversion = _Conversion(param.type_descriptor.annotation)
                param.get_runtime_param = lambda conversion=conversion: conversion
        return params


def new_app(**settings: Any) -> typer.Typer:
    """A Typer application in the house's settings: plain help, no completion options of its own."""
    return typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False, **settings)


def check_outputs(outputs: Sequence[str] | None, offers: Sequence[str] = ()) -> list[str]:
    """``outputs``, after making sure that each file can be written; ``offers``: fields of its report that the command fills."""
    from perfmodel.report import check_output

    for name in outputs or ():
        if name != "-":
            check_output(Path(name), offers)
    return list(outputs or ())


def emit(report: Report, as_json: bool, outputs: Sequence[str] = ()) -> None:
    """Write ``report`` to every file, and to stdout unless only files were asked for."""
    from perfmodel.report import write

    for name in outputs:
        if name != "-":
            write(Path(name), report)
    if not outputs or as_json or "-" in outputs:
        sys.stdout.write(_as_text(report, as_json))


def _as_text(report: Report, as_json: bool) -> str:
    if as_json:
        from perfmodel.report.formats.json import render as render_json

        return render_json(report)
    if not sys.stdout.isatty():
        from perfmodel.report.formats import readable
        from perfmodel.report.formats.txt import render as render_text

        return render_text(readable(report))
    from perfmodel.report.terminal import render

    return render(report, shutil.get_terminal_size().columns, color=not os.environ.get("NO_COLOR"))
