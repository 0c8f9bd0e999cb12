"""Power, clock and energy: formulas worked by hand, laws of a limit, the shipped fit and what commands say of it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import isclose

import pytest
import sustained_rows
import tabled_power
from hypothesis import given, settings
from hypothesis import strategies as st
from refresh_power import section, with_power

import perfmodel
from perfmodel.catalog import data_folder, find_device, find_model
from perfmodel.cli import main
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import DataError, UnavailableError, UsageError
from perfmodel.core.hardware import PowerFit
from perfmodel.core.power import BURST, SETTLES_S, SUSTAINED, Demand, Power, PowerAsked, energy, joules_of, time_at
from perfmodel.core.sanity import validated
from perfmodel.core.workload import Attention, Stream
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case
from perfmodel.timing.power import KINDS, behind_another, behind_itself, kind_of, of_case, state_of
from perfmodel.timing.predict import roof_s
from perfmodel.transformer.estimate import run_pass
from perfmodel.transformer.step import decode, prefill
from perfmodel.transformer.step_power import of_row
from perfmodel.validation.libraries.measure import as_line
from perfmodel.validation.power_fit import absolute, points, power_fit, power_point, solved, terms
from perfmodel.validation.records import Record, Seconds, held_out, read_records, shipped_records
from tools.measure.sustained.__main__ import lasting
from tools.measure.sustained.run import Sustained

H200 = "nvidia-h200-sxm"
PREFILL = {"name": "llama-3-8b", "phase": "prefill", "n": 2048, "hardware": "h200"}


def device(**fit):
    own = find_device(H200)
    assert own.power is not None
    return replace(own, power=replace(own.power, **fit))


def plain(exponent=1.0, burst=10.0):
    """100 W of static power, and demands that say the rest."""
    return device(static_w=100.0, clock_exponent=exponent, burst_over_limit=burst)


# By hand


def test_a_light_kernel_runs_at_the_highest_clock_and_its_joules_add_up():
    """2 s x 100 W + 30 J + 10 J + 2 s x 50 W = 340 J, 170 W."""
    found = Power(plain()).run([Demand(2.0, 0.0, 30.0, 10.0, 50.0)])
    assert (found.seconds, found.clock) == (2.0, 1.0)
    assert found.joules == pytest.approx(340)
    assert found.watts == pytest.approx(170)


def test_the_clock_under_a_limit_by_hand():
    """a = 1, no DRAM, 1 s, 400 J switched, 100 W static: watts at f are 100 + 400 f x f, so 200 W is f = 1/2, and it takes 2 s."""
    found = Power(plain(), 200.0).run([Demand(1.0, 0.0, 400.0, 0.0, 0.0)])
    assert found.clock == pytest.approx(0.5)
    assert found.seconds == pytest.approx(2.0)
    assert found.joules == pytest.approx(400.0)


def test_busy_multiprocessors_by_hand():
    """a = 1, 300 W of them: 100 + 300 f^2 = 175 at f = 1/2."""
    assert Power(plain(), 175.0).run([Demand(1.0, 0.0, 0.0, 0.0, 300.0)]).clock == pytest.approx(0.5)


def test_dram_does_not_slow_down():
    """All of the time is DRAM's: half the clock takes as long, and its bytes cost as much."""
    found = Power(plain(), 300.0).run([Demand(1.0, 1.0, 400.0, 100.0, 0.0)])  # 100 + 400 f + 100
    assert found.clock == pytest.approx(0.25)
    assert found.seconds == pytest.approx(1.0)
    assert time_at(3.0, 4.0, 1.0) == 5.0


def test_a_burst_draws_no_more_than_a_moment_may():
    """Limit 700 W, a moment 1.2 times: 100 + 1,000 f = 840 at f = 0.74, the clock at which a short kernel takes its time."""
    power, one = Power(plain(burst=1.2)), Demand(1e-6, 0.0, 1e-3, 0.0, 0.0)
    assert power.burst_clock(one) == pytest.approx(0.74)
    assert power.run([one], BURST).clock == pytest.approx(0.74, rel=1e-4)
    assert power.run([one], BURST).seconds == 1e-6


