"""What the L2 holds before a kernel: dirty costs, warm saves, and neither more than it can."""

import json
from collections import defaultdict
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfmodel
from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.core.workload import Attention, Stream
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import CLEAN, DIRTY, L2_STATE, WARM, Case
from perfmodel.timing.cache_state import LARGEST_SAVING, warm_s, write_back_s
from perfmodel.timing.case_bounds import lower_bound_s
from perfmodel.timing.predict import TimeRequest, _moved_bytes, predict
from perfmodel.validation.bounds import evaluated
from perfmodel.validation.records import as_record, read_records, shipped_records
from tools.refresh import cache_state as refresh_cache_state

H200 = find_device("h200")
L2, BANDWIDTH = H200.cache_bytes, 4.8e12
MOST_S = (L2_STATE["dirty_share"] * L2 / BANDWIDTH + L2_STATE["first_line_us"] * 1e-6) * (1 + 1e-12)
LENGTHS = st.integers(1, 1 << 14)
CASES = st.one_of(
    st.builds(lambda rows, cols: ("scale", Case(Stream("scale", rows, cols), "torch-scale")), LENGTHS, LENGTHS),
    st.builds(lambda m, n, k: ("matmul", Case(Matmul(m, n, k), "torch-matmul")), LENGTHS, LENGTHS, LENGTHS),
    st.builds(
        lambda n, heads: ("attention", Case(Attention(n + 1, n + 1, 64, 64, 1, heads, heads), "torch-sdpa-flash")),
        LENGTHS,
        st.integers(1, 16),
    ),
)


def seconds(kind, case, cache):
    asked = Case(case.workload, case.implementation, case.direction, cache)
    return predict(TimeRequest(asked, kind, "fp16", H200, lower_bound_s(asked, H200), calibrated_devices)).seconds


@given(CASES)
def test_dirty_lines_cost_time_and_at_most_their_way_to_dram(asked):
    kind, case = asked
    clean, dirty = (seconds(kind, case, state) for state in (CLEAN, DIRTY))
    assert clean <= dirty
    assert dirty <= clean + MOST_S


@pytest.mark.parametrize(
    ("clean_us", "read", "written", "lost_us"),
    [
        (83, 4e8, 0, 7.9),  # all dirty lines, 0.6 x 62.9 MB at 4.8 TB/s
        (83, 2e8, 2e8, 3.9),
        (332, 4e8, 0, 3.9),  # DRAM is busy a quarter of the time
        (13.1, 62.9e6, 0, 7.9 * 0.632),  # 1 - 1 / e
    ],
)
def test_cost_of_dirty_lines_by_hand(clean_us, read, written, lost_us):
    p = {"dirty_share": 0.6, "busy_power": 0.5, "first_line_us": 0.0, "pushing": 1.0, "start_us": 0.0}
    assert write_back_s(clean_us * 1e-6, read, written, H200, {**L2_STATE, **p}) == pytest.approx(lost_us * 1e-6, rel=0.04)


def test_the_fitted_numbers_are_those_of_the_shipped_records():
    """And what they say of runs that are not clean is near: see the errors that ``cache_state.json`` holds."""
    found = refresh_cache_state.refit(record for path in shipped_records() for _, record in read_records(path))
    assert {**found, "date": ""} == {**L2_STATE, "date": ""}, "refresh with: python -m tools.refresh.cache_state"


def test_dirty_over_clean_as_measured():
    """Shipped kernels that were timed in both states, whatever the models say of either: no group is biased, most are near."""
    found, errors = defaultdict(dict), defaultdict(list)
    for path in shipped_records("drawn"):
        for raw, record in read_records(path):
            key = json.dumps([raw[name] for name in ("implementation", "pass", "dtype", "shape")], sort_keys=True)
            found[key][record.cache_state] = record
    for pair in found.values():
        if {CLEAN, DIRTY} <= pair.keys() and (case := evaluated(pair[CLEAN], H200)[0]):
            clean, dirty = (pair[state].time_s.median for state in (CLEAN, DIRTY))
            lost_s = write_back_s(clean, *_moved_bytes(case, H200), H200)
            errors[pair[CLEAN].group, pair[CLEAN].shape.get("n") == 1].append(((clean + lost_s) / dirty - 1, clean / dirty - 1))
    assert len(errors) >= 15
    for group, pairs in errors.items():
        with_lines, without = zip(*pairs, strict=True)
        assert abs(median(with_lines)) <= 0.02, group
        assert median(map(abs, with_lines)) <= max(0.06, median(map(abs, without))), group


@given(st.floats(1e-6, 1e-2), st.floats(1, 1e10), st.floats(1, 1e10))
def test_a_warm_run_keeps_its_launch_and_pays_for_its_own_lines_at_most(clean, read, written):
    warm = warm_s(clean, read, written, H200)
    assert (1 - LARGEST_SAVING) * clean - 1e-12 <= warm <= clean + write_back_s(clean, read, written, H200)
    assert warm_s(clean, read, 0, H200) <= clean, "what is only read leaves nothing to write back"


def test_devices_without_a_known_l2_have_no_lines_to_write():
    from dataclasses import replace

    bare = replace(H200, memory=[level for level in H200.memory if level.level != "l2"])
    assert write_back_s(1e-3, 1e9, 0, bare) == 0
    assert warm_s(1e-5, 1e6, 1e6, bare) == 1e-5


