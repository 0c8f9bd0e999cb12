"""For every reader, small files that it reads, and the lines that answer from such a file: what fuzzing begins with.

A tree stands for the JSON or YAML it is written as. ``{}`` in a line is the file.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzing import RECORDS, answer, examples, readers

from perfmodel.catalog import load_config
from perfmodel.core.files import read_json, read_yaml
from perfmodel.kernels.attention.question import AttentionQuestion
from perfmodel.report.saved_metrics import metrics_of
from tools.commands import all_commands, command

ROOT = Path(__file__).parents[1]
DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Seeds:
    """Files that one reader reads, all of one suffix."""

    suffix: str
    files: list[Any]
    lines: list[str] = field(default_factory=list)


def with_device() -> list[str]:
    """Every command that takes a device."""
    names = [name for name in all_commands() if "hardware" in parameters(name)]
    lines = [MEASURING.get(name) or " ".join(line) for name in names for line in examples(name)[:1]]
    return [re.sub(r" --hardware \S+", "", line) + " --hardware {}" for line in lines]


def with_model() -> list[str]:
    """Every command whose argument is a model, with and without its formulas."""
    names = [name for name in all_commands() if any(param.metavar == "MODEL" for param in command(name).params)]
    plain = [f"{name} {{}}" for name in names]
    return plain + [f"{name} {{}} --explain all" for name in names if "explain" in parameters(name)]


def parameters(name: str) -> set[str]:
    return {param.name for param in command(name).params}


MEASURING = {
    "calibrate": f"calibrate --from-records {RECORDS} --require 0",
    "hardware add": "hardware add my-card --like l4 --dram-bandwidth 432GB/s --force",
    "trace": f"trace {ROOT / 'tests/data/traces/bert-small-h100.json.gz'}",
    "validate": f"validate --records {RECORDS}",
}
"""Lines for commands whose examples measure the machine, read a profile of the user or thousands of records, or can be run once."""


def device() -> Any:
    """A profile with every kind of block, two of its calibrations left."""
    tree = read_yaml(ROOT / "hardware_specs" / "nvidia-h200-sxm.yaml")[0]
    wanted = {("attention", "torch-sdpa-flash"), ("matmul", "torch-matmul")}
    kept = [block for block in tree["calibration"] if (block["workload"], block["implementation"]) in wanted]
    return tree | {"calibration": kept[:3], "microbenchmarks": tree["microbenchmarks"][:2]}


def sparse_device() -> Any:
    """A profile that knows almost nothing."""
    measured = {"kind": "measured", "source": "s"}
    return {
        **{"schema_version": 1, "id": "small", "name": "Small", "vendor": "me", "architecture": "x", "sources": {"s": "me"}},
        "memory": [{"level": "dram", "scope": "device", "name": "DDR", "bandwidth": {"value": "100 GB/s", **measured}}],
        "peaks": {"tensor": {"fp16": {"value": "1 TFLOP/s", **measured}}, "vector": {"fp32": {"value": "1 TFLOP/s", **measured}}},
    }


def models() -> list[Any]:
    """One configuration per kind of layer."""
    names = ("gpt2", "llama-3-8b", "mixtral-8x7b", "gemma-2-2b", "deepseek-v2", "llama-4-scout-17b-16e", "gpt-oss-20b", "qwen3-30b-a3b")
    return [read_yaml(ROOT / "configs" / "models" / f"{name}.yaml")[0] for name in names]


def records() -> list[Any]:
    return [json.loads(line) for line in RECORDS.read_text().splitlines()]


def tree(name: str) -> Any:
    """A JSON file among the tests' data."""
    return json.loads((DATA / name).read_text())


def systems() -> list[Any]:
    """The shipped systems."""
    return [read_yaml(path)[0] for path in sorted((ROOT / "configs" / "systems").glob("*.yaml"))]


def engines() -> list[Any]:
    """The shipped engines."""
    return [read_yaml(path)[0] for path in sorted((ROOT / "configs" / "engines").glob("*.yaml"))]


def with_engine() -> list[str]:
    """Every command that takes an engine."""
    asked = {"serve": "serve gpt2 --isl 64 --osl 32 --concurrency 2", "model": "model gpt2 --n 64"}
    return [f"{asked.get(name) or ' '.join(examples(name)[0])} --engine {{}}" for name in all_commands() if "engine" in parameters(name)]


def csv(name: str) -> str:
    """The head of a file that a profiler wrote."""
    return "\n".join((DATA / name).read_text().splitlines()[:9])


