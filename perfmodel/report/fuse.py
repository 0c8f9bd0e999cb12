"""The report of an elementwise chain unfused, as a CUDA graph and fused, with published times beside it."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.core.arith import Number
from perfmodel.core.hardware import Device
from perfmodel.core.units import format_count, format_si, format_time
from perfmodel.kernels.fuse import LAUNCH_SOURCE, SOURCE, ChainResult, FusedChain, Published, explain, with_launches
from perfmodel.report.answer import headline, meters
from perfmodel.report.charts.schema import Bar, BarChart, Chart, traffic_chart
from perfmodel.report.document import Figure, Meter, Report
from perfmodel.report.metrics import Metric, as_json, as_table, of_fields, of_traffic
from perfmodel.report.op_common import head, unknown_rates, with_steps
from perfmodel.report.saved import Interval
from perfmodel.report.speedup import MEASURED, Side, gain_text, verdict_sentence

BRIEF = (*("time_s.with_launches", "speedup", "launches", "launch_s", "time_s.roofline", "traffic.sram.bytes"), "traffic.dram.bytes")


def report(
    w: FusedChain,
    device: Device,
    results: list[ChainResult],
    *,
    published: Published | None = None,
    explained: bool = False,
    pictures: bool = False,
) -> Report:
    """``results`` as a Report with data of schema perfmodel.fuse/1."""
    things = f"{w.ops} operation{'s' * (w.ops > 1)} on {format_count(w.elements)} element{'s' * (w.elements > 1)}"
    title = f"Elementwise chain: {things}, {w.dtype.name} on {device.name}"
    sizes = {name: getattr(w, name) for name in ("elements", "ops", "tensor_reads", "rounds")}
    metrics = {result.name: _metrics(result, results[0]) for result in results}
    data = {
        **head("fuse", {**sizes, "pattern": list(w.pattern), "dtype": w.dtype.name}, device),
        "results": list(map(as_json, metrics.values())),
    }
    reasons, tables, brief = [_moved(results)] * (w.ops > 1), [as_table("", metrics)], [as_table("", metrics, labels=BRIEF)]
    if published is not None:
        published_metrics = _published(w, published)
        reasons.insert(0, _published_summary(results, published))
        modelled = _per_call(w, results[0].total_s, results[2].total_s, _fused_in_graph(results))
        tables.append(as_table("published times beside the model's", {"published": published_metrics, "model": modelled}))
        brief = [as_table("", metrics, labels=BRIEF[:4]), tables[-1]]
        data["published"] = as_json(published_metrics)
    plain = Report(
        title,
        _headline(device, results),
        tables,
        _notes(w, device, results, published),
        data,
        charts=_charts(results) if pictures else [],
        meters=_meters(results[-1]),
        metered=f"time of {results[-1].name}" + (", launch included" if results[-1].total_s else " at its roof"),
        figures=_figures(results),
        brief=brief,
        reasons=reasons,
    )
    if not explained:
        return plain
    return with_steps(plain, [(result.name, {"algorithm": result.name}, explain(result, w, device)) for result in results])


def _metrics(result: ChainResult, reference: ChainResult) -> list[Metric]:
    return [
        Metric("algorithm", result.name),
        Metric("launches", result.launches, "launches"),
        Metric("bytes", result.sram.total),
        *of_traffic("sram", result.sram),
        *of_traffic("dram", result.dram),
        Metric("launch_s", result.launch_s, "launch overhead per kernel", "s"),
        Metric("launch_bound_kernels", result.launch_bound),
        Metric("time_s.lower", result.lower_s, "lower bound, cold L2", "s"),
        Metric("time_s.roofline", result.memory_s, "roofline, without launches", "s"),
        Metric("time_s.with_launches", result.total_s, "time with launches", "s"),
        Metric("time_s.unknown", sorted(result.unknown)),
        Metric("speedup", _over(reference.total_s, result.total_s), "unfused / this", "ratio"),
    ]


def _over(before: float | None, after: float | None) -> float | None:
    """Speedup with launches included; None if these are unknown."""
    return None if before is None or after is None else before / after


def _published(w: FusedChain, times: Published) -> list[Metric]:
    return [
        *of_fields(times, "calls", "eager_s", "graph_s", "fused_s", "printed_speedup", "printed_graph_speedup", "source"),
        *_per_call(w, *(seconds / times.calls for seconds in (times.eager_s, times.fused_s, times.graph_s))),
    ]


def _per_call(w: FusedChain, eager_s: float | None, fused_s: float | None, graph_s: float | None) -> list[Metric]:
    """Metrics of a call in each way in seconds, and the gain of fusion."""
    return [
        Metric("eager_per_call_s", eager_s, "eager, per call", "s"),
        Metric("eager_per_kernel_s", eager_s and eager_s / w.ops, "eager, per kernel", "s"),
        Metric("fused_per_call_s", fused_s, "fused, no CUDA graph, per call", "s"),
        Metric("graph_per_call_s", graph_s, "fused, in a CUDA graph, per call", "s"),
        Metric("speedup", _over(eager_s, fused_s), "eager / fused", "ratio"),
        Metric("graph_speedup", _over(eager_s, graph_s), "eager / fused in a CUDA graph", "ratio"),
    ]


def _fused_in_graph(results: list[ChainResult]) -> float | None:
    """Seconds of the fused kernel with the launch overhead of a graph."""
    _, graph, fused = results
    return None if graph.launch_s is None else with_launches(fused.parts, graph.launch_s)


def _headline(device: Device, results: list[ChainResult]) -> list[str]:
    """The headline: whether fusion pays, the fused time, and what limits both."""
    unfused, graph, fused = results
    time, bound = _time(fused), unfused.launch_bound or 0
    sentence = f"Fused: {format_time(time, 3)}, {format_si(float(fused.dram.total) / time, 'B/s', 3)} over DRAM"
    if unfused.launches == 1:
        return headline("One operation is one kernel: there is nothing to fuse", sentence, "")
    if unfused.total_s is None or graph.total_s is None:
        return headline(_faster(results), f"{sentence}; {device.id} has no launch overhead in its profile", "")
    graph_words = f"; a CUDA graph alone: {format_time(graph.total_s, 3)}"
    fullest = next((meter.name.replace("launches", "the launch") for meter in _meters(fused) if meter.limits), "waiting")
    count = f"all {bound}" if bound == unfused.launches else f"{bound} of {unfused.launches}"
    why = f"unfused, launches outlast {count} kernels" if bound else "no unfused kernel is as short as its launch"
    return headline(_faster(results), sentence + graph_words, f"limited by {fullest}; {why}")


def _faster(results: list[ChainResult]) -> str:
    unfused, _, fused = results
    counted = "roofs" if unfused.total_s is None else "roofs and launches"
    return f"By the ratio of {counted} fused is {gain_text(_time(unfused) / _time(fused))}; not predicted."


def _moved(results: list[ChainResult]) -> str:
    """Sentence on the bytes and launches that fusion saves."""
    unfused, _, fused = results
    fewer = f"{unfused.sram.total / fused.sram.total:.3g}x fewer bytes through the L2"
    return f"Fusion moves {fewer} and launches {unfused.launches} kernels as one."


def _published_summary(results: list[ChainResult], times: Published) -> str:
    """Sentences on the published times, and on how much of the difference launches explain."""
    seconds_of = {"eager": times.eager_s, "fusion alone": times.fused_s, "fusion with CUDA graphs": times.graph_s}
    eager, fusion, graphed = (Side(name, 0.0, Interval(seconds), MEASURED) for name, seconds in seconds_of.items())
    taught = f"Published: {verdict_sentence(eager, fusion)}; {verdict_sentence(eager, graphed)}: CUDA graphs hurt this small function."
    fused, in_graph = results[2].total_s, _fused_in_graph(results)
    if fused is None or in_graph is None:
        return taught
    saved = format_time(fused - in_graph) if fused > in_graph else "nothing"
    lost = format_time((times.graph_s - times.fused_s) / times.calls)
    single = f"Fused, it has one launch per call left, of which a graph saves {saved} here"
    return f"{taught} {single}; what a graph cost there, {lost} per call, is not modelled."


def _time(result: ChainResult) -> float:
    """Seconds with launches included if these are known."""
    return float(result.memory_s if result.total_s is None else result.total_s)


def _meters(result: ChainResult) -> list[Meter]:
    """Meters of launches and resources while the chain runs."""
    time, terms, amounts = _time(result), dict[str, Number](), dict[str, Number]()
    for part, cost in result.parts:
        for name, term in cost.terms.items():
            terms[name] = terms.get(name, 0) + part.count * term
        amounts["vector"] = amounts.get("vector", 0) + part.count * cost.work.vector
    meter_list = meters(terms, {**amounts, "l2": result.sram.total, "dram": result.dram.total}, time)
    launches = result.launches * (result.launch_s or 0.0)
    bound = launches > float(result.memory_s)
    first = [Meter("launches", launches / time, f"{result.launches} x {format_time(result.launch_s or 0.0, 3)}", bound)] * (launches > 0)
    return [*first, *(replace(meter, limits=False) if bound else meter for meter in meter_list)]


def _figures(results: list[ChainResult]) -> list[Figure]:
    unfused, _, fused = results
    return [
        *(Figure(result.name, format_time(_time(result), 3)) for result in results),
        Figure("bytes through the L2, unfused / fused", f"{unfused.sram.total / fused.sram.total:.3g}x"),
        Figure("launches saved", format_count(unfused.launches - fused.launches)),
    ]


def _charts(results: list[ChainResult]) -> list[Chart]:
    """Charts of times, with the part that waits for launches, and of bytes."""
    roofs = [(result, float(result.memory_s)) for result in results]
    times = [
        Bar(result.name, [("moving bytes, at the roof", roof), ("waiting for launches", _time(result) - roof)]) for result, roof in roofs
    ]
    unfused, _, fused = results
    fewer = f"Fusion moves {unfused.sram.total / fused.sram.total:.3g}x fewer bytes through the L2."
    return [
        BarChart("Time of each way, launches included", "s", times, caption=_faster(results)),
        traffic_chart([(result.name, result.sram, result.dram) for result in results], fewer),
    ]


def _notes(w: FusedChain, device: Device, results: list[ChainResult], times: Published | None) -> list[str]:
    notes = [
        f"Each operation reads its operands and writes one tensor of {format_si(w.elements * w.dtype.size, 'B')}; {SOURCE}.",
        "Intermediates that fit the caches cost no DRAM traffic and are priced at L2 bandwidth. 1 vector operation per element.",
    ]
    if results[0].launch_s is not None:
        notes.append(f"{LAUNCH_SOURCE.capitalize()}: eager Python adds its own overhead on top.")
    elif device.launch_overhead is None:
        notes.append(f"The profile of {device.id} has no launch overhead: add launch_overhead to it for times with launches.")
    if times is not None:
        printed = f"printed {times.printed_graph_speedup}x and {times.printed_speedup}x from times before rounding"
        notes.append(f"Published: {times.source}; {printed}. The model's device is {device.id}: the two need not agree.")
    return [*notes, *unknown_rates(results, device, "left out")]
