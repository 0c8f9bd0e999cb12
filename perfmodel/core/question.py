"""Questions: a dataclass per command whose fields are its options, each with type, default, help and who reads it.

The command line, the Python interface, configurations and studies take names, types and defaults from these fields. A module of
questions imports little, so that ``--help`` answers at once: methods import the formulas that they need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

from perfmodel.core.errors import UsageError, suggest

DEFAULT_DEVICE = "nvidia-a100-sxm-80gb"


class Condition(NamedTuple):
    """Which questions read an option: in words, what to do otherwise, and whether ``question`` is one of them."""

    words: str
    fix: str
    reads: Callable[[Any], bool]

    def check(self, label: str, question: Any) -> None:
        """UsageError for the option written as ``label`` where ``question`` does not read it."""
        if not self.reads(question):
            raise UsageError(f"{label} {self.words}, and nothing here reads it", self.fix)


class Option(NamedTuple):
    """How a field is asked for. ``names``: as typed, ``--causal/--no-causal`` for a pair of switches; of an argument there are none.

    ``{algorithms}``, ``{formats}`` and ``{pictured}`` in ``help`` become a list of what there is where it is shown.
    """

    help: str
    names: tuple[str, ...] = ()
    metavar: str | None = None
    argument: bool = False
    reader: Condition | None = None


def option(help: str, *names: str, default: Any = None, metavar: str | None = None, reader: Condition | None = None) -> Any:
    """A field of a question that is an option; None takes the default that ``help`` describes, else the default is added to it.

    ``names``: as typed, by default ``--`` and the name of the field. ``reader``: which questions read it, by default all.
    """
    shown = f"{help} [default: {default:{'g' if isinstance(default, float) else ''}}]" if _is_value(default) else help
    return field(default=default, metadata={"option": Option(shown, names, metavar, reader=reader)})


def _is_value(default: Any) -> bool:
    return default is not None and not isinstance(default, bool)


def argument(metavar: str, help: str, default: Any = MISSING, reader: Condition | None = None) -> Any:
    """A field of a question that is given by its place, and called ``metavar``; required unless it has a ``default``."""
    return field(default=default, metadata={"option": Option(help, (), metavar, True, reader)})


def as_in(question: type[Any], name: str, help: str = "", *, before: str = "", reader: Condition | None = None) -> Any:
    """The option ``name`` of another question; with ``before`` in front of its help, or of ``help``, and None for its default."""
    one = next(one for one in fields(question) if one.name == name)
    asked: Option = one.metadata["option"]
    text = asked.help
    if before:
        text = before + (help or (text[0].lower() if text[1].islower() else text[0]) + text[1:])
    return field(default=None if before else one.default, metadata={"option": asked._replace(help=text, reader=reader)})


class _WrittenNames:
    def __get__(self, question: Any, owner: type[Any]) -> dict[str, str]:
        """Fields of a question by their names in files, where these are other ones: ``pass`` is a keyword of Python."""
        options = [one for one in fields(owner) if "option" in one.metadata and not one.metadata["option"].argument]
        named = {as_typed(one).removeprefix("--").replace("-", "_"): one.name for one in options}
        return {written: name for written, name in named.items() if written not in named.values()}


@dataclass(frozen=True, slots=True)
class Question:
    """Options as a user gives them, None where they were not."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}  # where a file is read as a question
    OPTION_NAMES = _WrittenNames()

    def given(self) -> dict[str, Any]:
        """Options other than their defaults, by field.

        >>> from perfmodel.kernels.question import SoftmaxQuestion
        >>> SoftmaxQuestion(rows=4, store=True).given()
        {'rows': 4}
        """
        found = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}
        return {name: value for name, (value, default) in found.items() if value not in (None, (), [], default)}

    def updated(self, options: Mapping[str, Any]) -> Self:
        """This question with every one of ``options`` that it has, and that is not None, put in its place."""
        known = {one.name for one in fields(self)}
        return replace(self, **{name: value for name, value in options.items() if name in known and value not in (None, [])})

    def needed(self, example: str, *names: str) -> list[Any]:
        """Values of fields that no answer can do without; UsageError names the first that is None and an ``example``."""
        for one in fields(self):
            if one.name in names and getattr(self, one.name) is None:
                raise UsageError(f"{as_typed(one)} is missing", f"such as: perfmodel {example}")
        return [getattr(self, name) for name in names]

    def check_read(self) -> None:
        """UsageError for an option that is given and that this question does not read."""
        given = self.given()
        for one in fields(self):
            reader = one.metadata["option"].reader
            if reader is not None and one.name in given:
                reader.check(as_typed(one, given[one.name]), self)


