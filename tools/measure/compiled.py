"""Kernels that torch.compile builds, and norms backward, of shapes drawn at random.

``python -m tools.measure.compiled SEED COUNT OUT [DEVICE]``: ``COUNT`` cases of each family, by turns. Processes compile them all first,
beside one another, into Inductor's cache; then they are timed. ``--states``: each clean, dirty and warm, and held out; otherwise clean,
for the fit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.timing.base import STATES
from perfmodel.validation.cases import FIT, HELD_OUT, KernelCase
from perfmodel.validation.libraries import gradients_of, load_torch
from perfmodel.validation.libraries.kernels import ROPE_HEAD_DIM
from tools.measure.drawn import Shape, _log, time_into
from tools.measure.hardware import current_profile
from tools.measure.prepared import COMPILED, find
from tools.measure.wide import SIXTEEN, Family, _norm, attention, rows

HEAD_DIMS, SHORTEST, LONGEST = (64, 64, 64, 128, 128, 128, 32, 96, 192, 256), 128, 1 << 15


def flex(random: Random) -> Shape:
    """Several queries; a third of the causal ones with a window."""
    while True:
        shape = attention(random) | {"d": random.choice(HEAD_DIMS)}
        if not SHORTEST <= shape["n"] <= LONGEST or not SHORTEST <= shape["kv_len"] <= LONGEST:
            continue
        if shape["causal"] and random.random() < 1 / 3:
            shape["window"] = _log(random, 64, shape["n"])
        return shape


def rotated(random: Random) -> Shape:
    """Rows of whole heads."""
    while True:
        shape = rows(random)
        shape["cols"] = shape["cols"] // ROPE_HEAD_DIM * ROPE_HEAD_DIM
        if shape["cols"]:
            return shape


FAMILIES: tuple[Family, ...] = (
    *(("attention", "torch-flex", way, flex, SIXTEEN) for way in (FORWARD, BACKWARD, FORWARD, BACKWARD)),
    *(("norm", f"torch-{kind}-norm", BACKWARD, _norm(f"{kind}norm"), SIXTEEN) for kind in ("rms", "layer")),
    *(("norm", f"{COMPILED}{kind}", FORWARD, _norm("rmsnorm"), SIXTEEN) for kind in ("rms-norm", "add-rms-norm")),
    ("norm", f"{COMPILED}layer-norm", FORWARD, _norm("layernorm"), SIXTEEN),
    ("softmax", f"{COMPILED}softmax", FORWARD, rows, SIXTEEN),
    *(("scale", f"{COMPILED}{kind}", FORWARD, rows, SIXTEEN) for kind in ("silu-mul", "add")),
    ("scale", f"{COMPILED}rope", FORWARD, rotated, SIXTEEN),
)


def drawn(seed: int, count: int, states: bool) -> Iterator[KernelCase]:
    """``count`` cases of each family; the same for the same seed."""
    random, caches = Random(seed), STATES if states else STATES[:1]
    role = f"drawn with seed {seed}; {HELD_OUT}" if states else FIT
    for _ in range(count):
        for workload, name, direction, draw, dtypes in FAMILIES:
            case = KernelCase(workload, name, draw(random), random.choice(dtypes), direction, role)
            yield from (replace(case, cache=cache) for cache in caches)


def is_compiled(case: KernelCase) -> bool:
    """Whether torch.compile builds the kernel."""
    return case.implementation == "torch-flex" or case.implementation.startswith(COMPILED)


def compile_all(arguments: list[str]) -> None:
    """Compile all cases in as many processes as there are cores."""
    parts, alone = os.cpu_count() or 1, os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [sys.executable, "-m", "tools.measure.compiled", *arguments]
    for process in [subprocess.Popen([*command, f"--part={part}/{parts}"], env=alone) for part in range(parts)]:
        process.wait()


def compile_part(cases: list[KernelCase], part: int, parts: int) -> None:
    """Run every ``parts``-th of ``cases`` once."""
    torch = load_torch()
    for case in islice(cases, part, None, parts):
        with suppress(Exception), gradients_of(case, torch):  # what fails here fails again when it is timed, and is then reported
            find(case)(case, torch).run()
        torch.cuda.empty_cache()


def main(arguments: list[str]) -> None:
    """Compile and time the cases."""
    plain = [argument for argument in arguments if not argument.startswith("--")]
    cases = list(drawn(int(plain[0]), int(plain[1]), "--states" in arguments))
    once = [case for case in cases if case.cache == STATES[0] and is_compiled(case)]
    part = next((argument.partition("=")[2] for argument in arguments if argument.startswith("--part=")), "")
    if part:
        compile_part(once, *map(int, part.split("/")))
        return
    compile_all(arguments)
    time_into(Path(plain[2]), cases, plain[3] if len(plain) > 3 else current_profile(load_torch()))


if __name__ == "__main__":
    main(sys.argv[1:])