def test_a_call_longer_than_power_may_exceed_its_limit_runs_at_the_clock_that_this_leaves():
    """Without DRAM, a = 1, time goes as 1/f: of 20 ms, half is at the burst's 0.74, half at 0.6 or so, where 700 W is left."""
    power, one = Power(plain(burst=1.2)), Demand(SETTLES_S, 0.0, 1e3 * SETTLES_S, 0.0, 0.0)
    alone, lasting = power.run([one], BURST), power.run([one], SUSTAINED)
    assert alone.seconds == SETTLES_S
    assert 1 / alone.clock == pytest.approx((1 / 0.74 + 1 / lasting.clock) / 2, rel=1e-4)
    assert lasting.watts == pytest.approx(700.0)
    assert lasting.seconds == pytest.approx(SETTLES_S * alone.clock / lasting.clock)


def test_a_device_that_waits_for_its_host_draws_static_power_meanwhile():
    """1 s x (100 + 300) W and 1 s x 100 W: 500 J in 2 s. Under 200 W the average counts: at half the clock nothing is left to wait for."""
    idle = Power(plain(), None, 2.0).run([Demand(1.0, 0.0, 300.0, 0.0, 0.0)])
    assert (idle.seconds, idle.waits_s, idle.clock) == (2.0, 1.0, 1.0)
    assert idle.joules == pytest.approx(500.0)
    assert idle.watts == pytest.approx(250.0)
    slow = Power(plain(), 200.0, 2.0).run([Demand(1.0, 0.0, 400.0, 0.0, 0.0)])
    assert slow.clock == pytest.approx(0.5)
    assert slow.seconds == pytest.approx(2.0)


def test_a_sustained_run_is_slower_than_a_burst_by_their_clocks():
    power, one = Power(plain(burst=1.2)), Demand(1e-3, 0.0, 1.0, 0.0, 0.0)
    burst, lasting = power.run([one], BURST), power.run([one], SUSTAINED)
    assert lasting.seconds == pytest.approx(1e-3 * burst.clock / lasting.clock)
    assert lasting.watts == pytest.approx(700.0)


def test_energy_is_the_sum_of_its_parts_and_joules_of_counts():
    assert energy(2.0, 10.0, 5.0, 50.0, 0.5, 100.0, 1.0) == 200 + 5 + 5 + 25
    assert joules_of(device(picojoules={"l2": 50.0}).power, [("l2", 1e12)]) == pytest.approx(50.0)
    with pytest.raises(UnavailableError, match=r"no power model of tensor\.fp64"):
        joules_of(device().power, [("tensor.fp64", 1)])


# Laws

DEMANDS = st.builds(
    lambda s, share, switched, memory, busy: Demand(s, s * share, s * switched, s * memory, busy),
    st.floats(1e-6, 1.0),
    st.floats(0, 1),
    st.floats(0, 1500),
    st.floats(0, 150),
    st.floats(0, 400),
)


@given(st.lists(DEMANDS, min_size=1, max_size=4), st.floats(350, 700), st.floats(350, 700))
def test_a_lower_limit_never_raises_the_clock_or_lowers_the_time(found, one, other):
    own, (low, high) = find_device(H200), sorted((one, other))
    for clock in (BURST, SUSTAINED):
        less, more = (Power(own, limit).run(found, clock) for limit in (low, high))
        assert less.clock <= more.clock * (1 + 1e-6)
        assert less.seconds >= more.seconds * (1 - 1e-6)


@given(st.lists(DEMANDS, min_size=1, max_size=4), st.floats(350, 700))
def test_sustained_power_keeps_the_limit_and_is_no_faster_than_a_burst(found, limit):
    power = Power(find_device(H200), limit)
    burst, lasting = power.run(found, BURST), power.run(found, SUSTAINED)
    assert lasting.watts <= limit * (1 + 1e-6)
    assert lasting.seconds >= burst.seconds * (1 - 1e-6)
    assert lasting.seconds >= sum(one.seconds for one in found) * (1 - 1e-6)