def studies() -> list[Any]:
    """A study of one section for every kind."""
    device, devices = "nvidia-a100-sxm-80gb", ["nvidia-a100-sxm-80gb"]
    attention = {"n": 512, "d": 64, "heads": 4, "dtype": "bf16"}
    model = {"name": "gpt2", "phase": "decode", "kv_len": 64, "dtype": "bf16"}
    workloads = [{"name": "one", "attention": attention}, {"model": model}, {"matmul": {"m": 512, "n": 512, "k": 512}}]
    chosen = {"file": str(RECORDS), "workload": "attention", "most": 3}
    sections: list[dict[str, Any]] = [
        {"kind": "batch", "devices": devices, "models": [{"name": "gpt2", "kv_len": 64}]},
        {"kind": "block-size", "devices": devices, "attention": attention, "block_kv": [16, 32]},
        {"kind": "comparison", "between": [device, "h200"], "workloads": workloads},
        {"kind": "comparison", "between": ["standard", "flash2"], "workloads": workloads[:1], "device": device},
        {"kind": "kv-cache", "devices": devices, "caches": [{"name": "GQA", "model": "llama-3-8b", "kv_heads": 8}], "n": [64, 128]},
        {"kind": "predicted-vs-measured", "records": chosen},
        {"kind": "roofline", "devices": devices, "workloads": workloads},
        {"kind": "roofline", "records": chosen},
        {"kind": "serving", "devices": devices, "model": "gpt2", "engines": ["vllm"], "gpus": 1, "isl": 64, "osl": 32, "tpot": "50ms"},
        {"kind": "sweep", "devices": devices, "workload": {"attention": attention}, "over": "n", "values": [64, 128], "show": ["time"]},
        {"kind": "training-memory", "devices": devices, "runs": [{"name": "one", "model": "gpt2", "batch": 1, "n": 64}]},
    ]
    return [{"study": {"title": "A study", "notes": ["said"], "sections": [section]}} for section in sections]


def sweeps() -> list[Any]:
    """Small grids."""
    return [
        {"sweep": {"axes": {"n": "64:256:x2", "d": [64, 128], "hardware": "h200"}, "where": "n * d < 32768", "columns": ["time", "io"]}},
        {
            "sweep": {
                "workload": "matmul",
                "axes": {"m": 64, "n": "32, 64", "k": "n * 2"},
                "minimize": "time",
                "top": 2,
                "pareto": ["io", "time"],
            }
        },
    ]


CONFIG, DOCUMENT = "perfmodel.catalog.load_config", "perfmodel.report.saved_metrics.metrics_of"
READERS = {
    **readers(),
    CONFIG: lambda path: load_config(str(path), "attention", AttentionQuestion),
    DOCUMENT: lambda path: metrics_of(read_json(path), str(path)),
}
"""Those that are found, and those that need more than a path."""
ANSWER = json.loads(answer(["attention", "--n", "64", "--d", "64", "--json"])[1])
"""What a command prints with --json."""

SEEDS: dict[str, list[Seeds]] = {
    "roofline --records {}": [Seeds(".jsonl", records()[:2])],
    "roofline --hardware h200 --ncu {}": [Seeds(".csv", [csv("ncu_long.csv"), csv("ncu_wide.csv")])],
    "roofline --hardware h200 --matmul 64x64x64 --baseline {}": [Seeds(".json", [tree("report/example.json")])],
    "sweep {}": [Seeds(".yaml", sweeps())],
    CONFIG: [Seeds(".yaml", [{"attention": {"n": 64, "d": 64, "heads": 4, "causal": True, "pass": "both"}}], ["attention --config {}"])],
    DOCUMENT: [Seeds(".json", [tree("report/example.json"), ANSWER], ["compare {} {}"])],
    "perfmodel.kernels.attention.patterns.read_pattern": [
        Seeds(".txt", ["0 0\n1 1\n2 0 # a comment\n"], ["attention --n 512 --d 64 --algorithm block-sparse --pattern {}"])
    ],
    "perfmodel.core.files.read_yaml": [
        Seeds(".yaml", [{"a": [1, {"b": "c"}]}, "a: {b: [1, 2.5, ~, true, text]}\n# comment\nc: |\n  text\n"])
    ],
    "perfmodel.core.files.read_json": [Seeds(".json", [{"a": [1, 2.5, None, True, {"b": "c"}]}])],
    "perfmodel.catalog.load_device": [
        Seeds(".yaml", [device(), sparse_device()], [*with_device(), "hardware show {} --explain all", "hardware check {}"])
    ],
    "perfmodel.catalog.load_model": [
        Seeds(".yaml", models(), with_model()),
        Seeds(".json", [model["config"] for model in models()], with_model()),
    ],
    "perfmodel.catalog.find_engine": [Seeds(".yaml", engines(), with_engine())],
    "perfmodel.catalog.find_system": [Seeds(".yaml", systems(), ["model gpt2 --phase train --system {}"])],
    "perfmodel.report.document.read_report": [Seeds(".json", [tree("report/example.json")], ["report {}", "report {} --json"])],
    "perfmodel.study.schema.read_study": [Seeds(".yaml", studies(), ["report {}", "roofline {}"])],
    "perfmodel.sweep.study.read_study": [Seeds(".yaml", sweeps())],
    "perfmodel.program.ncu_csv.parse": [Seeds(".csv", [csv("ncu_long.csv"), csv("ncu_wide.csv")], ["validate --counters-csv {} --json"])],
    "perfmodel.program.kernel_files.read_kernel_profile": [
        Seeds(".csv", [csv(f"kernels_{tool}.csv") for tool in ("nsys", "rocprof", "rocprofv3", "counters")], ["trace {} --hardware h200"])
    ],
    "perfmodel.program.ncu_points.read_kernels": [Seeds(".csv", [csv("ncu_long.csv"), csv("ncu_wide.csv")])],
    "perfmodel.validation.records.read_records": [
        Seeds(
            ".jsonl",
            records(),
            ["validate --records {} --json", "validate --records {} --scoreboard", "calibrate --from-records {} --json"],
        )
    ],
}
