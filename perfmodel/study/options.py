"""Studies from options: ``n=1024:65536:x2 d=64`` becomes a sweep over n, ``n=4096 d=64`` a point of a roofline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from perfmodel.core.errors import UsageError
from perfmodel.study.schema import Scope
from perfmodel.study.workloads import KINDS, Workload
from perfmodel.sweep.base import SweepInput
from perfmodel.sweep.values import values_of
from perfmodel.transformer.step import PHASES

_SWEPT = re.compile(r"(?P<name>[A-Za-z][\w-]*)=(?P<values>[^\s,=]*:[^\s,=]+|\d[^\s=,]*(?:,\d[^\s=,]*)+)(?=[\s,]|$)")
"""A size with a range or several values in the text of a workload."""
MOST_VALUES = 64
POINTS = 3
"""Values of a sweep that are also drawn on the rooflines."""


class SweptWorkload(NamedTuple):
    """A workload, perhaps swept ``over`` one of its sizes: ``values`` lists the sizes, and ``workload`` has the first."""

    workload: Workload
    over: str = ""
    values: Sequence[int] = ()


def study_of(texts_of: Mapping[str, Sequence[str]], devices: Sequence[str], implementation: str | None, scope: Scope) -> dict[str, Any]:
    """The study as its file would have it. ``texts_of``: values of the workload options by kind of workload."""
    requests = [swept(kind, text, implementation) for kind, texts in texts_of.items() for text in texts]
    sections = [_sweep(request, devices) for request in requests if request.over]
    points = [workload.written() for request in requests for workload in _points(request)]
    roofline: dict[str, Any] = {"kind": "roofline"}
    if sections:
        roofline["title"] = "rooflines"
    roofline |= {"devices": [*devices], "workloads": points}
    work = "; ".join(dict.fromkeys(map(_title, requests)))
    device_names = " and ".join(device.name for device in scope.devices(devices))
    return {"title": f"{work} on {device_names}", "sections": [*sections, roofline]}


def swept(kind: str, text: str, implementation: str | None = None) -> SweptWorkload:
    """The workload that the text of an option asks for.

    >>> w, over, values = swept("matmul", "m=64:256:x2 n=64 k=64")
    >>> over, values, w.matmul.m
    ('m', [64, 128, 256], 64)
    """
    ranges = list(_SWEPT.finditer(text))
    if len(ranges) > 1:
        names = " and ".join(match["name"] for match in ranges)
        raise UsageError(f"--{kind}: {names} are swept, and a picture has one axis", "sweep one of them; perfmodel sweep takes grids")
    if not ranges:
        return SweptWorkload(workload_of(kind, text, implementation))
    [match] = ranges
    over = match["name"].replace("-", "_")
    values = [int(value) for value in values_of(SweepInput(over, ""), match["values"])]
    if not 2 <= len(values) <= MOST_VALUES:
        raise UsageError(f"--{kind}: {over} has {len(values):,} values", f"give from 2 to {MOST_VALUES}, such as {over}=1024:65536:x2")
    first = f"{text[: match.start('values')]}{values[0]}{text[match.end('values') :]}"
    return SweptWorkload(workload_of(kind, first, implementation), over, values)


def _sweep(request: SweptWorkload, devices: Sequence[str]) -> dict[str, Any]:
    """The section of a swept workload as a study file would have it."""
    workload, over, values = request
    written = workload.written()
    if workload.kind != "matmul":  # a matmul needs all its sizes; others may leave out the swept one
        written[workload.kind].pop(over, None)
    show = ["time", "memory"] if workload.attention else ["time"]
    return {"kind": "sweep", "devices": [*devices], "workload": written, "over": over, "values": values, "show": show}


def _points(request: SweptWorkload) -> list[Workload]:
    """The workload at the first, the middle and the last value of a sweep."""
    workload, over, values = request
    if not over:
        return [workload]
    places = dict.fromkeys(place * (len(values) - 1) // (POINTS - 1) for place in range(POINTS))
    return [workload.updated(over, values[place]) for place in places]


def _title(request: SweptWorkload) -> str:
    """The workload in words; a swept size with its first and last value.

    >>> _title(swept("attention", "n=1024:4096:x2 d=64"))
    'attention, n 1,024 to 4,096, d 64'
    """
    workload, over, values = request
    ends = {over: f"{values[0]:,} to {values[-1]:,}"} if over else {}
    return workload.in_words(ends)


EXAMPLES = {
    "--attention": "n=4096 d=64 heads=16 batch=8 causal",
    "--matmul": "8192x128x8192",
    "--model": "llama-3-8b decode batch=8 kv_len=2048",
    "--records": "shipped hardware=h200 implementation=torch-sdpa-flash most=12",
}


def workload_of(kind: str, text: str, implementation: str | None = None) -> Workload:
    """The workload of an option, such as ``n=4096 d=64 causal``, ``8192x128x8192`` or ``llama-3-8b decode batch=8``."""
    words = text.replace(",", " ").split()
    if kind == "matmul":
        words = _with_sizes(words)
    elif kind == "model":
        words = _with_name_and_phase(words)
    options: Any = {kind: options_of(f"--{kind}", words, KINDS[kind])}
    return Workload(**options, implementation=implementation)


def _with_sizes(words: list[str]) -> list[str]:
    """The words of a matmul, with ``m=8192 n=128 k=8192`` in place of a first word such as ``8192x128x8192``."""
    if not words or "=" in words[0] or not words[0][:1].isdigit():
        return words
    shape, *others = words
    sizes = shape.split("x")
    if len(sizes) != 3:
        raise UsageError(f"--matmul: {shape!r} is not M x N x K", f"write it like --matmul {EXAMPLES['--matmul']}")
    m, n, k = sizes
    return [f"m={m}", f"n={n}", f"k={k}", *others]


MODEL_SWITCHES = ("fused", "graph", "cuda_graph", "cuda-graph")
"""Words of a model that are switches, not its name."""


def _with_name_and_phase(words: list[str]) -> list[str]:
    """The words of a model, with ``phase=`` before a phase and ``name=`` before the first other word without a key."""
    keyed = []
    name = ""
    for word in words:
        is_bare = "=" not in word and word not in PHASES and word not in MODEL_SWITCHES
        name = name or (word if is_bare else "")
        if word in PHASES:
            keyed.append(f"phase={word}")
        elif word == name:
            keyed.append(f"name={word}")
        else:
            keyed.append(word)
    return keyed


def options_of(option: str, words: list[str], model: Any) -> Any:
    """A ``model`` from ``key=value`` words, where a bare word is a switch. UsageError names the wrong word."""
    raw: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.replace("-", "_")
        if equals and not value:
            raise UsageError(f"{option}: {key} is empty", "give a value, or leave it out")
        if key in raw:
            raise UsageError(f"{option}: {key} appears twice")
        if not equals:
            raw[key] = True
        else:
            raw[key] = value.split("+") if "+" in value else value
    try:
        return TypeAdapter(model).validate_python(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place, message = first["loc"], first["msg"]
        keys = [str(part) for part in place if part in raw] or [str(part) for part in place[:1]]
        problem = " is missing" if first["type"] == "missing" else f": {message[:1].lower()}{message[1:]}"
        raise UsageError(f"{option}: {'.'.join(keys)}{problem}", f"write it like {option} '{EXAMPLES[option]}'") from None
