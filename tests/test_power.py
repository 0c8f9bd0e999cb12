"""Power, clock and energy: formulas worked by hand, laws of a limit, the shipped fit and what commands say of it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from math import isclose

import pytest
import sustained_rows
from hypothesis import given
from hypothesis import strategies as st
from refresh_power import section, with_power

import perfmodel
from perfmodel.catalog import data_folder, find_device
from perfmodel.cli import main
from perfmodel.core.errors import DataError, UnavailableError, UsageError
from perfmodel.core.hardware import PowerFit
from perfmodel.core.power import BURST, SUSTAINED, Demand, Power, PowerAsked, energy, joules_of, time_at
from perfmodel.core.sanity import validated
from perfmodel.core.workload import Stream
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case
from perfmodel.timing.power import KINDS, behind_another, kind_of, of_case
from perfmodel.validation.power_fit import absolute, points, power_fit, solved, terms
from perfmodel.validation.records import read_records, shipped_records

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
    """Limit 700 W, a moment 1.2 times: 100 + 1,000 f = 840 at f = 0.74, the clock at which the kernel takes its second."""
    found = Power(plain(burst=1.2)).run([Demand(1.0, 0.0, 1000.0, 0.0, 0.0)], BURST)
    assert found.clock == pytest.approx(0.74)
    assert found.seconds == pytest.approx(1.0)


def test_a_sustained_run_is_slower_than_a_burst_by_their_clocks():
    power, one = Power(plain(burst=1.2)), Demand(1.0, 0.0, 1000.0, 0.0, 0.0)
    burst, lasting = power.run([one], BURST), power.run([one], SUSTAINED)
    assert lasting.seconds == pytest.approx(burst.clock / lasting.clock)
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
    small, cold = (Case(Stream("scale", 1024, 1024), "torch-scale", cold=cold) for cold in (False, True))
    warm, flushed = (dict(of_case(case, "scale", "fp16", own, 1e-5).counts) for case in (small, cold))
    assert warm["dram"] == 0 < flushed["dram"] == 4 << 20
    assert warm["l2"] == flushed["l2"]


def test_behind_another_a_launch_is_hidden_and_never_all_of_a_kernel():
    assert behind_another(1e-3) == pytest.approx(1e-3 - 2.4e-6)
    assert behind_another(1e-6) == pytest.approx(0.3e-6)


# The shipped fit


@cache
def fit_points():
    own = find_device(H200)
    return points([record for path in shipped_records() if path.stem == "sustained" for _, record in read_records(path)], own)


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
