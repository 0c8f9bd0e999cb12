"""``perfmodel attention``: the numbers, the JSON contract, the words."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

from perfmodel import catalog
from perfmodel.catalog import config_names
from perfmodel.core.architectures import traits_of

TILED = [
    ("attention --n 2048 --d 128 --heads 8 --algorithm flash2 --hardware h200", "--block-kv 16", "--sram 32KiB", "torch-sdpa-flash"),
    ("matmul -m 4096 -n 4096 -k 4096 --hardware h200", "--tile-m 32", "--sram 8KiB", "torch-matmul"),
]


@pytest.mark.parametrize(("line", "edge", "sram", "kernel"), TILED)
def test_a_tile_that_was_given_is_predicted_for_a_kernel_that_is_named_alone(run, line: str, edge: str, sram: str, kernel: str) -> None:
    """What was timed has tiles of its own: the time of another tile is no prediction of it."""

    def asked(more: str = "") -> dict[str, Any]:
        return run(f"{line} {more} --json").json["results"][-1]

    plain = asked()
    assert plain["time_s"]["predicted"] is not None
    for given in (edge, sram):
        assert asked(given)["time_s"]["predicted"] is None
        assert "no kernel with a tile of" in run(f"{line} {given} --full").out
    edges = ("--block-q", "--block-kv") if "block" in edge else ("--tile-m", "--tile-n")
    same = [f"{name} {plain['tile'][side]}" for name, side in zip(edges, ("br", "bc"), strict=True)]
    assert asked(" ".join(same))["time_s"]["predicted"] == plain["time_s"]["predicted"]
    slower = asked(f"{edge} --implementation {kernel}")["time_s"]
    assert slower["predicted"] >= asked(f"--implementation {kernel}")["time_s"]["predicted"]
    assert slower["predicted"] >= slower["roofline"]


def entry(data, algorithm, direction="forward"):
    return next(r for r in data["results"] if r["algorithm"] == algorithm and r["pass"] == direction)


@pytest.mark.parametrize(("direction", "per_score"), [("forward", 6), ("backward", 0)])
def test_an_additive_mask_is_read_per_head(run, direction, per_score):
    """By standard attention 2 + 2 B per score and 2 B of the mask; by fused kernels 2 B per score of a visited tile, both ways."""
    shape = f"attention --n 4096 --d 64 --heads 8 --batch 2 --algorithm all --sparsity 0.25 --pass {direction} --json"
    plain, masked = run(shape.replace("all", "all --no-mask")).json, run(shape.replace("all", "all --mask")).json
    scores = 16 * 4096**2
    more = {
        r["algorithm"]: r["accesses"]["bytes"] - entry(plain, r["algorithm"], direction)["accesses"]["bytes"] for r in masked["results"]
    }
    chunked = {"memory-efficient": 6 * scores}
    fused = dict.fromkeys(("flash1", "flash2", *["split-kv"] * (direction == "forward")), 2 * scores) | {"block-sparse": scores // 2}
    expected = fused | chunked | {"standard": per_score * scores}
    assert {name: more[name] for name in expected} == expected
    compulsory = [data["io_lower_bound"]["compulsory"] for data in (plain, masked)]
    assert compulsory[1] - compulsory[0] == 4096**2


def test_the_l2_holds_a_small_mask_and_not_a_large_one(run):
    """DRAM sees it once, or once per head: of 16,384 x 16,384 entries nothing is left when the next head comes."""

    def mask_bytes(n, algorithm):
        line = f"attention --n {n} --d 64 --heads 16 --algorithm {algorithm} --hardware h200 --json"
        found = [run(f"{line} {option}").json["results"][0]["traffic"]["dram"]["read_bytes"] for option in ("--mask", "--no-mask")]
        return found[0] - found[1]

    for algorithm in ("flash1", "flash2", "split-kv"):
        assert mask_bytes(1024, algorithm) == 2 * 1024**2
    once = 2 * 16384**2
    assert 4 * once <= mask_bytes(16384, "flash2") <= 16 * once
    [kernel] = [k for k in _kernels(run, 16384) if k["name"] == "additive mask"]
    assert kernel["traffic"]["dram"]["read_bytes"] == pytest.approx(2 * 16 * once, rel=0.02), "scores, and as much of the mask"
    [kernel] = [k for k in _kernels(run, 1024) if k["name"] == "additive mask"]
    assert kernel["traffic"]["dram"]["read_bytes"] == 2 * 1024**2, "the scores are in the L2 as well"


def _kernels(run, n):
    return run(f"attention --n {n} --d 64 --heads 16 --algorithm standard --mask --hardware h200 --json").json["results"][0]["kernels"]


def test_default_tiles_are_flash_attention_2s(run):
    def tile(options):
        found = run(f"attention --n 1024 --algorithm flash {options} --json").json["results"][0]["tile"]
        return found["br"], found["bc"]

    assert tile("--d 64") == (128, 128)
    assert tile("--d 64 --dropout 0.1") == (128, 64)
    assert tile("--d 128") == (128, 64)
    assert tile("--d 128 --hardware l40s") == (128, 32)
    assert tile("--d 128 --hardware l40s --causal") == (64, 64)
    assert tile("--d 256") == (128, 64)
    assert tile("--d 256 --hardware h200") == (64, 64)
    assert tile("--d 64 --pass backward") == (128, 128)
    assert tile("--d 64 --pass backward --hardware l40s") == (64, 128)
    assert tile("--d 64 --dtype fp32") == (128, 128), "the largest square that fits"
    assert tile("--d 256 --dtype fp32") == (32, 32)
    assert tile("--d 64 --sram 20KiB") == (32, 32)


def test_flash1_takes_the_floor_where_the_ceiling_overflows(run):
    [result] = run("attention --n 1024 --d 256 --algorithm flash1 --json").json["results"]
    assert result["tile"]["bc"] == 81
    assert "floor" in result["tile"]["origin"]
    [result] = run("attention --n 1024 --d 64 --algorithm flash1 --json").json["results"]
    assert (result["tile"]["br"], result["tile"]["bc"]) == (64, 326)


def test_repeated_and_aliased_algorithms_appear_once(run):
    data = run("attention --n 64 --d 64 --algorithm flash --algorithm flash2 --algorithm standard --json").json
    assert [r["algorithm"] for r in data["results"]] == ["flash2", "standard"]


def test_command_line_overrides_a_configuration(run, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("attention:\n  n: 128\n  d: 32\n  algorithm: [flash]\n")
    data = run(f"attention --config {path} --n 256 --json").json
    assert (data["inputs"]["n"], data["inputs"]["d"]) == (256, 32)


@pytest.mark.parametrize("name", config_names())
def test_every_configuration_runs(run, name):
    assert run(f"attention --config {name}").code == 0


@pytest.mark.parametrize("suffix", ["json", "md", "txt"])
def test_files_hold_what_is_printed(run, tmp_path, suffix):
    path = tmp_path / f"out.{suffix}"
    outcome = run(f"attention --n 64 --d 64 -o {path}")
    assert (outcome.code, outcome.out) == (0, "")
    text = path.read_text()
    if suffix == "json":
        made = json.loads(text)
        assert made.pop("provenance")["command"] == "perfmodel attention --n 64 --d 64"
        assert made == run("attention --n 64 --d 64 --json").json
    elif suffix == "txt":
        assert text.startswith(run("attention --n 64 --d 64 --full").out)
    else:
        assert text.count("|") > 60
        assert text.startswith("## Attention forward")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_output_dash_and_files_together(run, tmp_path):
    first, second = tmp_path / "a.json", tmp_path / "b.md"
    outcome = run(f"attention --n 64 --d 64 -o {first} -o {second} -o -")
    assert outcome.out.startswith("Attention forward")
    assert first.exists()
    assert second.exists()


@pytest.mark.parametrize(("sram", "law", "exact"), [("163KiB", 166.8, 166), ("192KiB", 181.0, 179)])
def test_crossover_of_flash1(run, sram, law, exact):
    """d < sqrt(M/3) by the leading terms; the exact counts, statistics and ceilings included, end a little earlier."""
    data = run(f"attention --n 4096 --d 64 --algorithm standard --algorithm flash1 --sram {sram} --crossover --json").json
    by_accesses = next(c for c in data["crossover"] if c["measure"] == "accesses")
    assert by_accesses["last_d_by_law"] == pytest.approx(law, abs=0.05)
    assert by_accesses["last_d"] == exact
    assert by_accesses["wins_here"] is True
    short = run(f"attention --n 64 --d 64 --algorithm standard --algorithm flash1 --sram {sram} --crossover --json").json
    assert {border["last_d_by_law"] for border in short["crossover"]} == {None}, "one tile of rows: the leading terms say nothing"

    def wins(n=4096, d=64, m=sram):
        found = run(f"attention --n {n} --d {d} --algorithm standard --algorithm flash1 --sram {m} --json").json
        return entry(found, "flash1")["accesses"]["bytes"] < entry(found, "standard")["accesses"]["bytes"]

    assert wins(d=exact)
    assert not wins(d=exact + 1)
    assert wins(n=by_accesses["first_n"])
    assert not wins(n=by_accesses["first_n"] - 1)
    assert wins(m=f"{by_accesses['first_sram_bytes']}B")
    assert not wins(m=f"{by_accesses['first_sram_bytes'] - 1}B")


def test_what_more_sram_buys(run):
    outcome = run("attention --n 4096 --d 64 --algorithm all --sram +64KiB")
    assert "what SRAM buys" in outcome.out
    data = run(
        "attention --n 65536 --d 64 --algorithm standard --algorithm flash1 --algorithm flash2 --sram 163KiB --sram 326KiB --json"
    ).json
    assert data["inputs"]["sram_bytes"] == 163 * 1024
    moved = {(p["algorithm"], p["sram_bytes"]): p["accesses_bytes"] for p in data["sram_sweep"]}
    assert moved["flash1", 163 * 1024] / moved["flash1", 326 * 1024] == pytest.approx(2, rel=0.03), "accesses fall as 1/M"
    assert moved["flash2", 163 * 1024] == moved["flash2", 326 * 1024], "its sums fill the registers before its tiles fill the SRAM"


def test_no_tile_of_the_sweep_beats_the_best(run):
    data = run("attention --n 2048 --d 64 --algorithm flash --sram 64KiB --sram 96KiB --json").json
    best = data["sram_sweep"][0]
    assert best["sram_bytes"] == 64 * 1024
    for br, bc in ((16, 16), (64, 64), (128, 128), (256, 64), (320, 64), (64, 192)):
        other = run(f"attention --n 2048 --d 64 --algorithm flash --block-q {br} --block-kv {bc} --sram 64KiB --json")
        if other.code == 0:
            assert other.json["results"][0]["accesses"]["bytes"] >= best["accesses_bytes"]


def test_sweep_needs_a_tiled_forward_pass(run):
    assert "--algorithm flash" in run("attention --n 64 --d 64 --algorithm standard --sram +64KiB").err
    assert run("attention --n 64 --d 64 --pass backward --sram +64KiB").code == 2


def test_sweep_says_when_nothing_fits(run):
    assert "no tile fits" in run("attention --n 64 --d 4096 --algorithm flash --sram 256KiB --sram 16KiB --hardware h200").out


DEVICES = ("h200", "h100-sxm", "a100-sxm-80gb", "l40s")


READ_ONCE = cache(catalog._shipped_device)


def doubts(result, device):
    """What speaks against a kernel: that its device multiplies by another instruction, then how far above its time the interval ends."""
    reference = catalog.find_device(re.search(r"borrowed from ([\w-]+)", result["prediction"]["provenance"])[1])
    return traits_of(reference).matrix != traits_of(device).matrix, result["time_s"]["high"] / result["time_s"]["predicted"]


@pytest.mark.parametrize("device", DEVICES)
def test_the_kernel_that_is_predicted_unless_one_is_named(run, device, monkeypatch):
    """By one rule: calibrated there, else lent by a device that multiplies alike, the most certain; not what seems fastest at a size."""
    monkeypatch.setattr("perfmodel.catalog._shipped_device", READ_ONCE)
    found = {}
    for n in (128, 4096):
        line = f"attention --n {n} --d 64 --heads 8 --hardware {device} --algorithm standard --json"
        [result] = run(line).json["results"]
        found[n] = (result["implementation"], result["prediction"]["kind"])
        if result["prediction"]["kind"] == "borrowed":
            named = [run(f"{line} --implementation {one}").json["results"][0] for one in ("torch-eager", "torch-standard")]
            assert result["implementation"] == min(named, key=lambda one: doubts(one, catalog.find_device(device)))["implementation"]
    assert len(set(found.values())) == 1, found
