"""What each term of a time model buys: ``python -m tools.evidence MODEL ... [--write]``.

A term is a parameter whose prior says by which value it vanishes (``without``). Each group of records that shares parameters is fitted with
and without it, on those records that fits may see; the errors are of rows that a fit did not see, in cross-validation. A term is worth its
line where it buys half a point of a group's median or one and a half of its 90 % quantile. ``--write`` keeps what it buys among the model's
parameters, for the group where it buys most.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import expm1

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.arith import quantile
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.files import read_yaml
from perfmodel.core.hardware import Device
from perfmodel.timing.base import PARAMETERS, Model, find_model
from perfmodel.validation.calibrate import points, with_other_parts
from perfmodel.validation.fit_points import FitKey, FitPoint, cross_residuals, fitted
from perfmodel.validation.profile_text import flow
from perfmodel.validation.records import held_out, read_records, shipped_records

LEAST_MEDIAN, LEAST_P90 = 0.005, 0.015
"""Of the error, by which a term must lower the median or the 90 % quantile in one group."""


@dataclass(frozen=True)
class Errors:
    """Quantiles of |predicted / measured - 1| on rows that the fit did not see."""

    median: float
    p90: float
    rows: int

    def __str__(self) -> str:
        return f"{self.median:6.2%} {self.p90:6.2%}"


@cache
def groups() -> Mapping[FitKey, list[FitPoint]]:
    """Shipped records that fits may see, by what shares parameters."""
    records = [record for path in shipped_records() for _, record in read_records(path) if not held_out(record)]
    devices: dict[str, Device] = {}
    for name in {record.hardware for record in records}:
        try:
            devices[name] = find_device(name)
        except PerfmodelError:
            continue
    found = points(records, devices)
    return {key: with_other_parts(own, key[3], calibrated_devices) for key, own in found.items()}


def without(model: Model, name: str, value: float) -> Model:
    """``model`` with the parameter ``name`` held at ``value``."""
    rest = tuple(parameter for parameter in model.parameters if parameter.name != name)
    return model._replace(declared=rest, seconds=lambda case, device, p: model.seconds(case, device, {**p, name: value}))


def errors(model: Model, known: list[FitPoint]) -> Errors:
    """Errors of ``model`` on ``known`` in cross-validation."""
    found = [abs(expm1(-one)) for one in cross_residuals(model, known, fitted(model, known))]
    return Errors(quantile(found, 0.5), quantile(found, 0.9), len(found))


def judge(name: str) -> dict[str, dict[str, float | str]]:
    """What each term of the model ``name`` buys in the group where it buys most; printed for every group."""
    model, bought = find_model(name), dict[str, dict[str, float | str]]()
    terms = {parameter: prior.without for parameter, prior in model.priors().items() if prior.without is not None}
    for key, known in groups().items():
        if key[3] != name or len(known) < 2 * len(model.parameters):
            continue
        kernels, whole = f"{key[1]} {key[2]} on {key[4]}", errors(model, known)
        print(f"{kernels}: {whole} of {whole.rows} rows", flush=True)
        for term, value in terms.items():
            less = errors(without(model, term, value), known)
            median, p90 = round(less.median - whole.median, 4), round(less.p90 - whole.p90, 4)
            worth = "" if median >= LEAST_MEDIAN or p90 >= LEAST_P90 else "  not worth it here"
            print(f"  without {term:24} {less}  {median:+7.2%} {p90:+7.2%}{worth}", flush=True)
            before = bought.get(term)
            if before is None or _worth(median, p90) > _worth(float(before["median"]), float(before["p90"])):
                bought[term] = {"kernels": kernels, "rows": whole.rows, "median": median, "p90": p90}
    return bought


def _worth(median: float, p90: float) -> float:
    return max(median / LEAST_MEDIAN, p90 / LEAST_P90)


def write(name: str, bought: Mapping[str, Mapping[str, float | str]]) -> None:
    """Keep what each term of the model ``name`` buys in its file of parameters; other lines stay."""
    declared = find_model(name).declared
    assert isinstance(declared, str)
    path = PARAMETERS / f"{declared}.yaml"
    fields, model, lines = read_yaml(path)[0][name], "", []
    for line in path.read_text(encoding="utf-8").splitlines():
        term = line.strip().partition(":")[0]
        model = model if line.startswith((" ", "#")) else term
        known = model == name and term in bought
        lines.append(f"  {term}: {flow({**fields[term], 'buys': dict(bought[term])})}" if known else line)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: Iterable[str]) -> None:
    """Judge the models named, and keep what was found with ``--write``."""
    names = [name for name in arguments if not name.startswith("--")]
    for name in names:
        bought = judge(name)
        if "--write" in sys.argv:
            write(name, bought)


if __name__ == "__main__":
    main(sys.argv[1:])
