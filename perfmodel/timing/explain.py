"""A predicted time in parts: the seconds that depend on each resource of the device, computed the same way for every time model.

A time model adds up, overlaps and schedules; what all have in common is that they are made of times: work over a rate, cycles of a clock,
and seconds that were fitted. If every rate doubles and every fitted time halves, so does the predicted time: it is of degree one in all
of them. So the seconds that go with resource r, dT / d log(time of r), add up to T (Euler). A part tells what the time would lose if that
resource alone were a little faster: of two that overlap, the one that hides the other has nearly all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perfmodel.core.device_scaling import CLOCKS, DRAM, EXPONENTIALS, LAUNCHES, LINKS, ON_CHIP, POWER, TENSOR, VECTOR, faster
from perfmodel.core.hardware import Device
from perfmodel.core.trace import FormulaStep, show
from perfmodel.timing.base import Model, find_model
from perfmodel.timing.predict import Prediction, modelled_s

STEP = 1e-4
"""Relative change of a rate that shows what depends on it."""
DIGITS = 5
"""Digits of a share of the time; further ones come from a difference quotient and differ between processors."""
SMALLEST = 2e-4
"""Least share of the time of a part that is shown; the rest is a line of its own."""
REST = "s, what is left: a bound, fixed times, the clock under a power limit; below 0 where a slowdown begins at a fixed time"
FITTED_TIMES = ("_us", "_ns", "_s")
"""Endings of the names of parameters that are times."""
POWER_SOURCE = "power model, perfmodel/core/power.py: a roofline of energy, Choi et al. 2013"


RESOURCES = {
    LAUNCHES: "times that were fitted: starts of kernels, waits",
    CLOCKS: "clocks that no peak changes: instructions slower than it, as mma.sync on Hopper, starts and ends of blocks, steps of loops",
    TENSOR: "matrix products",
    EXPONENTIALS: "exponentials",
    VECTOR: "products in fp32 and element-wise work",
    ON_CHIP: "traffic between the L2, shared memory and the multiprocessors",
    DRAM: "traffic with DRAM",
    LINKS: "traffic between GPUs",
    POWER: "arithmetic that the board's power limit slows",
}
"""Resources that a kernel's time depends on, by name. A clock scales only cycles, while rates of units stay."""


def _with_shorter(parameters: Mapping[str, float], factor: float) -> dict[str, float]:
    """``parameters`` with all times divided by ``factor``."""
    return {name: value / factor if name.endswith(FITTED_TIMES) else value for name, value in parameters.items()}


def with_faster(device: Device, resource: str, factor: float) -> Device:
    """``device`` with ``resource``, one of ``RESOURCES``, ``factor`` times as fast, and with shorter fitted times in its calibrations."""
    made = faster(device, {resource: factor})
    if resource != LAUNCHES:
        return made
    return replace(made, calibration=[replace(block, parameters=_with_shorter(block.parameters, factor)) for block in device.calibration])


def explain_time(prediction: Prediction | None) -> list[FormulaStep]:
    """Steps of a prediction: parameters, parts and sum, kernel by kernel if it has several; none without a prediction."""
    if prediction is None:
        return []
    if prediction.parts:
        steps = [step for part in prediction.parts for step in explain_time(part)]
        names = [f"predicted {part.case.direction}" if part.case else "predicted" for part in prediction.parts]
        parts = [_renamed(part, name) for part, name in zip(prediction.parts, names, strict=True)]
        formula, source = " + ".join(names), prediction.provenance
        whole = FormulaStep("predicted", "s, one after the other", formula, _sum(parts), prediction.seconds, source)
        return [*(step for step in steps if step.name != "predicted"), *parts, whole]
    if prediction.case is None or prediction.device is None:
        return [FormulaStep("predicted", f"s, {prediction.calibration.implementation}", "", "", prediction.seconds, prediction.provenance)]
    model, block = find_model(prediction.calibration.model), prediction.calibration
    source = f"time model {model.name} of {block.implementation}, {prediction.provenance}"
    fitted = [FormulaStep(term.name, term.meaning, "", "", block.parameters[term.name], source) for term in model.parameters]
    parts = [*_kernel_steps(prediction, model), *_resource_steps(prediction, model, source)]
    shown = [part for part in parts if part.name.startswith("time of")]
    formula, meaning = " + ".join(part.name for part in shown), f"s, by {model.name} of {block.implementation}"
    return [*fitted, *parts, FormulaStep("predicted", meaning, formula, _sum(shown), prediction.seconds, source)]


