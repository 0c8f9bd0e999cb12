"""Times of library kernels as records, and the families of cases that are timed.

Kernels are timed with CUDA events until the median is known well enough. A case that cannot run or has a wrong result is reported, not
recorded. Cases are made of the shapes of ``shapes.json``, in turn of one to fit and one to judge models.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from perfmodel.core.errors import DataError, PerfmodelError, UnavailableError, suggest
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.timing.base import CLEAN, DIRTY, WARM
from perfmodel.validation.cases import FIT, HELD_OUT, KernelCase
from perfmodel.validation.libraries import Prepare, Prepared, Torch, gradients_of, load_torch, version_of
from perfmodel.validation.libraries.kernels import find
from perfmodel.validation.records import Record, Seconds, raw_of
from perfmodel.validation.statistics import StoppingRule

TOLERANCE = {"forward": 0.02, "backward": 0.03}
"""Relative error against float64 of kernels that round scores or results to 16 bits; a wrong kernel is off by far more."""
DIGITS = 4
"""Significant digits of a recorded time: 1e-4 is below the noise of any run."""
KEPT_BYTES = 48 << 30
"""Bytes that torch may cache between cases before they are returned to the driver."""
FLUSH_BYTES = 256 << 20
"""Bytes read before each clean run and written before each dirty one: several times any GPU's L2, so that little of the operands stays.
Reads leave no dirty lines, whose write-back would be timed with the run."""
WARM_UP_RUNS = 3
LONGEST_ENQUEUE_S = 2e-3
"""Most seconds to enqueue a run; a warm-up that took longer was disturbed."""
CYCLES_PER_S = 2e9
"""Device cycles per second of a wait: about the highest clock of a GPU, so that waits are rather too long."""
RULE = StoppingRule(relative_error=0.005, least_runs=10, runs=40, budget_s=0.25)
"""Runs come ``least_runs`` at a time, and ``budget_s`` is compared with the sum of their times."""


class TorchTimer:
    """Times callables on the current CUDA device.

    Each run first waits on the device for longer than the host needs to enqueue it; else gaps between launches would be timed.
    """

    def __init__(self, torch: Torch, rule: StoppingRule = RULE) -> None:
        self.torch, self.rule = torch, rule
        self.flush_buffer = torch.zeros(FLUSH_BYTES // 4, dtype=torch.float32, device="cuda")

    def times(self, run: Callable[[], Any], cache: str, during: Callable[[], None] = lambda: None) -> list[float]:
        """Seconds of each run after a warm-up, with the L2 in state ``cache``; ``during`` is called while the device works."""
        wait_cycles = self._host_cycles(run)
        seconds: list[float] = []
        while not self.rule.enough(seconds, sum(seconds)):
            events = [self._enqueue(run, cache, wait_cycles) for _ in range(self.rule.least_runs)]
            during()
            self.torch.cuda.synchronize()
            seconds += [start.elapsed_time(end) / 1e3 for start, end in events]
        return seconds

    def _host_cycles(self, run: Callable[[], Any]) -> int:
        """Device cycles in which the host enqueues one run, its flush and events: twice as many as a warm run took, and 60 us."""
        self.torch.cuda.synchronize()
        enqueue_s = 0.0
        for _ in range(WARM_UP_RUNS - 1):
            begin = time.perf_counter()
            run()
            enqueue_s = time.perf_counter() - begin
        run()
        self.torch.cuda.synchronize()
        return int((2 * min(enqueue_s, LONGEST_ENQUEUE_S) + 60e-6) * CYCLES_PER_S)

    def _enqueue(self, run: Callable[[], Any], cache: str, wait_cycles: int) -> tuple[Any, Any]:
        """Enqueues a wait, a flush and a run; returns the events at the run's start and end."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda._sleep(wait_cycles)
        if cache == CLEAN:
            self.flush_buffer.sum()
        elif cache == DIRTY:
            self.flush_buffer.zero_()
        start.record()
        run()
        end.record()
        return start, end


