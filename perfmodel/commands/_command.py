"""A command from its questions: their fields become arguments and options, checked, and ``--help`` answers at once."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from perfmodel.commands._output import CONTEXT, WORDS, as_text, signed_here
from perfmodel.core.errors import DataError, UsageError, cut, visible_lines
from perfmodel.core.question import DEFAULT_DEVICE, Option, Question, from_python, option, renamed, short_name
from perfmodel.core.units import parse_number

if TYPE_CHECKING:
    from perfmodel.core.hardware import Device
    from perfmodel.report import Report

_OUTPUT = "--output", "-o"


@dataclass(frozen=True)
class Destination(Question):
    """Where a report goes. ``OFFERS``: fields that it fills beside its texts and tables, None where the command finds out and checks."""

    OFFERS: ClassVar[tuple[str, ...] | None] = ()

    json: bool = option("Print one JSON object.", default=False)
    output: list[str] | None = option("To FILE: {formats}; - is stdout", *_OUTPUT, metavar="FILE")
    full: bool = option("Print every table and note.", default=False)

    def check(self, offers: Sequence[str] = ()) -> None:
        """UsageError for a file that cannot be written by a report that fills ``offers``; called before anything is computed."""
        from perfmodel.report import check_output

        for name in self.files:
            check_output(Path(name), offers)

    @property
    def files(self) -> list[str]:
        """The outputs that are files."""
        return [name for name in self.output or () if name != "-"]

    def emit(self, report: Report) -> None:
        """Write ``report`` to every file, and to stdout unless only files were asked for: a terminal then reads which."""
        from perfmodel.report import write

        report = self.chosen(report)
        if self.files:
            made = signed_here(report)
            for name in self.files:
                write(Path(name), made)
        if not self.output or self.json or "-" in self.output:
            self.show(report)
        elif sys.stdout.isatty():
            sys.stdout.write(f"wrote {', '.join(self.files)}\n")

    def chosen(self, report: Report) -> Report:
        """What of ``report`` is written: all of it."""
        return report

    def show(self, report: Report) -> None:
        """Write ``report`` to stdout."""
        sys.stdout.write(as_text(report, self.json, self.full or bool(getattr(self, "explain", False))))


@dataclass(frozen=True)
class Pictured(Destination):
    """Where a report with charts goes: .svg and .png are written from them."""

    OFFERS: ClassVar[tuple[str, ...] | None] = ("charts",)

    output: list[str] | None = option("To FILE: {pictured}; - is stdout", *_OUTPUT, metavar="FILE")

    @property
    def pictures(self) -> bool:
        """Whether any of the files shows them."""
        return any(name.endswith((".html", ".svg", ".png")) for name in self.files)


_ALL = "all"
"""In place of a name after ``--explain``: every number."""


@dataclass(frozen=True)
class _Explanation(Question):
    explain: str | None = option("One number as its formula: its name; or all.", metavar="NAME")


@dataclass(frozen=True)
class Explained(Destination, _Explanation):
    """Where a report with formulas goes."""

    @property
    def explained(self) -> bool:
        """Whether formulas are asked for."""
        return self.explain is not None

    def chosen(self, report: Report) -> Report:
        """``report``, or the one number of it that is to be explained."""
        if self.explain in (None, _ALL):
            return report
        from perfmodel.report.explained import only

        return only(report, str(self.explain))


@dataclass(frozen=True)
class ExplainedPicture(Pictured, Explained):
    """Where a report with formulas and charts goes."""


def new_app(**settings: Any) -> typer.Typer:
    """A Typer application with this project's settings: plain help, no completion options."""
    return typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False, **settings)


def command(function: Callable[..., None]) -> typer.Typer:
    """An application of one command: see ``add_command``."""
    app = new_app()
    add_command(app)(function)
    return app