@given(DEMANDS)
def test_a_kernel_below_the_limit_keeps_the_highest_clock(one):
    power = Power(find_device(H200))
    full = Power(replace(find_device(H200), tdp=replace(find_device(H200).tdp, number=1e9))).run([one])
    assert (power.run([one]).clock == 1.0) == (full.watts <= 700.0)


def test_no_clock_stays_within_less_than_static_power():
    with pytest.raises(UnavailableError, match="cannot stay within 50 W"):
        Power(find_device(H200), 50.0).run([Demand(1.0, 0.0, 100.0, 0.0, 0.0)])


# Kernels


def test_kinds_of_kernels():
    wide, odd = Matmul(64, 64, 64), Matmul(64, 63, 64)
    assert kind_of("matmul", wide, "cublas") == "matmul"
    assert kind_of("matmul", odd, "cublas") == "matmul narrow"
    assert kind_of("attention", None, "torch-eager") == "eager attention"
    assert kind_of("attention", None, "torch-sdpa-flash", "backward") == "attention backward"
    assert kind_of("collective", None, "nccl") == "idle"
    fit = find_device(H200).power
    assert set(fit.busy_w) == set(KINDS)


def test_bytes_that_the_l2_keeps_cost_no_dram():
    own = find_device(H200)
    small, cold = (Case(Stream("scale", 1024, 1024), "torch-scale", cache=cache) for cache in ("warm", "clean"))
    warm, flushed = (dict(of_case(case, "scale", "fp16", own, 1e-5).counts) for case in (small, cold))
    assert warm["dram"] == 0 < flushed["dram"] == 4 << 20
    assert warm["l2"] == flushed["l2"]


def test_bytes_that_a_cache_nearly_as_large_loses_come_from_dram():
    """Tensors of 0.53 of the L2 survive, of 0.8 none of them: 2 x 29 MB of 63 MB."""
    own = find_device(H200)
    warm = dict(of_case(Case(Stream("scale", 7366, 1992), "torch-scale", cache="warm"), "scale", "fp16", own, 1e-5).counts)
    assert warm["dram"] == 2 * 7366 * 1992 * 2


def test_behind_another_a_launch_is_hidden_and_never_all_of_a_kernel():
    assert behind_another(1e-3) == pytest.approx(1e-3 - 2.3e-6)
    assert behind_another(1e-3, 4) == pytest.approx(1e-3 - 2.3e-6 - 3 * 1.4e-6)
    assert behind_another(1e-6) == pytest.approx(0.3e-6)


@pytest.mark.parametrize(
    ("case", "kind", "warm_us", "graph_us"),
    [
        (Case(Stream("scale", 687, 768), "torch-scale"), "scale", 3.8, 1.4),
        (Case(Stream("softmax", 58, 6800), "torch-softmax"), "softmax", 6.4, 4.0),
        (Case(Matmul(1, 7056, 120), "torch-matmul"), "matmul", 5.0, 2.6),
        (Case(Attention(n=1, kv_len=640, d=192, dv=192, heads=8, kv_heads=1, batch=11), "torch-sdpa-flash"), "attention", 13.9, 10.3),
        (Case(Attention(n=64, d=80, dv=80, kv_len=64, heads=11, batch=3), "torch-eager"), "attention", 14.1, 8.4),
        (Case(Attention(n=128, d=80, dv=80, kv_len=128, batch=25, causal=True), "torch-eager-masked-fill"), "attention", 23.2, 15.2),
    ],
    ids=str,
)
def test_kernels_of_a_graph_follow_one_another_as_measured(case, kind, warm_us, graph_us):
    """H200: single calls with warm caches, and many of them in one CUDA graph."""
    assert behind_itself(case, kind, warm_us * 1e-6) == pytest.approx(graph_us * 1e-6, abs=0.9e-6)


