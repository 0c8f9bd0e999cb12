"""Questions: one dataclass per command. Its fields are the command's options, each with type, default and help text.

The command line, the Python interface, configurations and studies take names, types and defaults from these fields. A module of
questions imports little, so that ``--help`` answers at once: methods import the formulas that they need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, field, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

from perfmodel.core.dtypes import canonical
from perfmodel.core.errors import DataError, UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.core.units import parse_number

DEFAULT_DEVICE = "nvidia-a100-sxm-80gb"
EAGER_ENGINE = "transformers"
"""Name of the engine that runs models eagerly, Hugging Face's."""
SHORT_NAMES = {"a100": DEFAULT_DEVICE, "mi300": "amd-mi300x", "mi325": "amd-mi325x", "mi355": "amd-mi355x"}
"""Short names of devices that match several ids or none; a note tells the user which device is meant."""


def short_name(text: str) -> str | None:
    """Id of the device with the short name ``text``, in any spelling; None if there is none.

    >>> short_name("A100"), short_name("a100-sxm-40gb")
    ('nvidia-a100-sxm-80gb', None)
    """
    return SHORT_NAMES.get(text.strip().lower().removeprefix("nvidia-").removeprefix("amd-"))


class Condition(NamedTuple):
    """When an option applies: ``words`` for messages, ``fix`` otherwise, ``reads(question)``: whether ``question`` uses it."""

    words: str
    fix: str
    reads: Callable[[Any], bool]

    def check(self, label: str, question: Any) -> None:
        """UsageError if ``question`` does not use the option, which messages call ``label``."""
        if not self.reads(question):
            raise UsageError(f"{label} {self.words}, and nothing here reads it", self.fix)


class Option(NamedTuple):
    """A field as the command line shows it. ``names``: such as ``--causal/--no-causal`` for a pair of switches; empty for an argument.

    ``group``: its heading in ``--help``; empty for common options. ``old``: former names, accepted with a note for one version.
    In ``help``, ``{algorithms}``, ``{formats}`` and ``{pictured}`` are replaced by the list of the available ones.
    """

    help: str
    names: tuple[str, ...] = ()
    metavar: str | None = None
    argument: bool = False
    reader: Condition | None = None
    group: str = ""
    old: tuple[str, ...] = ()


def option(
    help: str, *names: str, default: Any = None, metavar: str | None = None, reader: Condition | None = None, group: str = "", old: str = ""
) -> Any:
    """A field that is an option. A ``default`` other than None is added to ``help``; with None, ``help`` describes what happens.

    ``names``: as typed; by default ``--`` and the name of the field. ``reader``: when the option applies; by default always.
    ``group``: its heading in ``--help``; by default that of common options. ``old``: its former name, accepted with a note.
    """
    shown = f"{help} [default: {default:{'g' if isinstance(default, float) else ''}}]" if _is_value(default) else help
    return field(default=default, metadata={"option": Option(shown, names, metavar, reader=reader, group=group, old=(old,) if old else ())})


def _is_value(default: Any) -> bool:
    return default is not None and not isinstance(default, bool)


def argument(metavar: str, help: str, default: Any = MISSING, reader: Condition | None = None) -> Any:
    """A field that is a positional argument, shown as ``metavar``; required unless it has a ``default``."""
    return field(default=default, metadata={"option": Option(help, (), metavar, True, reader)})


def as_in(
    question: type[Any], name: str, help: str = "", *, before: str = "", reader: Condition | None = None, group: str | None = None
) -> Any:
    """A copy of the option ``name`` of another question.

    ``before`` makes None its default, and goes before its help, which ``help`` then replaces if given.
    """
    field_ = next(field_ for field_ in fields(question) if field_.name == name)
    original: Option = field_.metadata["option"]
    text = original.help
    if before:
        begins_with_word = text[1].islower()
        text = before + (help or (text[0].lower() + text[1:] if begins_with_word else text))
    return field(
        default=None if before else field_.default,
        metadata={"option": original._replace(help=text, reader=reader, group=original.group if group is None else group)},
    )


