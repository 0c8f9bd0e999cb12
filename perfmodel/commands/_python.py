"""A command as a function of Python: its signature and its help, from its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from inspect import Parameter, Signature, signature
from textwrap import fill
from typing import Any, get_args

import typer

from perfmodel.commands._command import examples_apart, spelled_out
from perfmodel.core.plugins import docstring

LEFT_OUT = ("json", "full")
"""Options of the command line that mean nothing here."""
WIDTH = 100
_OPTION = re.compile(r"(?<![\w-])(?:--([a-z][a-z0-9-]*)|-o\b)")
_COMMAND = re.compile(r"\bperfmodel (?=[a-z])")


def signature_of(app: typer.Typer, returns: Any) -> Signature:
    """Signature of the command: arguments by place or name, options by name; of a group, the name of one first, then options of all."""
    own = [_parameters(one.callback) for one in _reporting(app)]
    if len(own) == 1:
        return Signature(own[0], return_annotation=returns)
    named = {one.name: one.replace(kind=Parameter.KEYWORD_ONLY) for several in own for one in several}
    options = [one if one.default is not Parameter.empty else one.replace(default=None) for one in named.values()]
    places = [
        Parameter("command", Parameter.POSITIONAL_ONLY, annotation=str),
        Parameter("values", Parameter.VAR_POSITIONAL, annotation=str),
    ]
    return Signature([*places, *options], return_annotation=returns)


def _reporting(app: typer.Typer) -> list[Any]:
    """Commands of ``app`` that give a report."""
    return [one for one in app.registered_commands if "json" in signature(one.callback).parameters]  # type: ignore[arg-type]


def _parameters(callback: Any) -> list[Parameter]:
    """Parameters in Python's order: those without a default first."""
    found = []
    for one in signature(callback).parameters.values():
        if one.name not in LEFT_OUT:
            kind, info = get_args(one.annotation)
            place = isinstance(info, typer.models.ArgumentInfo)
            where = Parameter.POSITIONAL_OR_KEYWORD if place else Parameter.KEYWORD_ONLY
            found.append(Parameter(one.name, where, default=one.default, annotation=kind))
    return sorted(found, key=lambda one: (one.kind, one.default is not Parameter.empty))


def help_of(app: typer.Typer, name: str) -> str:
    """What the command does, an example, and a line for each option; of a group, one after the other."""
    parts = []
    for one in _reporting(app):
        text, examples = examples_apart(docstring(one.callback))
        own = [] if len(app.registered_commands) == 1 else [one.name or one.callback.__wrapped__.__name__]
        calls = [f"    {_call(app, name, own, shlex.split(example)[1 + len(own) + 1 :])}" for example in examples]
        said = [f"{' '.join([name, *map(repr, own)])}: {_in_python(text)}" if own else _in_python(text)]
        shown = "\n".join(["Example:", *calls]) if calls else ""
        parts.append("\n\n".join(filter(None, [*said, shown, _options(one.callback)])))
    return "\n\n".join(parts)


def _in_python(text: str) -> str:
    """Options in ``text`` as Python writes them."""
    return _OPTION.sub(lambda match: (match[1] or "output").replace("-", "_"), _COMMAND.sub("perfmodel.", text)).rstrip()


def _options(callback: Any) -> str:
    kept = [(one, get_args(one.annotation)[1]) for one in signature(callback).parameters.values() if one.name not in LEFT_OUT]
    lines = (f"{one.name}: {_in_python(spelled_out(info.help or ''))}" for one, info in kept)
    filled = (fill(line, WIDTH, initial_indent="    ", subsequent_indent="        ") for line in lines)
    return "\n".join(["Options:", *filled]) if kept else ""


def _call(app: typer.Typer, name: str, own: Sequence[str], words: Iterable[str]) -> str:
    """The call that does what ``words`` do on the command line."""
    parser: Any = typer.main.get_command(app)
    parser = parser.commands[own[0]] if own else parser
    context = parser.make_context(name, list(words), resilient_parsing=True)
    arguments = [param.name for param in parser.params if param.param_type_name == "argument"]
    defaults = {param.name: param.default for param in parser.params}
    given = {key: value for key, value in context.params.items() if value not in (None, (), [], defaults.get(key)) and key not in LEFT_OUT}
    named = {key: value for key, value in given.items() if key not in arguments}
    places = [repr(_one(given[key])) for key in arguments if key in given]
    return f"perfmodel.{name}({', '.join([*map(repr, own), *places, *(f'{key}={_one(value)!r}' for key, value in named.items())])})"


def _one(value: Any) -> Any:
    """A list of one text as that text."""
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
