"""Power, clock and energy: formulas worked by hand, laws of a limit, kinds of kernels, and rows that nobody looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.core.power import BURST, SETTLES_S, SUSTAINED, Demand, Power, energy, joules_of, time_at
from perfmodel.core.workload import Attention, Stream
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import Case
from perfmodel.timing.power import KINDS, behind_another, behind_itself, case_activity, kind_of
from perfmodel.validation.libraries.measure import as_line
from perfmodel.validation.records import Record, Seconds, held_out, read_records
from tools.measure.sustained.__main__ import lasting
from tools.measure.sustained.run import Sustained
from tools.power_fit import absolute, power_point
from tools.scores import sustained_rows

H200 = "nvidia-h200-sxm"


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
    warm, flushed = (dict(case_activity(case, "scale", "fp16", own, 1e-5).counts) for case in (small, cold))
    assert warm["dram"] == 0 < flushed["dram"] == 4 << 20
    assert warm["l2"] == flushed["l2"]


def test_in_decode_each_k_and_v_passes_the_l2_once():
    """For the heads of a group together, however a kernel cuts them: four of each group here."""
    counts = dict(
        case_activity(Case(Attention(1, 4096, 128, 128, 16, 32, 8), "vllm-flash-attn"), "attention", "fp16", find_device(H200), 1e-4).counts
    )
    assert counts["l2"] == counts["dram"] > 2 * 16 * 8 * 4096 * 128 * 2


def test_bytes_that_a_cache_nearly_as_large_loses_come_from_dram():
    """Tensors of 0.53 of the L2 survive, of 0.8 none of them: 2 x 29 MB of 63 MB."""
    own = find_device(H200)
    warm = dict(case_activity(Case(Stream("scale", 7366, 1992), "torch-scale", cache="warm"), "scale", "fp16", own, 1e-5).counts)
    assert warm["dram"] == 2 * 7366 * 1992 * 2


def test_behind_another_a_launch_is_hidden_and_never_all_of_a_kernel():
    assert behind_another(1e-3) == pytest.approx(1e-3 - 2.3e-6)
    assert behind_another(1e-3, 4) == pytest.approx(1e-3 - 2.3e-6 - 3 * 1.4e-6)
    assert behind_another(1e-6) == pytest.approx(0.4e-6)


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


def test_zeros_that_fill_a_tile_cost_a_third():
    """76 columns are computed as a tile of 256, and rows as tiles of 64."""
    own = find_device(H200)
    case = Case(Matmul(14686, 76, 1350, dtype=DTYPES["fp32"]), "torch-matmul", cache="warm")
    counted = dict(case_activity(case, "matmul", "fp32", own, 1e-4).counts)["vector"]
    assert counted == pytest.approx(2 * 1350 * (0.65 * 14686 * 76 + 0.35 * 14720 * 256))


def test_decode_computes_the_rows_of_a_tile_for_each_kv_head():
    """4 queries share a tile of 64 rows, heads of 72 are 96 wide; the rows of zeros cost 0.6, and FlashAttention takes their softmax."""
    own, w = find_device(H200), Attention(n=1, kv_len=1000, d=72, dv=72, heads=8, kv_heads=2)
    useful, executed, scores = 4 * 8 * 1000 * 72, 4 * 2 * 64 * 1000 * 96, 2 * 64 * 1000
    flash, cudnn = (
        dict(case_activity(Case(w, f"torch-sdpa-{name}"), "attention", "fp16", own, 1e-4).counts) for name in ("flash", "cudnn")
    )
    assert flash["tensor.fp16"] == flash["mma.sync"] == pytest.approx(useful + 0.6 * (executed - useful))
    assert cudnn["tensor.fp16"] == flash["tensor.fp16"]
    assert cudnn["mma.sync"] == 0
    assert flash["vector"] == pytest.approx(2 * 5 * scores)
    assert cudnn["vector"] == pytest.approx(2 * 5 * scores * 4 / 64)


def test_kernels_in_turn_pass_bytes_through_memory():
    """SiLU writes what the product reads, and eager attention its scaled scores: 2 passes more than one kernel that fuses them."""
    own, rows, cols = find_device(H200), 8192, 8192
    activation = dict(case_activity(Case(Stream("silu-mul", rows, cols, inputs=2), "torch-silu-mul"), "scale", "fp16", own, 1e-3).counts)
    assert activation["dram"] == 5 * 2 * rows * cols
    w, heads = Attention(n=1024, kv_len=1024, d=64, dv=64, heads=2, batch=3), 3 * 2
    eager = dict(case_activity(Case(w, "torch-eager"), "attention", "fp16", own, 1e-3).counts)
    assert eager["l2"] == 6 * 2 * heads * 1024 * 1024 + 4 * 2 * heads * 1024 * 64


def test_memory_efficient_attention_sums_wide_heads_in_memory():
    own = find_device(H200)
    spilled = [
        dict(case_activity(Case(Attention(n=2048, kv_len=2048, d=d, dv=d), "torch-sdpa-efficient"), "attention", "fp16", own, 1e-3).counts)[
            "l2"
        ]
        for d in (128, 256)
    ]
    assert spilled[1] > 4 * spilled[0]


# Rows that nobody looked at

TARGETS = {"clock": 0.04, "watts": 0.10, "joules": 0.10, "seconds": 0.055}


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