class _WrittenNames:
    """A class attribute that is worked out from the fields of the question that it is read on."""

    def __get__(self, question: Any, owner: type[Any]) -> dict[str, str]:
        """Field names by their names in files, if the two differ, as with ``pass``, a keyword of Python."""
        options = [field_ for field_ in fields(owner) if "option" in field_.metadata and not field_.metadata["option"].argument]
        field_names = {field_.name for field_ in options}
        written = {as_typed(field_).removeprefix("--").replace("-", "_"): field_.name for field_ in options}
        return {name: field_name for name, field_name in written.items() if name not in field_names}


@dataclass(frozen=True, slots=True)
class Question:
    """Options as a user gives them; None for an option that was not given."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}  # where a file is read as a question
    OPTION_NAMES = _WrittenNames()

    def __post_init__(self) -> None:
        """Replaces other names of number formats by their canonical ones."""
        for field_ in fields(self):
            if is_format(field_.name) and isinstance(value := getattr(self, field_.name), str):
                object.__setattr__(self, field_.name, canonical(value))

    def given(self) -> dict[str, Any]:
        """Values that differ from their defaults, by field.

        >>> from perfmodel.kernels.question import SoftmaxQuestion
        >>> SoftmaxQuestion(rows=4, store=True).given()
        {'rows': 4}
        """
        values = {field_.name: (getattr(self, field_.name), field_.default) for field_ in fields(self)}
        return {name: value for name, (value, default) in values.items() if value not in (None, (), [], default)}

    def updated(self, options: Mapping[str, Any]) -> Self:
        """A copy with ``options`` filled in; unknown names and empty values are ignored."""
        names = {field_.name for field_ in fields(self)}
        return replace(self, **{name: value for name, value in options.items() if name in names and value not in (None, [])})

    def require(self, example: str, *names: str) -> list[Any]:
        """Values of the fields ``names``; UsageError that shows ``example`` if one is None."""
        for field_ in fields(self):
            if field_.name in names and getattr(self, field_.name) is None:
                raise UsageError(f"{as_typed(field_)} is missing", f"such as: perfmodel {example}")
        return [getattr(self, name) for name in names]

    def check_read(self) -> None:
        """UsageError for an option that was given but does not apply."""
        given = self.given()
        for field_ in fields(self):
            reader = field_.metadata["option"].reader
            if reader is not None and field_.name in given:
                reader.check(as_typed(field_, given[field_.name]), self)


@dataclass(frozen=True, slots=True)
class Common(Question):
    """Options of several commands."""

    hardware: str | None = option(f"Device: id, words or file. [default: {DEFAULT_DEVICE.removeprefix('nvidia-')}]")
    dtype: str | None = option("fp32, tf32, fp16, bf16, fp8. [default: fp16/bf16]")
    implementation: str | None = option("Kernel to predict. [default: the best known]")
    cache: str = option("L2 before: clean, dirty or warm.", default="clean")
    power_limit: str | None = option("Power limit, such as 500W. [default: the device's]")
    clock: str | None = option("Clock: burst or sustained. [default: burst]")
    measured: str | None = option("A time that you measured, such as 3.2ms, to judge.")
    attention: list[str] | None = option("Attention, such as 'n=4096 d=64 heads=16 batch=8 causal'. Repeatable.")
    matmul: list[str] | None = option("Matmul, such as 8192x128x8192 or 'm=64 n=64 k=64 batch=8'. Repeatable.")
    model: list[str] | None = option("Phase of a model: 'llama-3-8b decode batch=8 kv_len=2048'. Repeatable.")
    baseline: str | None = option("A saved report (.json): arrows from its points to those of the same name.")
    required: int | None = option("Exit code 2 if fewer than so many count; 0 accepts none. [default: 1]", "--require")


def is_format(name: str) -> bool:
    """Whether the field called ``name`` holds a number format."""
    return name.endswith("dtype") or name in ("precision", "gradients")


def typed(question: type[Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """``raw``, from a file or a text, with numbers and formats converted to the types of the fields of ``question``.

    Values that cannot be read stay as they are; a later check reports them.

    >>> from perfmodel.kernels.question import MatmulQuestion
    >>> typed(MatmulQuestion, {"m": "8k", "batch": "2", "dtype": "FP16"})
    {'m': 8000, 'batch': 2, 'dtype': 'fp16'}
    """
    kinds = {field_.name: str(field_.type).removeprefix("list[") for field_ in fields(question)}
    return {name: _read(name, kinds.get(name, ""), value) for name, value in raw.items()}


def _read(name: str, kind: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_read(name, kind, item) for item in value]
    if isinstance(value, str) and kind.startswith(("int", "float")):
        with suppress(DataError):
            return parse_number(value)
    return canonical(value) if isinstance(value, str) and is_format(name) else value


def as_typed(field_: Any, value: Any = True) -> str:
    """The option of ``field_`` as a user types it; for a pair of switches, the switch for ``value``."""
    shown: Option = field_.metadata["option"]
    if shown.argument:
        return str(shown.metavar)
    on, _, off = max(shown.names or (f"--{field_.name.replace('_', '-')}",), key=len).partition("/")
    return off if value is False and off else on


def renamed(question: type[Question]) -> dict[str, str]:
    """Today's option names of ``question`` by the names of the version before."""
    names: dict[str, str] = {}
    for field_ in fields(question):
        shown: Option = field_.metadata["option"]
        for old in shown.old:
            names |= dict(zip(old.split("/"), max(shown.names, key=len).split("/"), strict=False))
    return names


