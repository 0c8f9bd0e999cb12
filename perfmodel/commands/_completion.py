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
    whole_words = [word for word in words if word != "="]  # bash takes --hardware=h200 apart
    *before, unfinished = whole_words or [""]
    if unfinished.startswith("--") and "=" in unfinished:
        option, _, unfinished = unfinished.partition("=")
        return [f"{option}={value}" for value in _matching(_values(option), unfinished)]
    if words and words[-1] == "=":
        before, unfinished = [*before, unfinished], ""
    if not before:
        return _matching([*commands, "--help", "--version", "--show-completion"], unfinished)
    if before == ["--show-completion"]:
        return _matching(list(SCRIPTS), unfinished)
    name, *arguments = before
    if name not in commands:
        return []
    command = find(name)
    subcommands = getattr(command, "commands", None)
    if subcommands is not None:
        if not arguments:
            return _matching([*subcommands, "--help"], unfinished)
        subcommand, *arguments = arguments
        command = subcommands.get(subcommand)
        if command is None:
            return []
    if name == "sweep":
        return _in_sweep(command.params, arguments, unfinished)
    return _in_command(command.params, arguments, unfinished)


def _in_command(params: Sequence[Any], before: Sequence[str], unfinished: str) -> list[str]:
    """Completions inside a command: values of the option before the cursor, option names, or arguments."""
    last = before[-1] if before else ""
    listed = _values(last)
    if listed:
        return _matching(listed, unfinished)
    options = [param for param in params if param.param_type_name == "option"]
    if any(last in param.opts and not param.is_flag for param in options):
        return []  # the option takes a value that cannot be listed
    if unfinished.startswith("-"):
        names = [name for param in options for name in (*param.opts, *param.secondary_opts)]
        return _matching([name for name in names if name.startswith("--")], unfinished)
    values = []
    for param in params:
        if param.param_type_name == "argument":
            values += _values(_ARGUMENTS.get((param.name, param.metavar), ""))
    return _matching(values, unfinished)


def _in_sweep(params: Sequence[Any], before: Sequence[str], unfinished: str) -> list[str]:
    """Completions inside ``sweep``: studies and workloads, then axes and options, or columns after an option that takes one."""
    from perfmodel.sweep.study import WORKLOADS, read_study, shipped_studies, workload_named

    if not before and not unfinished.startswith("-"):
        return _matching([*WORKLOADS, *shipped_studies()], unfinished)
    first_is_name = before and not before[0].startswith("-")
    name = before[0] if first_is_name else WORKLOADS[0]
    try:
        workload = workload_named(name if name in WORKLOADS else read_study(name).workload)
    except PerfmodelError:
        return []
    axes = {axis.option: axis for axis in workload.inputs}
    last = before[-1] if before else ""
    if last in axes and not unfinished.startswith("-"):
        axis = axes[last]
        if axis.kind == "flag":
            return _matching(["true", "false", "both"], unfinished)
        return [] if axis.names is None else _matching([*axis.names(), "all"], unfinished)
    if last in ("--minimize", "--columns", "--pareto"):
        return _matching([*workload.words, *(column.name for column in workload.columns)], unfinished)
    matching_options = _in_command(params, before, unfinished)
    matching_axes = _matching(list(axes), unfinished) if unfinished.startswith("-") else []
    return [*matching_axes, *matching_options]


def _matching(values: Sequence[str], unfinished: str) -> list[str]:
    """``values`` that begin with ``unfinished``, or else contain it, so that h200 finds nvidia-h200-sxm."""
    text = unfinished.lower()
    beginning = [value for value in values if value.startswith(text)]
    return beginning or [value for value in values if text in value]
