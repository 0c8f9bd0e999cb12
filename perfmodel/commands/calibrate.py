"""Measure this machine, or read records, and fit the time models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json import dumps
from pathlib import Path
from typing import Any

from perfmodel.commands._command import Destination, command, say
from perfmodel.commands._shared import SHIPPED, record_paths, require
from perfmodel.core.errors import UnavailableError
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import Common, Condition, Question, as_in, option

_READS_RECORDS = Condition("is for --from-records", "leave it out", lambda options: bool(options.from_records))


@dataclass(frozen=True, slots=True)
class CalibrationQuestion(Question):
    """Kernels to measure, or records to read, and the models to fit."""

    from_records: list[str] | None = option(f"Fit recorded measurements, .jsonl(.gz), or '{SHIPPED}', instead of measuring. Repeatable.")
    implementation: list[str] | None = option("Kernels to calibrate, such as torch-sdpa-flash. Repeatable. [default: the project's own]")
    hardware: str | None = option("Device: id, words or file. [default: this machine's, or the records']")
    required: int | None = as_in(Common, "required", reader=_READS_RECORDS)
    quick: bool = option(
        "Under a minute: copies, products, launches; two tiles per kernel, a third of library shapes, 30 points per fit.", default=False
    )


class _Fits(Destination):
    OFFERS = None  # which files can be written depends on the options


@command
def calibrate(options: CalibrationQuestion, to: _Fits) -> None:
    """Measure bandwidths, rates and overheads of this machine and fit the time models to its kernels.

    -o FILE.yaml writes a device profile with what was measured; datasheet values stay as they are. torch-* kernels need
    PyTorch: pip install 'perfmodel[torch]'. An interrupted run on a GPU keeps its records and says how to go on.
    Example: perfmodel calibrate --implementation torch-sdpa-flash -o mine.yaml
    """
    to.check(["profile"] if options.from_records else ["records", "profile"])
    from perfmodel.catalog import calibrated_devices, find_device
    from perfmodel.commands._progress import ProgressBar
    from perfmodel.report.calibration import calibration_report
    from perfmodel.validation.calibration_run import CalibrationOptions, this_machine
    from perfmodel.validation.calibration_run import from_records as fit_records

    names = options.implementation or []
    with _saved_until_done(to.files) as save:
        with ProgressBar() as bar:
            settings = CalibrationOptions(options.quick, os.cpu_count() or 1, bar.done, save)
            if options.from_records:
                paths = record_paths(options.from_records)
                one_table = any(name.endswith(".yaml") for name in to.files)
                fits = fit_records(paths, find_device, options.hardware, names, bar, one_table, calibrated_devices, settings)
                fitted = sum(len(fit.blocks) for fit in fits)
                reasons = [] if fitted else ["too few records of each kernel, or none that a model knows"]
                require(options.required, fitted, "kernels were calibrated", reasons)
            else:
                fits = [this_machine(find_device, options.hardware, names, bar, settings)]
        if not fits and to.output:
            raise UnavailableError("nothing was calibrated, so nothing is written", "bring more records of each kernel")
        to.emit(calibration_report(fits, options.quick))


@contextmanager
def _saved_until_done(outputs: list[str]) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Context with a function that saves each record beside the output. The file is removed after a good run, else its name is printed."""
    output = outputs[0] if outputs else "calibration.jsonl"
    path = Path(output).with_suffix(".partial.jsonl")
    records = 0

    def save(raw: dict[str, Any]) -> None:
        nonlocal records
        with path.open("a" if records else "w", encoding="utf-8") as file:
            file.write(dumps(raw) + "\n")
        records += 1

    try:
        yield save
    except BaseException as error:
        if records:
            say(f"{records} records are kept in {path}; fit them: perfmodel calibrate --from-records {path} -o mine.yaml")
        elif isinstance(error, KeyboardInterrupt):
            say("interrupted: no kernel was recorded, nothing is written")
        raise
    if records:
        path.unlink()
