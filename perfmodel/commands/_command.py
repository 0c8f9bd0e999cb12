"""Commands made from questions, whose fields become arguments and options. ``--help`` is printed before anything heavy is loaded."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_type_hints

import typer
from typer.core import TyperCommand

from perfmodel.commands._output import CONTEXT, WORDS, as_text, signed_here
from perfmodel.core.errors import DataError, UsageError, cut, visible_lines
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import DEFAULT_DEVICE, Option, Question, from_python, option, renamed, short_name
from perfmodel.core.units import parse_number

if TYPE_CHECKING:
    from perfmodel.core.hardware import Device
    from perfmodel.report import Report

_OUTPUT = "--output", "-o"


@dataclass(frozen=True)
class Destination(Question):
    """Options on where a report goes. ``OFFERS``: fields that it fills besides texts and tables; None if the command checks itself."""

    OFFERS: ClassVar[tuple[str, ...] | None] = ()

    json: bool = option("Print one JSON object.", default=False)
    output: list[str] | None = option("To FILE: {formats}; - is stdout", *_OUTPUT, metavar="FILE")
    full: bool = option("Print every table and note.", default=False)

    def check(self, offers: Sequence[str] = ()) -> None:
        """UsageError for an output file whose format needs more than ``offers``; called before anything is computed."""
        from perfmodel.report import check_output

        for name in self.files:
            check_output(Path(name), offers)

    @property
    def files(self) -> list[str]:
        """The outputs that are files."""
        return [name for name in self.output or () if name != "-"]

    def emit(self, report: Report) -> None:
        """Write ``report`` to every file, or to stdout if there is none. A terminal is told which files were written."""
        from perfmodel.report import write

        report = self.chosen(report)
        if self.files:
            signed = signed_here(report)
            for name in self.files:
                write(Path(name), signed)
        if not self.output or self.json or "-" in self.output:
            self.show(report)
        elif sys.stdout.isatty():
            sys.stdout.write(f"wrote {', '.join(self.files)}\n")

    def chosen(self, report: Report) -> Report:
        """The part of ``report`` that is written: all of it."""
        return report

    def show(self, report: Report) -> None:
        """Write ``report`` to stdout."""
        sys.stdout.write(as_text(report, self.json, self.full or bool(getattr(self, "explain", False))))


@dataclass(frozen=True)
class Pictured(Destination):
    """Options on where a report with charts goes, which can be .svg and .png files."""

    OFFERS: ClassVar[tuple[str, ...] | None] = ("charts",)

    output: list[str] | None = option("To FILE: {pictured}; - is stdout", *_OUTPUT, metavar="FILE")

    @property
    def pictures(self) -> bool:
        """Whether any of the files shows charts."""
        return any(name.endswith((".html", ".svg", ".png")) for name in self.files)

    @property
    def timed(self) -> bool:
        """Whether any of the files shows a timeline."""
        return any(name.endswith((".trace", ".trace.json")) for name in self.files)


_ALL = "all"
"""Value of ``--explain`` that stands for every number."""


@dataclass(frozen=True)
class _Explanation(Question):
    explain: str | None = option("One number as its formula: its name; or all.", metavar="NAME")


@dataclass(frozen=True)
class Explained(Destination, _Explanation):
    """Options on where a report with formulas goes."""

    @property
    def explained(self) -> bool:
        """Whether formulas are asked for."""
        return self.explain is not None

    def chosen(self, report: Report) -> Report:
        """``report``, or only the explanation of the number asked for."""
        if self.explain in (None, _ALL):
            return report
        from perfmodel.report.explained import only

        return only(report, str(self.explain))


@dataclass(frozen=True)
class ExplainedPicture(Pictured, Explained):
    """Options on where a report with formulas and charts goes."""


def new_app(**settings: Any) -> typer.Typer:
    """A Typer application with this project's settings: plain help, no completion options."""
    return typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False, **settings)


