"""Programs measured on an H200, predicted: ``python -m tools.scores.programs [FOLDER]``.

``FILE`` holds their operators, one program per line: ``seen`` programs chose rules and parameters, or were looked into after a score;
``fresh`` ones are scored once, when all stands. With a ``FOLDER`` of profiles that ``tools.measure.programs`` wrote, its programs become
the fresh ones of the file and all others seen; without, the page's table is printed.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.arith import quantile
from perfmodel.program.calls import Argument, Call, Operand, UnknownError
from perfmodel.program.operators import counted
from perfmodel.program.price import OperatorGroup, grouped, priced
from perfmodel.program.profile import read

FILE = Path(__file__).parents[2] / "tests" / "data" / "programs_h200_2026-11-28.jsonl.gz"
DEVICE, NEAR = "h200", 0.15
"""The device, and an error of a program's sum up to which it counts as near."""

FIRST_SCORE = (
    "They are drawn at random from all models of transformers that the other programs lack, in their own configurations, and scored once, "
    "before any rule or fit saw them: 2.1% in the median, 17 of 18 within 15%, an operator 11%, 76% of the intervals hold, 0 of 1,584 "
    "operators below their bound; 24 programs of the draw before: 6.9%, 20 of 24; 44 programs chosen by hand: 5.0%, 35 of 44."
)
"""The score of the fresh programs of ``FILE`` when nothing had seen them."""


@dataclass(frozen=True, slots=True)
class ProgramScore:
    """Predicted over measured time of the kernels of a program, and of each of its operators. ``under``: operators below their bound."""

    name: str
    role: str
    measured_s: float
    known_share: float
    predicted_share: float
    ratio: float
    operators: list[float]
    held: int
    under: int


def written(folder: Path) -> None:
    """Put the profiles in ``folder`` into ``FILE`` as fresh programs."""
    lines = [json.loads(line) | {"role": "seen"} for line in gzip.decompress(FILE.read_bytes()).decode().splitlines()]
    for path in sorted(folder.glob("*.json.gz")):
        groups = [[one.call.name, list(map(_as_json, one.call.arguments)), one.count, one.measured_s] for one in grouped(read(path))]
        lines.append({"program": path.name.removesuffix(".json.gz"), "role": "fresh", "operators": groups})
    FILE.write_bytes(gzip.compress("\n".join(json.dumps(one, separators=(",", ":")) for one in lines).encode(), 9, mtime=0))


def _as_json(argument: Argument) -> Any:
    if isinstance(argument, Operand):
        return [argument.dtype, list(argument.shape), list(argument.strides)]
    return {"list": list(map(_as_json, argument))} if isinstance(argument, tuple) else argument


def _argument(value: Any) -> Argument:
    if isinstance(value, list):
        dtype, shape, strides = value
        return Operand(tuple(shape), dtype, tuple(strides))
    if isinstance(value, dict):
        return tuple(one for one in map(_argument, value["list"]) if isinstance(one, Operand))
    return value if isinstance(value, str) else None


def programs() -> Iterator[tuple[str, str, list[OperatorGroup]]]:
    """Name, role and operators of each program of ``FILE``."""
    for line in gzip.decompress(FILE.read_bytes()).decode().splitlines():
        raw = json.loads(line)
        yield raw["program"], raw["role"], [_group(*one) for one in raw["operators"]]


def _group(name: str, arguments: list[Any], count: float, seconds: float) -> OperatorGroup:
    group = OperatorGroup(Call(name, tuple(map(_argument, arguments))), count, seconds)
    try:
        group.ops = counted(group.call)
    except UnknownError as error:
        group.unknown = str(error)
    return group


def scores(*roles: str) -> list[ProgramScore]:
    """The scores of the programs of these ``roles``."""
    device = find_device(DEVICE)
    return [_score(name, role, groups, device) for name, role, groups in programs() if role in roles]


def _score(name: str, role: str, groups: list[OperatorGroup], device: Any) -> ProgramScore:
    rows = priced(groups, device, calibrated_devices)
    predicted = [one for one in rows if one.prediction is not None]
    measured, compared = sum(one.measured_s for one in groups), sum(one.group.measured_s for one in predicted)
    known = sum(one.measured_s for one in groups if one.ops)
    ratios = [one.predicted_s / one.group.measured_s for one in predicted]
    held = sum(
        one.group.count * one.prediction.low <= one.group.measured_s <= one.group.count * one.prediction.high
        for one in predicted
        if one.prediction
    )
    under = sum(one.lower_s > one.group.measured_s * (1 + 1e-4) for one in rows)
    total = sum(one.predicted_s for one in predicted)
    return ProgramScore(name, role, measured, known / measured, compared / measured, total / compared, ratios, held, under)


def table(role: str) -> str:
    """The sentence and the table of the page on programs of ``role``."""
    found = scores(role)
    errors = sorted(abs(one.ratio - 1) for one in found)
    each = sorted(abs(ratio - 1) for one in found for ratio in one.operators)
    within = sum(error <= NEAR for error in errors)
    held = sum(one.held for one in found) / len(each)
    sentence = (
        f"Kernels of {len(found)} programs on an H200 (2026-11-28). {FIRST_SCORE} Now their sum is "
        f"{quantile(errors, 0.5):.1%} off in the median, {within} of {len(found)} within {NEAR:.0%}; "
        f"an operator {quantile(each, 0.5):.0%}, {held:.0%} of the intervals hold. "
        f"FLOP and bytes are known of {min(one.known_share for one in found):.1%} of the time at least, a "
        f"prediction of 90% or more in {sum(one.predicted_share >= 0.9 for one in found)} programs; "
        f"{sum(one.under for one in found)} of {len(each):,} operators are below their bound."
    ).replace("%", " %")
    rows = [f"| {one.name} | {1e3 * one.measured_s:.1f} | {one.ratio - 1:+.0%} |".replace("%", " %") for one in found]
    return "\n".join([sentence, "", "| program | kernels, ms | predicted |", "| --- | --- | --- |", *rows])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        written(Path(sys.argv[1]))
    sys.stdout.write(table("fresh") + "\n")
