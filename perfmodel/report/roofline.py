"""The report of points on rooflines: sentences and rows on points, figures, and meters of a single point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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


class PlacedPoint(NamedTuple):
    """A point and the roofline that it is on. ``several``: there are others, so that names need the device."""

    chart: Roofline
    point: RooflinePoint
    several: bool

    @property
    def device_name(self) -> str:
        """Name of the device if there are several rooflines; else empty."""
        return self.chart.device_name if self.several else ""


def placed(charts: Sequence[Roofline]) -> list[PlacedPoint]:
    """Every point with its chart."""
    return [PlacedPoint(chart, point, len(charts) > 1) for chart in charts for point in chart.points]


def answers(charts: Sequence[Roofline]) -> list[str]:
    """Sentences on points: one each if they are few, else one on the range of roof shares and on the farthest point."""
    points = placed(charts)
    if len(points) <= EACH:
        return [f"{answer_of(entry.point, entry.device_name)}." for entry in points]
    timed = [(share, entry) for entry in points if (share := share_of_roof(entry.point)) is not None]
    if not timed:
        return [f"{len(points)} points; no time of theirs is known."]
    shares = sorted(share for share, _ in timed)
    _, farthest = min(timed, key=lambda pair: pair[0])
    low, high = percent(shares[0]), percent(shares[-1])
    reach = f"{len(shares)} points reach {low} of their roofs"
    if low != high:
        reach = f"{len(shares)} points reach {low} to {high} of their roofs, {percent(quantile(shares, 0.5))} in the median"
    above = [entry.point.name for entry in points if flag(entry.point)]
    if above:
        others = f" and {len(above) - NAMED} more" if len(above) > NAMED else ""
        reach += f"; ABOVE ITS ROOF: {', '.join(above[:NAMED])}{others}"
    return [f"{reach}.", f"Farthest: {answer_of(farthest.point, farthest.device_name)}."]


def answer_of(point: RooflinePoint, device: str = "") -> str:
    """Sentence without full stop on time with interval, rate, and share of which roof.

    >>> from perfmodel.report.saved import Interval
    >>> known = RooflinePoint(1, "flash2", 4e12, {"dram": 10**9}, "fp16", roofline_s=4e-3, predicted=Interval(8e-3), terms={"tensor": 4e-3})
    >>> answer_of(known)
    'flash2: predicted 8 ms, 500 TFLOP/s, 50% of its tensor roof'
    """
    name = f"{point.name}, {device}" if device else point.name
    if time_s(point) is None:
        return f"{name}: not predicted, {format_time(point.roofline_s, 3)} at its roof" if point.roofline_s else f"{name}: no roof is known"
    phrases = [_rate(point), _share_phrase(point)]
    if point.measured:
        phrases.insert(0, f"measured {time_text(point.measured)}")
    elif point.predicted:
        phrases.insert(0, f"predicted {time_text(point.predicted)}")
    return f"{name}: {', '.join(filter(None, phrases))}"


def _rate(point: RooflinePoint) -> str:
    """Rate of a point in FLOP/s, or in B/s over DRAM if it has no FLOP."""
    spent_s = time_s(point)
    amount = point.flops or point.bytes.get("dram")
    unit = "FLOP/s" if point.flops else "B/s"
    return format_si(amount / spent_s, unit, 3) if spent_s and amount else ""


def _share_phrase(point: RooflinePoint) -> str:
    """Phrase on the share of which roof the time reaches."""
    share, limit = share_of_roof(point), bound(point)
    if share is None or limit is None:
        return ""
    if launch_bound(point):
        return f"most of it the launch ({percent(share)} of its roof)"
    phrase = f"{percent(share)} of its {SHORT.get(limit, limit)} roof"
    if above_roof(point):
        phrase = f"by other tiles or a higher clock {phrase}"
    if flag(point):
        phrase = f"ABOVE ITS ROOF, {phrase}"
    if point.note.startswith(NO_ROOM):
        phrase += "; it does NOT FIT the memory"
    return phrase


def table(charts: Sequence[Roofline]) -> list[Table]:
    """Table with a row per point. Of many points, those with the largest share of the time, or farthest from their roofs, come first.

    Without points it lists the roofs of each device.
    """
    points = placed(charts)
    if not points:
        from perfmodel.report.charts.chart_tables import roofs_table

        return [roofs_table(chart) for chart in charts]
    if len(points) > SCREEN_ROWS:
        points = sorted(points, key=lambda entry: (-(entry.point.share or 0), share_of_roof(entry.point) or 0))
    columns = ["workload", "time", "of roof", "bound", "of time"]
    with_shares = any(entry.point.share for entry in points)
    shown = len(columns) if with_shares else len(columns) - 1
    return [Table("", columns[:shown], [_cells(entry)[:shown] for entry in points], "lrrlr"[:shown])]


def _cells(entry: PlacedPoint) -> list[str]:
    """Cells of a point: name, time (* if measured), share of the roof (! if above it), which roof, share of the time."""
    point = entry.point
    spent_s, share = time_s(point), share_of_roof(point)
    return [
        f"{point.name}, {entry.chart.device}" if entry.several else point.name,
        ABSENT if spent_s is None else format_time(spent_s, 3) + " *" * bool(point.measured),
        ABSENT if share is None else percent(share) + " !" * bool(flag(point)),
        SHORT.get(bound(point) or "", ABSENT),
        ABSENT if point.share is None else percent(point.share),
    ]


def figures(charts: Sequence[Roofline]) -> list[Figure]:
    """Figures: all of a single point, time and roof share of several, or the range of many."""
    points = placed(charts)
    if len(points) == 1:
        return _figures_of_point(points[0].point)
    if len(points) <= MOST_FIGURES:
        return [figure for entry in points for figure in _time_figure(entry)]
    shares = sorted(share for entry in points if (share := share_of_roof(entry.point)) is not None)
    number = Figure("points", str(len(points)))
    if not shares:
        return [number]
    by_name = {"least": shares[0], "median": quantile(shares, 0.5), "most": shares[-1]}
    return [number, *(Figure(f"of its roof, {name}", percent(share)) for name, share in by_name.items())]


MOST_FIGURES = 5
"""Most points that get a figure each."""


def _time_figure(entry: PlacedPoint) -> list[Figure]:
    """The figure of a point's time and roof share; none if its time is unknown."""
    spent_s, share = time_s(entry.point), share_of_roof(entry.point)
    if not spent_s:
        return []
    name = f"{entry.point.name}, {entry.device_name}" if entry.several else entry.point.name
    of_roof = "" if share is None else f", {percent(share)} of its roof"
    return [Figure(name, f"{format_time(spent_s, 3)}{of_roof}")]


