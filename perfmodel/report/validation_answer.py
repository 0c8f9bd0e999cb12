"""What a screen says of a validation: whether a bound is beaten, how far predictions are off, the groups that are worst, a scatter."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.core.arith import quantile
from perfmodel.report.charts.format_number import text
from perfmodel.report.charts.schema import Chart, Pair, ScatterChart
from perfmodel.report.document import SCREEN_ROWS, Figure, Table
from perfmodel.timing.predict import CALIBRATED
from perfmodel.validation.compare import RecordGroup, RecordRow, groups, label
from perfmodel.validation.run import ValidationRun

NAMED = 2
"""Groups that a sentence names."""
SHOWN = 600
"""Pairs of a scatter."""
KINDS = 6
"""Kinds of workloads with a colour of their own; the others share one."""


def beyond(rows: list[RecordRow], tolerance: float) -> list[RecordGroup]:
    """Groups whose predictions miss by more than ``tolerance`` in the median; borrowed ones claim less, and do not count."""
    found = []
    for group in groups(rows, by_device=True):
        own = [row for row in group.rows if row.prediction and row.prediction.kind == CALIBRATED]
        errors = [abs(row.error) for row in own if row.error is not None]
        if errors and quantile(errors, 0.5) > tolerance:
            found.append(group)
    return found


def verdict(session: ValidationRun, tolerance: float) -> list[str]:
    """Whether a measurement beats its bound; how far predictions are off; counts that agree."""
    first, *others = reasons(session, tolerance) or ["Nothing was measured."]
    wrong, errors = beyond(session.rows, tolerance), _errors(session.rows)
    if errors:
        named = ", ".join(group.name for group in wrong[:NAMED]) + (f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else "")
        outside = f"OUT OF TOLERANCE ({tolerance:.0%}): {named}" if wrong else f"no calibrated group is off by more than {tolerance:.0%}"
        off = f"{quantile(errors, 0.5):.1%} off in the median, 9 in 10 within {quantile(errors, 0.9):.1%}"
        others[0] = f"{len(errors)} are predicted, {off}; {outside}."
    return [first, *others][:3]


def _errors(rows: Sequence[RecordRow], unseen: bool = False) -> list[float]:
    return sorted(abs(row.error) for row in rows if row.error is not None and (not unseen or row.held_out))


def _memory_errors(rows: Sequence[RecordRow]) -> list[float]:
    return sorted(abs(error) for row in rows if (error := row.memory_error) is not None)


def reasons(session: ValidationRun, tolerance: float) -> list[str]:
    """The same in full: every group that is out of tolerance."""
    rows, counts, lines = session.rows, session.counts, []
    checked, violations = sum(row.lower_s is not None for row in rows), sum(row.violates for row in rows)
    if violations:
        lines.append(
            f"VIOLATION: {violations} of {checked} measurements are faster than their lower bound. A record or the bound is wrong."
        )
    elif rows and not checked:
        lines.append(f"None of {len(rows)} measurements has a lower bound to check.")
    elif rows:
        lines.append(f"No measurement of {checked} beats its lower bound; {len(rows) - checked} could not be checked.")
    errors = sorted(abs(row.error) for row in rows if row.error is not None)
    if errors:
        names = ", ".join(group.name for group in beyond(rows, tolerance))
        outside = f"; OUT OF TOLERANCE ({tolerance:.0%}): {names}" if names else ""
        lines.append(f"{len(errors)} are predicted, with a median error of {errors[len(errors) // 2]:.1%}{outside}.")
    if peaks := _memory_errors(rows):
        middle, most = (text(quantile(peaks, share), "share") for share in (0.5, 0.9))
        lines.append(f"{len(peaks):,} peaks of memory are predicted, {middle} off in the median, 9 in 10 within {most}.")
    if counts:
        agree, exact = sum(count.agrees for count in counts), sum(count.predicted == count.counted for count in counts)
        lines.append(f"{agree} of {len(counts)} counts agree with the prediction, {exact} of them exactly.")
    return lines


def brief(session: ValidationRun, tolerance: float) -> list[Table]:
    """The groups that decide: with violations, then by falling median error, those out of tolerance marked; then peaks of memory."""
    every = groups(session.rows, by_device=True)
    peaks = {(group.hardware, group.name): errors for group in every if (errors := _memory_errors(group.rows))}
    found = [group for group in every if _errors(group.rows) or group.violations or (group.hardware, group.name) not in peaks]
    memory = _peaks(peaks, SCREEN_ROWS - min(len(found), SCREEN_ROWS // 2))
    return _times(session, found, tolerance, SCREEN_ROWS - sum(len(table.rows) for table in memory)) + memory


def _peaks(found: dict[tuple[str, str], list[float]], most: int) -> list[Table]:
    """Peak memory of at most ``most`` groups, the farthest off first."""
    several = len({device for device, _ in found}) > 1
    shown = sorted(found.items(), key=lambda group: -quantile(group[1], 0.5))[:most]
    rows = [
        [short_name(name, device * several), *(text(quantile(errors, share), "share") for share in (0.5, 0.9, 1.0)), f"{len(errors):,}"]
        for (device, name), errors in shown
    ]
    return [Table("peak memory: |predicted / measured - 1|", ["group", "median", "p90", "worst", "records"], rows, "lrrrr")] if rows else []


def _times(session: ValidationRun, found: list[RecordGroup], tolerance: float, most: int) -> list[Table]:
    """Times of at most ``most`` groups."""
    wrong = {(group.hardware, group.name) for group in beyond(session.rows, tolerance)}
    shown = sorted(found, key=lambda group: (-group.violations, -_median(group)))[:most]
    columns = ["group", "median", "p90", "worst", "records", *["violations"] * any(group.violations for group in found)]
    several = len({group.hardware for group in found}) > 1
    rows = [
        [short_name(group.name, group.hardware * several), *_cells(group, (group.hardware, group.name) in wrong)][: len(columns)]
        for group in shown
    ]
    return [Table("the groups that are farthest off: |predicted / measured - 1|", columns, rows, "lrrrrr"[: len(columns)])] if rows else []


def short_name(group: str, device: str = "") -> str:
    """A group in the words of a narrow column.

    >>> short_name("attention/fa1-triton/both", "nvidia-a100-sxm-80gb"), short_name("matmul/cublas/forward")
    ('fa1-triton both, a100-sxm-80gb', 'cublas')
    """
    _, implementation, *direction = group.split("/")
    name = " ".join([implementation, *(one for one in direction if one != "forward")])
    return f"{name}, {device.removeprefix('nvidia-')}" if device else name


def _median(group: RecordGroup) -> float:
    errors = _errors(group.rows)
    return quantile(errors, 0.5) if errors else -1.0


def _cells(group: RecordGroup, wrong: bool) -> list[str]:
    errors = _errors(group.rows)
    shares = [text(quantile(errors, share) if errors else None, "share") for share in (0.5, 0.9, 1.0)]
    return [shares[0] + " !" * wrong, *shares[1:], f"{len(group.rows):,}", str(group.violations)]


def figures(session: ValidationRun, tolerance: float) -> list[Figure]:
    """The numbers that decide: beaten bounds, errors of all and of held-out records, groups out of tolerance, counts."""
    rows, counts = session.rows, session.counts
    checked, every, unseen = sum(row.lower_s is not None for row in rows), _errors(rows), _errors(rows, unseen=True)
    found = [Figure("faster than their bound", f"{sum(row.violates for row in rows):,} of {checked:,}")] if rows else []
    found += (
        [Figure("median error", f"{quantile(every, 0.5):.1%}"), Figure("9 in 10 within", f"{quantile(every, 0.9):.1%}")] if every else []
    )
    found += [Figure("median error, held out", f"{quantile(unseen, 0.5):.1%}")] if unseen else []
    off = len(beyond(rows, tolerance))
    found += [Figure("groups out of tolerance", f"{off} of {len(groups(rows, by_device=True))}")] if every else []
    agree = sum(count.agrees for count in counts)
    return [*found, *([Figure("counts that agree", f"{agree} of {len(counts)}")] if counts else [])][:5]


def pictures(rows: Sequence[RecordRow]) -> list[Chart]:
    """Predicted against measured times, by kind of workload, evenly chosen where they are many; the band holds 80 % of all."""
    known = [(row, row.prediction) for row in rows if row.prediction is not None]
    if not known:
        return []
    kinds = list(dict.fromkeys(row.record.workload for row, _ in known))
    shown = known[:: max(1, -(-len(known) // SHOWN))]
    pairs = [Pair(label(row.record), row.record.time_s.median, float(one.seconds), _kind(row.record.workload, kinds)) for row, one in shown]
    ratios = [row.record.time_s.median / float(one.seconds) for row, one in known]
    caption = f"{len(shown):,} of {len(known):,} measurements, evenly chosen." if len(shown) < len(known) else ""
    return [ScatterChart("Predicted against measured", pairs, "s", quantile(ratios, 0.1), quantile(ratios, 0.9), caption)]


def _kind(workload: str, kinds: Sequence[str]) -> str:
    return workload if workload in kinds[: KINDS - 1] or len(kinds) <= KINDS else "others"