def command(function: Callable[..., None]) -> typer.Typer:
    """An application of one command: see ``add_command``."""
    app = new_app()
    add_command(app)(function)
    return app


def add_command(app: typer.Typer, name: str | None = None, cls: type[TyperCommand] | None = None, **settings: Any) -> Callable[[Any], Any]:
    """A decorator that adds a function of questions to ``app`` as a command. Their fields become options; the last of a name counts.

    Options that nothing reads and files that cannot be written are refused before the call.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        questions = _questions(function)

        @wraps(function)
        def run(**values: Any) -> None:
            _carry_out(function, [question(**{field_.name: values[field_.name] for field_ in fields(question)}) for question in questions])

        parameters = _parameters(questions)
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.renamed = {old: new for question in questions for old, new in renamed(question).items()}  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name, cls=cls or Command, **settings)(run)
        return function

    return add


def _questions(function: Callable[..., None]) -> list[type[Question]]:
    return [hint for parameter, hint in get_type_hints(function).items() if parameter != "return"]


def _carry_out(function: Callable[..., None], questions: Sequence[Question]) -> None:
    for question in questions:
        question.check_read()
    for question in questions:
        if isinstance(question, Destination) and question.OFFERS is not None:
            question.check(question.OFFERS)
    function(*questions)


def report_of(app: typer.Typer, name: str, places: Sequence[Any], options: Mapping[str, Any]) -> Report:
    """The report of the command ``app`` for ``options`` by field and arguments ``places``, the first of which names a group's command.

    UsageError for options that have no meaning, or give no report.
    """
    commands = {}
    for entry in app.registered_commands:
        original: Any = entry.callback.__wrapped__  # type: ignore[union-attr]
        commands[entry.name or original.__name__] = original
    if len(commands) == 1:
        [function] = commands.values()
    else:
        subcommand, places = str(places[0]) if places else "", places[1:]
        name = f"{name} {subcommand}".strip()
        function = commands.get(subcommand)
    if function is None:
        raise UsageError(f"{name} is no command", f"begin with one of {', '.join(map(repr, commands))}")
    reports: list[Report] = []
    overrides = {"show": lambda self, report: reports.append(report), "pictures": True}  # in place of stdout
    questions: list[type[Question]] = []
    for question in _questions(function):
        collects = issubclass(question, Destination)
        questions.append(type(question.__name__, (question,), overrides) if collects else question)
    if not any(issubclass(question, Destination) for question in questions):
        raise UsageError(f"{name} gives no report", "run it on the command line")
    arguments = [field_.name for question in questions for field_ in fields(question) if field_.metadata["option"].argument]
    if len(places) > len(arguments):
        raise UsageError(f"{name} takes {len(arguments)} values without a name", "give the others by name")
    values = {**dict(zip(arguments, places, strict=False)), **options, "json": True}
    if isinstance(values.get("explain"), bool):
        values["explain"] = _ALL if values["explain"] else None
    for key, value in values.items():
        _check_number(key, value)
    with suppress(typer.Exit):  # after the report: what it found is in it
        _carry_out(function, from_python(questions, values, name))
    return reports[0]


_KINDS: dict[str, Any] = {"bool": bool, "int": int, "float": float, "str": str, "list[str]": list[str]}
"""Types of options by their annotation: evaluating annotations takes as long as parsing the command line."""


def _parameters(questions: Sequence[type[Question]]) -> list[Parameter]:
    """A Typer parameter per field of ``questions``; the last field of a name counts."""
    parameters: dict[str, Parameter] = {}
    for question in questions:
        for field_ in fields(question):
            parameters.pop(field_.name, None)
            parameters[field_.name] = _parameter(field_)
    return list(parameters.values())


def _parameter(field_: Field[Any]) -> Parameter:
    """The Typer parameter of a field of a question."""
    shown: Option = field_.metadata["option"]
    kind, _, others = str(field_.type).partition(" | ")  # of "list[str] | str", a text alone is for Python and files
    info: Any
    if shown.argument:
        info = typer.Argument(metavar=shown.metavar, help=shown.help, show_default=False)
    else:
        names = shown.names or (f"--{field_.name.replace('_', '-')}",)
        panel = shown.group or None
        info = typer.Option(*names, metavar=shown.metavar, help=shown.help, show_default=False, rich_help_panel=panel)
    annotation: Any = _KINDS[kind] | None if others else _KINDS[kind]
    default = Parameter.empty if shown.argument and field_.default is MISSING else field_.default
    return Parameter(field_.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, info])


class Command(TyperCommand):
    """A command that starts fast: ``--help`` is printed before values are converted, and plain types need no schema."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the description and then each example on one line, so that it can be copied."""
        text, examples = examples_apart(self.help or "")
        with formatter.indentation():
            formatter.write_text(text)
        formatter.write("".join(f"  Example: {example}\n" for example in examples))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and common options, then options by group, with the names to choose from. --help itself is left out."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if getattr(param, "hidden", False) or param.name == "help":
                continue
            default_heading = OUTPUT if param.name in _OUTPUT_OPTIONS else "Options"
            heading = getattr(param, "rich_help_panel", None) or default_heading
            prefix = f"{heading.partition(' ')[0]}: "
            text = spelled_out(getattr(param, "help", None) or "").removeprefix(prefix)
            groups.setdefault(heading, []).append((_names(param), text))
        for heading in sorted(groups, key=lambda heading: (heading != "Options", heading == OUTPUT)):
            with formatter.section(heading):
                formatter.write_dl(groups[heading], col_max=NAMES)
        page = formatter.getvalue().rstrip()
        if page.count("\n") >= HELP_LINES:
            formatter.buffer = [page.replace("\n\n", "\n")]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print help if asked for; else parse as usual."""
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
        """Run the command; its output records the command line."""
        token = CONTEXT.set(ctx)
        try:
            return super().invoke(ctx)
        finally:
            CONTEXT.reset(token)

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters, with plain conversions."""
        params: list[Any] = super().get_params(ctx)
        for param in params:
            if hasattr(param, "get_runtime_param"):
                conversion = _Conversion(param.type_descriptor.annotation)
                param.get_runtime_param = lambda conversion=conversion: conversion
        return params