def measure(
    cases: Iterable[KernelCase],
    hardware: str,
    on_record: Callable[[Record], None],
    on_skip: Callable[[KernelCase, str], None],
    progress: Callable[[KernelCase], None] = lambda case: None,
    find: Callable[[KernelCase], Prepare] = find,
) -> None:
    """Times ``cases``: calls ``on_record`` with each record, ``on_skip`` with a skipped case and why, ``progress`` before each case."""
    torch = load_torch()
    timer = TorchTimer(torch)
    for case in cases:
        progress(case)
        try:
            on_record(_measured(case, find(case)(case, torch), hardware, torch, timer))
        except (PerfmodelError, RuntimeError) as error:  # torch raises RuntimeError where no kernel fits, or memory is short
            on_skip(case, str(error).strip().split("\n", 1)[0])
        finally:
            if torch.cuda.memory_reserved() > KEPT_BYTES:
                torch.cuda.empty_cache()


def _measured(case: KernelCase, prepared: Prepared, hardware: str, torch: Torch, timer: TorchTimer) -> Record:
    with gradients_of(case, torch):
        error = prepared.error(prepared.run())
        if not error <= TOLERANCE[case.direction]:
            raise UnavailableError(f"its relative error against float64 is {error:.2g}")
        clocks: list[int] = []
        times = timer.times(prepared.run, case.cache, lambda: _sample_clock(torch, clocks))
    environment: dict[str, Any] = {"torch": torch.__version__, "runs": len(times), "relative_error": float(f"{error:.2g}")}
    if clocks:
        environment["sm_mhz"] = sorted(clocks)[len(clocks) // 2]
    return case.record(hardware, Seconds.of(times), version_of(torch), environment=environment)


def _sample_clock(torch: Torch, clocks: list[int]) -> None:
    """Appends the SM clock in MHz to ``clocks``, if the machine has NVIDIA's management library."""
    with suppress(Exception):  # that library's errors, which have no name where it is missing
        clocks.append(torch.cuda.clock_rate())


def as_line(record: Record) -> str:
    """The record as a line of JSON, without its empty fields, times rounded to DIGITS significant digits."""
    raw = raw_of(record)
    raw["time_s"] = {key: float(f"{number:.{DIGITS}g}") for key, number in raw["time_s"].items()}
    return json.dumps(raw, separators=(",", ":")) + "\n"


Row = dict[str, Any]
"""A shape of ``shapes.json``, by column."""
CasesOf = Callable[[Row], Iterable[KernelCase]]
"""Function that gives the cases of one row, still without a role."""


@cache
def shapes() -> dict[str, dict[str, list[Row]]]:
    """Rows of ``shapes.json``, by section and role (FIT or HELD_OUT)."""
    sections = json.loads((Path(__file__).parent / "shapes.json").read_text())
    return {
        name: {role: [dict(zip(section["columns"], row, strict=True)) for row in section[role]] for role in (FIT, HELD_OUT)}
        for name, section in sections.items()
    }


def _section_cases(section: str, cases_of: CasesOf, every: int = 1) -> Iterator[KernelCase]:
    """Cases of rows to fit and held-out rows in turn, so that an interrupted run leaves both; from every ``every``-th row of each role."""
    by_role = shapes()[section]
    for pair in zip_longest(by_role[FIT][::every], by_role[HELD_OUT][::every]):
        for role, row in zip((FIT, HELD_OUT), pair, strict=True):
            if row is not None:
                yield from (replace(case, role=role) for case in cases_of(row))


def _case(workload: str, implementation: str, row: Row, direction: str = FORWARD) -> KernelCase:
    shape = {key: value for key, value in row.items() if key not in ("dtype", "row_major")}
    return KernelCase(workload, f"torch-{implementation}", shape, row["dtype"], direction, row_major=row.get("row_major", False))


def _forward(workload: str, *names: str) -> CasesOf:
    """Cases of the forward pass of the kernels ``names``."""
    return lambda row: [_case(workload, name, row) for name in names]


def _both_passes(name: str) -> CasesOf:
    """Cases of both passes of an attention kernel."""
    return lambda row: [_case("attention", name, row, direction) for direction in (FORWARD, BACKWARD)]


MOST_EFFICIENT_FLOP = 1e12
"""Matmul FLOP of a forward pass above which torch-sdpa-efficient, the slowest, is left out."""


def _efficient(row: Row) -> Iterable[KernelCase]:
    """Cases of both passes of torch-sdpa-efficient; none for a large row, or for grouped heads, which it does not take."""
    flop = 4 * row["batch"] * row["heads"] * row["n"] * row["kv_len"] * row["d"] / (2 if row["causal"] else 1)
    if flop > MOST_EFFICIENT_FLOP or row["heads"] != row["kv_heads"]:
        return ()
    return _both_passes("sdpa-efficient")(row)


MOST_EAGER_SCORES = 1 << 28
"""Scores above which the eager backward pass, which holds several such tensors, is left out."""


def _eager(direction: str) -> CasesOf:
    """Cases of one pass of eager attention."""

    def cases_of(row: Row) -> Iterator[KernelCase]:
        if direction == FORWARD or row["batch"] * row["heads"] * row["n"] * row["kv_len"] <= MOST_EAGER_SCORES:
            yield _case("attention", "eager", {**row, "mask": True} if row["causal"] else row, direction)

    return cases_of


def _eager_steps(row: Row) -> Iterator[KernelCase]:
    """The kernels of eager attention as separate cases of the families ``matmul`` and ``rows``."""
    heads, n, d = row["batch"] * row["heads"], row["n"], row["d"]
    scores = {"dtype": row["dtype"], "rows": heads * n, "cols": row["kv_len"]}
    product = {"dtype": row["dtype"], "batch": heads, "m": n}
    yield _case("matmul", "matmul", {**product, "n": row["kv_len"], "k": d})
    yield _case("scale", "scale", scores)
    if row["causal"]:
        yield _case("scale", "mask", {**scores, "mask_rows": n})
    yield _case("softmax", "softmax", scores)
    yield _case("matmul", "matmul", {**product, "n": d, "k": row["kv_len"], "row_major": True})


def _row_kernels() -> Iterator[KernelCase]:
    """Cases of softmax, norms and element-wise steps."""

    def norm(name: str, row: Row) -> KernelCase:
        return _case("norm", name, {**row, "kind": name.replace("-", "")})

    yield from _section_cases("rows", lambda row: [_case("softmax", "softmax", row), norm("rms-norm", row)])
    yield from _section_cases("rows", lambda row: [norm("layer-norm", row), *_forward("scale", "scale", "add", "silu-mul")(row)], every=2)
    yield from _section_cases("softmax", _forward("softmax", "softmax"))
    yield from _section_cases("mask", _forward("scale", "mask"))


WARM_STEP = {"sdpa-flash": 27, "matmul": 19, "decode-flash": 19, "rows": 21, "copy": 7}
"""Step through the cases of a family for warm runs, by family. Steps are odd, so that both roles occur."""
FAMILIES: dict[str, Callable[[], Iterator[KernelCase]]] = {
    "sdpa-flash": lambda: _section_cases("attention", _both_passes("sdpa-flash")),
    "matmul": lambda: _section_cases("matmul", _forward("matmul", "matmul")),
    "batched-matmul": lambda: _section_cases("batched matmul", _forward("matmul", "matmul")),
    "sdpa-cudnn": lambda: _section_cases("attention", _both_passes("sdpa-cudnn")),
    "decode-flash": lambda: _section_cases("decode", _forward("attention", "sdpa-flash")),
    "wide-decode-flash": lambda: _section_cases("wide decode", _forward("attention", "sdpa-flash")),
    "wide-decode-cudnn": lambda: _section_cases("wide decode", _forward("attention", "sdpa-cudnn")),
    "eager": lambda: _section_cases("eager", _eager(FORWARD)),
    "eager-backward": lambda: _section_cases("eager", _eager(BACKWARD)),
    "eager-steps": lambda: _section_cases("eager", _eager_steps, every=5),
    "sdpa-efficient": lambda: _section_cases("attention", _efficient),
    "decode-cudnn": lambda: _section_cases("decode", _forward("attention", "sdpa-cudnn")),
    "rows": _row_kernels,
    "rope": lambda: _section_cases("rope", _forward("scale", "rope")),
    "copy": lambda: _section_cases("copy", _forward("copy", "copy")),
    "grouped": lambda: _section_cases("grouped", _forward("grouped-matmul", "grouped-mm")),
    "warm": lambda: (replace(case, cache=WARM) for family, step in WARM_STEP.items() for case in cases(family)[::step]),
}
"""Families of cases, the most wanted first."""


def cases(family: str) -> list[KernelCase]:
    """The cases of one family; DataError if there is none of that name."""
    if family not in FAMILIES:
        raise DataError(f"no family of library kernels is called {family!r}", suggest(family, list(FAMILIES)))
    return list(FAMILIES[family]())
