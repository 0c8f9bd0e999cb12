"""A predicted time in parts: the seconds that depend on each resource of the device, computed the same way for every time model.

All time models combine times: work over a rate, cycles of a clock, and fitted seconds. If every rate doubles and every fitted time halves,
the predicted time halves too: it is homogeneous of degree one in all these times. So the seconds that depend on a resource r, which are
dT / d log(time of r), add up to T (Euler). A part is what the time would lose if that resource alone became a little faster: of two
resources that overlap, the one that hides the other has nearly all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perfmodel.core.device_scaling import CLOCKS, DRAM, EXPONENTIALS, LAUNCHES, LINKS, ON_CHIP, POWER, TENSOR, VECTOR, faster
from perfmodel.core.hardware import Device
from perfmodel.core.trace import FormulaStep, show
from perfmodel.timing.base import Case, Model, find_model
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
    """``device`` with ``resource``, one of ``RESOURCES``, ``factor`` times as fast; LAUNCHES also shorten fitted times in calibrations."""
    changed = faster(device, {resource: factor})
    if resource != LAUNCHES:
        return changed
    return replace(
        changed, calibration=[replace(block, parameters=_with_shorter(block.parameters, factor)) for block in device.calibration]
    )


def explain_time(prediction: Prediction | None) -> list[FormulaStep]:
    """Steps of a prediction: parameters, parts and sum, kernel by kernel if it has several; none without a prediction."""
    if prediction is None:
        return []
    if prediction.parts:
        return _steps_of_several(prediction)
    block = prediction.calibration
    if prediction.case is None or prediction.device is None:
        return [FormulaStep("predicted", f"s, {block.implementation}", "", "", prediction.seconds, prediction.provenance)]
    model = find_model(block.model)
    source = f"time model {model.name} of {block.implementation}, {prediction.provenance}"
    fitted = [FormulaStep(term.name, term.meaning, "", "", block.parameters[term.name], source) for term in model.parameters]
    resources = _resource_steps(model, prediction.case, prediction.device, prediction, source)
    formula, meaning = " + ".join(step.name for step in resources), f"s, by {model.name} of {block.implementation}"
    whole = FormulaStep("predicted", meaning, formula, _sum(resources), prediction.seconds, source)
    return [*fitted, *_kernel_steps(model, prediction.case, prediction.device), *resources, whole]


def _steps_of_several(prediction: Prediction) -> list[FormulaStep]:
    """Steps of a prediction that is the sum of several: those of each, without their sums, and the sum of all."""
    steps = [step for part in prediction.parts for step in explain_time(part) if step.name != "predicted"]
    sums = []
    for part in prediction.parts:
        name = f"predicted {part.case.direction}" if part.case else "predicted"
        sums.append(FormulaStep(name, f"s, {part.calibration.implementation}", "", "", part.seconds, part.provenance))
    formula = " + ".join(step.name for step in sums)
    whole = FormulaStep("predicted", "s, one after the other", formula, _sum(sums), prediction.seconds, prediction.provenance)
    return [*steps, *sums, whole]


def _sum(steps: list[FormulaStep]) -> str:
    """The values of ``steps``, joined by plus signs."""
    return " + ".join(show(float(step.value)) for step in steps)


def _kernel_steps(model: Model, case: Case, device: Device) -> list[FormulaStep]:
    """A step for each implementation in a sequence: seconds of all its kernels."""
    if model.parts is None:
        return []
    times: dict[str, list[float]] = {}
    for part in model.parts(case, device):
        times.setdefault(part.name, []).append(part.seconds)
    steps = []
    for name, seconds in times.items():
        meaning = "s, of a kernel alone" if len(seconds) == 1 else f"s, of {len(seconds)} kernels alone"
        steps.append(FormulaStep(f"{name} alone", meaning, "", "", sum(seconds), model.source))
    return steps


def _resource_steps(model: Model, case: Case, device: Device, prediction: Prediction, source: str) -> list[FormulaStep]:
    """Steps with the seconds that depend on each resource, and with what a bound or a rule adds to the model's time."""
    p, seconds = prediction.calibration.parameters, prediction.seconds

    def modelled_with(resource: str, factor: float) -> float:
        parameters = _with_shorter(p, factor) if resource == LAUNCHES else p
        return modelled_s(model, case, with_faster(device, resource, factor), parameters)

    steps = []
    for resource, meaning in RESOURCES.items():
        slower_s, faster_s = modelled_with(resource, 1 / (1 + STEP)), modelled_with(resource, 1 + STEP)
        share = round((slower_s - faster_s) / (2 * STEP) / seconds, DIGITS)
        if abs(share) >= SMALLEST:
            steps.append(FormulaStep(f"time of {resource}", f"s, {meaning}", "", "", share * seconds, source))
    unexplained = seconds - sum(float(step.value) for step in steps)
    if abs(unexplained) >= SMALLEST * seconds:
        steps.append(FormulaStep("time of other rules", REST, "", "", unexplained, model.source))
    elif steps:  # rounding: to the largest part
        largest = max(range(len(steps)), key=lambda number: float(steps[number].value))
        steps[largest] = steps[largest]._replace(value=float(steps[largest].value) + unexplained)
    return steps


def explain_power(prediction: Prediction | None) -> list[FormulaStep]:
    """Time, clock, watts and joules of a prediction that runs for seconds; nothing if its device has no power model."""
    state = None if prediction is None else prediction.power
    if state is None:
        return []
    clock = f"Hz, the highest at which power stays within {state.limit_w:g} W"
    energy = f"J, of static power, operations, DRAM bytes and multiprocessors at work at {state.sm_hz / 1e6:,.0f} MHz"
    formula, quotient = "energy per call / time, run for seconds", f"{show(state.joules)} / {show(state.sustained_s)}"
    return [
        FormulaStep("clock, run for seconds", clock, "", "", state.sm_hz, POWER_SOURCE),
        FormulaStep("time, run for seconds", "s, at that clock", "", "", state.sustained_s, POWER_SOURCE),
        FormulaStep("energy per call", energy, "", "", state.joules, POWER_SOURCE),
        FormulaStep("power, run for seconds", "W, on average", formula, quotient, state.watts, POWER_SOURCE),
    ]