def explain_power(prediction: Prediction | None) -> list[FormulaStep]:
    """Time, clock, watts and joules of a prediction that runs for seconds; nothing where its device has no power model."""
    state = None if prediction is None else prediction.power
    if state is None:
        return []
    running = "run for seconds"
    drawn = f"J, of static power, operations, DRAM bytes and multiprocessors at work at {state.sm_hz / 1e6:,.0f} MHz"
    clock = f"Hz, the highest at which power stays within {state.limit_w:g} W"
    per = FormulaStep("energy per call", drawn, "", "", state.joules, POWER_SOURCE)
    spent = FormulaStep(f"time, {running}", "s, at that clock", "", "", state.sustained_s, POWER_SOURCE)
    numbers = f"{show(state.joules)} / {show(state.sustained_s)}"
    watts = FormulaStep(f"power, {running}", "W, on average", f"{per.name} / {spent.name}", numbers, state.watts, POWER_SOURCE)
    return [FormulaStep(f"clock, {running}", clock, "", "", state.sm_hz, POWER_SOURCE), spent, per, watts]


def _kernel_steps(prediction: Prediction, model: Model) -> list[FormulaStep]:
    """A step for each implementation in a sequence: seconds of all its kernels."""
    if model.parts is None or prediction.case is None or prediction.device is None:
        return []
    each: dict[str, list[float]] = {}
    for part in model.parts(prediction.case, prediction.device):
        each.setdefault(part.name, []).append(part.seconds)
    meanings = {name: f"s, of {len(times)} kernels alone" if len(times) > 1 else "s, of a kernel alone" for name, times in each.items()}
    return [FormulaStep(f"{name} alone", meanings[name], "", "", sum(times), model.source) for name, times in each.items()]


def _resource_steps(prediction: Prediction, model: Model, source: str) -> list[FormulaStep]:
    """Steps with the seconds that depend on each resource, and with the rest, which a bound or a rule adds to the model's own time."""
    case, device, p = prediction.case, prediction.device, prediction.calibration.parameters
    assert case is not None
    assert device is not None
    steps = []
    for resource, meaning in RESOURCES.items():
        ends = []
        for factor in (1 / (1 + STEP), 1 + STEP):
            parameters = _with_shorter(p, factor) if resource == LAUNCHES else p
            ends.append(modelled_s(model, case, with_faster(device, resource, factor), parameters))
        share = round((ends[0] - ends[1]) / (2 * STEP) / prediction.seconds, DIGITS)
        if abs(share) >= SMALLEST:
            steps.append(FormulaStep(f"time of {resource}", f"s, {meaning}", "", "", share * prediction.seconds, source))
    left = prediction.seconds - sum(float(part.value) for part in steps)
    if abs(left) >= SMALLEST * prediction.seconds:
        steps.append(FormulaStep("time of other rules", REST, "", "", left, model.source))
    elif steps:
        most = max(range(len(steps)), key=lambda place: float(steps[place].value))
        steps[most] = steps[most]._replace(value=float(steps[most].value) + left)
    return steps


def _renamed(part: Prediction, name: str) -> FormulaStep:
    return FormulaStep(name, f"s, {part.calibration.implementation}", "", "", part.seconds, part.provenance)


def _sum(parts: list[FormulaStep]) -> str:
    return " + ".join(show(float(part.value)) for part in parts)
