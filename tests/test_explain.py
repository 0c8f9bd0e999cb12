"""Every number has a formula, every formula a source, and the printed formula gives the printed value."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from perfmodel.core.trace import Trace, label

LINES = [
    "attention --n 96 --d 16 --heads 2 --batch 2 --algorithm all --pass both --block-q 16 --block-kv 16",
    "attention --n 100 --kv-len 60 --d 8 --dv 12 --heads 4 --kv-heads 2 --algorithm all --pass both --causal --block-q 16 --block-kv 24",
    "attention --n 60 --kv-len 100 --d 8 --heads 4 --kv-heads 2 --algorithm all --pass both --causal --packed --block-q 16 --block-kv 24",
    "attention --n 64 --d 8 --algorithm all --pass both --window 20 --block-q 16 --block-kv 8 --dtype fp32",
    "attention --n 64 --d 8 --algorithm all --pass both --mask --dropout 0.1 --unfused-scale --printed-backward --hardware h200",
    "attention --n 1 --kv-len 100000 --d 128 --heads 8 --kv-heads 2 --algorithm flash --hardware mi300x",
    "attention --n 65536 --d 128 --heads 8 --algorithm flash --hardware h200 --causal",
    "attention --n 65536 --d 128 --heads 8 --algorithm flash --hardware h200",
]
OPS = [
    "matmul -m 1000 -n 700 -k 300 --split-k 3",
    "mlp --batch 100 --d-in 64 --d-hidden 256 --d-out 32",
    "softmax --rows 1000 --cols 3000",
    "fuse --elements 1000000 --ops 7 --reads-per-op 2",
    "occupancy --threads 200 --registers 40 --sram 10000B --stride 3 --element-bytes 8",
    "recompute --bytes 1MiB --flops 1e9 --times 3",
    "matmul -m 8192 -n 8192 -k 8192 --dtype fp32",
    "matmul -m 100 -n 3000 -k 77 --batch 5 --tile-m 32 --tile-n 64 --hardware h200",
    "matmul -m 64 -n 64 -k 64 --hardware tpu-v5e --dtype bf16 --sram 1MiB",
    "matmul -m 640 -n 640 -k 64 --hardware mi300x",
    "mlp --batch 100 --d-in 64 --d-hidden 256 --d-out 32 --input-gradient --hardware nvidia-h100-sxm-80gb",
    "softmax --rows 4096 --cols 200000 --no-store --hardware h200",
    "fuse --example sin-cos",
    "fuse --elements 100000000 --ops 2 --hardware mi300x",
    "fuse --elements 1000 --ops 1 --hardware nvidia-b200-sxm",
    "occupancy --threads 1024 --hardware mi300x",
    "occupancy --threads 96 --registers 168 --sram 16888B --hardware nvidia-l40s --stride 0",
    "recompute --bytes 1GiB --flops 1GFLOP --dtype fp32 --hardware nvidia-h100-sxm-80gb",
]
KEYS = {
    "FLOP, visible": ("flops",),
    "FLOP, executed": ("executed_flops",),
    "work tensor": ("work", "tensor"),
    "work vector": ("work", "vector"),
    "work sfu": ("work", "sfu"),
    "reads": ("accesses", "reads"),
    "writes": ("accesses", "writes"),
    "accesses": ("accesses", "total"),
    "zero fill": ("accesses", "zero_fill"),
    "group sum": ("accesses", "group_sum"),
    "SRAM read bytes": ("traffic", "sram", "read_bytes"),
    "SRAM write bytes": ("traffic", "sram", "write_bytes"),
    "DRAM read bytes": ("traffic", "dram", "read_bytes"),
    "DRAM write bytes": ("traffic", "dram", "write_bytes"),
    "intensity SRAM": ("arithmetic_intensity", "sram"),
    "intensity DRAM": ("arithmetic_intensity", "dram"),
    "lower bound": ("time_s", "lower"),
    "roofline": ("time_s", "roofline"),
    "without overlap": ("time_s", "no_overlap"),
}
OF_OPS = {
    **{"memory": ("memory_bytes",), "extra memory": ("extra_memory_bytes",), "launches": ("launches",), "occupancy": ("occupancy",)},
    **{"minimum traffic": ("minimum_traffic", "elements"), "tiled traffic": ("tiled_traffic", "elements")},
    **{"intensity, minimum traffic": ("arithmetic_intensity", "minimum"), "tile reuse": ("tile", "reuse")},
    **{"tile quantization": ("tile", "quantization"), "slots": ("waves", "slots"), "waves": ("waves", "waves")},
    **{"wave quantization": ("waves", "quantization"), "time": ("time_s", "with_launches"), "blocks": ("blocks_per_multiprocessor",)},
    **{"active threads": ("active_threads",), "most threads": ("device", "max_active_threads"), "sectors": ("request", "sectors")},
    **{"efficiency": ("request", "efficiency"), "recompute": ("recompute_s",), "store, DRAM": ("levels", "dram", "store_s")},
    "break-even, L2": ("levels", "l2", "break_even_flop_per_byte"),
}
"""Numbers of single operations besides, where an answer has them."""


def at(data: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def evaluate(text: str) -> float:
    """What a printed formula with numbers gives, by Python's own arithmetic."""
    text = text.replace("^", "**")
    while (found := re.search(r"sum\[i < ", text)) is not None:
        close = _matching(text, found.end() - 5, "[", "]")
        count, rest = text[found.end() : close], text[close + 1 :]
        end = _matching(rest, rest.index("("), "(", ")") + 1
        text = f"{text[: found.start()]}S({count}, lambda i: {rest[:end].strip()}){rest[end:]}"
    functions = {
        "S": lambda count, term: sum(term(i) for i in range(int(count))),
        "clip": lambda x, low, high: min(high, max(low, x)),
        "ceil": math.ceil,
        "floor": math.floor,
        "min": min,
        "max": max,
        "__builtins__": {},
    }
    value: float = eval(text, functions)
    return value