HELP_LINES = 50
"""Most lines of a ``--help`` with blank lines; a longer one goes without them."""
NAMES = 22
"""Columns for option names in ``--help``. Longer names get their own line, or lose the switch that turns them off."""
OUTPUT = "Output"
"""Heading in ``--help`` of the options that every command has."""
_OUTPUT_OPTIONS = ("explain", "json", "output", "full")
_LETTERS: dict[Any, str] = {int: "N", float: "X"}
"""Words for values of options by type; TEXT for others."""


def _names(param: Any) -> str:
    """An option as typed, with a word for its value; both of a pair of switches if there is room."""
    if param.param_type_name == "argument":
        return param.make_metavar(None) if param.metavar is None else str(param.metavar)
    listed = sorted(param.opts, key=len)
    if param.is_flag:
        switches = "/".join([listed[-1], *param.secondary_opts])
        return switches if len(switches) <= NAMES else str(listed[-1])
    kind = param.get_runtime_param().annotation if hasattr(param, "get_runtime_param") else None
    return f"{', '.join(listed)} {param.metavar or _LETTERS.get(kind, 'TEXT')}"


def spelled_out(help: str, pick: Callable[[str], bool] = lambda name: True) -> str:
    """``help`` with a placeholder such as {algorithms} replaced by the available names that ``pick`` accepts."""
    match = re.search(r"\{(algorithms|formats|pictured)\}", help)
    if match is None:
        return help
    from perfmodel.kernels.attention.algorithms import names
    from perfmodel.report.formats import suffixes

    needs = ["charts"] if match[1] == "pictured" else []
    available = names() if match[1] == "algorithms" else suffixes(needs)
    return help.replace(match[0], ", ".join(filter(pick, available)))


