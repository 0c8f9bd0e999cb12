"""The report of points on rooflines: sentences and rows on points, figures, and meters of a single point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfmodel.core.arith import quantile
from perfmodel.core.units import format_si, format_time
from perfmodel.report.answer import RESOURCES, meters, time_text
from perfmodel.report.charts.format_number import ABSENT, percent
from perfmodel.report.charts.roofline_metrics import SHORT, above_roof, bound, flag, launch_bound, share_of_roof, time_s
from perfmodel.report.charts.schema import Roofline, RooflinePoint
from perfmodel.report.document import SCREEN_ROWS, Figure, Meter, Table

EACH = 3
"""Most points that get a sentence each."""
NAMED = 2
"""Most points above their roofs that a sentence names."""
NO_ROOM = "CANNOT RUN: it does not fit the memory"
"""Beginning of the note of a point whose tensors are too large."""
Placed = tuple[Roofline, RooflinePoint]


def placed(charts: Iterable[Roofline]) -> list[Placed]:
    """Every point with its chart."""
    return [(chart, point) for chart in charts for point in chart.points]


def answers(charts: Sequence[Roofline]) -> list[str]:
    """Sentences on points: one each if they are few, else one on the range of roof shares and on the farthest point."""
    points, several = placed(charts), len(charts) > 1
    if len(points) <= EACH:
        return [f"{answer_of(point, chart.device_name * several)}." for chart, point in points]
    by_share = sorted(((share, pair) for pair in points if (share := share_of_roof(pair[1])) is not None), key=lambda entry: entry[0])
    if not by_share:
        return [f"{len(points)} points; no time of theirs is known."]
    shares, (chart, farthest) = [share for share, _ in by_share], by_share[0][1]
    low, high = percent(shares[0]), percent(shares[-1])
    ends = low if low == high else f"{low} to {high}"
    median = "" if low == high else f", {percent(quantile(shares, 0.5))} in the median"
    above = [point.name for _, point in points if flag(point)]
    others = f" and {len(above) - NAMED} more" if len(above) > NAMED else ""
    wrong = f"; ABOVE ITS ROOF: {', '.join(above[:NAMED])}{others}" if above else ""
    return [
        f"{len(shares)} points reach {ends} of their roofs{median}{wrong}.",
        f"Farthest: {answer_of(farthest, chart.device_name * several)}.",
    ]


def answer_of(point: RooflinePoint, device: str = "") -> str:
    """Sentence without full stop on time with interval, rate, and share of which roof.

    >>> from perfmodel.report.saved import Interval
    >>> known = RooflinePoint(1, "flash2", 4e12, {"dram": 10**9}, "fp16", roofline_s=4e-3, predicted=Interval(8e-3), terms={"tensor": 4e-3})
    >>> answer_of(known)
    'flash2: predicted 8 ms, 500 TFLOP/s, 50% of its tensor roof'
    """
    name, time = f"{point.name}, {device}" if device else point.name, point.measured or point.predicted
    if time_s(point) is None:
        return f"{name}: not predicted, {format_time(point.roofline_s, 3)} at its roof" if point.roofline_s else f"{name}: no roof is known"
    spent = f"{'measured' if point.measured else 'predicted'} {time_text(time)}" if time else ""
    return f"{name}: {', '.join(filter(None, [spent, _rate(point), _near(point)]))}"


def _rate(point: RooflinePoint) -> str:
    """Rate of a point in FLOP/s, or in B/s over DRAM if it has no FLOP."""
    spent, amount, unit = time_s(point), point.flops or point.bytes.get("dram"), "FLOP/s" if point.flops else "B/s"
    return format_si(amount / spent, unit, 3) if spent and amount else ""


def _near(point: RooflinePoint) -> str:
    """Phrase on the share of which roof the time reaches."""
    share, limit = share_of_roof(point), bound(point)
    if share is None or limit is None:
        return ""
    if launch_bound(point):
        return f"most of it the launch ({percent(share)} of its roof)"
    wrong = "ABOVE ITS ROOF, " * bool(flag(point)) + "by other tiles or a higher clock " * bool(above_roof(point))
    room = "; it does NOT FIT the memory" * point.note.startswith(NO_ROOM)
    return f"{wrong}{percent(share)} of its {SHORT.get(limit, limit)} roof{room}"


def table(charts: Sequence[Roofline]) -> list[Table]:
    """Table with a row per point. Of many points, those with the largest share of the time, or farthest from their roofs, come first.

    Without points it lists the roofs of each device.
    """
    points, several = placed(charts), len(charts) > 1
    if len(points) > SCREEN_ROWS:
        points = sorted(points, key=lambda pair: (-(pair[1].share or 0), share_of_roof(pair[1]) or 0))
    if not points:
        from perfmodel.report.charts.chart_tables import roofs_table

        return [roofs_table(chart) for chart in charts]
    rows = [[f"{point.name}{f', {chart.device}' * several}", *_cells(point)] for chart, point in points]
    columns = ["workload", "time", "of roof", "bound", "of time"]
    kept = 5 if any(point.share for _, point in points) else 4
    return [Table("", columns[:kept], [row[:kept] for row in rows], "lrrlr"[:kept])]


def _cells(point: RooflinePoint) -> list[str]:
    """Cells of a point: time, share of the roof, which roof, share of the time."""
    spent, share = time_s(point), share_of_roof(point)
    return [
        ABSENT if spent is None else format_time(spent, 3) + " *" * bool(point.measured),
        ABSENT if share is None else percent(share) + " !" * bool(flag(point)),
        SHORT.get(bound(point) or "", ABSENT),
        ABSENT if point.share is None else percent(point.share),
    ]


def figures(charts: Sequence[Roofline]) -> list[Figure]:
    """Figures: all of a single point, time and roof share of several, or the range of many."""
    points, several = placed(charts), len(charts) > 1
    if len(points) == 1:
        return _of_one(points[0][1])
    if len(points) <= 5:
        timed = [(f"{point.name}{f', {chart.device_name}' * several}", time_s(point), share_of_roof(point)) for chart, point in points]
        return [
            Figure(name, format_time(spent, 3) + ("" if share is None else f", {percent(share)} of its roof"))
            for name, spent, share in timed
            if spent
        ]
    shares = sorted(share for _, point in points if (share := share_of_roof(point)) is not None)
    named = {"least": shares[0], "median": quantile(shares, 0.5), "most": shares[-1]} if shares else {}
    return [Figure("points", str(len(points))), *(Figure(f"of its roof, {name}", percent(share)) for name, share in named.items())]


def _of_one(point: RooflinePoint) -> list[Figure]:
    share, limit, time = share_of_roof(point), bound(point) or "", point.measured or point.predicted
    roof = RESOURCES[limit][0] if limit in RESOURCES else SHORT.get(limit, limit)
    values = {
        "measured time" if point.measured else "predicted time": time_text(time) if time else "",
        "rate": _rate(point),
        "of its roof": "" if share is None else percent(share),
        "roof": f"{format_time(point.roofline_s, 3)}, {'the ' * roof.endswith('unit')}{roof}" if point.roofline_s else "",
        "lower bound": format_time(point.lower_s, 3) if point.lower_s else "",
    }
    return [Figure(label, value) for label, value in values.items() if value]


def meters_of(point: RooflinePoint) -> list[Meter]:
    """Meters of a point's resources over its time, or else over its roof; empty if the roof is not that of its kernel."""
    if flag(point) or above_roof(point):
        return []
    spent = time_s(point) or point.roofline_s
    amounts = {point.unit: point.flops, **point.bytes}
    return meters(point.terms, {name: amounts[name] for name in amounts if name in point.terms}, spent) if spent else []


def metered(point: RooflinePoint) -> str:
    """Phrase on what the meters are shares of."""
    kind = "measured time" if point.measured else "predicted time" if point.predicted else "roof"
    return f"{kind} of {point.name}"
