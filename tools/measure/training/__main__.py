"""Measure training on this machine's GPU: records to files in a folder, progress to standard error."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from perfmodel.core.plugins import docstring
from perfmodel.validation.libraries import load_torch
from tools.measure.hardware import current_profile
from tools.measure.training.cases import cases, profiled_cases
from tools.measure.training.run import Campaign


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m tools.measure.training", description=docstring(sys.modules["__main__"]))
    parser.add_argument("--out", type=Path, required=True, help="folder to append records to")
    parser.add_argument("--seconds", type=float, default=60.0, help="start no case after so many seconds")
    parser.add_argument("--hardware", help="name of the GPU's profile, for the records; by default the one that fits its name")
    return parser.parse_args()


def _progress(line: str) -> None:
    sys.stderr.writelines([line])
    sys.stderr.flush()


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are made here; nothing is to be looked up
    arguments = _arguments()
    hardware = arguments.hardware or current_profile(load_torch())
    Campaign(arguments.out, hardware, arguments.seconds, _progress).run(cases(), profiled_cases())
