"""Shell completion: the script that a shell evaluates, and the completions that the script then asks for.

A script calls ``perfmodel --complete WORDS...`` with the words up to the cursor, the last one unfinished. Only the module of the command in
question is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from perfmodel.core.errors import PerfmodelError, UsageError, suggest

_BASH = """_perfmodel() {
    local IFS=$'\\n'
    COMPREPLY=($(perfmodel --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _perfmodel perfmodel
"""
_ZSH = """#compdef perfmodel
_perfmodel() {
    local -a found
    found=("${(@f)$(perfmodel --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -n "$found" ]] && compadd -U -- $found || _files
}
compdef _perfmodel perfmodel
"""
_FISH = """complete -c perfmodel -a '(perfmodel --complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def script(shell: str) -> str:
    """The script for ``shell``: eval "$(perfmodel --show-completion bash)"."""
    if shell not in SCRIPTS:
        raise UsageError(f"--show-completion: no script for {shell!r}", suggest(shell, list(SCRIPTS)))
    return SCRIPTS[shell]


_WORDS = {
    "--explain": ["predicted", "roofline", "all"],
    "--pass": ["forward", "backward", "both"],
    "--phase": ["prefill", "decode", "generate"],
}
_LISTED = {
    "--hardware": ("catalog", "device_ids"),
    "--like": ("catalog", "device_ids"),
    "--model": ("catalog", "model_names"),
    "--config": ("catalog", "config_names"),
    "--dtype": ("core.dtypes", "DTYPES"),
    "--implementation": ("timing.base", "models_of"),
    "--algorithm": ("kernels.attention.algorithms", "names"),
}
"""Module and function that list the values of each option."""
_ARGUMENTS = {("device", "ID"): "--hardware", ("file", "FILE"): "--hardware", ("name", "MODEL"): "--model", ("model", "MODEL"): "--model"}
"""The option that takes the same values as an argument with this name and metavar."""


def _values(option: str) -> list[str]:
    """The values that ``option`` takes; empty if they cannot be listed."""
    if option not in _LISTED:
        return _WORDS.get(option, [])
    module, name = _LISTED[option]
    listed = getattr(import_module(f"perfmodel.{module}"), name)
    return [*(listed() if callable(listed) else listed), *["all"] * (option == "--algorithm")]


def complete(words: Sequence[str], commands: Sequence[str], find: Callable[[str], Any]) -> list[str]:
    """Completions of the last of ``words``; if there are none, the shell completes file names.

    ``commands``: names of all commands; ``find(name)`` gives a command's parser.
    """
    *before, unfinished = [word for word in words if word != "="] or [""]  # bash takes --hardware=h200 apart
    if unfinished.startswith("--") and "=" in unfinished:
        option, _, unfinished = unfinished.partition("=")
        return [f"{option}={value}" for value in _matching(_values(option), unfinished)]
    if words and words[-1] == "=":
        before, unfinished = [*before, unfinished], ""
    if not before:
        return _matching([*commands, "--help", "--version", "--show-completion"], unfinished)
    if before == ["--show-completion"]:
        return _matching(list(SCRIPTS), unfinished)
    name, *rest = before
    if name not in commands:
        return []
    command = find(name)
    inner = getattr(command, "commands", None)
    if inner is not None and not rest:
        return _matching([*inner, "--help"], unfinished)
    if inner is not None:
        command, rest = inner.get(rest[0]), rest[1:]
    if command is None:
        return []
    return (_in_sweep if name == "sweep" else _in_command)(command.params, rest, unfinished)


def _in_command(params: Sequence[Any], before: Sequence[str], unfinished: str) -> list[str]:
    """Completions inside a command: values of the option before the cursor, option names, or arguments."""
    last = before[-1] if before else ""
    if listed := _values(last):
        return _matching(listed, unfinished)
    if any(last in param.opts and not param.is_flag for param in params if param.param_type_name == "option"):
        return []
    if unfinished.startswith("-"):
        options = [opt for param in params if param.param_type_name == "option" for opt in (*param.opts, *param.secondary_opts)]
        return _matching([option for option in options if option.startswith("--")], unfinished)
    arguments = [(param.name, param.metavar) for param in params if param.param_type_name == "argument"]
    return _matching([value for argument in arguments for value in _values(_ARGUMENTS.get(argument, ""))], unfinished)


def _in_sweep(params: Sequence[Any], before: Sequence[str], unfinished: str) -> list[str]:
    """Completions inside ``sweep``: studies and workloads, then axes and options, or columns after an option that takes one."""
    from perfmodel.sweep.study import WORKLOADS, read_study, shipped_studies, workload_named

    if not before and not unfinished.startswith("-"):
        return _matching([*WORKLOADS, *shipped_studies()], unfinished)
    named = before[0] if before and not before[0].startswith("-") else WORKLOADS[0]
    try:
        workload = workload_named(named if named in WORKLOADS else read_study(named).workload)
    except PerfmodelError:
        return []
    axes = {axis.option: axis for axis in workload.inputs}
    last = axes.get(before[-1]) if before else None
    if last is not None and not unfinished.startswith("-"):
        words = ["true", "false", "both"] if last.kind == "flag" else [] if last.names is None else [*last.names(), "all"]
        return _matching(words, unfinished)
    if before and before[-1] in ("--minimize", "--columns", "--pareto"):
        return _matching([*workload.words, *(column.name for column in workload.columns)], unfinished)
    matching = _in_command(params, before, unfinished)
    return [*_matching(list(axes), unfinished), *matching] if unfinished.startswith("-") else matching


def _matching(values: Sequence[str], unfinished: str) -> list[str]:
    """``values`` that begin with ``unfinished``, or else contain it, so that h200 finds nvidia-h200-sxm."""
    text = unfinished.lower()
    return [value for value in values if value.startswith(text)] or [value for value in values if text and text in value]