def from_python(questions: Sequence[type[Question]], options: Mapping[str, Any], caller: str) -> list[Any]:
    """``questions`` filled with ``options`` from Python; each option goes to every question that has it. ``caller``: the function's name.

    Options may also go by their command-line name. UsageError for an unknown option, a value of the wrong type, or a missing option.
    """
    names = dict.fromkeys(field_.name for question in questions for field_ in fields(question))
    written = {name: field_name for question in questions for name, field_name in question.OPTION_NAMES.items()}
    options = {name if name in names else written.get(name, name): value for name, value in options.items()}
    for name in options:
        if name not in names:
            raise UsageError(f"{caller} has no option {name!r}", suggest(name, list(names)))
    return [_filled(question, options, caller) for question in questions]


def _filled(question: type[Question], options: Mapping[str, Any], caller: str) -> Question:
    values = {}
    for field_ in fields(question):
        value = converted(field_.name, str(field_.type), options.get(field_.name))
        if value not in (None, []):
            values[field_.name] = value
        elif field_.default is MISSING:
            raise UsageError(f"{caller} needs {field_.name}", field_.metadata["option"].help)
    return question(**values)


def converted(name: str, kind: str, value: Any) -> Any:
    """``value`` converted to ``kind``, the annotation of a field; UsageError if it does not fit."""
    if value is None:
        return None
    if kind.startswith("bool"):
        return check_type(name, value, isinstance(value, bool), "True or False")
    if isinstance(value, str) and kind.startswith(("int", "float")):
        value = _number(name, value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind.startswith("int"):
        return int(check_type(name, value, number and value == value // 1, "a whole number"))
    if kind.startswith("float"):
        return check_type(name, value, number, "a number")
    if "list" in kind and isinstance(value, (list, tuple)):
        return check_type(name, list(value), all(isinstance(item, str) for item in value), "a text or several")
    if kind.startswith("list") and isinstance(value, str):
        return [value]
    return check_type(name, value, isinstance(value, str), "a text")


def _number(name: str, text: str) -> int | float:
    try:
        return parse_number(text)
    except DataError as error:
        raise UsageError(f"{name} is {text!r:.40}", error.fix) from None


def check_type(name: str, value: Any, valid: bool, kind: str) -> Any:
    """``value`` if ``valid``; else a UsageError that asks for ``kind``."""
    if not valid:
        raise UsageError(f"{name} is {value!r:.40}", f"give {kind}")
    return value
