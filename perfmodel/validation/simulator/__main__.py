"""The simulator's process: cases as one JSON object on standard input, one JSON object per case on standard output."""

from __future__ import annotations

import json
import sys

import numpy as np

from perfmodel.validation.simulator.counting import run

if __name__ == "__main__":
    sys.setswitchinterval(1e-5)  # the simulator's threads wait for each other at every barrier
    for key, case in json.load(sys.stdin).items():
        answer = {"key": key} | run(case, np.random.default_rng(len(key)))
        sys.stdout.writelines([json.dumps(answer) + "\n"])
        sys.stdout.flush()
