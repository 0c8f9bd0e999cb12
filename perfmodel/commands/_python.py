"""A command as a Python function: its signature and its help."""

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
"""Options of the command line that have no meaning in Python."""
WIDTH = 100
_OPTION = re.compile(r"(?<![\w-])(?:--([a-z][a-z0-9-]*)|-o\b)")
_COMMAND = re.compile(r"\bperfmodel (?=[a-z])")


def signature_of(app: typer.Typer, returns: Any) -> Signature:
    """Signature of a command: arguments by place or name, options by name. For a group: the name of a command, then the options of all."""
    signatures = [_parameters(command.callback) for command in _reporting(app)]
    if len(signatures) == 1:
        return Signature(signatures[0], return_annotation=returns)
    named = {param.name: param.replace(kind=Parameter.KEYWORD_ONLY) for several in signatures for param in several}
    options = [param if param.default is not Parameter.empty else param.replace(default=None) for param in named.values()]
    places = [
        Parameter("command", Parameter.POSITIONAL_ONLY, annotation=str),
        Parameter("values", Parameter.VAR_POSITIONAL, annotation=str),
    ]
    return Signature([*places, *options], return_annotation=returns)


def _reporting(app: typer.Typer) -> list[Any]:
    """The commands of ``app`` that give a report."""
    return [command for command in app.registered_commands if "json" in signature(command.callback).parameters]  # type: ignore[arg-type]


def _parameters(callback: Any) -> list[Parameter]:
    """Parameters in Python's order: without a default first."""
    parameters = []
    for param in signature(callback).parameters.values():
        if param.name not in LEFT_OUT:
            kind, info = get_args(param.annotation)
            place = isinstance(info, typer.models.ArgumentInfo)
            where = Parameter.POSITIONAL_OR_KEYWORD if place else Parameter.KEYWORD_ONLY
            parameters.append(Parameter(param.name, where, default=param.default, annotation=kind))
    return sorted(parameters, key=lambda param: (param.kind, param.default is not Parameter.empty))


def help_of(app: typer.Typer, name: str) -> str:
    """Description, example and a line per option of a command, or of each command of a group."""
    parts = []
    for command in _reporting(app):
        text, examples = examples_apart(docstring(command.callback))
        subcommand = [] if len(app.registered_commands) == 1 else [command.name or command.callback.__wrapped__.__name__]
        calls = [f"    {_call(app, name, subcommand, shlex.split(example)[1 + len(subcommand) + 1 :])}" for example in examples]
        description = [f"{' '.join([name, *map(repr, subcommand)])}: {_in_python(text)}" if subcommand else _in_python(text)]
        usage = "\n".join(["Example:", *calls]) if calls else ""
        parts.append("\n\n".join(filter(None, [*description, usage, _options(command.callback)])))
    return "\n\n".join(parts)


def _in_python(text: str) -> str:
    """``text`` with options and commands as Python writes them."""
    return _OPTION.sub(lambda match: (match[1] or "output").replace("-", "_"), _COMMAND.sub("perfmodel.", text)).rstrip()


def _options(callback: Any) -> str:
    parameters = [(param, get_args(param.annotation)[1]) for param in signature(callback).parameters.values() if param.name not in LEFT_OUT]
    lines = (f"{param.name}: {_in_python(spelled_out(info.help or ''))}" for param, info in parameters)
    filled = (fill(line, WIDTH, initial_indent="    ", subsequent_indent="        ") for line in lines)
    return "\n".join(["Options:", *filled]) if parameters else ""


def _call(app: typer.Typer, name: str, subcommand: Sequence[str], words: Iterable[str]) -> str:
    """The Python call for the command line ``words``."""
    parser: Any = typer.main.get_command(app)
    parser = parser.commands[subcommand[0]] if subcommand else parser
    context = parser.make_context(name, list(words), resilient_parsing=True)
    arguments = [param.name for param in parser.params if param.param_type_name == "argument"]
    defaults = {param.name: param.default for param in parser.params}
    values = {key: value for key, value in context.params.items() if value not in (None, (), [], defaults.get(key)) and key not in LEFT_OUT}
    named = {key: value for key, value in values.items() if key not in arguments}
    places = [repr(_one(values[key])) for key in arguments if key in values]
    return f"perfmodel.{name}({', '.join([*map(repr, subcommand), *places, *(f'{key}={_one(value)!r}' for key, value in named.items())])})"


def _one(value: Any) -> Any:
    """The only item of a list of one, else ``value``."""
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