@dataclass(frozen=True, slots=True)
class Common(Question):
    """Options of several commands."""

    hardware: str | None = option(f"Device: id, words of one, or a profile's path. [default: {DEFAULT_DEVICE}]")
    dtype: str | None = option("fp32, tf32, fp16, bf16 or fp8. [default: fp16]")
    implementation: str | None = option(
        "Kernel to predict and, of attention, to count the traffic of, such as torch-sdpa-flash. "
        "[default: the fastest calibrated on the device, else the most certain one borrowed]"
    )
    power_limit: str | None = option("Power limit of the device, such as 500W: moves clock and time in the model. [default: the device's]")
    clock: str | None = option("Of the headline time: burst, alone after a pause, or sustained, for seconds.")
    attention: list[str] | None = option("Attention, such as 'n=4096 d=64 heads=16 batch=8 causal'. Repeatable.")
    matmul: list[str] | None = option("Matmul, such as 8192x128x8192 or 'm=64 n=64 k=64 batch=8'. Repeatable.")
    model: list[str] | None = option("Phase of a model: 'llama-3-8b decode batch=8 kv_len=2048'. Repeatable.")
    baseline: str | None = option("A saved report (.json): arrows from its points to those of the same name.")
    required: int | None = option("Exit code 2 if fewer than so many count; 0 accepts none. [default: 1]", "--require")


def as_typed(one: Any, value: Any = True) -> str:
    """The option of a field as a user writes it: of a pair of switches the one for ``value``."""
    asked: Option = one.metadata["option"]
    if asked.argument:
        return str(asked.metavar)
    on, _, off = max(asked.names or (f"--{one.name.replace('_', '-')}",), key=len).partition("/")
    return off if value is False and off else on


def from_python(questions: Sequence[type[Question]], options: Mapping[str, Any], asked: str) -> list[Any]:
    """``questions`` with ``options`` from Python, each given to all that have it. ``asked``: who is called.

    UsageError for a name that none of them has, a value of another kind, or an option that is missing.
    """
    known = dict.fromkeys(one.name for question in questions for one in fields(question))
    for name in options:
        if name not in known:
            raise UsageError(f"{asked} has no option {name!r}", suggest(name, list(known)))
    return [_filled(question, options, asked) for question in questions]


def _filled(question: type[Question], options: Mapping[str, Any], asked: str) -> Question:
    given = {}
    for one in fields(question):
        value = converted(one.name, str(one.type), options.get(one.name))
        if value not in (None, []):
            given[one.name] = value
        elif one.default is MISSING:
            raise UsageError(f"{asked} needs {one.name}", one.metadata["option"].help)
    return question(**given)


def converted(name: str, kind: str, value: Any) -> Any:
    """``value`` of a field annotated as ``kind``; UsageError for one of another kind."""
    if value is None:
        return None
    if kind.startswith("bool"):
        return of_kind(name, value, isinstance(value, bool), "True or False")
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind.startswith("int"):
        return int(of_kind(name, value, number and value == value // 1, "a whole number"))
    if kind.startswith("float"):
        return of_kind(name, value, number, "a number")
    if "list" in kind and isinstance(value, (list, tuple)):
        return of_kind(name, list(value), all(isinstance(one, str) for one in value), "a text or several")
    if kind.startswith("list") and isinstance(value, str):
        return [value]
    return of_kind(name, value, isinstance(value, str), "a text")


def of_kind(name: str, value: Any, holds: bool, kind: str) -> Any:
    """``value``; UsageError names the ``kind`` that it is to be of unless it ``holds``."""
    if not holds:
        raise UsageError(f"{name} is {value!r:.40}", f"give {kind}")
    return value
