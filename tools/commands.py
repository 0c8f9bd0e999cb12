"""Parsers of the commands, for what lists or asks every one."""

from __future__ import annotations

from typing import Any

from perfmodel.cli import CommandGroup, command_names


def command(name: str) -> Any:
    """The parser of ``name``, such as ``attention`` or ``hardware show``."""
    first, _, second = name.partition(" ")
    found: Any = CommandGroup(name="perfmodel").get_command(None, first)
    return found.commands[second] if second else found


def all_commands() -> list[str]:
    """Every command, those of groups with both words."""
    names = [name.replace("_", "-") for name in command_names()]
    return [full for name in names for full in ([f"{name} {sub}" for sub in getattr(command(name), "commands", {})] or [name])]