def test_zeros_that_fill_a_tile_cost_a_quarter():
    """76 columns are computed as a tile of 256, and rows as tiles of 64."""
    own = find_device(H200)
    case = Case(Matmul(14686, 76, 1350, dtype=DTYPES["fp32"]), "torch-matmul", cache="warm")
    counted = dict(of_case(case, "matmul", "fp32", own, 1e-4).counts)["vector"]
    assert counted == 2 * 1350 * (0.75 * 14686 * 76 + 0.25 * 14720 * 256)


# The shipped fit


@cache
def fit_points():
    own = find_device(H200)
    return points([record for path in shipped_records("sustained") for _, record in read_records(path)], own)


def test_the_profile_holds_what_the_records_give():
    own = find_device(H200)
    again = power_fit(fit_points(), own.power.clock_exponent, own.power.burst_over_limit)
    kept = {"median_error", "p90_error", "records", "source", "date"}
    assert all(getattr(again, name) == getattr(own.power, name) for name in vars(again) if name not in kept)
    assert own.power.points == len(fit_points()) >= 100


def test_a_refit_replaces_the_section_and_nothing_else():
    text = (data_folder("hardware_specs") / f"{H200}.yaml").read_text()
    fit = find_device(H200).power
    assert with_power(text, fit) == text
    other = with_power(text, replace(fit, static_w=1.5))
    assert section(replace(fit, static_w=1.5)) in other
    assert other.replace("static_w: 1.5", f"static_w: {fit.static_w}") == text


def test_the_least_squares_find_parameters_that_made_the_watts():
    truth = {"a": 2.0, "b": 0.0, "static": 100.0}
    rows = [{"a": 10.0 * k, "b": 5.0 * (k % 3), "static": 1.0} for k in range(1, 12)]
    found = solved(rows, [sum(truth[name] * value for name, value in row.items()) for row in rows])
    assert all(isclose(found[name], value, abs_tol=0.2) for name, value in truth.items())
    assert min(found.values()) >= 0


def test_terms_of_a_point_price_to_its_watts():
    fit, point = find_device(H200).power, fit_points()[0]
    known = {"static": fit.static_w, **fit.picojoules, **fit.busy_w}
    priced = sum(known[name] * value for name, value in terms(point, fit.clock_exponent).items())
    one, f = point.measured.demand(fit), point.clock
    joules = energy(one.seconds, one.switched_j, one.memory_j, one.busy_w, f, fit.static_w, fit.clock_exponent)
    assert priced == pytest.approx(joules / one.seconds)


@pytest.mark.parametrize(("name", "value"), [("static_w", -1.0), ("burst_over_limit", 0.5), ("busy_w", {"matmul": float("inf")})])
def test_a_fit_without_meaning_is_refused(name, value):
    import yaml

    raw = yaml.safe_load((data_folder("hardware_specs") / f"{H200}.yaml").read_text())
    raw["power"][name] = value
    with pytest.raises(DataError, match="power: "):
        validated(raw)


# Rows that nobody looked at

TARGETS = {"clock": 0.04, "watts": 0.10, "joules": 0.10, "seconds": 0.05}


@pytest.mark.parametrize(("groups", "least"), [(("kernels",), 40), (("prefill steps", "decode steps"), 20)], ids=str)
def test_drawn_kernels_and_steps_that_ran_for_seconds(groups, least):
    """Of rows held out: of every file of sustained runs, those whose source says so."""
    each = [sustained_rows.errors(group, True) for group in groups]
    found = {what: [value for one in each for value in one[what]] for what in TARGETS}
    assert len(found["clock"]) >= least
    assert not [what for what, most in TARGETS.items() if absolute(found[what]) > most]


