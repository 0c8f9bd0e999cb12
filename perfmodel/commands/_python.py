"""A command as a Python function: its signature and its help."""

from __future__ import annotations

import re
import shlex
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
    parameter_lists = [_parameters(command.callback) for command in _reporting(app)]
    if len(parameter_lists) == 1:
        return Signature(parameter_lists[0], return_annotation=returns)
    options: dict[str, Parameter] = {}
    for parameters in parameter_lists:
        for param in parameters:
            default = None if param.default is Parameter.empty else param.default
            options[param.name] = param.replace(kind=Parameter.KEYWORD_ONLY, default=default)
    places = [
        Parameter("command", Parameter.POSITIONAL_ONLY, annotation=str),
        Parameter("values", Parameter.VAR_POSITIONAL, annotation=str),
    ]
    return Signature([*places, *options.values()], return_annotation=returns)


def _reporting(app: typer.Typer) -> list[Any]:
    """The commands of ``app`` that give a report."""
    return [command for command in app.registered_commands if "json" in signature(command.callback).parameters]  # type: ignore[arg-type]


def _parameters(callback: Any) -> list[Parameter]:
    """Parameters in Python's order: without a default first."""
    parameters = []
    for param in signature(callback).parameters.values():
        if param.name not in LEFT_OUT:
            annotation, info = get_args(param.annotation)
            is_argument = isinstance(info, typer.models.ArgumentInfo)
            kind = Parameter.POSITIONAL_OR_KEYWORD if is_argument else Parameter.KEYWORD_ONLY
            parameters.append(Parameter(param.name, kind, default=param.default, annotation=annotation))
    return sorted(parameters, key=lambda param: (param.kind, param.default is not Parameter.empty))


def help_of(app: typer.Typer, name: str) -> str:
    """Description, example and a line per option of a command, or of each command of a group."""
    pages = []
    for command in _reporting(app):
        text, examples = examples_apart(docstring(command.callback))
        description = _in_python(text)
        subcommand = ""
        if len(app.registered_commands) > 1:
            subcommand = command.name or command.callback.__wrapped__.__name__
            description = f"{name} {subcommand!r}: {description}"
        calls = [f"    {_call(app, name, subcommand, example)}" for example in examples]
        usage = "\n".join(["Example:", *calls]) if calls else ""
        pages.append("\n\n".join(filter(None, [description, usage, _options(command.callback)])))
    return "\n\n".join(pages)


def _in_python(text: str) -> str:
    """``text`` with options and commands as Python writes them."""
    return _OPTION.sub(lambda match: (match[1] or "output").replace("-", "_"), _COMMAND.sub("perfmodel.", text)).rstrip()


def _options(callback: Any) -> str:
    """A line per option of a command, under a heading; empty if it has none."""
    lines = []
    for param in signature(callback).parameters.values():
        if param.name not in LEFT_OUT:
            _, info = get_args(param.annotation)
            line = f"{param.name}: {_in_python(spelled_out(info.help or ''))}"
            lines.append(fill(line, WIDTH, initial_indent="    ", subsequent_indent="        "))
    return "\n".join(["Options:", *lines]) if lines else ""


def _call(app: typer.Typer, name: str, subcommand: str, example: str) -> str:
    """The Python call for the command line ``example``, which begins with perfmodel and the names of the command."""
    parser: Any = typer.main.get_command(app)
    words = shlex.split(example)[2:]
    parts = []
    if subcommand:
        parser, words = parser.commands[subcommand], words[1:]
        parts.append(repr(subcommand))
    context = parser.make_context(name, words, resilient_parsing=True)
    defaults = {param.name: param.default for param in parser.params}
    values = {}
    for key, value in context.params.items():
        if key not in LEFT_OUT and value not in (None, (), [], defaults.get(key)):
            is_single = isinstance(value, (list, tuple)) and len(value) == 1
            values[key] = value[0] if is_single else value
    arguments = [param.name for param in parser.params if param.param_type_name == "argument"]
    parts += [repr(values[key]) for key in arguments if key in values]
    parts += [f"{key}={value!r}" for key, value in values.items() if key not in arguments]
    return f"perfmodel.{name}({', '.join(parts)})"
