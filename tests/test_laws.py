"""What holds for the answer to any question, whatever the command: times stand in their order, and sums are sums.

80 questions here, and 120 of usual sizes; 100,000 with ``pytest -m slow -s tests/test_laws.py``.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fuzzing import answer, read_once
from questions import questions, usual

from perfmodel.catalog import find_device
from perfmodel.report.saved_metrics import metrics_of

ROUNDING = 1 + 1e-9
ORDER = (("lower", "roofline"), ("roofline", "no_overlap"), ("lower_warm", "lower"), ("lower", "predicted"), ("low", "predicted"))
"""Of two times that an entry gives, the first is never longer than the second."""


def times(found: Any, path: str = "") -> Iterator[tuple[str, dict[str, float]]]:
    """Every group of times in an answer, by where it stands; a key such as ``lower_s`` is the ``lower`` of its entry."""
    if isinstance(found, list):
        for index, value in enumerate(found):
            yield from times(value, f"{path}[{index}]")
    elif isinstance(found, dict):
        flat = {key.removesuffix("_s"): value for key, value in found.items() if key.endswith("_s") and isinstance(value, float)}
        if path.endswith((".time_s", ".predicted_s")):
            flat = {key: value for key, value in found.items() if isinstance(value, (int, float))}
        if flat:
            yield path, flat
        for key, value in found.items():
            if key not in ("inputs", "ratios", "terms"):
                yield from times(value, f"{path}.{key}")


def broken(path: str, group: dict[str, float]) -> list[str]:
    """The laws that a group of times breaks, in words."""
    order = [*ORDER, ("predicted", "high"), ("lower", "low")]
    known = {name: value for name, value in group.items() if value is not None}
    return [
        f"{path}: {first} {known[first]:.6g} s is longer than {second} {known[second]:.6g} s"
        for first, second in order
        if first in known and second in known and not known[first] <= known[second] * ROUNDING
    ]


def busy(found: dict[str, Any]) -> list[str]:
    """Steps of a model, and rows of them, that are predicted shorter than a resource is busy."""
    if "totals" not in found or "ops" not in found:
        return []
    known = ("tensor", "vector") + ("dram",) * (find_device(found["hardware"]["id"]).cache_bytes is not None)
    faults = []
    for entry in (found["totals"], *found["ops"]):
        seconds, terms = entry["time_s"].get("predicted"), entry["time_s"]["terms"]
        for unit in known if seconds is not None else ():
            if not terms.get(unit, 0) <= seconds * ROUNDING:
                faults.append(f"{entry.get('name', 'the step')} takes {seconds:.6g} s, while {unit} is busy {terms[unit]:.6g} s")
    return faults


def shares(found: dict[str, Any]) -> list[str]:
    """Shares of a peak above 1."""
    values = {key: found.get(key) for key in ("mfu", "hfu")}
    return [f"{key} is {value:.4g}" for key, value in values.items() if value is not None and not 0 <= value <= ROUNDING]


def sums(found: dict[str, Any]) -> list[str]:
    """Totals that are not the sum of the kernels they are of."""
    faults = []
    for entry in found.get("results", []):
        kernels = entry.get("kernels") or []
        for key in ("flops", "executed_flops"):
            if kernels and not math.isclose(sum(kernel[key] for kernel in kernels), entry[key], rel_tol=1e-9):
                faults.append(f"{key} of {entry.get('algorithm')} is not the sum of its kernels")
        for level in ("sram", "dram"):
            for way in ("read_bytes", "write_bytes"):
                moved = [kernel["traffic"][level][way] for kernel in kernels]
                if kernels and not math.isclose(sum(moved), entry["traffic"][level][way], rel_tol=1e-9, abs_tol=1e-6):
                    faults.append(f"traffic.{level}.{way} of {entry.get('algorithm')} is not the sum of its kernels")
    return faults


WHY = re.compile(
    r"[Nn]othing|busy only|starting|blocks? for|waves? of|launch|Limited by (latency|the host|[a-z -]+: it takes)|"
    r"reach \S+ of their roofs|[6-9]\d% busy"
)
"""Words for what takes time beside work and traffic, or for a peak that is not reached all the time."""


def unexplained(found: dict[str, Any]) -> list[str]:
    """Predicted times that are longer than all resources one after another, of which the answer does not say why."""
    asked = (found.get("inputs") or {}).get("pass")  # of forward and backward together the answer is about the sum
    results = [one for one in found.get("results") or () if one.get("pass") in (None, asked)]
    entries = [found.get("totals"), *results]
    known = [entry["time_s"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("time_s"), dict)]
    over = [times for times in known if (times.get("predicted") or 0) > (times.get("no_overlap") or math.inf) * ROUNDING]
    said = " ".join([*found.get("verdict", ()), *found.get("reasons", ())])
    return [
        f"{one['predicted']:.4g} s are above no overlap, {one['no_overlap']:.4g} s, for no reason: {said}"
        for one in over
        if not WHY.search(said)
    ]


METER = re.compile(r"[█·]{10,}\s+(\d+)%")


def meters(screen: str) -> list[str]:
    """Meters of a screen above 100 %, but where they say how much more than its memory is needed."""
    over = [share for share in METER.findall(screen) if int(share) > 100]
    return [] if "oes not fit" in screen else [f"a meter shows {share} %" for share in over]


def changed(args: list[str], out: str, folder: Path) -> list[str]:
    """What ``compare`` finds different between an answer and itself; nothing for one without numbers."""
    if not metrics_of(json.loads(out), "x"):
        return []
    (folder / "x.json").write_text(out)
    code, compared, err = answer(["compare", *[str(folder / "x.json")] * 2, "--fail-on", "changed", "--full"])
    words = [word for word in ("SLOWER", "FASTER", "WORSE", "BETTER", "CHANGED", "differ") if word in compared]
    return [f"compared with itself, exit {code}: {err.strip()} {words}"] if code or words else []


def faults_of(args: list[str], counted: Counter[str], folder: Path | None = None) -> list[str]:
    """What is wrong with the answer to ``args``; nothing if it is refused with a message. ``folder``: where to look at it in other ways."""
    code, out, err = answer(args)
    counted[f"exit {code}"] += 1
    if code not in (0, 3):
        return [] if code in (1, 2) and err.strip() else [f"exit {code} without a word"]
    found = json.loads(out)
    groups = list(times(found))
    counted["times"] += sum(len(group) for _, group in groups)
    counted["predicted"] += sum(group.get("predicted") is not None for _, group in groups)
    more = [] if folder is None else [*meters(answer(args[:-1])[1]), *changed(args, out, folder)]
    return [
        *(fault for path, group in groups for fault in broken(path, group)),
        *busy(found),
        *shares(found),
        *sums(found),
        *unexplained(found),
        *more,
    ]


@pytest.fixture(autouse=True)
def _asked_again_and_again(monkeypatch):
    read_once(monkeypatch)


BROKEN = """
matmul -m 2171 -n 16392 -k 591 --batch 2 --dtype bf16 --hardware amd-epyc-9654
matmul -m 512 -n 256 -k 4096 --batch 13 --tile-m 6 --dtype fp16 --hardware nvidia-l40s
matmul -m 4096 -n 4096 -k 4096 --sram 8KiB --hardware h200
attention --n 8192 --d 192 --heads 11 --batch 8 --dtype fp8 --pass both --algorithm flash2 --block-kv 9 --causal --hardware h200
attention --n 2048 --d 128 --heads 8 --sram 32KiB --hardware h200
matmul -m 2350 -n 8192 -k 4096 --dtype fp16 --hardware nvidia-rtx-5090
attention --n 64 --d 128 --heads 8 --batch 16 --dtype bf16 --algorithm standard --algorithm flash1 --dv 1 --hardware h100-sxm-80gb
model minimax-m2.5 --phase train --batch 128 --n 4352 --dp 64 --micro-batch 2 --zero 3 --tp 2 --no-flash --system dgx-h100
model gemma-4-26b-a4b --phase train --batch 4 --n 384 --micro-batch 2 --tp 2 --pp 2 --no-flash --no-overlap --system dgx-h100
"""


@pytest.mark.parametrize("line", BROKEN.strip().splitlines())
def test_what_broke_a_law_once(line: str, tmp_path: Path) -> None:
    """A crash, a meter above 100 %, or a time above no overlap without a reason."""
    counted = Counter[str]()
    assert not faults_of([*line.split(), "--json"], counted, tmp_path)
    assert counted["exit 0"]


@pytest.mark.parametrize(("count", "seed"), [(80, 1), pytest.param(100_000, 2, marks=pytest.mark.slow)])
def test_no_answer_breaks_a_law(count: int, seed: int, tmp_path: Path) -> None:
    counted, wrong = Counter[str](), []
    for number, (kind, args) in enumerate(questions(count, seed)):
        faults = faults_of(args, counted, tmp_path if number % 10 == 0 else None)
        counted[kind] += 1
        if faults:
            wrong.append((" ".join(args), faults[:3]))
    print(f"{count:,} questions: {dict(counted)}; {len(wrong):,} break a law")
    assert not wrong, "\n".join(f"perfmodel {line}\n    {'; '.join(faults)}" for line, faults in wrong[:20])
    assert counted["exit 0"] > count / 2
    assert counted["predicted"] > count / 10


@pytest.mark.parametrize(("count", "seed"), [(120, 3), pytest.param(10_000, 4, marks=pytest.mark.slow)])
def test_no_meter_shows_more_than_all_of_it(count: int, seed: int) -> None:
    r, told = Random(seed), 0
    for line in (usual(r) for _ in range(count)):
        screen = answer(line)[1]
        assert not meters(screen), line
        told += ", below its roof: what any kernel needs" in screen
    assert told


BELOW = (
    *("attention --n 1 --kv-len 32768 --d 128 --heads 32 --kv-heads 8 --batch 16 --hardware mi308x",),
    *("attention --n 2 --kv-len 32768 --d 64 --heads 32 --kv-heads 1 --batch 16 --hardware h200",),
    *(f"matmul -m 8192 -n 8192 -k 8192 --hardware {name}" for name in ("intel-xeon-8480plus",)),
    *("matmul -m 8192 -n 2048 -k 4096 --dtype tf32 --hardware h200",),
)
"""Predictions of kernels that pad or move less than the tiles that are counted, or run at a higher clock."""


@pytest.mark.parametrize("line", BELOW)
def test_a_time_below_its_roof_says_so_and_why(line: str) -> None:
    _, screen, _ = answer([*line.split(), "--full"])
    assert ", below its roof: what any kernel needs\n" in screen
    assert re.search(r"is below its roof of [\d.]+ \w+: the kernel that is predicted computes or moves less", screen)
    assert not meters(screen)
    assert not [share for share in re.findall(r"(\d+)% (?:of the \w+ peak|busy|of its roof)", screen) if int(share) > 100]


@pytest.mark.parametrize("workload", ["--attention 'n=1 kv_len=32768 d=128 heads=32 batch=16' --hardware mi308x"])
def test_a_point_above_its_roof_says_why_and_has_no_meters(workload: str) -> None:
    screen = answer(["roofline", *shlex.split(workload)])[1]
    assert re.search(r", by other tiles or a higher clock 1\d\d% of its tensor roof\.", screen)
    assert "share of the" not in screen


def test_products_on_a_vector_unit_take_its_rate_for_their_format() -> None:
    found = json.loads(answer(["matmul", "-m", "8192", "-n", "8192", "-k", "8192", "--hardware", "amd-epyc-9654", "--json"])[1])
    assert found["results"][0]["time_s"]["roofline"] == pytest.approx(2 * 8192**3 / 14.7e12, rel=0.01)


@pytest.mark.parametrize(
    "line", ["matmul -m 8192 -n 8192 -k 8192 --dtype fp8 --hardware h200", "matmul -m 8192 -n 8192 -k 8192 --hardware rtx-4090"]
)
def test_a_screen_names_one_limiter(line: str) -> None:
    _, screen, _ = answer(line.split())
    [limiter] = re.findall(r"^(.+?) +[█·]{20}.*< limits$", screen, re.MULTILINE)
    assert re.search(rf"^Limited by (?:the )?{limiter}, \d+% busy\.$", screen, re.MULTILINE)
    assert "below its roof" not in screen
