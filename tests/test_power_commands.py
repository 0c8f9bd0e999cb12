"""Power, clock and energy as commands say them, and under lower limits."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import perfmodel
from perfmodel.catalog import find_device, find_model
from perfmodel.cli import main
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.core.hardware import PowerFit
from perfmodel.core.power import BURST, SUSTAINED, PowerOptions
from perfmodel.core.workload import Attention, Stream
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case
from perfmodel.timing.case_bounds import roof_s
from perfmodel.timing.power import case_activity, state_of
from perfmodel.transformer.estimate import run_pass
from perfmodel.transformer.step import decode, prefill
from perfmodel.transformer.step_power import of_row
from perfmodel.validation.records import read_records

H200 = "nvidia-h200-sxm"
# Limits, over kernels and steps

ANY_SIZE = st.integers(1, 1 << 14)
ANY_KERNEL = st.one_of(
    st.builds(
        lambda m, n, k, dtype: ("matmul", dtype, Case(Matmul(m, n, k, dtype=DTYPES[dtype]), "torch-matmul")),
        *(ANY_SIZE, ANY_SIZE, ANY_SIZE, st.sampled_from(["bf16", "fp32", "tf32"])),
    ),
    st.builds(
        lambda n, d, heads, name: (
            "attention",
            "fp16",
            Case(Attention(n=n, kv_len=n, d=d, dv=d, heads=heads, kv_heads=heads, causal=True), name),
        ),
        *(st.integers(1, 8192), st.sampled_from([64, 96, 128, 256]), st.integers(1, 64)),
        st.sampled_from(["torch-sdpa-flash", "torch-sdpa-cudnn", "torch-eager"]),
    ),
    st.builds(
        lambda rows, cols, op: (op, "fp16", Case(Stream(op, rows, cols), f"torch-{op}")),
        *(ANY_SIZE, ANY_SIZE, st.sampled_from(["scale", "add", "softmax"])),
    ),
)


def held(states, limits):
    """Along falling limits: no clock rises, no time falls, no watts are above their limit."""
    for state, limit in zip(states, limits, strict=True):
        assert state.watts <= limit * (1 + 1e-6)
    for more, less in pairwise(states):
        assert less.sm_hz <= more.sm_hz * (1 + 1e-6)
        assert less.sustained_s >= more.sustained_s * (1 - 1e-6)
        assert less.burst_s >= more.burst_s * (1 - 1e-6)


@settings(max_examples=40)
@given(ANY_KERNEL, st.lists(st.floats(350, 700), min_size=2, max_size=3), st.floats(1, 20))
def test_a_lower_limit_slows_any_kernel(drawn, limits, over):
    """Of a kernel that takes some time over its roof and a launch."""
    kind, dtype, case = drawn
    own, limits = find_device(H200), sorted(limits, reverse=True)
    found = case_activity(case, kind, dtype, own, 2e-6 + over * roof_s(case, own))
    try:
        states = [state_of([found], own, PowerOptions(f"{limit}W"), BURST) for limit in limits]
    except UnavailableError:  # more than a limit even at the lowest clock
        reject()
    held(states, [float(limit) for limit in limits])


@settings(max_examples=12)
@given(
    st.sampled_from(["gpt2", "llama-3.2-1b"]),
    st.sampled_from(["prefill", "decode"]),
    st.integers(1, 16),
    st.integers(64, 4096),
    st.sampled_from([0.0, 0.01, 0.05]),
)
def test_a_lower_limit_slows_any_step_with_or_without_waits(model, phase, batch, length, host_s):
    own, limits = find_device(H200), (700, 550, 400)
    make = prefill if phase == "prefill" else decode
    rows = run_pass(find_model(model), make(batch, length, dtype=DTYPES["bf16"]), own).rows
    found = [of_row(row, own) for row in rows if row.seconds > 0]
    held([state_of(found, own, PowerOptions(f"{limit}W"), SUSTAINED, host_s) for limit in limits], limits)


# Commands


def test_a_single_kernel_shows_a_burst_and_its_sustained_time():
    found = perfmodel.matmul(m=8192, n=8192, k=8192, dtype="bf16", hardware="h200")["results"][0]
    times = found["time_s"]
    assert times["predicted"] == times["burst"]  # to the last digit, so that sweeps and commands agree
    assert times["sustained"] > times["burst"]
    assert found["sustained"]["power_w"] == pytest.approx(700.0)
    assert found["sustained"]["energy_j"] == pytest.approx(found["sustained"]["power_w"] * times["sustained"])
    assert found["sustained"]["sm_hz"] < 1.98e9
    assert found["clock"] == BURST
    assert found.keys().isdisjoint(found["sustained"])  # what is of a run for seconds stands apart
    lasting = perfmodel.matmul(m=8192, n=8192, k=8192, dtype="bf16", hardware="h200", clock=SUSTAINED)["results"][0]
    assert lasting["time_s"]["predicted"] == pytest.approx(times["sustained"])


@pytest.mark.parametrize(
    ("line", "of"),
    [
        ("matmul -m 8192 -n 8192 -k 8192", lambda found: found["results"][0]),
        ("attention --n 8192 --d 128 --heads 32", lambda found: found["results"][1]),
        ("attention --n 8192 --d 128 --heads 32 --pass both --algorithm flash", lambda found: found["results"][2]),
        ("model llama-3-8b --n 2048", lambda found: found["totals"]),
        ("model llama-3-8b --phase generate --n 2000 --kv-len 2010", lambda found: found["totals"]),
        ("batch llama-3-8b --kv-len 2048", lambda found: found["results"][-1]),
        ("model gpt2-xl --phase train --batch 8 --n 1024", lambda found: found["totals"]),
    ],
)
def test_a_lower_limit_slows_every_command(line, of, capsys):
    def ask(*more):
        main([*line.split(), "--dtype", "bf16", "--hardware", "h200", "--json", *more])
        return of(json.loads(capsys.readouterr().out))

    full, less = ask(), ask("--power-limit", "400W")
    assert full["clock"] in (BURST, SUSTAINED)
    assert not [name for name in full if name.startswith(("power", "energy"))], "what is of a run for seconds stands apart of the clock"
    assert full["sustained"]["power_w"] > 400
    assert less["time_s"]["sustained"] > full["time_s"]["sustained"]
    assert less["sustained"]["sm_hz"] < full["sustained"]["sm_hz"]
    assert less["sustained"]["power_w"] <= 400.001


def test_an_eager_step_waits_for_its_host_at_static_power():
    ask = {"name": "llama-3.2-1b", "phase": "decode", "kv_len": 1000, "hardware": "h200", "dtype": "bf16"}
    graph, eager = (perfmodel.model(**ask, **more)["totals"] for more in ({}, {"graph": False, "host_us": 20.0}))
    waits = eager["time_s"]["sustained"] - graph["time_s"]["sustained"]
    assert waits > 0
    assert eager["sustained"]["power_w"] < graph["sustained"]["power_w"]
    assert eager["sustained"]["energy_j"] == pytest.approx(eager["sustained"]["power_w"] * eager["time_s"]["sustained"])
    assert eager["sustained"]["energy_j"] > find_device(H200).power.static_w * waits


def test_a_device_without_a_power_model_says_so_when_asked():
    with pytest.raises(UnavailableError, match="nvidia-a100-sxm-80gb has no power model"):
        PowerOptions("300W").check(find_device("a100-sxm-80gb"))
    assert "sustained" not in perfmodel.matmul(m=64, n=64, k=64)["results"][0]
    for call in (
        lambda: perfmodel.matmul(m=64, n=64, k=64, power_limit="300W"),
        lambda: perfmodel.model(name="llama-3-8b", clock=SUSTAINED),
    ):
        with pytest.raises(UnavailableError, match="no power model") as refused:
            call()
    assert refused.value.fix.endswith("such as nvidia-h200-sxm")
    with pytest.raises(UnavailableError) as refused:
        PowerOptions("200W").check(find_device("l40s"))
    assert refused.value.fix.endswith("perfmodel hardware add mine --like nvidia-l40s --tdp 200W")


def test_a_limit_that_no_model_can_keep_is_no_silent_wish():
    """The tables of a B200 have no products; an H200 draws more than 130 W at any clock."""
    with pytest.raises(UnavailableError, match="no power model of matmul"):
        perfmodel.matmul(m=4096, n=4096, k=4096, dtype="bf16", hardware="b200", power_limit="700W")
    with pytest.raises(UnavailableError, match="cannot stay within 130 W"):
        perfmodel.matmul(m=4096, n=4096, k=4096, dtype="bf16", hardware="h200", power_limit="130W")
    assert "sustained" not in perfmodel.matmul(m=4096, n=4096, k=4096, dtype="bf16", hardware="b200")["results"][0]


@pytest.mark.parametrize("options", [{"power_limit": "800W"}, {"power_limit": "500"}, {"power_limit": "-5W"}, {"clock": "fast"}])
def test_wrong_limits_and_clocks_are_refused(options):
    with pytest.raises(UsageError, match=r"--power-limit|--clock"):
        perfmodel.matmul(m=64, n=64, k=64, hardware="h200", **options)


def test_records_keep_clock_watts_and_joules(tmp_path):
    line = {"workload": "copy", "implementation": "torch-copy", "hardware": H200, "dtype": "bf16", "shape": {"bytes": 1 << 30}}
    line |= {"time_s": {"median": 5e-4}, "clock": "sustained", "power_w": 560.0, "sm_hz": 1.98e9, "energy_j": 0.28, "cache": "warm"}
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps(line) + "\n")
    [(_, record)] = read_records(path)
    assert (record.clock, record.power_w, record.sm_hz, record.energy_j) == ("sustained", 560.0, 1.98e9, 0.28)
    assert record.group == "copy/torch-copy/forward/sustained"
    assert isinstance(find_device(H200).power, PowerFit)


@pytest.mark.parametrize(
    "line", ["matmul -m 64 -n 64 -k 64 --dtype fp32 --implementation torch-scaled-mm", "attention --n 64 --d 64 --algorithm flash1"]
)
def test_a_limit_where_nothing_is_predicted_is_refused(run, line: str) -> None:
    """Nothing would change by it."""
    assert run(f"{line} --hardware h200").code == 0
    outcome = run(f"{line} --hardware h200 --power-limit 500W")
    assert outcome.code == 1
    assert "no power without a predicted time" in outcome.err