def add_command(app: typer.Typer, name: str | None = None, cls: type[TyperCommand] | None = None, **settings: Any) -> Callable[[Any], Any]:
    """Add a function to ``app`` whose parameters are questions: each field is an option, of those with one name the last.

    Before it is called, options that nothing reads and files that cannot be written are refused.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        questions = _questions(function)

        @wraps(function)
        def run(**values: Any) -> None:
            _carry_out(function, [question(**{one.name: values[one.name] for one in fields(question)}) for question in questions])

        parameters = _parameters(questions)
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.renamed = {old: new for question in questions for old, new in renamed(question).items()}  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        app.command(name, cls=cls or Command, **settings)(run)
        return function

    return add


def _questions(function: Callable[..., None]) -> list[type[Question]]:
    return [one for parameter, one in get_type_hints(function).items() if parameter != "return"]


def _carry_out(function: Callable[..., None], questions: Sequence[Question]) -> None:
    for one in questions:
        one.check_read()
    for one in questions:
        if isinstance(one, Destination) and one.OFFERS is not None:
            one.check(one.OFFERS)
    function(*questions)


def report_of(app: typer.Typer, name: str, places: Sequence[Any], options: Mapping[str, Any]) -> Report:
    """The report of the command ``app`` for options from Python, by field; ``places``: its arguments. Of a group, the first names one.

    UsageError for options that have no meaning, or give no report.
    """
    functions = [one.callback.__wrapped__ for one in app.registered_commands]  # type: ignore[union-attr]
    commands = {one.name or function.__name__: function for one, function in zip(app.registered_commands, functions, strict=True)}
    if len(commands) > 1:
        name, places = f"{name} {places[0] if places else ''}".strip(), places[1:]
    function = next(iter(commands.values())) if len(commands) == 1 else commands.get(name.partition(" ")[2])
    if function is None:
        raise UsageError(f"{name} is no command", f"begin with one of {', '.join(map(repr, commands))}")
    if not any(issubclass(one, Destination) for one in _questions(function)):
        raise UsageError(f"{name} gives no report", "run it on the command line")
    found: list[Report] = []
    kept = {"show": lambda self, report: found.append(report), "pictures": True}  # in place of stdout
    questions = [type(one.__name__, (one,), kept) if issubclass(one, Destination) else one for one in _questions(function)]
    arguments = [one.name for question in questions for one in fields(question) if one.metadata["option"].argument]
    if len(places) > len(arguments):
        raise UsageError(f"{name} takes {len(arguments)} values without a name", "give the others by name")
    given = {**dict(zip(arguments, places, strict=False)), **options, "json": True}
    if isinstance(given.get("explain"), bool):
        given["explain"] = _ALL if given["explain"] else None
    for key, value in given.items():
        _check_number(key, value)
    with suppress(typer.Exit):  # after the report: what it found is in it
        _carry_out(function, from_python(questions, given, name))
    return found[0]


def _parameters(questions: Sequence[type[Question]]) -> list[Parameter]:
    """An argument or option per field; of fields with one name the last."""
    found: dict[str, Parameter] = {}
    kinds = {question: get_type_hints(question) for question in questions}
    for question, one in ((each, one) for each in kinds for one in fields(each)):
        shown: Option = one.metadata["option"]
        kind = kinds[question][one.name]
        listed = [member for member in get_args(kind) if getattr(member, "__origin__", None) is list]
        names = shown.names or (f"--{one.name.replace('_', '-')}",)
        info = (
            typer.Argument(metavar=shown.metavar, help=shown.help, show_default=False)
            if shown.argument
            else typer.Option(*names, metavar=shown.metavar, help=shown.help, show_default=False, rich_help_panel=shown.group or None)
        )
        annotation: Any = listed[0] | None if listed else kind  # a text alone is for Python and files
        default = Parameter.empty if shown.argument and one.default is MISSING else one.default
        found.pop(one.name, None)
        found[one.name] = Parameter(one.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, info])
    return list(found.values())


class Command(TyperCommand):
    """A command that starts fast: ``--help`` answers before anything is converted, and plain types convert plainly."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """The text below the usage, then each example on a line of its own, whole, so that it can be copied."""
        text, examples = examples_apart(self.help or "")
        with formatter.indentation():
            formatter.write_text(text)
        formatter.write("".join(f"  Example: {example}\n" for example in examples))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments and common options first, those of a group after, with what there is to choose from; --help has just been found."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in [param for param in self.get_params(ctx) if not getattr(param, "hidden", False) and param.name != "help"]:
            heading = getattr(param, "rich_help_panel", None) or ("Options" if param.name not in _SAME else OUTPUT)
            text = spelled_out(getattr(param, "help", None) or "")
            groups.setdefault(heading, []).append((_names(param), text.removeprefix(f"{heading.partition(' ')[0]}: ")))
        for heading in sorted(groups, key=lambda heading: (heading != "Options", heading == OUTPUT)):
            with formatter.section(heading):
                formatter.write_dl(groups[heading], col_max=NAMES)
        page = formatter.getvalue().rstrip()
        if page.count("\n") >= HELP_LINES:
            formatter.buffer = [page.replace("\n\n", "\n")]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print help at once if asked for; else parse as usual."""
        if "--help" in args:
            typer.echo(self.get_help(ctx))
            ctx.exit()
        _check_words(args)
        args = _named_explanation(self, _with_new_names(getattr(self.callback, "renamed", {}), args))
        ctx.meta[WORDS] = tuple(args)
        parsed: list[str] = super().parse_args(ctx, list(args))
        if not ctx.resilient_parsing:
            _check_repeated(self.make_parser(ctx).parse_args(args)[-1])
            for param in self.params:
                if ctx.params.get(param.name) != param.default:
                    _check_number(max(param.opts, key=len), ctx.params[param.name])
            _note_short_names(ctx.params.values())
        return parsed

    def invoke(self, ctx: Any) -> Any:
        """Run it; what it writes says by which command line."""
        token = CONTEXT.set(ctx)
        try:
            return super().invoke(ctx)
        finally:
            CONTEXT.reset(token)

    def get_params(self, ctx: Any) -> list[Any]:
        """All options, with plain conversions."""
        params: list[Any] = super().get_params(ctx)
        for param in params:
            if hasattr(param, "get_runtime_param"):
                conversion = _Conversion(param.type_descriptor.annotation)
                param.get_runtime_param = lambda conversion=conversion: conversion
        return params


