"""A sweep is the single points: counts to the last digit as long as all of them are below 2^53; times, and counts beyond, to 1e-12."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from fuzzing import answer

import perfmodel
from perfmodel.core.checks import dtype_on
from perfmodel.core.cost import memory_bytes
from perfmodel.core.errors import PerfmodelError
from perfmodel.kernels.attention.algorithms import find, names
from perfmodel.kernels.attention.question import AttentionQuestion
from perfmodel.kernels.attention.request import READ_BY, is_read
from perfmodel.kernels.matmul import Matmul
from perfmodel.kernels.matmul import evaluate as evaluate_matmul
from perfmodel.sweep.base import device_named
from perfmodel.sweep.kernels import COSTS, costs
from perfmodel.transformer.cache_plan import CacheWorkload
from perfmodel.transformer.cache_plan import evaluate as evaluate_cache
from perfmodel.transformer.kv_cache import CacheFormat

COLUMNS = [*(one.name for one in COSTS), "tile_br", "tile_bc"]
DEVICES = ["nvidia-h200-sxm", "nvidia-a100-sxm-80gb", "nvidia-l40s", "amd-mi300x", "nvidia-rtx-4090", "nvidia-v100-sxm-32gb"]
EXACT = 2**53


TIMES = {"lower_s", "lower_warm_s", "roofline_s", "no_overlap_s"}


def agrees(name: str, found: float, wanted: float, exact: bool = True) -> bool:
    return found == wanted if exact and name not in TIMES else abs(found - wanted) <= 1e-12 * abs(wanted)


def rows(columns: Any) -> Iterator[dict[str, Any]]:
    named = {name: columns[name].tolist() for name in columns}
    for values in zip(*named.values(), strict=True):
        yield dict(zip(named, values, strict=True))


def log_whole(draw: random.Random, least: int, most: int) -> int:
    return min(int(math.exp(draw.uniform(math.log(least), math.log(most + 1)))), most)


def random_axes(draw: random.Random) -> dict[str, Any]:
    """A small grid with every option now and then."""

    def several(count: int, least: int, most: int) -> list[int]:
        return sorted({log_whole(draw, least, most) for _ in range(count)})

    flag = ["true", "false"]
    axes: dict[str, Any] = {
        "hardware": draw.sample(DEVICES, 1),
        "dtype": draw.choice(["fp16", "bf16", "fp32", "tf32", "fp8"]),
        "pass": draw.choice(["forward", "backward", "both"]),
        "algorithm": "all",
        "n": several(4, 1, draw.choice([200, 1 << 17, 1 << 22])),
        "d": sorted({draw.choice([draw.randint(1, 300), 64, 128]) for _ in range(3)}),
        "batch": several(3, 1, 4096),
        "kv_heads": several(2, 1, 16),
        "heads": f"kv_heads * {draw.randint(1, 8)}",
        "causal": draw.choice([*flag, "both"]),
        "mask": draw.choice(flag),
        "dropout": draw.choice([0, 0.1]),
        "unfused_scale": draw.choice(flag),
    }
    if axes["pass"] != "forward":
        axes["printed_backward"] = draw.choice(flag)
    sometimes = {
        "packed": draw.choice(flag),
        "kv_len": several(2, 1, 1 << 20),
        "dv": draw.choice([32, 64, 96]),
        "window": several(2, 1, 1 << 15),
        "block_q": "16,64",
        "sram": "64KiB,100KiB",
        "splits": "1,3",
        "sparsity": 0.3,
    }
    return axes | {name: value for name, value in sometimes.items() if draw.random() < 0.3}


def single(row: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The same row by the function behind ``perfmodel attention``."""
    options = {name: row[name] for name in row if name in given and name not in ("splits", "sparsity", "pass", "algorithm", "hardware")}
    options |= {name: row[name] for name in ("batch", "heads", "kv_heads")}
    if options["heads"] == options["kv_heads"]:
        options.pop("packed", None)
    if row["algorithm"] == "split-kv" and "splits" in given:
        options["splits"] = row["splits"]
    if row["algorithm"] == "block-sparse":
        options["sparsity"] = row["sparsity"]
    if "sram" in given:
        options["sram"] = f"{row['sram_size_bytes']}B"
    passes = ["forward", "backward"] if row["pass"] == "both" else [row["pass"]]
    unread = [name for name in options if name in READ_BY and not is_read(name, [find(row["algorithm"])], passes)]
    options = {name: value for name, value in options.items() if name not in unread}
    request = AttentionQuestion().updated({**options, "algorithm": [row["algorithm"]], "direction": row["pass"]})
    device = device_named(row["hardware"])
    result = request.compare(device).results[-1]
    tile = result.parts[0].tile
    edges = {"tile_br": tile.br if tile else 0, "tile_bc": tile.bc if tile else 0}
    sizes = {"memory_bytes": result.memory_bytes, "extra_memory_bytes": result.extra_memory_bytes}
    return {**costs(result.total), **sizes, "fits": int(device.fits(result.memory_bytes)), **edges}


