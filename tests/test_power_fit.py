"""The fits of power: parameters from records, those that ship, and public tables of a B200."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import isclose

import pytest

from perfmodel.catalog import data_folder, find_device
from perfmodel.core.errors import DataError
from perfmodel.core.files import read_yaml
from perfmodel.core.power import energy
from perfmodel.core.sanity import validated
from perfmodel.timing.power import UNCOUNTED
from perfmodel.validation.records import held_out, read_records, shipped_records
from tools.power_fit import OPERAND_BYTES, absolute, points, power_fit, solved, terms, with_formats
from tools.refresh.power import section, with_power
from tools.scores import power_by_kind, tabled_power

H200 = "nvidia-h200-sxm"


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
    busy, tensor = fit.busy_w["decode"], {form: fit.picojoules[f"tensor.{form}"] for form in ("fp8", "fp16")}
    more = {kind: fit.busy_w[kind] - busy for kind in UNCOUNTED if kind in fit.busy_w}
    operand = tensor["fp16"] - tensor["fp8"]
    known = {"static": fit.static_w, "busy": busy, "operand": operand, "multiply": tensor["fp8"] - operand, **fit.picojoules, **more}
    priced = sum(known[name] * value for name, value in terms(point, fit.clock_exponent).items())
    one, f = point.measured.demand(fit), point.clock
    joules = energy(one.seconds, one.switched_j, one.memory_j, one.busy_w, f, fit.static_w, fit.clock_exponent)
    assert priced == pytest.approx(joules / one.seconds, rel=1e-3)


def test_a_format_without_records_lies_on_the_line_through_the_others():
    """0.3 pJ, and 0.2 pJ more per byte of an operand."""
    fit = replace(find_device(H200).power, picojoules={"tensor.fp8": 0.5, "tensor.tf32": 1.1, "dram": 1.0})
    more = with_formats(fit, OPERAND_BYTES).picojoules
    assert more["tensor.fp16"] == pytest.approx(0.7)
    assert more["tensor.bf16"] == pytest.approx(0.7 * 0.91)
    assert {name: more[name] for name in fit.picojoules} == fit.picojoules


# Kinds that a fit did not see


def test_kinds_of_kernels_that_a_fit_did_not_see():
    """Clock of rows that power limits, watts and time of all, on rows on which nothing was chosen."""
    found = power_by_kind.errors(without=True)
    assert len(found["watts"]) >= 200
    assert len(found["clock"]) >= 50
    assert absolute(found["clock"]) <= 0.04
    assert absolute(found["watts"]) <= 0.055
    assert absolute(found["seconds"]) <= 0.04


@pytest.mark.parametrize(
    ("kind", "most"), [("products, fp8", 0.04), ("products, tf32", 0.04), ("products, 16 bits", 0.04), ("decode, flash", 0.1)]
)
def test_clocks_of_a_kind_that_a_fit_did_not_see(kind: str, most: float):
    assert absolute(power_by_kind.errors(without=True, kind=kind)["clock"]) <= most


@pytest.mark.parametrize(("name", "value"), [("static_w", -1.0), ("burst_over_limit", 0.5), ("busy_w", {"matmul": -1.0})])
def test_a_fit_without_meaning_is_refused(name, value):
    raw = read_yaml(data_folder("hardware_specs") / f"{H200}.yaml")[0]
    raw["power"][name] = value
    with pytest.raises(DataError, match="power: "):
        validated(raw)


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
