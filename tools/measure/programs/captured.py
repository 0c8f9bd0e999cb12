"""Programs captured without a GPU beside their profiles: ``python -m tools.measure.programs.captured TRACES HARDWARE [NAME ...]``.

TRACES is the folder that ``python -m tools.measure.programs`` filled. A line for each program, of the drawn ones if none is named: the
operators of its profile, those that a capture lacks and has too many; peak memory and time of a step, captured and measured.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.program.calls import Call, Operand
from perfmodel.program.capture import Captured, capture, predicted_profile
from perfmodel.program.profile import ProgramProfile, read
from tools.measure.programs.cases import DECODE, PROGRAMS, TRAINING, drawn, prepared

ALL = PROGRAMS | drawn()
WARM_UP = 4
"""Steps before the one whose memory was measured."""
LEFT = 33 << 20
"""Bytes that programs which ran before in the same process keep: what products of the backward thread do, and small blocks."""


def operators(calls: Iterable[Call]) -> Counter[tuple[Any, ...]]:
    """Calls by name, shapes, formats and strides; profiles record neither formats of lists, nor the tensors of long ones or of places."""
    return Counter(
        (call.name, *(isinstance(one, tuple) if "_foreach_" in call.name else _key(one) for one in call.arguments))
        if call.name != "aten::index"
        else (call.name, _key(call.arguments[0]))
        for call in calls
    )


def _key(one: Any) -> Any:
    if isinstance(one, Operand):
        steps = one.strides or [prod(one.shape[place + 1 :]) for place in range(len(one.shape))]
        return one.shape, one.dtype, tuple(step for step, size in zip(steps, one.shape, strict=True) if size > 1)
    return tuple(part.shape for part in one) if isinstance(one, tuple) else None


def captured(name: str, profile: ProgramProfile) -> tuple[Captured, Captured]:
    """The step that was profiled, and the one whose memory was measured: a cache grows with each."""
    import torch

    program = ALL[name]
    if program.phase != DECODE:
        found = capture(prepared(program, torch, "meta"))
        return found, found
    keys = max(one.call.tensor(1).shape[2] for one in profile.operators if one.call.name.endswith("attention_forward"))
    first, second = (capture(prepared(program, torch, "meta"), warm_up=count) for count in (keys - program.shape[1] - 1, WARM_UP))
    return first, second


def compared(name: str, folder: Path, measured: dict[str, Any], hardware: str) -> list[str]:
    """The cells of a line."""
    profile = read(folder / f"{name}.json.gz")
    step, first = captured(name, profile)
    here, there = operators(step.calls), operators(one.call for one in profile.operators)
    lacking = sum((there - here).values())
    more = sum((here - there).values())
    left = LEFT if ALL[name].phase != TRAINING and any(one.phase == TRAINING for one in earlier(name)) else 0
    peak = first.peak_bytes / (measured["peak_bytes"] - left) - 1
    predicted, (low, high) = predicted_profile(step, find_device(hardware), calibrated_devices)
    step_s, busy = measured["step_s"], profile.busy_s / profile.steps / measured["step_s"]
    inside = "yes" if low <= step_s <= high else "NO"
    launched = sum(len(one.kernels) for one in profile.operators) / profile.steps
    numbers = [f"{sum(there.values())}", f"{lacking}", f"{more}", f"{step.launches / launched - 1:+.1%}", f"{peak:+.2%}", f"{busy:.0%}"]
    return [
        *numbers,
        f"{step_s * 1e3:.2f}",
        f"{predicted.span_s * 1e3:.2f}",
        f"{predicted.span_s / step_s - 1:+.1%}",
        f"{low * 1e3:.2f}-{high * 1e3:.2f}",
        inside,
    ]


def earlier(name: str) -> list[Any]:
    """Programs that were measured before ``name``."""
    names = list(ALL)
    return [ALL[one] for one in names[: names.index(name)]]


if __name__ == "__main__":
    traces, device = Path(sys.argv[1]), sys.argv[2]
    steps = {one["name"]: one for one in map(json.loads, (traces / "steps.jsonl").read_text().splitlines())}
    print(
        "| program | operators | lacking | too many | launches | peak memory | busy | step, ms | predicted, ms | off | interval | holds |"
    )
    print("|---|" + "---|" * 11)
    for one in sys.argv[3:] or drawn():
        try:
            cells = [] if ALL[one].compiled else compared(one, traces, steps[one], device)
        except Exception as error:
            cells = [f"{type(error).__name__}: {error}".splitlines()[0][:120]]
        print(f"| {one} | {' | '.join(cells) if cells else 'compiled'} |", flush=True)
