"""What the L2 holds before a kernel: dirty costs, warm saves, and neither more than it can."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfmodel
from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.errors import UsageError
from perfmodel.core.workload import Attention, Stream
from perfmodel.kernels.matmul import Matmul
from perfmodel.timing.base import CLEAN, DIRTY, WARM, Case
from perfmodel.timing.cache_state import DIRTY_SHARE, LARGEST_SAVING, LEFT_SHARE, warm_s, write_back_s
from perfmodel.timing.predict import TimeRequest, lower_bound_s, predict
from perfmodel.validation.records import as_record

H200 = find_device("h200")
L2, BANDWIDTH = H200.cache_bytes, 4.8e12
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
    assert clean <= dirty <= clean + DIRTY_SHARE * L2 / BANDWIDTH + 1e-12


@given(st.floats(1e-6, 1e-2), st.floats(0, 1e12), st.floats(0, 1e12), st.floats(1, 100))
def test_what_moves_more_drives_more_dirty_lines_out(clean, read, written, more):
    less, most = (write_back_s(clean, read * times, written * times, H200) for times in (1, more))
    assert 0 <= less <= most * (1 + 1e-12) <= DIRTY_SHARE * L2 / BANDWIDTH * (1 + 1e-9)


@given(st.floats(1e-6, 1e-2), st.floats(1, 10), st.floats(1, 1e10))
def test_a_kernel_that_takes_longer_hides_more_of_it_and_ends_later(clean, longer, read):
    shown, hidden = (write_back_s(time, read, 0, H200) for time in (clean, clean * longer))
    assert shown >= hidden
    assert clean + shown <= clean * longer + hidden + 1e-15


@pytest.mark.parametrize(
    ("clean_us", "read", "written", "delay_us"),
    [  # an L2 of 62,914,560 B takes 13.107 us; ten of it push all out
        (150, 629_145_600, 0, 7.864),  # 131 us of DRAM in 145: all of 0.6 x 13.107 shows
        (300, 314_572_800, 314_572_800, 0.5 * 7.864 * 131.07 / 295 / 0.65),  # half of it written, the DRAM busy for 0.444
        (5000, 629_145_600, 0, 0.4 * 7.864),
    ],
)
def test_delays_by_hand(clean_us, read, written, delay_us):
    assert write_back_s(clean_us * 1e-6, read, written, H200) == pytest.approx(delay_us * 1e-6, rel=1e-3)


def test_dirty_lines_are_nothing_to_a_long_kernel():
    long = "matmul", Case(Matmul(16384, 16384, 16384), "torch-matmul")
    assert seconds(*long, DIRTY) == pytest.approx(seconds(*long, CLEAN), rel=1e-3)


@given(st.floats(1e-6, 1e-2), st.floats(1, 1e10), st.floats(1, 1e10))
def test_a_warm_run_keeps_its_launch_and_pays_for_its_own_lines_at_most(clean, read, written):
    warm = warm_s(clean, read, written, H200)
    assert (1 - LARGEST_SAVING) * clean - 1e-12 <= warm <= clean + LEFT_SHARE * L2 / BANDWIDTH + 1e-12


def test_a_warm_copy_is_faster_only_as_far_as_it_fits():
    small, large = (("scale", Case(Stream("scale", rows, 1024), "torch-scale")) for rows in (1024, 1 << 19))
    assert seconds(*small, WARM) < 0.9 * seconds(*small, CLEAN)
    assert seconds(*large, WARM) >= seconds(*large, CLEAN)


def test_devices_without_a_known_l2_have_no_lines_to_write():
    from dataclasses import replace

    bare = replace(H200, memory=[level for level in H200.memory if level.level != "l2"])
    assert write_back_s(1e-3, 1e9, 1e6, bare) == 0
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


def test_an_unknown_state_is_refused():
    with pytest.raises(UsageError, match="no state 'hot'"):
        perfmodel.matmul(m=64, n=64, k=64, cache="hot")