@pytest.mark.parametrize(("word", "state"), [("cold", CLEAN), ("clean", CLEAN), ("dirty", DIRTY), ("warm", WARM), (None, "")])
def test_records_say_what_the_l2_held(word, state):
    raw = {"workload": "copy", "implementation": "torch-copy", "hardware": "h200", "dtype": "bf16", "shape": {"bytes": 64}}
    assert as_record({**raw, "time_s": {"median": 1e-6}, **({} if word is None else {"cache": word})}).cache_state == state


@pytest.mark.parametrize("asked", [("matmul", {"m": 16, "n": 4096, "k": 4096}), ("attention", {"n": 512, "d": 64})])
def test_the_option_changes_the_time_and_says_so(asked):
    command, options = asked
    found = {state: perfmodel.answer(command, **options, hardware="h200", cache=state) for state in (CLEAN, DIRTY)}
    entries = {state: one["results"][-1] for state, one in found.items()}
    assert entries[DIRTY]["time_s"]["predicted"] > entries[CLEAN]["time_s"]["predicted"]
    assert [one["prediction"]["cache"] for one in entries.values()] == [CLEAN, DIRTY]
    assert "written back meanwhile" in json.dumps(entries[DIRTY]["prediction"])


@pytest.mark.parametrize("device", ["a100-sxm-40gb", "b200", "h100-sxm", "h200", "t4"])
@pytest.mark.parametrize("n", [64, 2048])
def test_no_kernel_is_slower_with_its_own_buffers_in_the_l2_than_with_others_to_write_back(run, device, n):
    """Any algorithm, by whichever kernel is shown; also a kernel that is known from one table alone."""
    for more in ("--algorithm standard --algorithm flash2 --pass both", "--algorithm flash1 --implementation fa1"):
        line = f"attention --n {n} --d 64 --heads 8 --hardware {device} --json {more}"
        found = [run(f"{line} --cache {state}").json["results"] for state in (WARM, DIRTY)]
        for warm, dirty in zip(*found, strict=True):
            assert warm["time_s"].get("predicted", 0) <= dirty["time_s"].get("predicted", 0) * (1 + 1e-9)


def test_an_unknown_state_is_refused():
    with pytest.raises(UsageError, match="no state 'hot'"):
        perfmodel.matmul(m=64, n=64, k=64, cache="hot")


SERVED = [find_device(f"nvidia-{name}") for name in ("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm", "b200-sxm", "l40s", "rtx-4090")]


def served(device, shape, cache):
    """Seconds of vLLM's kernel."""
    n, kv_len, batch, heads, kv_heads = shape
    w = Attention(n, kv_len, 128, 128, batch, heads, kv_heads, DTYPES["bf16"], packed=n == 1)
    asked = Case(w, "vllm-flash-attn", cache=cache)
    return predict(TimeRequest(asked, "attention", "bf16", device, lower_bound_s(asked, device), calibrated_devices)).seconds


@pytest.mark.parametrize("device", SERVED, ids=lambda device: device.id)
@given(st.integers(1, 4096), st.integers(1, 1 << 14), st.integers(1, 64), st.integers(1, 8), st.integers(1, 8))
def test_a_warm_run_is_never_slower(device, n, kv_len, batch, kv_heads, group):
    for length in (1, n):
        shape = length, max(length, kv_len), batch, kv_heads * group, kv_heads
        try:
            clean, warm = (served(device, shape, state) for state in (CLEAN, WARM))
        except UnavailableError:
            continue
        assert warm <= clean * (1 + 1e-9)


@pytest.mark.parametrize("device", SERVED, ids=lambda device: device.id)
@pytest.mark.parametrize("n", [1, 128])
def test_what_fits_the_l2_comes_sooner(device, n):
    """K and V that fill a quarter of it, in decode, and all of Q, K, V, O and the cache together in a prefill that waits for them."""
    per_token = 8 * 256 * 2
    tokens = int(device.cache_bytes / 4 / per_token)
    shape = (1, tokens // 4, 4, 8, 8) if n == 1 else (n, n, max(1, tokens // n // 3), 8, 8)
    clean, warm = (served(device, shape, state) for state in (CLEAN, WARM))
    assert warm < clean
    if device.id == "nvidia-l40s" and n == 1:  # little DRAM bandwidth, much L2
        assert clean - warm > 0.25 * 4 * shape[1] * per_token / device.dram.bandwidth_bytes_per_s


@pytest.mark.parametrize(
    ("device", "n", "heads"), [("nvidia-a100-sxm-40gb", 512, 8), ("nvidia-h100-nvl-94gb", 10, 11), ("nvidia-h100-sxm-80gb", 90, 3)]
)
def test_the_l2_chooses_no_kernel_and_a_warm_one_costs_no_host(run, device, n, heads):
    """Published runs whose state nobody said hold the host's time for a pass; a warm L2 does not."""
    found = {}
    for state in (CLEAN, DIRTY, WARM):
        line = f"attention --n {n} --d 64 --heads {heads} --batch 16 --dtype fp16 --hardware {device} --cache {state} --json"
        found[state] = run(line).json["results"]
    for clean, dirty, warm in zip(*(found[state] for state in (CLEAN, DIRTY, WARM)), strict=True):
        assert len({one["implementation"] for one in (clean, dirty, warm)}) == 1
        times = [one["time_s"]["predicted"] for one in (warm, clean, dirty)]
        assert times[0] <= 1.01 * times[1] <= 1.01 * times[2]
