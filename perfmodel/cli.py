"""The command line: one command per file in ``commands/``, imported only when it is run."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperGroup

from perfmodel import __version__, commands
from perfmodel.errors import PerfmodelError, UsageError, suggest
from perfmodel.plugins import module_names

_HELP = """Analytical performance model for attention and transformers on accelerators.

Start with: perfmodel attention --n 4096 --d 64"""


def command_names() -> list[str]:
    """Every command, by the name of its file."""
    return module_names(commands.__path__)


def _module(name: str) -> ModuleType:
    return import_module(f"{commands.__name__}.{name}")


class Group(TyperGroup):
    """Finds commands by file name; the first line of a module's docstring is its command's summary."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands."""
        return command_names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command in ``commands/<cmd_name>.py``."""
        name = cmd_name.replace("-", "_")
        if name not in command_names():
            raise UsageError(f"there is no command {cmd_name!r}", suggest(cmd_name, command_names()))
        command = typer.main.get_command(_module(name).app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands without building them."""
        rows = [(name.replace("_", "-"), str(_module(name).__doc__).splitlines()[0]) for name in command_names()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Answer ``--help`` and ``--version`` at once."""
        if args[:1] == ["--version"]:
            typer.echo(f"perfmodel {__version__}")
            ctx.exit()
        if not args or args[0] == "--help":
            typer.echo(self.get_help(ctx))
            ctx.exit(0 if args else 2)
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


def main(args: list[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 ok, 1 failure, 2 usage, 3 out of tolerance, 130 interrupted."""
    group = Group(name="perfmodel", help=_HELP, rich_markup_mode=None, add_help_option=False)
    try:
        if sys.stdout is None or sys.stderr is None:
            return 1  # closed before the start: nobody to tell
        code = group.main(args=args, prog_name="perfmodel", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except PerfmodelError as error:
        sys.stderr.write(f"perfmodel: {error}\n")
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone: nothing more to say
        return 1
    except OSError as error:  # files are checked where they are opened, so this is stdout: a full disk
        sys.stderr.write(f"perfmodel: output cannot be written: {error.strerror or error}\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        show = getattr(error, "show", None)  # a usage error of the option parser
        if show is None:
            raise
        show()
        return int(getattr(error, "exit_code", 2))
