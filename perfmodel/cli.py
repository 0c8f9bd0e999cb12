"""The command line: one command per file in ``commands/``, imported only when it is run."""

from __future__ import annotations

import ast
import os
import re
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from perfmodel import __version__, commands
from perfmodel.core.errors import LONGEST_ECHO, PerfmodelError, UsageError, cut, suggest, visible_lines
from perfmodel.core.plugins import docstring, module_names

INTERRUPTED = 130
LONGEST_PATH = 300
"""Longest path that a message repeats whole."""
LONGEST_LINE = 1000
"""Longest line of a message, as texts from files can be of any length."""
_PARTS = re.compile(r"[\s,=:()'\"]+")
"""What separates the parts of a word of the command line."""
_HELP = """Analytical performance model for attention and transformers on accelerators.

Start with: perfmodel attention --n 4096 --d 64

Options of a command: perfmodel attention --help. Version: --version

Numbers: 8k is 8000, 8Ki is 8192, 1e6. Sizes: 80GB, 163KiB. Formats: fp16,
FP16, half, bfloat16. Docs: docs/glossary.md, docs/tour.md

Completion (bash, zsh, fish): eval "$(perfmodel --show-completion bash)" """


def command_names() -> list[str]:
    """Names of all commands, from their files."""
    return module_names(commands.__path__)


def command_app(command: str) -> typer.Typer:
    """The application of a command, in ``commands/`` under its name; UsageError if there is none."""
    name = command.replace("-", "_")
    if name not in command_names():
        raise UsageError(f"there is no command {command!r}", suggest(command, [name.replace("_", "-") for name in command_names()]))
    module = import_module(f"{commands.__name__}.{name}")
    app: typer.Typer = getattr(module, "app", None) or getattr(module, name)
    return app


def _summary(name: str) -> str:
    """The first line of a command's file."""
    paths = [Path(folder, f"{name}.py") for folder in commands.__path__]
    source = next(path for path in paths if path.exists()).read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


@cache
def _parser(app: typer.Typer, name: str) -> Any:
    """The command ``app`` under its ``name``."""
    for registered in app.registered_commands:
        registered.help = registered.help or docstring(registered.callback)
    command = typer.main.get_command(app)
    command.name = name
    return command


class CommandGroup(TyperGroup):
    """Finds commands by file name; the first line of a module's docstring is its command's summary."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands."""
        return command_names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command in ``commands/<cmd_name>.py``."""
        return _parser(command_app(cmd_name), cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands without importing them."""
        rows = [(name.replace("_", "-"), _summary(name)) for name in command_names()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Answer ``--help``, ``--version`` and a shell that completes at once."""
        if args[:1] == ["--version"]:
            typer.echo(f"perfmodel {__version__}")
            ctx.exit()
        if args[:1] in (["--complete"], ["--show-completion"]):
            from perfmodel.commands._completion import complete, script

            if args[0] == "--complete":
                names = [name.replace("_", "-") for name in command_names()]
                typer.echo("\n".join(complete(args[1:], names, lambda name: self.get_command(ctx, name))))
            else:
                typer.echo(script(" ".join(args[1:])).rstrip())
            ctx.exit()
        if not args or args[0] == "--help":
            typer.echo(self.get_help(ctx))
            ctx.exit(0 if args else 2)
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


def main(args: list[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 ok, 1 failure, 2 usage, 3 out of tolerance, 130 interrupted."""
    group = CommandGroup(name="perfmodel", help=_HELP.rstrip(), rich_markup_mode=None, add_help_option=False)
    if sys.stdout is None:
        return 1  # closed before the start: nobody to tell
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files and ASCII terminals: nothing is unprintable
    streams = sys.stdout, sys.stderr
    try:
        code = group.main(args=args, prog_name="perfmodel", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except PerfmodelError as error:
        return _fail(str(error), error.exit_code, args)
    except (BrokenPipeError, SystemExit):  # typer turns the one into the other, and wraps the streams
        sys.stdout, sys.stderr = streams
        _silence_stdout()  # the reader has gone: nothing more to say
        return 1
    except OSError as error:  # files are checked where they are opened, so without a name this is stdout: a full disk
        if error.filename is None:
            _silence_stdout()
        return _fail(f"{error.filename or 'output cannot be written'}: {error.strerror or error}", 1, args)
    except MemoryError:
        return _fail("not enough memory for this question\n  ask for less at once", 1, args)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        show = getattr(error, "show", None)  # a usage error of the option parser
        if show is None:
            raise
        error.message = visible_lines(_without_long_words(str(getattr(error, "message", "")), args))  # type: ignore[attr-defined]
        show()
        return int(getattr(error, "exit_code", 2))


def _fail(message: str, code: int, args: list[str] | None) -> int:
    sys.stderr.write(f"perfmodel: {visible_lines(_without_long_words(message, args))}\n")
    return code


def _without_long_words(message: str, args: list[str] | None) -> str:
    """``message`` with long words of the user cut, except names of existing files, and with long lines cut."""
    typed_texts = set[str]()
    for word in sys.argv[1:] if args is None else args:
        for text in (word, word.partition("=")[2]):
            quoted = repr(text)[1:-1]  # as some messages have it
            typed_texts |= {text, quoted, *_PARTS.split(text), *_PARTS.split(quoted)}
    for text in sorted(typed_texts, key=len, reverse=True):
        longest = LONGEST_PATH if os.sep in text else LONGEST_ECHO
        if len(text) > longest and not os.path.lexists(text):
            message = message.replace(text, cut(text))
    return "\n".join(cut(line, LONGEST_LINE) for line in message.split("\n"))


def _silence_stdout() -> None:
    """Discard buffered output, so that the end of the process does not fail again."""
    with suppress(OSError, ValueError):  # a stream without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
