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
from itertools import zip_longest
from math import gcd, inf, prod
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

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
"""Categories of events on the device."""
STEP = re.compile(r"^ProfilerStep#\d+$")
"""Names of events that mark a step."""
CHUNK = 1 << 22
"""Characters that are read at a time."""
LONGEST_EVENT = 1 << 26
"""Most characters of an event; a longer one is an error."""
_WRITTEN = "give what torch.profiler's export_chrome_trace wrote"


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel, copy or fill on the device; times in seconds from the start of the profile.

    ``moved``: bytes of a copy or fill. ``blocks``: blocks of its grid, 0 if unknown. ``launched_s``: end of the host's launch, None if
    unknown.
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
    """A call and the kernels that it launched; ``graph``: a CUDA graph launched them."""

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
        end = new_end = self.kernels[0].start_s if self.operators else 0.0  # of the kernels so far, as measured and as replayed
        first, shift, queued_s = end, 0.0, 0.0
        for kernel in self.kernels:
            host_was_late = kernel.launched_s is not None and kernel.launched_s >= end
            if host_was_late and queued_s > QUEUED_S:
                shift = new_end - end
            start = max(new_end, kernel.start_s + shift) if host_was_late else new_end + (kernel.start_s - end)
            queued_s = 0.0 if kernel.launched_s is None else kernel.start_s - kernel.launched_s
            new_end = max(new_end, start + lengths.get(id(kernel), kernel.seconds))
            end = max(end, kernel.start_s + kernel.seconds)
        return new_end - first


QUEUED_S = 50e-6
"""A kernel that waited longer than this was queued: the host was ahead."""


def read(path: Path) -> ProgramProfile:
    """The profile in ``path``, a .json or .json.gz file; DataError if it is no profile."""
    head: dict[str, Any] = {}
    return _profile(events(path, head), head, path)


