"""Steps whose kernels a host launches one by one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfmodel
from perfmodel.catalog import calibrated_devices, find_device, find_engine
from perfmodel.core.errors import UsageError
from perfmodel.transformer.host import FASTEST_US, SLOWEST_US, Host
from perfmodel.validation.compare import compare_files
from perfmodel.validation.records import shipped_records

DECODE = {"phase": "decode", "kv_len": 1000, "hardware": "h200", "dtype": "bf16"}


def asked(**options):
    return perfmodel.answer("model", "llama-3.2-1b", **{**DECODE, **options})


def predicted(found):
    time = found["totals"]["time_s"]
    return time["low"], time["predicted"], time["high"]


def test_a_graph_needs_no_host():
    found = asked()
    assert found["host"]["launches"] is None
    assert found["totals"]["time_s"]["predicted"] < 2e-3


def test_without_a_host_the_interval_is_as_wide_as_hosts_differ():
    found = asked(graph=False)
    low, value, high = predicted(found)
    launches = found["host"]["launches"]
    assert low <= value <= high
    assert high >= launches * SLOWEST_US * 1e-6
    assert high / low > 2
    assert 4.15e-3 / high < 1.01, "measured in plain PyTorch"


def test_a_host_that_is_late_sets_the_pace_and_comes_first():
    slow, fast = asked(graph=False, host_us=50.0), asked(graph=False, host_us=0.1)
    assert predicted(slow)[1] == pytest.approx(slow["host"]["launches"] * 50e-6)
    assert predicted(fast)[2] < 2e-3 < predicted(slow)[0]


@given(st.floats(0.1, 1e3), st.floats(1, 10), st.integers(1, 10**5))
def test_a_slower_host_or_more_launches_never_save_time(launch_us, more, launches):
    device = (1e-3, 0.9e-3, 1.1e-3)
    before = Host(launch_us).around(device, launches)
    for after in (Host(launch_us * more).around(device, launches), Host(launch_us).around(device, launches * more)):
        assert all(a >= b >= own for a, b, own in zip(after, before, device, strict=True))


def test_unknown_hosts_span_the_known_ones():
    value, low, high = Host().seconds(100)
    assert (low, high) == (pytest.approx(100e-6 * FASTEST_US), pytest.approx(100e-6 * SLOWEST_US))
    assert low < value < high


@pytest.mark.parametrize("options", [{"host_us": 5.0}, {"host_us": 1e9, "graph": False}, {"host_us": -1.0, "graph": False}])
def test_a_host_that_nothing_waits_for_is_refused(options):
    with pytest.raises(UsageError, match=r"host.us"):
        asked(**options)


STEP = {"workload": "transformer", "implementation": "torch", "hardware": "nvidia-h200-sxm", "dtype": "bf16", "cache": "warm"}
SHAPE = {"model": "llama-3.2-1b", "phase": "decode", "batch": 1, "kv_len": 1000, "tensor_parallel": 1, "fused_elementwise": False}


@pytest.mark.parametrize(("graph", "batch", "kv_len"), [(True, 1, 1000), (False, 1, 1000), (False, 64, 4000)])
def test_a_record_of_a_step_is_predicted_as_model_predicts_it(graph, batch, kv_len, tmp_path):
    """The host sets the pace of the second, PyTorch's attention that of the third; the record is of that attention in a graph too."""
    path, shape = tmp_path / "mine.jsonl", SHAPE | {"batch": batch, "kv_len": kv_len, "cuda_graph": graph}
    path.write_text(json.dumps(STEP | {"shape": shape, "time_s": {"median": 4.15e-3}}))
    [row] = compare_files([path], find_device, calibrated_devices)
    low, value, high = predicted(asked(graph=graph, batch=batch, kv_len=kv_len))
    near = {"rel": 1e-9} if batch == 1 and not graph else {"rel": 0.05}
    assert (row.prediction.seconds, row.prediction.high) == (pytest.approx(value, **near), pytest.approx(high, **near))
    assert row.prediction.low == pytest.approx(low, rel=0.06)
    assert row.covered == (batch == 1 and not graph)


def test_an_engine_keeps_its_kernels_where_its_steps_are_launched_one_by_one():
    """Steps beyond an engine's CUDA graphs are no PyTorch program; what is asked for as one names PyTorch's attention."""
    large = asked(engine="tensorrt-llm", batch=4096, kv_len=64)
    assert large["inputs"]["cuda_graph"] == {"decode": False}
    assert large["inputs"]["kernels"]["attention"] == list(find_engine("tensorrt-llm").kernels.attention)
    assert asked(graph=False)["inputs"]["kernels"]["attention"] == ["torch-sdpa-flash"]
    assert asked()["inputs"]["kernels"]["attention"] == []


def test_steps_whose_kernels_were_queued_wait_for_no_host():
    [path] = [one for one in shipped_records() if one.name == "steps.jsonl"]
    rows = compare_files([path], find_device, calibrated_devices)
    assert all(abs(row.error) < 0.12 for row in rows)


def test_both_ends_were_measured_on_more_than_one_host():
    """Microseconds per launch: SAM 2 beside an RTX A6000, a diffusion model beside an L20X, Llama-3.2-1B beside an H200."""
    for measured_s, launches in ((53.7e-3, 1185), (254.3e-3, 6372), (4.15e-3, 243)):
        _, low, high = Host().seconds(launches)
        assert low < measured_s < high * 1.01
