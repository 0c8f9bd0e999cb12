"""Fit the shares of the roofs of llama.cpp's preset to the runs of the fitted devices: ``python -m tools.refresh.llama_cpp``.

It prints the section of ``configs/engines/llama.cpp.yaml`` and its widths. ``score``: scores of the devices held out, into their file.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from scipy.optimize import least_squares

from perfmodel.catalog import find_model
from perfmodel.serving.engine import RoofShares
from tools.scores import DATA
from tools.scores import llama_cpp_runs as bench

SCORES = DATA / "llama_cpp_scores.json"
EXPECTED = {
    "NVIDIA": {
        **{"dram": (0.9, 0.03), "cache": (0.6, 0.3), "attention": (0.3, 0.2)},
        **{"block_ops": (9.0, 0.5), "expert_ops": (20.0, 0.5), "cycles": (10000.0, 0.5)},
        **{"router_cycles": (50000.0, 0.5)},
    },
    "Apple": {
        **{"dram": (0.9, 0.03), "cache": (0.3, 0.3), "products": (0.65, 0.2), "attention": (0.25, 0.3)},
        **{"weight_ops": (12.0, 0.5), "cycles": (15000.0, 0.5)},
    },
}
"""Middle and spread, in logarithms, of what is expected of a parameter before the fit."""
FIXED = {"NVIDIA": {"products": 0.6}, "Apple": {"router_cycles": 125000.0}}
"""What no run of the fitted devices shows: current builds of 16-bit models on NVIDIA cards, models with experts on Apple's."""
BACKENDS = {"NVIDIA": "cuda", "Apple": "metal"}
SHARE = 0.1
"""Error, in logarithms, that counts as much as a parameter one spread away."""


def fitted(maker: str, rows: list[bench.Run]) -> tuple[RoofShares, np.ndarray]:
    """The shares, and the errors that they leave."""
    names, (middle, spread) = list(EXPECTED[maker]), np.array(list(EXPECTED[maker].values())).T

    def shares(logs: np.ndarray) -> RoofShares:
        values = {name: float(f"{value:.4g}") for name, value in zip(names, np.exp(logs), strict=True)}
        return RoofShares(**{**FIXED[maker], **values})

    def missed(logs: np.ndarray) -> np.ndarray:
        errors = np.array([bench.log_error(run, shares(logs)) for run in rows]) / SHARE
        return np.concatenate([errors, (logs - np.log(middle)) / spread])

    logs = least_squares(missed, np.log(middle), loss="soft_l1", diff_step=1e-3).x
    return shares(logs), np.array([bench.log_error(run, shares(logs)) for run in rows])


def fit() -> None:
    """Print the section, the errors of the fit, and the widths: errors of each device by a fit without it."""
    every = [run for run in bench.runs() if run["device"] in bench.SPLIT["fitted"] and bench.is_current(run)]
    left: dict[tuple[str, str], list[float]] = {}
    for maker, backend in BACKENDS.items():
        rows = [run for run in every if run["backend"] == backend]
        found, errors = fitted(maker, rows)
        values = {name: getattr(found, name) for name in found.__slots__ if getattr(found, name)}
        print(f"  {maker}: {{{', '.join(f'{name}: {value:g}' for name, value in values.items())}}}")
        for test in ("tg", "pp"):
            missed = np.abs(np.expm1([error for run, error in zip(rows, errors, strict=True) if run["test"] == test]))
            print(f"    # {test}: {len(missed)} runs, median {np.median(missed):.3f}, p90 {np.quantile(missed, 0.9):.3f}")
        for device in {run["device"] for run in rows}:
            without, _ = fitted(maker, [run for run in rows if run["device"] != device])
            for run in (run for run in rows if run["device"] == device):
                kind = "experts" if find_model(run["model"]).is_moe else "dense"
                left.setdefault((kind, run["test"]), []).append(bench.log_error(run, without))
    for (kind, test), errors_of in sorted(left.items()):
        low, high = np.exp(-np.quantile(errors_of, [0.9, 0.1]))
        missed = np.abs(np.expm1(errors_of))
        print(f"  {kind} {test}: [{low:.2f}, {high:.2f}] of {len(missed)}, median {np.median(missed):.3f}")


def score() -> None:
    """Write the scores of the devices held out: current builds, and older ones apart."""
    rows = [run for run in bench.runs() if run["device"] in bench.SPLIT["held_out"]]
    found = {
        "current": {
            backend: bench.scored(run for run in rows if run["backend"] == backend and bench.is_current(run))
            for backend in ("cuda", "metal")
        },
        "before": {"cuda": bench.scored(run for run in rows if run["backend"] == "cuda" and not bench.is_current(run))},
    }
    print(json.dumps(found, indent=1))
    SCORES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    score() if sys.argv[1:] == ["score"] else fit()