def _figures_of_point(point: RooflinePoint) -> list[Figure]:
    share, limit = share_of_roof(point), bound(point) or ""
    time = point.measured or point.predicted
    roof = RESOURCES[limit][0] if limit in RESOURCES else SHORT.get(limit, limit)
    if roof.endswith("unit"):
        roof = f"the {roof}"
    values = {
        "measured time" if point.measured else "predicted time": time_text(time) if time else "",
        "rate": _rate(point),
        "of its roof": "" if share is None else percent(share),
        "roof": f"{format_time(point.roofline_s, 3)}, {roof}" if point.roofline_s else "",
        "lower bound": format_time(point.lower_s, 3) if point.lower_s else "",
    }
    return [Figure(label, value) for label, value in values.items() if value]


def meters_of(point: RooflinePoint) -> list[Meter]:
    """Meters of a point's resources over its time, or else over its roof; empty if the roof is not that of its kernel."""
    if flag(point) or above_roof(point):
        return []
    seconds = time_s(point) or point.roofline_s
    if not seconds:
        return []
    amounts = {point.unit: point.flops, **point.bytes}
    return meters(point.terms, {name: amounts[name] for name in amounts if name in point.terms}, seconds)


def metered(point: RooflinePoint) -> str:
    """Phrase on what the meters are shares of."""
    if point.measured:
        return f"measured time of {point.name}"
    return f"predicted time of {point.name}" if point.predicted else f"roof of {point.name}"
