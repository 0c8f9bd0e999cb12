"""Profiles of ``torch.profiler``: the kernels of a program and the operators that launched them.

Events are read one by one. Memory grows with operators and kernels, not with Python's functions, which make up most of a file.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import cached_property
from math import gcd, prod
from pathlib import Path
from typing import Any, TextIO

from perfmodel.core import checks
from perfmodel.core.errors import DataError
from perfmodel.core.frozen import dataclass
from perfmodel.program.calls import LIST_CHUNK, Argument, Call, Operand

DTYPES = {
    "float": "fp32",
    "double": "fp64",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2fnuz": "fp8",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}
"""Formats by their names in profiles."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
STEP = re.compile(r"^ProfilerStep#\d+$")
CHUNK = 1 << 22
_WRITTEN = "give what torch.profiler's export_chrome_trace wrote"
LONGEST_EVENT = 1 << 26
"""Most characters of an event; a longer one is an error."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel, copy or fill on the device; times in seconds from the start of the profile. ``moved``: bytes of a copy or fill; ``blocks``:
    of its grid, 0 if unknown; ``launched_s``: end of the host's launch, None if unknown.
    """

    name: str
    kind: str
    start_s: float
    seconds: float
    stream: int
    moved: int = 0
    blocks: int = 0
    launched_s: float | None = None


@dataclass(slots=True)
class Operator:
    """A call and the kernels that it launched."""

    call: Call
    kernels: list[Launched]
    graph: bool = False


@dataclass(frozen=True)
class ProgramProfile:
    """The operators of ``steps`` steps on ``device``. ``span_s``: seconds from the first start to the last end.

    ``graphs``: number of kernels replayed by CUDA graphs. ``gpus``: number of GPUs in the file, of which this is the busiest.
    ``tool``: the profiler that wrote a file without operators, empty for torch.profiler; ``ncu`` writes no start times.
    """

    device: str
    steps: int
    span_s: float
    operators: list[Operator]
    graphs: int = 0
    gpus: int = 1
    tool: str = ""

    @cached_property
    def kernels(self) -> list[Launched]:
        """All kernels by their start."""
        return sorted((kernel for operator in self.operators for kernel in operator.kernels), key=lambda kernel: kernel.start_s)

    @property
    def busy_s(self) -> float:
        """Seconds in which at least one kernel, copy or fill ran."""
        return self.span_s - sum(self.waits.values())

    @cached_property
    def waits(self) -> dict[str, float]:
        """Idle seconds by cause: ``host``, which had not launched the next kernel yet, or ``launch``, the delay of a launch."""
        waits = {"host": 0.0, "launch": 0.0}
        for _, seconds, late in self.gaps():
            waits["host" if late else "launch"] += seconds
        return waits

    def gaps(self) -> Iterator[tuple[Launched, float, bool]]:
        """Kernels with idle time before them: the kernel, the idle seconds, and whether the host was late."""
        end = None
        for kernel in self.kernels:
            if end is not None and kernel.start_s > end:
                yield kernel, kernel.start_s - end, kernel.launched_s is not None and kernel.launched_s >= end
            end = max(end or 0.0, kernel.start_s + kernel.seconds)

    def replayed(self, lengths: Mapping[int, float]) -> float:
        """Seconds from start to end if kernels took ``lengths`` seconds, by their ``id``; launches of the host stay as they were.

        A host that is late after kernels had been queued must have waited for the device: its launches then move with the device.
        """
        end = moved_end = self.kernels[0].start_s if self.operators else 0.0
        first, shift, waited = end, 0.0, 0.0
        for kernel in self.kernels:
            late = kernel.launched_s is not None and kernel.launched_s >= end
            if late and waited > QUEUED_S:
                shift = moved_end - end
            start = max(moved_end, kernel.start_s + shift) if late else moved_end + (kernel.start_s - end)
            waited = 0.0 if kernel.launched_s is None else kernel.start_s - kernel.launched_s
            moved_end = max(moved_end, start + lengths.get(id(kernel), kernel.seconds))
            end = max(end, kernel.start_s + kernel.seconds)
        return moved_end - first


QUEUED_S = 50e-6
"""A kernel that waited longer than this was queued: the host was ahead."""


def read(path: Path) -> ProgramProfile:
    """The profile in ``path``, a .json or .json.gz file; DataError if it is no profile."""
    head: dict[str, Any] = {}
    return _profile(events(path, head), head, path)


