"""A predicted time in parts: the parameters of its time model, and the seconds that go with each.

Time models add up, overlap and schedule; what all have in common is that their parameters were fitted. The part of a parameter p is
p dT/dp, the seconds by which T grows if p grows in proportion (of a share, falls): parts of a model that is of degree one in its
parameters add up to T (Euler), and what is left rests on other numbers.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.trace import FormulaStep, show
from perfmodel.timing.base import Model, find_model
from perfmodel.timing.predict import Prediction

STEP = 1e-4
"""By which a parameter is changed, of itself, to see what goes with it."""
DIGITS = 5
"""Of a share of the time: further ones are those of a difference quotient, and differ between processors."""
NOISE = 1e-3
"""Share of a time that a difference quotient is not held to."""
POWER_SOURCE = "power model, perfmodel/core/power.py: a roofline of energy, Choi et al. 2013"
REST = "of the profile, the bound or other calibrations"


def explain_time(known: Prediction | None) -> list[FormulaStep]:
    """Parameters, parts and sum of a prediction, of several one after the other each; nothing where there is none."""
    if known is None:
        return []
    if known.parts:
        steps = [step for part in known.parts for step in explain_time(part)]
        names = [f"predicted {part.case.direction}" if part.case else "predicted" for part in known.parts]
        renamed = [_renamed(part, name) for part, name in zip(known.parts, names, strict=True)]
        whole = FormulaStep("predicted", "s, one after the other", " + ".join(names), _sum(renamed), known.seconds, known.provenance)
        return [*(step for step in steps if step.name != "predicted"), *renamed, whole]
    if known.case is None or known.device is None:
        return [FormulaStep("predicted", f"s, {known.calibration.implementation}", "", "", known.seconds, known.provenance)]
    model, block = find_model(known.calibration.model), known.calibration
    source = f"time model {model.name} of {block.implementation}, {known.provenance}"
    fitted = [FormulaStep(one.name, one.meaning, "", "", block.parameters[one.name], source) for one in model.parameters]
    parts = [_part(known, model, one.name, source) for one in model.parameters]
    parts = [*_kernels(known, model), *parts]
    rest = known.seconds - sum(part.value for part in parts)
    if abs(rest) <= NOISE * known.seconds:
        most = max(range(len(parts)), key=lambda place: parts[place].value)
        parts[most] = replace(parts[most], value=parts[most].value + rest)
    else:
        twice = rest < 0
        name, why = f"time {'counted twice' if twice else 'without parameters'}", "which grows with two parameters" if twice else REST
        parts.append(FormulaStep(name, f"s, {why}", "", "", rest, model.source))
    formula, meaning = " + ".join(part.name for part in parts), f"s, by {model.name} of {block.implementation}"
    return [*fitted, *parts, FormulaStep("predicted", meaning, formula, _sum(parts), known.seconds, source)]


def explain_power(known: Prediction | None) -> list[FormulaStep]:
    """Time, clock, watts and joules of a prediction that runs for seconds; nothing where its device has no power model."""
    state = None if known is None else known.power
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


def _kernels(known: Prediction, model: Model) -> list[FormulaStep]:
    """Kernels of a sequence, those of one implementation together."""
    if model.parts is None or known.case is None or known.device is None:
        return []
    each: dict[str, list[float]] = {}
    for part in model.parts(known.case, known.device):
        each.setdefault(part.name, []).append(part.seconds)
    meanings = {name: f"s, of {len(times)} kernels alone" if len(times) > 1 else "s, of a kernel alone" for name, times in each.items()}
    return [FormulaStep(f"time of {name}", meanings[name], "", "", sum(times), model.source) for name, times in each.items()]


def _part(known: Prediction, model: Model, name: str, source: str) -> FormulaStep:
    assert known.case is not None
    assert known.device is not None
    parameters = dict(known.calibration.parameters)
    ends = [model.seconds(known.case, known.device, parameters | {name: parameters[name] * (1 + sign * STEP)}) for sign in (-1, 1)]
    seconds = (ends[1] - ends[0]) / (2 * STEP) * (-1 if name.endswith("_share") else 1)
    seconds = round(seconds / known.seconds, DIGITS) * known.seconds
    grows = "falls" if name.endswith("_share") else "grows"
    meaning = next(one.meaning for one in model.parameters if one.name == name)
    return FormulaStep(f"time of {name}", f"s, {grows} with {name} {parameters[name]:.4g}: {meaning}", "", "", seconds, source)


def _renamed(part: Prediction, name: str) -> FormulaStep:
    return FormulaStep(name, f"s, {part.calibration.implementation}", "", "", part.seconds, part.provenance)


def _sum(parts: list[FormulaStep]) -> str:
    return " + ".join(show(float(part.value)) for part in parts)
