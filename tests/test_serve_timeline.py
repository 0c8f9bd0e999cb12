"""The simulated steps of an engine as a trace: its format, and that it shows what the simulation did."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from perfmodel.serving.simulate import LOGGED

ASKED = ("serve", "llama-3.1-8b", "--hardware", "h200", "--isl", "500", "--concurrency", "4")
SHORT = ("--osl", "20")
POOLS = ("--prefill-workers", "1", "--workers", "2")
Event = dict[str, Any]


def events(run: Any, tmp_path: Path, *options: str) -> list[Event]:
    path = tmp_path / "serve.trace.json"
    outcome = run("", *ASKED, *options, "-o", str(path))
    assert outcome.code == 0, outcome.err
    content = json.loads(path.read_text())
    assert content["displayTimeUnit"] in ("ms", "ns")
    found: list[Event] = content["traceEvents"]
    return found


def spans(found: list[Event]) -> dict[int, list[Event]]:
    """Complete events by lane, by their start and the longer ones first."""
    lanes = defaultdict[int, list[Event]](list)
    for event in found:
        if event["ph"] == "X":
            lanes[event["tid"]].append(event)
    return {lane: sorted(events, key=lambda event: (event["ts"], -event["dur"])) for lane, events in lanes.items()}


@pytest.mark.parametrize("options", [(), ("--requests", "12"), POOLS], ids=["loop", "benchmark", "pools"])
def test_it_keeps_to_the_trace_event_format(run: Any, tmp_path: Path, options: tuple[str, ...]) -> None:
    found = events(run, tmp_path, *SHORT, *options)
    assert {event["ph"] for event in found} == {"M", "X", "C"}
    named = {event["tid"] for event in found if event["name"] == "thread_name"}
    for event in found:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
        if event["ph"] == "X":
            assert event["tid"] in named
            assert min(event["ts"], event["dur"]) >= 0
        if event["ph"] == "C":
            assert event["ts"] >= 0
            assert event["args"]
            assert all(isinstance(value, (int, float)) and value >= 0 for value in event["args"].values())
    for lane in spans(found).values():
        open_ends: list[float] = []
        for event in lane:  # events of a thread lie one behind the other or one in the other
            while open_ends and open_ends[-1] <= event["ts"] + 1e-3:
                open_ends.pop()
            assert not open_ends or event["ts"] + event["dur"] <= open_ends[-1] + 1e-3
            open_ends.append(event["ts"] + event["dur"])


def test_steps_of_a_benchmark_are_those_of_its_requests(run: Any, tmp_path: Path) -> None:
    found = events(run, tmp_path, *SHORT, "--requests", "12")
    steps = [event for event in found if event["ph"] == "X" and event["name"] in ("prefill", "decode", "prefill + decode")]
    prompts = sum(int(event["args"]["tokens of prompts"].replace(",", "")) for event in steps if "prefill" in event["name"])
    decoded = sum(int(event["args"]["sequences"]) for event in steps if "decode" in event["name"])
    assert (prompts, decoded) == (12 * 500, 12 * 19)
    assert all(before["ts"] + before["dur"] <= after["ts"] + 1e-3 for before, after in pairwise(steps))
    running = [event["args"]["running"] for event in found if event["ph"] == "C" and "running" in event["args"]]
    assert max(running) == 4
    cache = [event["args"]["tokens"] for event in found if event["ph"] == "C" and "tokens" in event["args"]]
    assert cache[0] == 0
    assert 4 * 500 < max(cache) < 4 * 520
    kernels = [event for event in found if event["ph"] == "X" and event["name"] == "QKV projection"]
    assert len(kernels) == 32 * len({step["name"] for step in steps})  # one a layer, in one step of each phase


def test_workers_have_a_lane_each_and_long_runs_are_cut(run: Any, tmp_path: Path) -> None:
    lanes = {event["args"]["name"] for event in events(run, tmp_path, *SHORT, *POOLS) if event["name"] == "thread_name"}
    assert lanes == {"prefill 1", "decode 1", "decode 2"}
    found = events(run, tmp_path, "--osl", "4000")
    assert sum(event["ph"] == "X" and "requests running" in event["args"] for event in found) == LOGGED
    assert [event["args"]["name"] for event in found if event["name"] == "thread_name"] == ["engine 1, the first 4,000 steps"]


def test_a_search_has_no_steps_to_write(run: Any, tmp_path: Path) -> None:
    outcome = run("", *ASKED[:6], "--search", "--gpus", "1", "-o", str(tmp_path / "a.trace.json"))
    assert outcome.code == 2
    assert "no search" in outcome.err
