"""What holds between the answers to two questions that differ in one option: doubled, masked, larger, or asked in another way.

120 questions here; 20,000 with ``pytest -m slow -s tests/test_metamorphic.py``.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice
from random import Random
from typing import Any

import pytest
from fuzzing import answer, read_once
from questions import questions, sweep

from perfmodel.core.units import format_binary, format_si, format_time, parse

ROUNDING = 1 + 1e-9
Entry = tuple[str, str]
"""Algorithm and pass."""


@pytest.fixture(autouse=True)
def _asked_again_and_again(monkeypatch):
    read_once(monkeypatch)


# Questions and answers


def option(args: list[str], name: str) -> str | None:
    """What ``--name`` is given; None if it is not."""
    return args[args.index(f"--{name}") + 1] if f"--{name}" in args else None


def put(args: list[str], name: str, value: str | int) -> list[str]:
    """``args`` with ``--name value``, in place of what it was given."""
    dashes = "-" if len(name) == 1 and args[0] == "matmul" else "--"
    if f"{dashes}{name}" not in args:
        return [*args, f"{dashes}{name}", str(value)]
    place = args.index(f"{dashes}{name}")
    return [*args[: place + 1], str(value), *args[place + 2 :]]


def ask(args: list[str]) -> Any:
    """The answer; None if it is refused."""
    code, out, _ = answer(args)
    return json.loads(out) if code == 0 else None


def both(first: list[str], second: list[str]) -> Iterator[tuple[Any, Any]]:
    """Two answers, if neither question is refused."""
    before = ask(first)
    after = before and ask(second)
    if after:
        yield before, after


def entries(found: Any) -> dict[Entry, dict[str, Any]]:
    """What is answered for each algorithm and pass, or in all."""
    listed = found["results"] if "results" in found else [found.get("totals", found)]
    return {(entry.get("algorithm", ""), entry.get("pass", "")): entry for entry in listed}


def figures(entry: Any, *groups: str, path: str = "") -> dict[str, float]:
    """Numbers of ``entry`` in ``groups``, by their path."""
    found = {}
    for key in groups or entry:
        value = entry.get(key)
        if isinstance(value, dict):
            found |= figures(value, path=f"{path}{key}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[f"{path}{key}"] = value
    return found


def compared(before: Any, after: Any, *groups: str) -> Iterator[tuple[str, float, float]]:
    """Each number that two answers share: its name, and what it was and is."""
    was, now = entries(before), entries(after)
    for which in was.keys() & now.keys():
        first, second = (figures(side[which], *groups) for side in (was, now))
        for name in sorted(first.keys() & second.keys()):
            yield f"{' '.join(which)} {name}".strip(), first[name], second[name]


def more(before: Any, after: Any, *groups: str, names: str = "") -> list[str]:
    """Numbers that are larger after."""
    return [
        f"{name}: {now:.9g} is more than {was:.9g}"
        for name, was, now in compared(before, after, *groups)
        if re.search(names, name) and not now <= was * ROUNDING
    ]


# Laws: each takes a question and tells what breaks it; it yields nothing where it does not apply

COUNTS = ("flops", "executed_flops", "work", "accesses")
DOUBLED = {
    "attention": "batch",
    "matmul": "batch",
    "mlp": "batch",
    "model": "batch",
    "training": "batch",
    "kv-cache": "batch",
    "softmax": "rows",
}
DOUBLED |= {"fuse": "elements"}


def doubled(kind: str, args: list[str], r: Random) -> Iterator[list[str]]:
    """Twice the batch is twice the FLOP; where nothing is shared, twice the rest too."""
    axis = DOUBLED[kind]
    if int(option(args, axis) or 1) % int(option(args, "ep") or 1):
        return  # groups of experts share whole sequences: some have one more than others
    twice = put(args, axis, 2 * int(option(args, axis) or 1))
    groups = COUNTS if kind in ("attention", "matmul", "softmax") else ("flops", "bytes")
    for before, after in both(args, twice):
        pairs = compared(before, after, *groups)
        own_splits = "split-kv" if option(args, "splits") is None else "-"  # its heuristic splits the keys of a small batch further
        held = [pair for pair in pairs if not pair[0].startswith(own_splits) or pair[0].endswith(" flops")]
        yield [f"{name}: {now} is not twice {was}" for name, was, now in held if not math.isclose(now, 2 * was, rel_tol=1e-9)]


def causal(kind: str, args: list[str], r: Random) -> Iterator[list[str]]:
    """A mask takes work away. DRAM traffic is left out: masked blocks do not go in step, so some find gone from the L2 what others need,
    or have added to; roofs that price it too. A kernel that takes another tile with a mask is asked for its FLOP alone.
    """
    full = [word for word in args if word != "--causal"]
    for before, after in both(full, [*full, "--causal"]):
        tiles = [(name, entry["tile"] == entries(after)[name]["tile"]) for name, entry in entries(before).items()]
        other = "".join(f"(?!{algorithm} {direction})" for (algorithm, direction), same in tiles if not same)
        counted = more(before, after, "flops", "memory_bytes") + more(before, after, *COUNTS, names=f"^{other}")
        counted += more(before, after, "traffic", names=f"^{other}.*sram")
        yield [*counted, *more(before, after, "time_s", names="lower"), *predicted_longer(before, after)]


SHORT_S = 20e-6
"""A kernel this short is mostly launch and latency, of which a masked one has more."""


def predicted_longer(before: Any, after: Any) -> list[str]:
    """Masked kernels whose interval lies above that of the same kernel without a mask.

    Standard attention is left out: its kernels compute all scores, and one more adds the mask. Within the interval they are alike: a
    kernel over in a few microseconds was measured to take some tenths longer with its mask; below ``SHORT_S`` none is compared.
    Nor with fewer keys than queries, where most queries see no key: nothing of the kind was calibrated.
    """
    rows, keys = (before["inputs"][name] for name in ("n", "kv_len"))
    pairs = [(entry, entries(after)[which]) for which, entry in entries(before).items() if which[0] != "standard"]
    return [
        f"{full['algorithm']} by {full['implementation']}: predicted {masked['time_s']} with a mask, {full['time_s']} without"
        for full, masked in pairs
        if full["implementation"] == masked["implementation"] and None not in (full["time_s"]["predicted"], masked["time_s"]["predicted"])
        if full["time_s"]["predicted"] > SHORT_S and keys >= rows and not masked["time_s"]["low"] <= full["time_s"]["high"]
    ]


def sram(kind: str, args: list[str], r: Random) -> Iterator[list[str]]:
    """More SRAM is never more accesses of flash1, nor of another algorithm where every query sees every key.

    Elsewhere larger tiles visit more of what a mask or a window hides, and read there. So does flash1 with an additive mask, or where
    an edge of its tile is given and the other grows alone. A share of blocks of another size is another set of scores: block-sparse
    is left out.
    """
    hidden = bool({"--causal", "--window"} & set(args))
    if hidden and {"--mask", "--block-q", "--block-kv"} & set(args):
        return
    size = round(2 ** r.uniform(10, 18))
    for before, after in both(put(args, "sram", f"{size}B"), put(args, "sram", f"{size + round(2 ** r.uniform(0, 18))}B")):
        yield more(before, after, "accesses", names="^flash1.*(total|bytes)" if hidden else "^(?!block-sparse).*(total|bytes)")


GROWS = {
    "attention": ("n", "kv-len", "d", "heads", "batch"),
    "matmul": ("m", "n", "k", "batch"),
    "mlp": ("batch", "d-in", "d-hidden", "d-out"),
    "softmax": ("rows", "cols"),
    "fuse": ("elements", "ops"),
    "recompute": (),
    "model": ("n", "kv-len", "batch"),
    "training": ("n", "batch"),
    "kv-cache": ("n", "batch"),
}


def grown(kind: str, args: list[str], r: Random) -> Iterator[list[str]]:
    """A larger question is never less work, and never a shorter bound."""
    short = "-" if kind == "matmul" else "--"
    axes = [axis for axis in GROWS[kind] if f"{short}{axis}" in args or f"--{axis}" in args]
    if option(args, "phase") == "generate" and option(args, "kv-len"):
        axes.remove("n")  # a longer prompt leaves fewer tokens to generate
    if not axes:
        return
    axis = r.choice(axes)
    place = next(args.index(word) for word in (f"{short}{axis}", f"--{axis}") if word in args)
    size = int(args[place + 1])
    step = r.choice([1, size, round(2 ** r.uniform(0, 12))])
    larger = [*args[: place + 1], str(size + step), *args[place + 2 :]]
    for before, after in both(args, larger):
        groups = ("flops", "bytes") if other_tile(before, after) else (*COUNTS, "bytes", "memory_bytes")
        faults = more(after, before, *groups) + more(after, before, "time_s", names=bounds(args, axis, other_tile(before, after)))
        yield [f"{axis} {size} to {size + step}: {fault}" for fault in faults]


def bounds(args: list[str], axis: str, tiled_otherwise: bool) -> str:
    """Times that grow with ``axis``.

    Generation does without the lower bound in the batch: each sequence may be generated in its turn, with experts that the caches
    keep from one token to the next, so that more sequences may find more there.
    """
    if option(args, "phase") == "generate" and axis == "batch":
        return "roofline"
    return "lower" if tiled_otherwise else "lower|roofline"


def other_tile(before: Any, after: Any) -> bool:
    """Whether a kernel chose another tile or other splits: it then pads, masks and reads otherwise, more or less."""
    first, second = ([entry.get("tile") for entry in entries(found).values()] for found in (before, after))
    return first != second


CELLS = {
    "flops": "flops",
    "executed_flops": "executed_flops",
    "tensor_flops": "work.tensor",
    "vector_flops": "work.vector",
    "exponentials": "work.sfu",
    "accesses_elements": "accesses.total",
    "reads_elements": "accesses.reads",
    "writes_elements": "accesses.writes",
    "sram_read_bytes": "traffic.sram.read_bytes",
    "dram_read_bytes": "traffic.dram.read_bytes",
    "dram_write_bytes": "traffic.dram.write_bytes",
    "memory_bytes": "memory_bytes",
    **{f"{name}_s": f"time_s.{name}" for name in ("lower", "lower_warm", "roofline", "no_overlap", "predicted")},
    "predicted_low_s": "time_s.low",
    "predicted_high_s": "time_s.high",
}
"""Columns of a sweep, and where the command tells the same."""


def cell(kind: str, args: list[str], r: Random) -> Iterator[list[str]]:
    """A row of a sweep is what the command says of that row."""
    columns = [name for name in CELLS if args[1] == "attention" or name != "memory_bytes"]
    found = ask(put(args, "columns", ",".join(columns)))
    if not found or not found.get("rows"):
        return
    row = r.choice(found["rows"])
    line = [args[1]]
    for name, value in row.items():
        if value is True or (name not in columns and not isinstance(value, bool) and value is not None):
            line += [f"--{name.replace('_', '-')}", *([] if value is True else [f"{value}"])]
    alone = ask([*line, "--json"])
    if alone is None:
        yield [f"perfmodel {' '.join(line)} is refused"]
        return
    wanted = figures(list(entries(alone).values())[-1])
    pairs = [(name, row[name], wanted.get(CELLS[name])) for name in columns]
    yield [
        f"{name}: {was} in the sweep, {now} alone"
        for name, was, now in pairs
        if (was is None) != (now is None) or (was is not None and not math.isclose(was, now, rel_tol=1e-12))
    ]


RENAMED = {"sram_bytes": "sram", "algorithms": "algorithm", "reserve_bytes": "reserve", "tensor_parallel": "tp", "pipeline_parallel": "pp"}
RENAMED |= {"expert_parallel": "ep", "context_parallel": "cp", "data_parallel": "dp", "sequence_parallel": "sp", "stored": "store"}
RENAMED |= {"fused_elementwise": "fused"}
DERIVED = ("cache", "architecture", "tensor_reads", "pattern", "rounds", "weight_bits", "kv_bits", "integer_weights", "integer_kv", "model")
DERIVED += ("weights_from_file", "cuda_graph", "implementation")
"""What ``inputs`` tells beside options: it follows from them."""


def returned(kind: str, args: list[str], r: Random) -> Iterator[list[str]]:
    """``inputs`` of an answer, given back as options, are the same question."""
    if kind in ("attention", "matmul") and r.random() < 0.3:
        args = put(args, "sram", "90KiB")
    before = ask(args)
    if before is None:
        return
    line, given = [args[0], *([before["inputs"]["model"]] if "model" in before["inputs"] else [])], before["inputs"]
    left = {*DERIVED, *(["sparsity"] if "--pattern" in args else []), *(["packed"] if "--packed" not in args else [])}
    left |= {"sram_bytes"} if "--sram" not in args else set()
    left |= {"splits"} if "split-kv" not in given.get("algorithms", ()) else set()
    left |= {"weights_from_file"} | ({"weights_dtype"} if given.get("weights_from_file") else set())
    for name, value in given.items():
        flag = RENAMED.get(name, name).replace("_", "-")
        for one in value if isinstance(value, list) else [value]:
            if name not in left and one not in (None, False, 0.0):
                line += [f"--{flag}", *([] if one is True else [f"{one}B" if "bytes" in name else f"{one}".removeprefix("density ")])]
    line += [word for option in ("--hardware", "--pattern") if option in args for word in (option, args[args.index(option) + 1])]
    line += ["--no-store"] * (given.get("stored") is False)
    after = ask([*line, "--json"])
    same = after is not None and json.dumps(after) == json.dumps(before)
    yield [] if same else [f"{' '.join(line)}: another answer"]


QUANTITY = re.compile(r"(?<![\w.,])(\d[\d.,]*(?:e[+-]?\d+)?) ?((?:[kMGTPE]|[KMGT]i)?(?:B/s|FLOP/s|B)|(?:[mun]?s))(?![\w/])")


def spelled(value: float, base: str) -> set[str]:
    """``value`` as it is printed, to any number of digits."""
    found = {f"{value:,} {base}", f"{value} {base}", f"{value:.6g} {base}"}
    for digits in range(1, 6):
        found.add(format_time(value, digits) if base == "s" else format_si(value, base, digits))
        found |= {format_binary(round(value), digits)} if base == "B" else set()
    return found


def printed(kind: str, args: list[str], r: Random) -> Iterator[list[str]]:
    """A quantity that is printed may be given, and is printed the same again."""
    code, out, _ = answer([word for word in args if word != "--json"])
    if code != 0:
        return
    faults = []
    for number, unit in sorted(set(QUANTITY.findall(out))):
        text, base = f"{number} {unit}", unit.lstrip("kMGTPEimunK")
        value = parse(text, base)
        if text not in spelled(value, base):
            faults.append(f"{text!r} is printed as {sorted(spelled(value, base))}")
    yield faults


SLOW = ("model", "training", "kv-cache")
"""Kinds that are asked a quarter as often as elsewhere."""
LAWS: dict[str, tuple[Callable[[str, list[str], Random], Iterator[list[str]]], tuple[str, ...]]] = {
    "doubled": (doubled, tuple(DOUBLED)),
    "causal": (causal, ("attention",)),
    "sram": (sram, ("attention", "matmul")),
    "grown": (grown, tuple(GROWS)),
    "cell": (cell, ("sweep",)),
    "returned": (returned, ("attention", "matmul", "mlp", "softmax", "recompute", "kv-cache")),
    "printed": (printed, ("attention", "matmul", "mlp", "softmax", "fuse", "recompute", "kv-cache")),
}
"""Each law with the kinds of question that it holds for."""


@pytest.mark.parametrize(("count", "seed"), [(120, 1), *(pytest.param(5_000, seed, marks=pytest.mark.slow) for seed in (2, 3, 4, 5))])
def test_no_pair_of_answers_breaks_a_law(count: int, seed: int) -> None:
    r, counted, wrong = Random(seed), Counter[str](), []
    asked = ((kind, args) for kind, args in questions(count * 2, seed) if kind not in SLOW or r.random() < 0.25)
    sweeps = (("sweep", ["sweep", *sweep(r), "--json"]) for _ in range(count // 60))
    for kind, args in islice(chain(sweeps, asked), count):
        law = r.choice([name for name, (_, kinds) in LAWS.items() if kind in kinds] or [""])
        counted["questions"] += 1
        for faults in LAWS[law][0](kind, args, r) if law else ():
            counted[law] += 1
            if faults:
                wrong.append(f"{law}: perfmodel {' '.join(args)}\n    {'; '.join(faults[:3])}")
                print(wrong[-1])
    print(f"{dict(counted)}; {len(wrong):,} break a law")
    assert not wrong, "\n".join(wrong[:40])
    assert counted["questions"] == count
    assert all(counted[law] for law in LAWS)