HELP_LINES = 50
"""Lines of a ``--help``; a longer one goes without blank lines."""
NAMES = 22
"""Columns of the names of options in ``--help``; longer ones have a line of their own, or leave out how to turn them off."""
OUTPUT = "Output"
_SAME = ("explain", "json", "output", "full")
"""Options that every command has."""
_LETTERS: dict[Any, str] = {int: "N", float: "X"}


def _names(param: Any) -> str:
    """An option as it is typed, with a word for its value; of a pair of switches both, where there is room."""
    if param.param_type_name == "argument":
        return param.make_metavar(None) if param.metavar is None else str(param.metavar)
    listed = sorted(param.opts, key=len)
    if param.is_flag:
        both = "/".join([listed[-1], *param.secondary_opts])
        return both if len(both) <= NAMES else str(listed[-1])
    kind = param.get_runtime_param().annotation if hasattr(param, "get_runtime_param") else None
    return f"{', '.join(listed)} {param.metavar or _LETTERS.get(kind, 'TEXT')}"


def spelled_out(help: str, shown: Callable[[str], bool] = lambda name: True) -> str:
    """``help`` with placeholders such as {algorithms} replaced by the available names for which ``shown`` holds."""
    found = re.search(r"\{(algorithms|formats|pictured)\}", help)
    if found is None:
        return help
    from perfmodel.kernels.attention.algorithms import names
    from perfmodel.report.formats import suffixes

    listed = filter(shown, names() if found[1] == "algorithms" else suffixes(("charts",) if found[1] == "pictured" else ()))
    return help.replace(found[0], ", ".join(listed))


class _Conversion:
    """Text to the type of an option: int, float, str, bool or a list of str.

    Typer builds a schema for every option, which takes as long as all the rest of a short command; these need none.
    """

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """``value`` converted, a number also from what people write: 8k, 8Ki, 1e6; a usage error that names the option otherwise."""
        if value is None or self.annotation not in _WORDS:
            return value
        with suppress(ValueError):
            return self.annotation(value)
        wrong = f"{value[:40]!r} is not {_WORDS[self.annotation]}"
        try:
            number = parse_number(value)
        except DataError as error:
            raise typer.BadParameter(f"{wrong}; {error.fix}", ctx=ctx, param=param) from None
        if self.annotation is int and not isinstance(number, int):
            raise typer.BadParameter(wrong, ctx=ctx, param=param)
        return number


