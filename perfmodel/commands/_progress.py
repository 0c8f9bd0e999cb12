"""How far a long run is, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from perfmodel.commands._shared import say


class Teller:
    """Progress on stderr once a sweep takes over a second: twice a second on a terminal, else every ten."""

    def __init__(self) -> None:
        self.begun = self.told = time.monotonic()
        self.points = self.total = 0
        self.terminal = sys.stderr.isatty()
        self.said = False

    def expect(self, total: int) -> Callable[[int], None]:
        """To be told of rows, of which there will be ``total``."""
        self.total = total
        return self.tell

    def tell(self, points: int) -> None:
        """``points`` more are done."""
        self.points += points
        now = time.monotonic()
        due = not self.said or now - self.told > (0.5 if self.terminal else 10)
        if now - self.begun > 1 and due:
            self.told, self.said = now, True
            self._write(now - self.begun)

    def _write(self, seconds: float) -> None:
        from perfmodel.core.units import format_si, format_time

        rate = self.points / seconds
        left = format_time((self.total - self.points) / rate, 2)
        text = f"{self.points:,} of {self.total:,} rows, {format_si(rate, 'rows/s', 3)}, {left} left"
        sys.stderr.write(f"\r{text}\x1b[K" if self.terminal else f"{text}\n")
        sys.stderr.flush()

    def done(self) -> None:
        """Clear the line."""
        if self.said and self.terminal:
            sys.stderr.write("\r\x1b[K")

    def interrupted(self, path: Path | None) -> None:
        """Say what there is, and how to go on."""
        self.done()
        if path is None:
            return
        from perfmodel.sweep.parts import kept

        place = kept(path)
        text = f"{place} holds the rows so far\n  go on with the same options and --resume" if place else "no rows were written"
        say(f"perfmodel: interrupted; {text}")
