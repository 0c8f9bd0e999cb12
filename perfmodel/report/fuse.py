"""The report of an elementwise chain: unfused, as a CUDA graph, fused; and published times beside it."""

from __future__ import annotations

from typing import Any

from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Traffic
from perfmodel.core.units import format_count, format_si, format_time
from perfmodel.kernels.fuse import LAUNCH_SOURCE, SOURCE, Chain, Published, Result, explain, with_launches
from perfmodel.report.against import MEASURED, Side, against
from perfmodel.report.charts.schema import Interval
from perfmodel.report.counts import BOUND_WORDS
from perfmodel.report.document import Report, Table
from perfmodel.report.operation import head, with_steps


def report(w: Chain, device: Device, results: list[Result], *, published: Published | None = None, explained: bool = False) -> Report:
    """``results`` as a Report; its data follows the schema perfmodel.fuse/1. ``explained``: with every formula."""
    title = f"Elementwise chain: {w.ops} operations on {format_count(w.elements)} elements, {w.dtype.name} on {device.name}"
    tables = [_table(results), *([_published_table(w, results, published)] if published else [])]
    verdict = [*([_published_verdict(w, results, published)] if published else []), _verdict(device, results)]
    plain = Report(title, verdict, tables, _notes(w, device, results, published), data(w, device, results, published))
    if not explained:
        return plain
    return with_steps(plain, [(result.name, {"algorithm": result.name}, explain(result, w, device)) for result in results])


# The JSON object


def data(w: Chain, device: Device, results: list[Result], published: Published | None = None) -> dict[str, Any]:
    """The object of schema perfmodel.fuse/1."""
    inputs = {
        "elements": w.elements,
        "ops": w.ops,
        "tensor_reads": w.tensor_reads,
        "pattern": list(w.pattern),
        "rounds": w.rounds,
        "dtype": w.dtype.name,
    }
    found = {**head("fuse", inputs, device), "results": [_entry(result, results[0]) for result in results]}
    return found if published is None else {**found, "published": _published(w, published)}


def _entry(result: Result, reference: Result) -> dict[str, Any]:
    return {
        "algorithm": result.name,
        "launches": result.launches,
        "bytes": result.sram.total,
        "traffic": {"sram": _traffic(result.sram), "dram": _traffic(result.dram)},
        "launch_s": result.launch_s,
        "launch_bound_kernels": result.launch_bound,
        "time_s": {
            "lower": result.lower_s,
            "roofline": result.memory_s,
            "with_launches": result.total_s,
            "unknown": sorted(result.unknown),
        },
        "speedup": speedup(result, reference),
    }


def _traffic(traffic: Traffic) -> dict[str, int]:
    return {"read_bytes": traffic.read, "write_bytes": traffic.write}


def speedup(result: Result, reference: Result) -> float | None:
    """Time of ``reference`` over that of ``result``, launches included; None where they are unknown."""
    return None if result.total_s is None or reference.total_s is None else reference.total_s / result.total_s


def _published(w: Chain, times: Published) -> dict[str, Any]:
    return {
        "calls": times.calls,
        "eager_s": times.eager_s,
        "graph_s": times.graph_s,
        "fused_s": times.fused_s,
        "eager_per_call_s": times.eager_s / times.calls,
        "eager_per_kernel_s": times.eager_s / times.calls / w.ops,
        "graph_per_call_s": times.graph_s / times.calls,
        "fused_per_call_s": times.fused_s / times.calls,
        "speedup": times.eager_s / times.fused_s,
        "graph_speedup": times.eager_s / times.graph_s,
        "printed_speedup": times.printed_speedup,
        "printed_graph_speedup": times.printed_graph_speedup,
        "source": times.source,
    }


# Words


