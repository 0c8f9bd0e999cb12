"""Measure this machine, or read records, and fit the time models."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from json import dumps, loads
from pathlib import Path
from types import TracebackType
from typing import Any

from perfmodel.commands._command import Destination, command, say
from perfmodel.commands._shared import SHIPPED, record_paths, require
from perfmodel.core.question import Common, Condition, Question, as_in, option

_FITTED = Condition("is for --from-records", "leave it out", lambda options: bool(options.from_records))


@dataclass(frozen=True, slots=True)
class CalibrationQuestion(Question):
    """What to measure, or records to read, and to fit."""

    from_records: list[str] | None = option(f"Fit recorded measurements, .jsonl(.gz), or '{SHIPPED}', instead of measuring. Repeatable.")
    implementation: list[str] | None = option("Kernels to calibrate, such as torch-sdpa-flash. Repeatable. [default: the project's own]")
    hardware: str | None = option("Device: id, words or file. [default: this machine's, or the records']")
    required: int | None = as_in(Common, "required", reader=_FITTED)
    quick: bool = option(
        "Under a minute: copies, products, launches; two tiles per kernel, a third of library shapes, 30 points per fit.", default=False
    )


class _Fits(Destination):
    OFFERS = None


@command
def calibrate(options: CalibrationQuestion, to: _Fits) -> None:
    """Measure bandwidths, rates and overheads of this machine and fit the time models to its kernels.

    -o FILE.yaml writes a device profile with what was measured; datasheet values stay as they are. torch-* kernels need
    PyTorch: pip install 'perfmodel[torch]'. An interrupted run keeps what it measured and says how to go on.
    Example: perfmodel calibrate --implementation torch-sdpa-flash -o mine.yaml
    """
    to.check(["profile"] if options.from_records else ["records", "profile"])
    from perfmodel.catalog import calibrated_devices, find_device
    from perfmodel.commands._progress import ProgressBar
    from perfmodel.core.errors import UnavailableError
    from perfmodel.report.calibration import calibration_report
    from perfmodel.validation.calibration_run import CalibrationOptions, this_machine
    from perfmodel.validation.calibration_run import from_records as fit_records

    names = options.implementation or []
    with _Kept(to.files) as kept:
        with ProgressBar() as bar:
            how = CalibrationOptions(options.quick, os.cpu_count() or 1, bar.done, kept.write, kept.timings)
            if options.from_records:
                paths, one = record_paths(options.from_records), any(name.endswith(".yaml") for name in to.files)
                found = fit_records(paths, find_device, options.hardware, names, bar, one, calibrated_devices, how)
                fitted = sum(len(one.blocks) for one in found)
                why = [] if fitted else ["too few records of each kernel, or none that a model knows"]
                require(options.required, fitted, "kernels were calibrated", why)
            else:
                found = [this_machine(find_device, options.hardware, names, bar, how)]
        if not found and to.output:
            raise UnavailableError("nothing was calibrated, so nothing is written", "bring more records of each kernel")
        to.emit(calibration_report(found, options.quick))


class _Kept:
    """A file of what was measured so far: beside the output, gone once the run has ended well, left and named otherwise.

    Records of a GPU are fitted from there. ``timings`` of a CPU, which an interrupted run has left, are taken up by the next run.
    """

    def __init__(self, outputs: list[str]) -> None:
        beside = next(iter(outputs), "calibration.jsonl")
        self.path, self.records = Path(beside).with_suffix(".partial.jsonl"), 0
        self.timings: list[dict[str, Any]] = _timings(self.path)
        self.begun = False

    def __enter__(self) -> _Kept:
        return self

    def write(self, raw: dict[str, Any]) -> None:
        """Append one record or timing; of an earlier run's file the first one leaves the timings alone."""
        with self.path.open("a" if self.begun else "w", encoding="utf-8") as file:
            file.writelines(dumps(one) + "\n" for one in ([raw] if self.begun else [*self.timings, raw]))
        self.begun = True
        self.records += "item" not in raw

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not (self.begun or self.timings):
            if kind is KeyboardInterrupt:
                say("interrupted: nothing was measured or written")
        elif kind is None:
            self.path.unlink()
        elif self.records:
            say(f"{self.records} records are kept in {self.path}; fit them: perfmodel calibrate --from-records {self.path} -o mine.yaml")
        else:
            say(f"what was timed is kept in {self.path}; the same command goes on with it")


def _timings(path: Path) -> list[dict[str, Any]]:
    """The timings in ``path``, up to a line that was cut; none if there is no such file, or it holds records."""
    found: list[dict[str, Any]] = []
    with suppress(OSError, ValueError):
        for line in path.read_text(encoding="utf-8").splitlines():
            found.append(loads(line))
    return [one for one in found if {"item", "seconds", "wall_s", "spent_s"} <= set(one)]