def test_a_file_of_sustained_runs_ships_as_it_is_written(tmp_path):
    case = Record("scale", "torch-scale", H200, "fp16", {"rows": 8192, "cols": 8192}, Seconds(1.0), source="torch 2.11; seed 1; held out")
    ran = Sustained([9e-5, 8e-5, 8e-5], 612.34, (1980.0, 1965.0, 1980.0), 4, 1.4, True)
    path = tmp_path / "sustained-drawn.jsonl"
    path.write_text(as_line(lasting(case, [8.2e-5, 8.4e-5, 8.3e-5], ran)))
    [(_, record)] = read_records(path)
    assert (record.clock, record.cache_state, record.power_w, record.sm_hz) == (SUSTAINED, "warm", 612.3, 1.98e9)
    assert record.time_s.median == 8e-5
    assert record.environment["burst_s"] == 8.3e-5
    assert held_out(record)
    assert power_point(record, find_device(H200)).watts == 612.3


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
    found = of_case(case, kind, dtype, own, 2e-6 + over * roof_s(case, own))
    held([state_of([found], own, PowerAsked(f"{limit}W"), BURST) for limit in limits], [float(limit) for limit in limits])


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
    held([state_of(found, own, PowerAsked(f"{limit}W"), SUSTAINED, host_s) for limit in limits], limits)


# Commands


def test_a_single_kernel_shows_a_burst_and_its_sustained_time():
    found = perfmodel.matmul(m=8192, n=8192, k=8192, dtype="bf16", hardware="h200")["results"][0]
    times = found["time_s"]
    assert times["predicted"] == times["burst"]  # to the last digit, so that sweeps and commands agree
    assert times["sustained"] > times["burst"]
    assert found["power_w"] == pytest.approx(700.0)
    assert found["energy_j"] == pytest.approx(found["power_w"] * times["sustained"])
    assert found["sm_hz"] < 1.98e9
    assert found["clock"] == BURST
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
    assert full["power_w"] > 400
    assert less["time_s"]["sustained"] > full["time_s"]["sustained"]
    assert less["sm_hz"] < full["sm_hz"]
    assert less["power_w"] <= 400.001


def test_a_light_kernel_draws_less_than_the_limit_at_the_highest_clock():
    found = perfmodel.matmul(m=16, n=4096, k=4096, dtype="bf16", hardware="h200")["results"][0]
    assert found["sm_hz"] == pytest.approx(1.98e9)
    assert found["power_w"] < 700


def test_steps_are_sustained_unless_asked_otherwise():
    lasting, burst = perfmodel.model(**PREFILL), perfmodel.model(**PREFILL, clock=BURST)
    assert lasting["totals"]["clock"] == SUSTAINED
    assert lasting["totals"]["time_s"]["predicted"] > burst["totals"]["time_s"]["predicted"]
    assert sum(op["time_s"]["predicted"] for op in lasting["ops"]) == pytest.approx(lasting["totals"]["time_s"]["predicted"])
    assert lasting["totals"]["energy_per_token_j"] == pytest.approx(lasting["totals"]["energy_j"] / 2048)


def test_an_eager_step_waits_for_its_host_at_static_power():
    ask = {"name": "llama-3.2-1b", "phase": "decode", "kv_len": 1000, "hardware": "h200", "dtype": "bf16"}
    graph, eager = (perfmodel.model(**ask, **more)["totals"] for more in ({}, {"graph": False, "host_us": 20.0}))
    waits = eager["time_s"]["sustained"] - graph["time_s"]["sustained"]
    assert waits > 0
    assert eager["power_w"] < graph["power_w"]
    assert eager["energy_j"] == pytest.approx(eager["power_w"] * eager["time_s"]["sustained"])
    assert eager["energy_j"] > find_device(H200).power.static_w * waits


def test_a_search_says_that_its_times_are_bursts(capsys):
    line = "model gpt2 --phase train --batch 8 --n 256 --search 2 --hardware h200"
    main([*line.split(), "--full"])
    assert "Times are bursts" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(UsageError, match="--power-limit is for one layout"):
        perfmodel.model(name="gpt2", phase="train", batch=8, n=256, search=2, hardware="h200", power_limit="400W")


def test_batch_shows_joules_per_token_that_fall_with_the_batch():
    found = perfmodel.batch(name="llama-3-8b", kv_len=2048, hardware="h200")["results"]
    joules = [row["energy_per_token_j"] for row in found]
    assert joules[0] > joules[-1]