def _verdict(device: Device, results: list[Result]) -> str:
    unfused, graph, fused = results
    fewer = unfused.sram.total / fused.sram.total
    if unfused.launches == 1:
        return "One operation is one kernel: there is nothing to fuse."
    moved = f"Fusion moves {fewer:.3g}x fewer bytes and launches {unfused.launches} kernels as one"
    graph_gain = speedup(graph, unfused)
    if unfused.total_s is None or fused.total_s is None:
        return f"{moved}. The profile of {device.id} has no launch overhead: times are without launches."
    bound = f"{unfused.launch_bound} of {unfused.launches} unfused kernels take no longer than their launch"
    in_graph = "" if graph_gain is None else f", launches counted; a CUDA graph alone gains at most {graph_gain:.3g}x"
    told = against(Side("unfused", unfused.total_s), Side("fused", fused.total_s))
    return f"{told}{in_graph}. {moved}. {bound}."


def _fused_in_graph(results: list[Result]) -> float | None:
    """Seconds of the fused kernel with the launch overhead of a graph."""
    _, graph, fused = results
    return None if graph.launch_s is None else with_launches(fused.parts, graph.launch_s)


def _published_verdict(w: Chain, results: list[Result], times: Published) -> str:
    """What the published times teach, and how much of it launches explain."""
    eager, fused_alone, graphed = (
        Side(name, 0.0, Interval(seconds), MEASURED)
        for name, seconds in (("eager", times.eager_s), ("fusion alone", times.fused_s), ("fusion with CUDA graphs", times.graph_s))
    )
    told = f"Published: {against(eager, fused_alone)}; {against(eager, graphed)}: CUDA graphs hurt this small function."
    fused, in_graph = results[2].total_s, _fused_in_graph(results)
    if fused is None or in_graph is None:
        return told
    saved = format_time(fused - in_graph) if fused > in_graph else "nothing"
    lost = format_time((times.graph_s - times.fused_s) / times.calls)
    return (
        f"{told} Fused, it has one launch per call left, of which a graph saves {saved} here; what a graph cost there, {lost} per call, "
        f"is not modelled."
    )


def _table(results: list[Result]) -> Table:
    reference = results[0]
    rows = [
        ["launches", *(format_count(result.launches) for result in results)],
        ["SRAM traffic", *(format_si(result.sram.total, "B") for result in results)],
        ["DRAM traffic", *(format_si(result.dram.total, "B") for result in results)],
        ["launch overhead per kernel", *(_time(result.launch_s) for result in results)],
        ["lower bound, cold L2", *(_time(result.lower_s) for result in results)],
        ["roofline, without launches", *(_time(result.memory_s) for result in results)],
        ["time with launches", *(_time(result.total_s) for result in results)],
        ["unfused / this", *("-" if (gain := speedup(result, reference)) is None else f"{gain:.3g}x" for result in results)],
    ]
    return Table("", ["", *(result.name for result in results)], rows)


def _times(before: float | None, after: float | None) -> str:
    return "-" if before is None or after is None else f"{before / after:.2f}x"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_time(seconds)


def _published_table(w: Chain, results: list[Result], times: Published) -> Table:
    found, (unfused, _, fused), in_graph = _published(w, times), results, _fused_in_graph(results)
    rows = [
        ["eager, per call", format_time(found["eager_per_call_s"]), _time(unfused.total_s)],
        ["eager, per kernel", format_time(found["eager_per_kernel_s"]), _time(unfused.total_s and unfused.total_s / w.ops)],
        ["fused, no CUDA graph, per call", format_time(found["fused_per_call_s"]), _time(fused.total_s)],
        ["fused, in a CUDA graph, per call", format_time(found["graph_per_call_s"]), _time(in_graph)],
        ["eager / fused", f"{found['speedup']:.2f}x", _times(unfused.total_s, fused.total_s)],
        ["eager / fused in a CUDA graph", f"{found['graph_speedup']:.2f}x", _times(unfused.total_s, in_graph)],
    ]
    return Table("published times beside the model's", ["", "published", "model"], rows)


def _notes(w: Chain, device: Device, results: list[Result], times: Published | None) -> list[str]:
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
    unknown = sorted(frozenset().union(*(result.unknown for result in results)))
    return notes + [f"The profile of {device.id} has no rate for {BOUND_WORDS[name]}: that term is left out." for name in unknown]