def in_values(formula: str, values: dict[str, float]) -> str:
    """``formula`` with the value in place of each name, the longest name first."""
    names = sorted(values, key=len, reverse=True)
    for position, name in enumerate(names):
        formula = re.sub(rf"(?<![\w\]]){re.escape(name)}(?![\w,]* (?:distinct|read|write|bytes|tensor)\b)(?!\w)", f"@{position}@", formula)
    return re.sub(r"@(\d+)@", lambda match: repr(values[names[int(match[1])]]), formula)


def _matching(text: str, start: int, opening: str, closing: str) -> int:
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == opening) - (text[position] == closing)
        if depth == 0 and text[position] == closing:
            return position
    raise ValueError(text)


@pytest.mark.parametrize("line", LINES)
def test_explained_numbers_are_the_numbers(run, line):
    data = run(line + " --json --explain all").json
    results = {(r["algorithm"], r["pass"]): r for r in data["results"] if r["pass"] != "both"}
    assert {(e["algorithm"], e["pass"]) for e in data["explanation"]} == set(results)
    for explanation in data["explanation"]:
        result = results[explanation["algorithm"], explanation["pass"]]
        steps = {step["name"]: step for step in explanation["steps"]}
        prefix = "total " if len(result["kernels"]) > 1 else ""
        for name, path in KEYS.items():
            value = at(result, path)
            if value:
                assert steps[prefix + name]["value"] == pytest.approx(value, rel=1e-12), name
        for term, seconds in result["time_s"]["terms"].items():
            assert steps[f"{prefix}term {term}"]["value"] == pytest.approx(seconds, rel=1e-12)
        assert steps["memory"]["value"] == result["memory_bytes"]
        assert steps["extra memory"]["value"] == result["extra_memory_bytes"]
        asked = line if explanation["pass"] == "backward" else line.replace(" --printed-backward", "")  # which forward nothing reads
        asked = asked.replace(" --pass both", "")
        compulsory = run(f"{asked} --pass {explanation['pass']} --json").json["io_lower_bound"]
        assert steps["compulsory elements"]["value"] == compulsory["compulsory"]
        if compulsory["theta"] is not None:
            assert steps["theta"]["value"] == pytest.approx(compulsory["theta"]["value_without_constant"])


@pytest.mark.parametrize("line", OPS)
def test_explained_numbers_of_operations_are_the_numbers(run, line):
    data, checked = run(line + " --json --explain all").json, 0
    for explanation in data["explanation"]:
        [entry] = [
            one for one in data["results"] if all(explanation.get(key, one.get(key)) == one.get(key) for key in ("algorithm", "pass"))
        ]
        steps = {step["name"]: step["value"] for step in explanation["steps"]}
        for name, path in (KEYS | OF_OPS).items():
            value, found = at(entry, path), steps.get(f"total {name}", steps.get(name))
            if isinstance(value, (int, float)) and value and found is not None:
                assert found == pytest.approx(value, rel=1e-12), name
                checked += 1
    bound = data.get("io_lower_bound")
    if bound:
        assert steps["IO lower bound"] == pytest.approx(bound["elements"])
        assert steps["tiled / bound"] == pytest.approx(bound["tiled_over_bound"])
    assert checked >= 2


@pytest.mark.parametrize("line", [*LINES, *OPS])
def test_printed_formulas_give_the_printed_values(run, line):
    """With values and with symbols, brackets and all: a wrong precedence would show."""
    for explanation in run(line + " --json --explain all").json["explanation"]:
        values: dict[str, float] = {}
        for step in explanation["steps"]:
            assert step["source"], step
            assert step["meaning"], step
            if step["formula"]:
                assert evaluate(step["numbers"]) == pytest.approx(step["value"], rel=2e-5, abs=1e-12), step
                assert evaluate(in_values(step["formula"], values)) == pytest.approx(step["value"], rel=1e-9, abs=1e-12), step
            values[step["name"]] = step["value"]


def test_traced_arithmetic_brackets():
    trace = Trace()
    a, b, c = (trace.symbol(name, value, name) for name, value in (("a", 7), ("b", 3), ("c", 2)))
    for result, text in (
        ((a + b) * c, "(a + b) * c"),
        (a - (b - c), "a - (b - c)"),
        (a - b - c, "a - b - c"),
        (a / (b * c), "a / (b * c)"),
        ((a - b) ** 2, "(a - b)^2"),
        (2 * a + 0, "2 * a"),
        (1 * a, "a"),
        (10 - a, "10 - a"),
        (a // b, "floor(a / b)"),
        (20 // b, "floor(20 / b)"),
        (-a, "0 - a"),
    ):
        assert result.formula == text
        assert evaluate(result.numbers) == result.value
    assert (a > b, a >= 7, b < 3, b <= 3, a == 7) == (True, True, False, True, True)
    assert repr(a + b) == "a + b = 10"
    with pytest.raises(ValueError, match="stands for both"):
        label("x", "", a + b) and label("x", "", a * b)
