"""The roofline of energy: its line by hand and by its laws, and the picture in reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.catalog import find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.power import PowerFit, PowerOptions, flops_per_joule
from perfmodel.kernels.matmul import Matmul, evaluate
from perfmodel.report.matmul import report
from perfmodel.report.roofline_chart import energy_roofline
from perfmodel.timing.base import Case
from perfmodel.timing.power import as_shown, predicted_activity, state_of
from perfmodel.timing.predict import TimeRequest
from perfmodel.timing.select_kernel import select_kernel

H200 = find_device("nvidia-h200-sxm")


def fit() -> PowerFit:
    assert H200.power is not None
    return replace(H200.power, static_w=100.0, picojoules={"tensor.bf16": 0.5, "dram": 60.0})


@pytest.mark.parametrize(
    ("intensity", "joules"),
    [
        (1000.0, 100 / 1e15 + 0.5e-12 + 60e-12 / 1000),  # 0.1 + 0.5 + 0.06 pJ: the tensor unit takes longer
        (1.0, 100 / 4e12 + 0.5e-12 + 60e-12),  # 25 + 0.5 + 60 pJ: its byte does
    ],
)
def test_joules_of_a_flop_by_hand(intensity: float, joules: float) -> None:
    assert flops_per_joule(fit(), "tensor.bf16", 1e15, 4e12, intensity) == pytest.approx(1 / joules)


def test_more_flop_per_byte_are_more_flop_per_joule_up_to_those_without_bytes() -> None:
    line = [float(flops_per_joule(fit(), "tensor.bf16", 1e15, 4e12, 10.0**power)) for power in range(-2, 8)]
    assert line == sorted(line)
    assert line[-1] <= 1 / (0.5e-12 + 100 / 1e15)


def energies(device: str) -> list:
    """Pictures of energy in the report of a product."""
    on, w = find_device(device), Matmul(8192, 8192, 8192)
    result = evaluate(w, on)
    known = select_kernel(TimeRequest(Case(w, ""), "matmul", w.dtype.name, on, float(result.total.lower_s)))
    activity = predicted_activity(known, result.total, w, w.dtype.name, on, [kernel for kernel, _ in result.kernels])
    known = as_shown(known, state_of([activity], on, PowerOptions(), "burst"))
    return [chart for chart in report(result, prediction=known, pictures=True).charts if "energy" in chart.title]


def test_a_kernel_is_below_the_line() -> None:
    assert H200.power is not None
    [chart] = energies("nvidia-h200-sxm")
    [mark] = chart.marks
    best = flops_per_joule(H200.power, "tensor.bf16", 989.4e12, 4.8e12, mark.x)
    assert 0.3 * best < mark.y < best
    assert chart.series[0].points == sorted(chart.series[0].points)


def test_a_device_without_a_power_model_has_no_such_picture() -> None:
    assert energies("nvidia-a100-sxm-80gb") == []


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8"])
def test_a_fit_that_gives_some_products_no_energy_has_no_roofline(dtype: str) -> None:
    """The records of a B200 do not tell products from the power of busy multiprocessors: 0 pJ in every format."""
    b200 = find_device("b200")
    assert b200.power is not None
    assert b200.power.picojoules["tensor.bf16"] == 0
    assert energy_roofline(b200, DTYPES[dtype], []) == []
    assert energy_roofline(find_device("h200"), DTYPES[dtype], [])