@pytest.mark.parametrize("points", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_attention_on_random_points(points: int) -> None:
    draw = random.Random(20)
    checked = exact_ones = 0
    algorithms = set()
    while checked < points:
        axes = random_axes(draw)
        found = list(rows(perfmodel.sweep(columns=COLUMNS, **axes)))
        for row in draw.sample(found, min(len(found), 80)):
            wanted = single(row, axes)
            exact = all(abs(value) < EXACT for value in wanted.values() if isinstance(value, int))
            for name in COLUMNS:
                assert agrees(name, row[name], wanted[name], exact), (name, row, wanted[name])
            checked, exact_ones = checked + 1, exact_ones + exact
            algorithms.add(row["algorithm"])
    assert algorithms == set(names())
    assert checked // 2 < exact_ones < checked  # both sides of 2^53 were met


@pytest.mark.parametrize("implementation", ["torch-sdpa-flash", "torch-sdpa-cudnn", "torch-eager"])
@pytest.mark.parametrize(("direction", "more"), [("forward", "--causal"), ("both", "--no-causal")])
def test_a_named_kernel_has_the_cells_of_the_command(implementation: str, direction: str, more: str) -> None:
    """Traffic, roof, tile and predicted time of every algorithm, also of those that the kernel does not run."""
    columns = ["sram_bytes", "dram_bytes", "executed_flops", "roofline_s", "lower_s", "predicted_s", "predicted_high_s"]
    axes = {"n": [1, 1000], "d": [64, 96], "heads": 8, "pass": direction, "causal": more == "--causal", "hardware": "h200"}
    found = perfmodel.sweep(columns=columns, implementation=implementation, **axes)
    assert found.rows == 8
    for row in rows(found):
        line = f"attention --n {row['n']} --d {row['d']} --heads 8 --pass {direction} {more} --hardware h200 --json"
        told = json.loads(answer([*line.split(), "--implementation", implementation])[1])["results"]
        [one] = [entry for entry in told if (entry["algorithm"], entry["pass"]) == (row["algorithm"], direction)]
        times = one["time_s"]
        wanted = [*(one["traffic"][level]["bytes"] for level in ("sram", "dram")), one["executed_flops"]]
        wanted += [times[name] for name in ("roofline", "lower", "predicted", "high")]
        for name, value in zip(columns, wanted, strict=True):
            assert math.isnan(row[name]) if value is None else agrees(name, row[name], value, exact=False), (name, row, value)


@pytest.mark.parametrize("pattern", ["local-global", "strided", "butterfly"])
def test_named_patterns(pattern: str) -> None:
    axes = {"n": [100, 1000, 4096], "d": [32, 64], "heads": 4, "kv_heads": [2, 4], "causal": "both", "packed": "both", "pattern": pattern}
    found = perfmodel.sweep(algorithm="block-sparse", columns=COLUMNS, hardware="h200", **axes)
    assert found.rows == 3 * 2 * 2 * 4 - 3 * 2  # a causal pattern over packed heads that share has no closed form
    assert sum(found.left_out.values()) == 6
    for row in rows(found):
        shared = ("packed",) if row["kv_heads"] < row["heads"] else ()
        options = {name: row[name] for name in ("n", "d", "heads", "kv_heads", "causal", *shared, "pattern")}
        total = AttentionQuestion().updated({**options, "algorithm": "block-sparse"}).compare(device_named("h200")).results[0].total
        assert all(agrees(name, row[name], value) for name, value in costs(total).items())


def test_rows_without_an_answer_are_those_that_fail_alone() -> None:
    axes = {"n": [64, 1 << 20], "d": [64, 1000, 30000], "heads": [6, 8], "kv_heads": [2, 3], "block_q": [16, 512]}
    found = perfmodel.sweep(**axes, algorithm="flash2")
    kept = {tuple(row[name] for name in axes) for row in rows(found)}
    answered = set()
    for values in product(*axes.values()):
        with suppress(PerfmodelError):
            AttentionQuestion().updated({**dict(zip(axes, values, strict=True)), "algorithm": ["flash2"]}).compare(device_named("a100"))
            answered.add(values)
    assert answered == kept
    assert 0 < sum(found.left_out.values()) == prod(map(len, axes.values())) - len(kept)


def test_matmul() -> None:
    draw = random.Random(3)
    names = [*(one.name for one in COSTS if one.of), "memory_bytes", "tile_rows", "tile_columns"]
    for _ in range(12):
        axes = {name: sorted({log_whole(draw, 1, 30000) for _ in range(3)}) for name in ("m", "n", "k", "batch")}
        axes |= {"batch": axes["batch"][:2], "dtype": [draw.choice(["fp16", "fp32", "bf16"])], "hardware": [draw.choice(DEVICES)]}
        axes |= {"split_k": [1, 4], **({"tile_m": [16, 64, 500]} if draw.random() < 0.5 else {})}
        found = perfmodel.sweep("matmul", columns=names, **axes)
        assert found.rows
        for row in rows(found):
            device = device_named(row["hardware"])
            w = Matmul(row["m"], row["n"], row["k"], row["batch"], row["split_k"], dtype_on(row["dtype"], device)).check()
            alone = evaluate_matmul(w, device, row.get("tile_m"), None)
            wanted = {**costs(alone.total), "memory_bytes": memory_bytes([kernel for kernel, _ in alone.kernels])}
            wanted |= {"tile_rows": alone.tile.br, "tile_columns": alone.tile.bc}
            exact = all(abs(value) < EXACT for value in wanted.values() if isinstance(value, int))
            assert all(agrees(name, row[name], wanted[name], exact) for name in names), row


def test_kv_cache() -> None:
    axes = {"model": ["mistral-7b-v0.1", "deepseek-v2", "llama-3-8b"], "n": [1, 1000, 40000], "batch": [1, 64], "block_size": [1, 16]}
    names = ["bytes_per_token", "bytes_per_sequence", "cache_bytes", "unused_block_bytes", "weights_bytes", "max_batch", "max_context"]
    found = perfmodel.sweep("kv-cache", columns=names, dtype=["fp16", "fp8"], reserve="4GiB", hardware="h200", **axes)
    assert found.rows == 3 * 3 * 2 * 2 * 2
    from perfmodel.catalog import find_model

    models = {name: find_model(name) for name in axes["model"]}
    for row in rows(found):
        form = CacheFormat(row["dtype"], None, row["block_size"], None)
        w = CacheWorkload(models[row["model"]], row["n"], row["batch"], form, "fp16", 4 << 30).check()
        alone = evaluate_cache(w, device_named("h200"))
        wanted = [alone.per_token, alone.per_sequence, alone.total, alone.total - alone.unpaged, alone.weights, alone.batch, alone.context]
        assert [None if np.isnan(row[name]) else row[name] for name in names] == wanted


def test_models(run) -> None:
    found = perfmodel.sweep("model", model="llama-3-8b", hardware="h200", phase=["prefill", "decode"], n=[512, 1024], batch=[1, 4])
    assert found.rows == 8
    for row in list(rows(found))[::3]:
        line = (
            f"model llama-3-8b --hardware h200 --phase {row['phase']} --n {row['n']} --kv-len {row['kv_len']} --batch {row['batch']} --json"
        )
        answer = run(line).json
        assert row["roofline_s"] == answer["totals"]["time_s"]["roofline"]
        assert row["predicted_s"] == answer["totals"]["time_s"]["predicted"]
        assert row["tokens_per_s"] == answer["tokens_per_s"]
        assert row["memory_bytes"] == answer["memory"]["total"]
        assert (row["ttft_s"] == answer["ttft_s"]) or (np.isnan(row["ttft_s"]) and answer["ttft_s"] is None)


@pytest.mark.parametrize(
    ("workload", "axes", "line"),
    [
        ("attention", {"n": [2048, 4096], "d": 64, "heads": 16}, "attention --n {n} --d 64 --heads 16 --algorithm {algorithm}"),
        ("matmul", {"m": [512, 4096], "n": 4096, "k": 4096, "dtype": "bf16"}, "matmul -m {m} -n 4096 -k 4096 --dtype bf16"),
    ],
)
def test_predicted_times_are_those_of_the_command(run, workload, axes, line) -> None:
    columns = ["predicted_s", "predicted_low_s", "predicted_high_s"]
    for row in rows(perfmodel.sweep(workload, hardware="h200", columns=columns, **axes)):
        time_s = run(f"{line.format(**row)} --hardware h200 --json").json["results"][0]["time_s"]
        told = [time_s[name] for name in ("predicted", "low", "high")]
        assert [None if math.isnan(row[name]) else row[name] for name in columns] == told


def test_a_kernel_that_is_not_there_is_the_reason() -> None:
    named = perfmodel.sweep("matmul", m=64, n=64, k=64, hardware="h200", implementation="nothing", columns=["predicted_s"])
    assert (named.rows, list(named.left_out)) == (0, ["--implementation: none is called 'nothing'"])


def test_matmuls_without_an_answer() -> None:
    found = perfmodel.sweep("matmul", m=64, n=64, k=[2, 64], split_k=[1, 4], tile_m=[16, 100000], sram=["48KiB", "100KiB"])
    assert found.rows == 2 * 3
    assert sum(found.left_out.values()) == 2 * 5
    assert "split_k is more than k" in found.left_out


def test_constraints_may_read_the_algorithm() -> None:
    found = perfmodel.sweep(n=[64, 128], d=[64, 128], algorithm=["standard", "flash2"], where="algorithm == 'flash2' or n * d <= 64 * 64")
    assert [(row["algorithm"], row["n"], row["d"]) for row in rows(found)] == [
        ("standard", 64, 64),
        ("flash2", 64, 64),
        ("flash2", 64, 128),
        ("flash2", 128, 64),
        ("flash2", 128, 128),
    ]
    assert found.excluded == 3
