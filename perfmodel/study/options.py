"""Workloads and studies in the words of options: ``n=1024:65536:x2 d=64`` is a sweep over n, ``n=4096 d=64`` a point of a roofline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from perfmodel.core.errors import UsageError
from perfmodel.study.schema import Scope
from perfmodel.study.workloads import KINDS, Workload
from perfmodel.sweep.base import SweepInput
from perfmodel.sweep.values import values_of
from perfmodel.transformer.step import PHASES

_SWEPT = re.compile(r"(?P<name>[A-Za-z][\w-]*)=(?P<values>[^\s,=]*:[^\s,=]+|\d[^\s=,]*(?:,\d[^\s=,]*)+)(?=[\s,]|$)")
"""A size with a range or with several values among the words of a workload."""
MOST_VALUES = 64
POINTS = 3
"""Values of a sweep that stand on the rooflines too."""
Asked = tuple[Workload, str, list[int]]
"""A workload, at its first value where it is swept; the size that is swept, or nothing; its values."""


def study_of(asked: Mapping[str, Sequence[str]], devices: Sequence[str], implementation: str | None, scope: Scope) -> dict[str, Any]:
    """The study, as its file has it. ``asked``: texts of options by kind of workload."""
    found = [swept(kind, text, implementation) for kind, texts in asked.items() for text in texts]
    sections = [_sweep(one, devices) for one in found if one[1]]
    points = [workload for one in found for workload in _points(one)]
    written = [workload.written() for workload in points]
    roofline = {"kind": "roofline", "title": "rooflines" * bool(sections), "devices": [*devices], "workloads": written}
    named = " and ".join(device.name for device in scope.devices(devices))
    title = f"{'; '.join(dict.fromkeys(map(_title, found)))} on {named}"
    return {"title": title, "sections": [*sections, {name: value for name, value in roofline.items() if value}]}


def swept(kind: str, text: str, implementation: str | None = None) -> Asked:
    """What the words of an option ask for.

    >>> w, over, values = swept("matmul", "m=64:256:x2 n=64 k=64")
    >>> over, values, w.matmul.m
    ('m', [64, 128, 256], 64)
    """
    ranges = list(_SWEPT.finditer(text))
    if len(ranges) > 1:
        names = " and ".join(match["name"] for match in ranges)
        raise UsageError(f"--{kind}: {names} are swept, and a picture has one axis", "sweep one of them; perfmodel sweep takes grids")
    if not ranges:
        return workload_of(kind, text, implementation), "", []
    [match] = ranges
    over = match["name"].replace("-", "_")
    values = [int(value) for value in values_of(SweepInput(over, ""), match["values"])]
    if not 2 <= len(values) <= MOST_VALUES:
        raise UsageError(f"--{kind}: {over} has {len(values):,} values", f"give from 2 to {MOST_VALUES}, such as {over}=1024:65536:x2")
    first = f"{text[: match.start('values')]}{values[0]}{text[match.end('values') :]}"
    return workload_of(kind, first, implementation), over, values


def _sweep(one: Asked, devices: Sequence[str]) -> dict[str, Any]:
    workload, over, values = one
    written = workload.written()
    if workload.kind != "matmul":  # all of whose sizes are required
        written[workload.kind].pop(over, None)
    show = ["time", "memory"] if workload.attention else ["time"]
    return {"kind": "sweep", "devices": [*devices], "workload": written, "over": over, "values": values, "show": show}


def _points(one: Asked) -> list[Workload]:
    """Workloads at the first, the middle and the last value of a sweep."""
    workload, over, values = one
    if not over:
        return [workload]
    places = dict.fromkeys(place * (len(values) - 1) // (POINTS - 1) for place in range(POINTS))
    return [workload.updated(over, values[place]) for place in places]


def _title(one: Asked) -> str:
    """The workload in the words of its options, a swept size with its ends.

    >>> _title(swept("attention", "n=1024:4096:x2 d=64"))
    'attention, n 1,024 to 4,096, d 64'
    """
    workload, over, values = one
    ends = {over: f"{values[0]:,} to {values[-1]:,}"} if over else {}
    return workload.in_words(ends)


EXAMPLES = {
    "--attention": "n=4096 d=64 heads=16 batch=8 causal",
    "--matmul": "8192x128x8192",
    "--model": "llama-3-8b decode batch=8 kv_len=2048",
    "--records": "shipped hardware=h200 implementation=torch-sdpa-flash most=12",
}


def workload_of(kind: str, text: str, implementation: str | None = None) -> Workload:
    """``text`` of an option, such as ``n=4096 d=64 causal``, ``8192x128x8192`` or ``llama-3-8b decode batch=8``."""
    words = text.replace(",", " ").split()
    if kind == "matmul" and words and "=" not in words[0] and words[0][:1].isdigit():
        if words[0].count("x") != 2:
            raise UsageError(f"--matmul: {words[0]!r} is not M x N x K", f"write it like --matmul {EXAMPLES['--matmul']}")
        words = [f"{name}={size}" for name, size in zip("mnk", words[0].split("x"), strict=True)] + words[1:]
    if kind == "model":
        words = [f"phase={word}" if word in PHASES else word for word in words]
        bare = [word for word in words if "=" not in word and word not in ("fused", "graph", "cuda_graph", "cuda-graph")]
        words = [f"name={word}" if word in bare[:1] else word for word in words]
    named: Any = {kind: options_of(f"--{kind}", words, KINDS[kind])}
    return Workload(**named, implementation=implementation)


def options_of(option: str, words: list[str], model: Any) -> Any:
    """``key=value`` words as a ``model``; a bare word is a switch; UsageError names the wrong one."""
    raw: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.replace("-", "_")
        if equals and not value:
            raise UsageError(f"{option}: {key} is empty", "give a value, or leave it out")
        if key in raw:
            raise UsageError(f"{option}: {key} appears twice")
        raw[key] = (value.split("+") if "+" in value else value) if equals else True
    try:
        return TypeAdapter(model).validate_python(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"] if part in raw) or ".".join(map(str, first["loc"][:1]))
        problem = " is missing" if first["type"] == "missing" else f": {first['msg'][:1].lower()}{first['msg'][1:]}"
        raise UsageError(f"{option}: {field}{problem}", f"write it like {option} '{EXAMPLES[option]}'") from None