_WORDS = {int: "a whole number", float: "a number"}
_ZERO = re.compile(r"-0+(\.0*)?")


def _check_words(args: Sequence[str]) -> None:
    """UsageError for an empty word, which an unset variable of a shell leaves, and for a zero below zero."""
    for before, word in zip(["", *args], args, strict=False):
        name, equals, value = word.partition("=") if word.startswith("--") else (before if before.startswith("-") else "", "=", word)
        if equals and not value.strip():
            where = f"the value of {name}" if name else "an argument"
            raise UsageError(f"{where} is empty", "give one, or leave it out; a variable of the shell that is not set is empty")
        if _ZERO.fullmatch(value):
            raise UsageError(f"{name or 'an argument'} is {value}", "give a number without a minus")


def _with_new_names(new: Mapping[str, str], args: Sequence[str]) -> list[str]:
    """``args`` with options by the names that they have now; a note says each."""
    found = []
    for word in args:
        name, equals, value = word.partition("=")
        if name in new:
            say(f"note: {name} is called {new[name]} now; the old name is taken for one more version")
        found.append(f"{new.get(name, name)}{equals}{value}")
    return found


def _named_explanation(command: TyperCommand, args: list[str]) -> list[str]:
    """``args`` with the name after ``--explain`` that older versions did not take: all."""
    if "--explain" not in args or not any("--explain" in param.opts for param in command.params):
        return args
    place = args.index("--explain") + 1
    if place < len(args) and not args[place].startswith("-"):
        return args
    say("note: --explain takes a name now, such as --explain predicted; taken as --explain all")
    return [*args[:place], _ALL, *args[place:]]


def _note_short_names(values: Iterable[Any]) -> None:
    """Say of each short name of a device which one is meant."""
    texts = [text for value in values for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
    for name in dict.fromkeys(word for text in texts for word in text.split(",")):
        if found := short_name(name):
            say(f"note: {name.strip()} is taken as {found}; --hardware {found} leaves out this note")


def _check_repeated(given: Sequence[Any]) -> None:
    """UsageError for an option that is ``given`` twice although one value alone counts."""
    single = [one for one in given if one.param_type_name == "option" and not one.multiple and (one.secondary_opts or not one.is_flag)]
    for one, count in Counter(single).items():
        if count > 1:
            names = "/".join([max(one.opts, key=len), *one.secondary_opts])
            raise UsageError(f"{names} is given {count} times, and only one value counts", "give it once")


def _check_number(name: str, value: Any) -> None:
    """UsageError for a number that no option takes."""
    from perfmodel.core.workload import LARGEST_SIZE

    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    if LARGEST_SIZE < value < float("inf"):
        raise UsageError(f"{name} is too large", f"give a number up to {LARGEST_SIZE:.0e}")
    if not 0 <= value <= LARGEST_SIZE:
        raise UsageError(f"{name} is {cut(str(value))}", "give a number that is finite and not below zero")


_EXAMPLE = re.compile(r"\s*\b(?:Example|Or): (?=perfmodel )")


def examples_apart(text: str) -> tuple[str, list[str]]:
    """``text`` of a help page without its examples, and those.

    >>> examples_apart("Adds numbers. Example: perfmodel add 1 2. Or: perfmodel add")
    ('Adds numbers.', ['perfmodel add 1 2', 'perfmodel add'])
    """
    rest, *found = _EXAMPLE.split(text)
    return rest, [" ".join(example.split()).removesuffix(".") for example in found]


# Outputs


def device_for(name: str | None) -> Device:
    """The device that ``--hardware`` names, or the default one."""
    from perfmodel.catalog import find_device

    return find_device(DEFAULT_DEVICE if name is None else name)


def say(text: str) -> None:
    """Progress, on stderr."""
    print(visible_lines(text), file=sys.stderr, flush=True)