class _Conversion:
    """A conversion of text to the type of an option: int, float, str, bool or a list of str.

    Typer's own conversions build a schema per option, which takes as long as the rest of a short command.
    """

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """``value`` converted; numbers may be written as 8k, 8Ki or 1e6. A usage error names the option."""
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
    """UsageError for an empty word, which an unset shell variable leaves, and for -0."""
    before = ""
    for word in args:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            is_value = bool(equals)
        else:
            name, value, is_value = before if before.startswith("-") else "", word, True
        before = word
        if is_value and not value.strip():
            where = f"the value of {name}" if name else "an argument"
            raise UsageError(f"{where} is empty", "give one, or leave it out; a variable of the shell that is not set is empty")
        if _ZERO.fullmatch(value):
            raise UsageError(f"{name or 'an argument'} is {value}", "give a number without a minus")


def _with_new_names(new: Mapping[str, str], args: Sequence[str]) -> list[str]:
    """``args`` with former option names replaced by today's; each gives a note."""
    renamed_args = []
    for word in args:
        name, equals, value = word.partition("=")
        if name in new:
            say(f"note: {name} is called {new[name]} now; the old name is taken for one more version")
        renamed_args.append(f"{new.get(name, name)}{equals}{value}")
    return renamed_args


def _named_explanation(command: TyperCommand, args: list[str]) -> list[str]:
    """``args`` with ``all`` after a bare ``--explain``, which older versions accepted."""
    if "--explain" not in args or not any("--explain" in param.opts for param in command.params):
        return args
    place = args.index("--explain") + 1
    if place < len(args) and not args[place].startswith("-"):
        return args
    say("note: --explain takes a name now, such as --explain predicted; taken as --explain all")
    return [*args[:place], _ALL, *args[place:]]


def _note_short_names(values: Iterable[Any]) -> None:
    """Print a note on which device each short name stands for."""
    names: dict[str, None] = {}
    for value in values:
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                names |= dict.fromkeys(text.split(","))
    for name in names:
        device_id = short_name(name)
        if device_id:
            say(f"note: {name.strip()} is taken as {device_id}; --hardware {device_id} leaves out this note")


def _check_repeated(params: Sequence[Any]) -> None:
    """UsageError for an option that is given twice although only one value counts."""
    options = [param for param in params if param.param_type_name == "option"]
    single = [param for param in options if not param.multiple and (param.secondary_opts or not param.is_flag)]
    for param, count in Counter(single).items():
        if count > 1:
            names = "/".join([max(param.opts, key=len), *param.secondary_opts])
            raise UsageError(f"{names} is given {count} times, and only one value counts", "give it once")


def _check_number(name: str, value: Any) -> None:
    """UsageError for a number beyond what any option takes."""
    from perfmodel.core.workload import LARGEST_SIZE

    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    if LARGEST_SIZE < value < float("inf"):
        raise UsageError(f"{name} is too large", f"give a number up to {LARGEST_SIZE:.0e}")
    if not 0 <= value <= LARGEST_SIZE:
        raise UsageError(f"{name} is {cut(str(value))}", "give a number that is finite and not below zero")


_EXAMPLE = re.compile(r"\s*\b(?:Example|Or): (?=perfmodel )")


def examples_apart(text: str) -> tuple[str, list[str]]:
    """``text`` of a help page without its examples, and the list of examples.

    >>> examples_apart("Adds numbers. Example: perfmodel add 1 2. Or: perfmodel add")
    ('Adds numbers.', ['perfmodel add 1 2', 'perfmodel add'])
    """
    description, *examples = _EXAMPLE.split(text)
    return description, [" ".join(example.split()).removesuffix(".") for example in examples]


def device_for(name: str | None) -> Device:
    """The device called ``name``, or the default one."""
    from perfmodel.catalog import find_device

    return find_device(DEFAULT_DEVICE if name is None else name)


def say(text: str) -> None:
    """Print ``text`` to stderr."""
    print(visible_lines(text), file=sys.stderr, flush=True)