def test_a_device_without_a_power_model_says_so_when_asked():
    with pytest.raises(UnavailableError, match="nvidia-a100-sxm-80gb has no power model"):
        PowerAsked("300W").check(find_device("a100-sxm-80gb"))
    assert "power_w" not in perfmodel.matmul(m=64, n=64, k=64)["results"][0]
    for call in (
        lambda: perfmodel.matmul(m=64, n=64, k=64, power_limit="300W"),
        lambda: perfmodel.model(name="llama-3-8b", clock=SUSTAINED),
    ):
        with pytest.raises(UnavailableError, match="no power model"):
            call()


def test_a_limit_that_no_model_can_keep_is_no_silent_wish():
    """The tables of a B200 have no products; an H200 draws more than 130 W at any clock."""
    with pytest.raises(UnavailableError, match="no power model of matmul"):
        perfmodel.matmul(m=4096, n=4096, k=4096, dtype="bf16", hardware="b200", power_limit="700W")
    with pytest.raises(UnavailableError, match="cannot stay within 130 W"):
        perfmodel.matmul(m=4096, n=4096, k=4096, dtype="bf16", hardware="h200", power_limit="130W")
    assert "power_w" not in perfmodel.matmul(m=4096, n=4096, k=4096, dtype="bf16", hardware="b200")["results"][0]


# Public tables of a B200


def test_watts_of_a_b200_in_the_half_that_no_fit_saw():
    """Kernels of vLLM; in the time that they took."""
    found = tabled_power.reported()
    assert len(found) >= 300
    assert absolute(found) <= 0.15


def test_the_profile_of_a_b200_holds_what_the_tables_give():
    device, fit = tabled_power.shipped()
    rows = [record for record in tabled_power.records() if not held_out(record)]
    again = tabled_power.fitted(rows, device, find_device(H200).power)
    assert (again.picojoules, again.busy_w, again.static_w) == (fit.picojoules, fit.busy_w, fit.static_w)
    assert (again.clock_exponent, again.burst_over_limit, fit.points) == (fit.clock_exponent, fit.burst_over_limit, len(rows))


def test_a_row_that_the_limit_holds_counts_only_where_less_is_predicted():
    """100 W from others; held at 150 W it pulls, held at 50 W it does not."""
    rows = [{"a": 1.0}] * 4
    assert solved(rows, [100.0, 100.0, 100.0, 50.0], held={3})["a"] == pytest.approx(100.0)
    assert solved(rows, [100.0, 100.0, 100.0, 150.0], held={3})["a"] > 101.0
    assert solved(rows[:3], [100.0] * 3, static_w=40.0)["a"] == pytest.approx(60.0)


@pytest.mark.parametrize("options", [{"power_limit": "800W"}, {"power_limit": "500"}, {"power_limit": "-5W"}, {"clock": "fast"}])
def test_wrong_limits_and_clocks_are_refused(options):
    with pytest.raises(UsageError, match=r"--power-limit|--clock"):
        perfmodel.matmul(m=64, n=64, k=64, hardware="h200", **options)


def test_a_meter_shows_the_limit(capsys):
    main(["attention", "--n", "8192", "--d", "128", "--heads", "32", "--dtype", "bf16", "--hardware", "h200"])
    assert "power" in capsys.readouterr().out


def test_records_keep_clock_watts_and_joules(tmp_path):
    line = {"workload": "copy", "implementation": "torch-copy", "hardware": H200, "dtype": "bf16", "shape": {"bytes": 1 << 30}}
    line |= {"time_s": {"median": 5e-4}, "clock": "sustained", "power_w": 560.0, "sm_hz": 1.98e9, "energy_j": 0.28, "cache": "warm"}
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps(line) + "\n")
    [(_, record)] = read_records(path)
    assert (record.clock, record.power_w, record.sm_hz, record.energy_j) == ("sustained", 560.0, 1.98e9, 0.28)
    assert record.group == "copy/torch-copy/forward/sustained"
    assert isinstance(find_device(H200).power, PowerFit)