def events(path: Path, head: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the events of ``path``; the other keys of the file go into ``head``."""
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
    decoder, number = json.JSONDecoder(), 0
    text, place = _list_begin(file, head, path)
    while True:
        separator = _SEPARATOR.match(text, place)
        place = separator.end() if separator else place
        if text.startswith("]", place):
            _read_object("{" + (text[place + 1 :] + file.read(CHUNK)).lstrip("\n\r\t ,"), head)
            return
        try:
            event, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError:
            piece = file.read(CHUNK)
            if not piece or len(text) - place > LONGEST_EVENT:
                raise DataError(f"{path} is cut off or broken at event {number + 1:,}", "write the profile again") from None
            text, place = text[place:] + piece, 0
            continue
        except (RecursionError, ValueError):
            raise DataError(f"{path}: event {number + 1:,} is nested too deep or holds a number of too many digits", _WRITTEN) from None
        number += 1
        if isinstance(event, dict):
            yield event


_SEPARATOR = re.compile(r"[\s,]*")


def _list_begin(file: TextIO, head: dict[str, Any], path: Path) -> tuple[str, int]:
    """(first piece of text, place where the list of events begins in it); keys before them go into ``head``."""
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
    """Puts the keys of ``text`` into ``head`` if it is a JSON object."""
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
    """Events by kind; operators and launches by the ids that kernels refer to. ``shared`` holds each name and each call once."""

    operators: dict[Any, _Host] = field(default_factory=dict)
    launches: dict[Any, _Host] = field(default_factory=dict)
    steps: list[_Host] = field(default_factory=list)
    kernels: list[_KernelEvent] = field(default_factory=list)
    shared: dict[Any, Any] = field(default_factory=dict)


class _KernelEvent(NamedTuple):
    """A kernel, its GPU, and the ids of the launch and of the operator that it belongs to."""

    kernel: Launched
    gpu: Any
    launch_id: Any
    operator_id: Any


LATEST_S = 1e12
"""Largest time in seconds that a profile may state."""
LAUNCHES = ("cuda_runtime", "cuda_driver")
NO_OPERATOR = object()
"""Id of the operator of a kernel that names none."""
_READ = frozenset({*ON_DEVICE, *LAUNCHES, "cpu_op", "user_annotation"})
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""Errors that events raise which are not as torch writes them."""


def _profile(event_dicts: Iterable[dict[str, Any]], head: Mapping[str, Any], path: Path) -> ProgramProfile:
    events = _Events()
    for number, event in enumerate(event_dicts, 1):
        try:
            _sort(event, events)
        except _MALFORMED:
            where = f"event {number:,}, {str(event.get('name', event))[:60]!r},"
            raise DataError(f"{path}: {where} lacks a time, a length or its arguments, or has one that cannot be", _WRITTEN) from None
    if not events.kernels:
        raise DataError(f"{path}: no kernel of a GPU is in it", "profile with ProfilerActivity.CUDA beside ProfilerActivity.CPU")
    try:
        return _linked(events, head)
    except _MALFORMED as error:
        raise DataError(f"{path}: an event is not as torch writes it ({error})", _WRITTEN) from None


def _sort(event: dict[str, Any], events: _Events) -> None:
    """Adds ``event`` to ``events`` if it is of a kind that counts."""
    kind = event.get("cat")
    if event.get("ph") != "X" or kind not in _READ:
        return
    start, length = float(event["ts"]) * 1e-6, float(event["dur"]) * 1e-6
    if not (0 <= length < LATEST_S and abs(start) < LATEST_S):
        raise ValueError("a time that cannot be")
    name = events.shared.setdefault(str(event["name"]), str(event["name"]))
    if kind in ON_DEVICE:
        arguments = event["args"]
        moved, blocks = int(arguments.get("bytes") or 0), prod(arguments.get("grid") or (0,))
        kernel = Launched(name, kind, start, length, _number(arguments.get("stream", 0)), moved, blocks)
        launch_id, operator_id = arguments.get("correlation"), arguments.get("External id", NO_OPERATOR)
        events.kernels.append(_KernelEvent(kernel, arguments.get("device", 0), launch_id, operator_id))
        return
    arguments, host = event.get("args", {}), _Host(name, start, start + length)
    if kind == "cpu_op":
        call = called(name, arguments)
        host.call = events.shared.setdefault(call, call)
        events.operators[arguments.get("External id")] = host
    elif kind in LAUNCHES:
        events.launches[arguments.get("correlation")] = host
    elif STEP.match(name):
        events.steps.append(host)


def _linked(events: _Events, head: Mapping[str, Any]) -> ProgramProfile:
    """The profile of all kernels that were launched in a step, each with the operator that launched it."""
    operators: dict[int, Operator] = {}
    step_ids: set[int] = set()
    graphs, first_start, last_end = 0, inf, -inf
    kernels, gpus = busiest(events.kernels)
    origin = min(event.kernel.start_s for event in kernels)
    steps = sorted(events.steps, key=lambda step: step.start_s)
    for event in sorted(kernels, key=lambda event: event.kernel.start_s):
        launch, host = events.launches.get(event.launch_id), events.operators.get(event.operator_id)
        cause = host or launch
        step = None if cause is None else _step_at(cause.start_s, steps)
        if steps and cause and step is None:
            continue
        if step is not None:
            step_ids.add(id(step))
        launched_s = None if launch is None else launch.end_s - origin
        kernel = replace(event.kernel, start_s=event.kernel.start_s - origin, launched_s=launched_s)
        first_start, last_end = min(first_start, kernel.start_s), max(last_end, kernel.start_s + kernel.seconds)
        in_graph = launch is not None and "GraphLaunch" in launch.name
        graphs += in_graph
        operator_host = None if in_graph else host
        key = id(kernel) if operator_host is None else id(operator_host)
        if key not in operators:
            call = operator_host.call if operator_host is not None and operator_host.call else Call("", ())
            operators[key] = Operator(call, [], in_graph)
        operators[key].kernels.append(kernel)
    if not operators:  # the steps hold none of the kernels
        return _linked(replace(events, steps=[]), head)
    for operator in operators.values():
        operator.call = with_lists(operator.call, operator.kernels)
    properties = [entry for entry in head.get("deviceProperties") or [] if isinstance(entry, dict)]
    device = str(properties[0].get("name", "")) if properties else ""
    count = len(step_ids) or repetitions([operator.call.name or operator.kernels[0].name for operator in operators.values()])
    return ProgramProfile(device, count, last_end - first_start, list(operators.values()), graphs, gpus)


OnGpu = TypeVar("OnGpu", bound=tuple[Any, ...])
"""A tuple that begins with a kernel and its GPU."""


def busiest(kernels: Sequence[OnGpu]) -> tuple[list[OnGpu], int]:
    """(those of ``kernels`` on the GPU with most kernel time, number of GPUs)."""
    busy_s = defaultdict[Any, float](float)
    for kernel, gpu, *_ in kernels:
        busy_s[gpu] += kernel.seconds
    busiest_gpu = max(busy_s, key=lambda gpu: busy_s[gpu])
    return [entry for entry in kernels if entry[1] == busiest_gpu], len(busy_s)


def _step_at(moment: float, steps: Sequence[_Host]) -> _Host | None:
    """The last of ``steps``, sorted by their start, that holds ``moment``; None if none does."""
    begun = bisect_right(steps, moment, key=lambda step: step.start_s)
    return next((step for step in reversed(steps[max(0, begun - 2) : begun]) if moment <= step.end_s), None)


def repetitions(names: Sequence[str]) -> int:
    """Largest number of equal parts of ``names``: the number of steps in a profile that marks none.

    >>> repetitions(["embed", "mm", "mm", "embed", "mm", "mm"]), repetitions(["embed", "mm", "mm", "mm"])
    (2, 1)
    """
    names = list(names)
    for count in range(gcd(*Counter(names).values()), 1, -1):
        if len(names) % count == 0 and names == names[: len(names) // count] * count:
            return count
    return 1


def _number(value: Any) -> int:
    """The whole number that ``value`` is or states; 0 if it is none."""
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
    described = zip_longest(shapes, types[: len(shapes)], strides[: len(shapes)], values[: len(shapes)])
    return Call(name, tuple(_argument(shape, kind or "", its_strides or [], value) for shape, kind, its_strides, value in described))


_OPAQUE = {"1": "int8", "2": "bf16", "4": "fp32", "8": "int64"}
"""Formats taken for opaque types, by their bytes."""
_FORMAT = re.compile(r"OpaqueType<(\d)u?>|c10::(?:BFloat16|Half)|\b(?:double|float|long|int)\b")
_NARROW = re.compile(r"c10::(?:BFloat16|Half)")


def with_lists(call: Call, kernels: Sequence[Launched]) -> Call:
    """``call`` with formats for its lists of tensors, read from the names of its kernels; fp32 if they state none.

    A profile has no sizes of long lists. They become one tensor with the elements that the blocks of the kernels can take.
    """
    if not any(isinstance(argument, tuple) for argument in call.arguments):
        return call
    dtype = _format_in(" ".join(kernel.name.partition("<")[2] for kernel in kernels))
    elements = LIST_CHUNK * sum(kernel.blocks for kernel in kernels)
    is_chunked = "_foreach_" in call.name or "_fused_" in call.name
    unlisted = (Operand((elements,), dtype),) if is_chunked else ()
    arguments = [
        tuple(replace(tensor, dtype=dtype) for tensor in argument or unlisted) if isinstance(argument, tuple) else argument
        for argument in call.arguments
    ]
    return replace(call, arguments=tuple(arguments))


def _format_in(names: str) -> str:
    """The format that template arguments name: a 16-bit one first, as fp32 beside it is what it is computed in; fp32 if there is none."""
    match = _NARROW.search(names) or _FORMAT.search(names)
    if match is None:
        return "fp32"
    return DTYPES.get(match[0]) or _OPAQUE.get(match[1]) or "fp32"


def _argument(shape: Any, kind: str, strides: Any, value: Any) -> Argument:
    """The argument that an event records by shape, type, strides and, if it is no tensor, its ``value`` as text."""
    if kind in DTYPES and isinstance(shape, list):
        return Operand(tuple(shape), DTYPES[kind], tuple(strides) if len(strides) == len(shape) else ())
    if kind == "TensorList" and isinstance(shape, list):
        return tuple(Operand(tuple(shape), "", tuple(steps)) for shape, steps in zip(shape, strides or [()] * len(shape), strict=False))
    return None if value is None or value == "" else str(value)