def events(path: Path, head: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the events of ``path``; keys before them go into ``head``."""
    try:
        with opened(path) as file:
            yield from _decoded(file, head, path)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DataError(f"{path} is cut off or broken: its compressed data end early", "write the profile again") from None
    except UnicodeDecodeError as error:
        fix = "give a .json or .json.gz profile, or the table that nsys stats or ncu --import --csv make of a report"
        raise DataError(f"{path} is no text: byte {error.start} is not UTF-8", fix) from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}", "give a file that can be read") from None


def opened(path: Path) -> TextIO:
    """``path`` opened as text, compressed or not; a pipe or a device is refused."""
    if not path.exists():
        raise DataError(f"{path}: there is no such file", _WRITTEN)
    with checks.opened(path) as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rt", encoding="utf-8") if compressed else path.open(encoding="utf-8")


def _decoded(file: TextIO, head: dict[str, Any], path: Path) -> Iterator[dict[str, Any]]:
    """Yields the events of the list, read in pieces of text."""
    decoder, text, at, number = json.JSONDecoder(), *_begun(file, head, path), 0
    while True:
        at = _behind(_BETWEEN.match(text, at), at)
        if text.startswith("]", at):
            _read_object("{" + (text[at + 1 :] + file.read(CHUNK)).lstrip("\n\r\t ,"), head)
            return
        try:
            event, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            piece = file.read(CHUNK)
            if not piece or len(text) - at > LONGEST_EVENT:
                raise DataError(f"{path} is cut off or broken at event {number + 1:,}", "write the profile again") from None
            text, at = text[at:] + piece, 0
            continue
        except (RecursionError, ValueError):
            raise DataError(f"{path}: event {number + 1:,} is nested too deep or holds a number of too many digits", _WRITTEN) from None
        number += 1
        if isinstance(event, dict):
            yield event


_BETWEEN = re.compile(r"[\s,]*")


def _behind(match: re.Match[str] | None, at: int) -> int:
    return match.end() if match else at


def _begun(file: TextIO, head: dict[str, Any], path: Path) -> tuple[str, int]:
    """The first piece of text and the place where its events begin; keys before them go into ``head``."""
    text = file.read(CHUNK)
    if text.lstrip().startswith("["):
        return text, text.index("[") + 1
    while not (match := re.search(r'"traceEvents"\s*:\s*\[', text)):
        piece = file.read(CHUNK)
        if not piece or len(text) > LONGEST_EVENT:
            fix = f"{_WRITTEN}, or a table of ncu, nsys or rocprof with its header"
            raise DataError(f'{path}: there is no list "traceEvents" in it', fix)
        text += piece
    _read_object(text[: match.start()].rstrip("\n\r\t ,") + "}", head)
    return text, match.end()


def _read_object(text: str, head: dict[str, Any]) -> None:
    """Put the keys of ``text`` into ``head`` if it is a JSON object."""
    with suppress(ValueError, TypeError, RecursionError):
        head |= json.loads(text)


# From events to operators


@dataclass(slots=True)
class _Host:
    """An event of the host: an operator with its ``call``, a launch or a step; times in seconds."""

    name: str
    start_s: float
    end_s: float
    call: Call | None = None


@dataclass(slots=True)
class _Events:
    """Events by kind; operators and launches by the ids that kernels refer to; kernels with GPU, launch's id and operator's id.

    ``shared`` holds each name and each call once.
    """

    operators: dict[Any, _Host] = field(default_factory=dict)
    launches: dict[Any, _Host] = field(default_factory=dict)
    steps: list[_Host] = field(default_factory=list)
    kernels: list[tuple[Launched, Any, Any, Any]] = field(default_factory=list)
    shared: dict[Any, Any] = field(default_factory=dict)


_WRONG = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


def _profile(event_dicts: Iterable[dict[str, Any]], head: Mapping[str, Any], path: Path) -> ProgramProfile:
    sorted_events = _Events()
    for number, event in enumerate(event_dicts, 1):
        try:
            _sort(event, sorted_events)
        except _WRONG:
            where = f"event {number:,}, {str(event.get('name', event))[:60]!r},"
            raise DataError(f"{path}: {where} lacks a time, a length or its arguments, or has one that cannot be", _WRITTEN) from None
    if not sorted_events.kernels:
        raise DataError(f"{path}: no kernel of a GPU is in it", "profile with ProfilerActivity.CUDA beside ProfilerActivity.CPU")
    try:
        return _linked(sorted_events, head)
    except _WRONG as error:
        raise DataError(f"{path}: an event is not as torch writes it ({error})", _WRITTEN) from None


def _sort(event: dict[str, Any], into: _Events) -> None:
    kind = event.get("cat")
    if event.get("ph") != "X" or kind not in _READ:
        return
    start, length = float(event["ts"]) * 1e-6, float(event["dur"]) * 1e-6
    if not (0 <= length < LATEST_S and abs(start) < LATEST_S):
        raise ValueError("a time that cannot be")
    name = into.shared.setdefault(str(event["name"]), str(event["name"]))
    if kind in ON_DEVICE:
        arguments = event["args"]
        moved, blocks = int(arguments.get("bytes") or 0), prod(arguments.get("grid") or (0,))
        kernel = Launched(name, kind, start, length, _number(arguments.get("stream", 0)), moved, blocks)
        into.kernels.append((kernel, arguments.get("device", 0), arguments.get("correlation"), arguments.get("External id", NO_OPERATOR)))
        return
    arguments, host = event.get("args", {}), _Host(name, start, start + length)
    if kind == "cpu_op":
        call = called(name, arguments)
        host.call = into.shared.setdefault(call, call)
        into.operators[arguments.get("External id")] = host
    elif kind in LAUNCHES:
        into.launches[arguments.get("correlation")] = host
    elif STEP.match(name):
        into.steps.append(host)


LATEST_S = 1e12
"""Largest time in seconds that a profile may state."""
LAUNCHES = ("cuda_runtime", "cuda_driver")
NO_OPERATOR = object()
_READ = frozenset({*ON_DEVICE, *LAUNCHES, "cpu_op", "user_annotation"})


def _linked(events: _Events, head: Mapping[str, Any]) -> ProgramProfile:
    """The profile of all kernels that lie in whole steps, each with the operator that launched it."""
    operators: dict[int, Operator] = {}
    spans, graphs, held_steps = [], 0, set[int]()
    kernels, gpus = busiest(events.kernels)
    origin = min(kernel.start_s for kernel, _, _, _ in kernels)
    steps = sorted(events.steps, key=lambda step: step.start_s)
    for kernel, _, launched_by, called_by in sorted(kernels, key=lambda event: event[0].start_s):
        launch, host = events.launches.get(launched_by), events.operators.get(called_by)
        launched = host or launch
        step = None if launched is None else _step_at(launched.start_s, steps)
        if steps and launched and step is None:
            continue
        held_steps |= set() if step is None else {id(step)}
        placed = _placed(kernel, origin, launch)
        spans += [placed.start_s, placed.start_s + placed.seconds]
        replayed = launch is not None and "GraphLaunch" in launch.name
        graphs += replayed
        has_operator = host is not None and not replayed
        key = id(host) if has_operator else id(placed)
        if key not in operators:
            operators[key] = Operator(host.call if host is not None and host.call and has_operator else Call("", ()), [], replayed)
        operators[key].kernels.append(placed)
    for operator in operators.values():
        operator.call = with_lists(operator.call, operator.kernels)
    if not spans:  # the steps hold none of the kernels
        return _linked(replace(events, steps=[]), head)
    device = next(
        (str(properties.get("name", "")) for properties in head.get("deviceProperties") or [] if isinstance(properties, dict)), ""
    )
    count = len(held_steps) or repetitions([operator.call.name or operator.kernels[0].name for operator in operators.values()])
    return ProgramProfile(device, count, max(spans) - min(spans), list(operators.values()), graphs, gpus)


def busiest(kernels: Sequence[tuple[Launched, Any, *tuple[Any, ...]]]) -> tuple[list[Any], int]:
    """Kernels of the GPU with most kernel time, of ``kernels`` each with its GPU; and the number of GPUs."""
    busy = defaultdict[Any, float](float)
    for kernel, gpu, *_ in kernels:
        busy[gpu] += kernel.seconds
    longest = max(busy, key=lambda gpu: busy[gpu])
    return [entry for entry in kernels if entry[1] == longest], len(busy)


def _step_at(moment: float, steps: Sequence[_Host]) -> _Host | None:
    """The last of ``steps``, sorted by their start, that holds ``moment``; None if none does."""
    place = bisect_right(steps, moment, key=lambda step: step.start_s)
    return next((step for step in reversed(steps[max(0, place - 2) : place]) if moment <= step.end_s), None)


def _placed(kernel: Launched, origin: float, launch: _Host | None) -> Launched:
    """``kernel`` with times from ``origin`` on."""
    ended = None if launch is None else launch.end_s - origin
    return Launched(kernel.name, kernel.kind, kernel.start_s - origin, kernel.seconds, kernel.stream, kernel.moved, kernel.blocks, ended)


def repetitions(names: Sequence[str]) -> int:
    """Largest number of equal parts of ``names``: the number of steps in a profile that marks none.

    >>> repetitions(["embed", "mm", "mm", "embed", "mm", "mm"]), repetitions(["embed", "mm", "mm", "mm"])
    (2, 1)
    """
    repeats = gcd(*Counter(names).values())
    parts = (count for count in range(repeats, 1, -1) if len(names) % count == 0)
    return next((count for count in parts if list(names) == list(names[: len(names) // count]) * count), 1)


def _number(value: Any) -> int:
    return int(value) if str(value).lstrip("-").isdigit() else 0


def called(name: str, recorded: Mapping[str, Any]) -> Call:
    """The call of ``name`` that an operator's event records: tensors with shape, strides and format, other arguments as text.

    A collective has its larger buffer and the number of GPUs that take part.
    """
    if "Collective name" in recorded:
        elements = max(_number(recorded.get(f"{way} msg nelems", 0)) for way in ("In", "Out"))
        buffer = Operand((elements,), DTYPES.get(f"c10::{recorded.get('dtype')}", DTYPES.get(str(recorded.get("dtype")).lower(), "")))
        return Call(f"c10d::{recorded['Collective name']}", (buffer, str(recorded.get("Group size", 1))))
    shapes, types = recorded.get("Input Dims", []), recorded.get("Input type", [])
    strides, values = recorded.get("Input Strides", []), recorded.get("Concrete Inputs", [])
    arguments = [
        _argument(shape, types[place] if place < len(types) else "", _at(strides, place, []), _at(values, place, ""))
        for place, shape in enumerate(shapes)
    ]
    return Call(name, tuple(arguments))


_WIDTHS = {"1": "int8", "2": "bf16", "4": "fp32", "8": "int64"}
_FORMAT = re.compile(r"OpaqueType<(\d)u?>|c10::(BFloat16|Half)|\b(double|float|long|int)\b")
_NARROW = re.compile(r"()c10::(BFloat16|Half)()")


def with_lists(call: Call, kernels: Sequence[Launched]) -> Call:
    """``call`` with formats for its lists of tensors, read from the names of its kernels; fp32 if they state none.

    A profile has no sizes of long lists. They become one tensor with the elements that the blocks of the kernels can take.
    """
    if not any(isinstance(argument, tuple) for argument in call.arguments):
        return call
    chunked = "_foreach_" in call.name or "_fused_" in call.name
    names = " ".join(kernel.name.partition("<")[2] for kernel in kernels)
    match = _NARROW.search(names) or _FORMAT.search(names)  # fp32 is what narrower ones are computed in, too
    name = "fp32" if match is None else _WIDTHS.get(match[1]) or {"BFloat16": "bf16", "Half": "fp16"}.get(match[2]) or DTYPES[match[3]]
    size = LIST_CHUNK * sum(kernel.blocks for kernel in kernels)
    arguments = (
        tuple(replace(tensor, dtype=name) for tensor in argument or ((Operand((size,), name),) if chunked else ()))
        if isinstance(argument, tuple)
        else argument
        for argument in call.arguments
    )
    return replace(call, arguments=tuple(arguments))


def _at(values: list[Any], place: int, otherwise: Any) -> Any:
    return values[place] if place < len(values) else otherwise


def _argument(shape: Any, kind: str, strides: Any, value: Any) -> Argument:
    if kind in DTYPES and isinstance(shape, list):
        return Operand(tuple(shape), DTYPES[kind], tuple(strides) if len(strides) == len(shape) else ())
    if kind == "TensorList" and isinstance(shape, list):
        return tuple(Operand(tuple(shape), "", tuple(steps)) for shape, steps in zip(shape, strides or [()] * len(shape), strict=False))
    return str(value) if value != "" else None
