"""Captured programs: the operators of a step, recorded without a GPU, saved to a file, and turned into a profile of predicted times."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from perfmodel.core.arith import ceil_div
from perfmodel.core.errors import DataError, PerfmodelError, UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.program.calls import LIST_CHUNK, Argument, Call, Operand, UnknownError
from perfmodel.program.launched import SMALL_EMBEDDING
from perfmodel.program.operators import counted
from perfmodel.program.price import operator_prediction
from perfmodel.program.profile import LATEST_S, Launched, Operator, ProgramProfile, opened
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer.op_time import op_estimate

SCHEMA = "perfmodel.operators/1"
MOST_CHARACTERS = 1 << 28
"""Most characters of a captured program."""
Ends = tuple[float, float, float]
"""Low end, usual value and high end of an interval."""
LAUNCH_S = (20e-6, 28e-6, 50e-6)
"""Seconds of the host per launch in PyTorch, with Python's part: least, median and most over models measured with an H200."""
PLAN_S = (35e-3, 44e-3, 63e-3)
"""Seconds in which the host plans cuDNN's attention of sizes that are new: least, median and most of five decode steps in PyTorch 2.11."""
REPEAT_S = (1.2e-3, 1.7e-3, 2.3e-3)
"""Seconds of the host for a checkpoint that runs its forward pass again, besides launches: its random states and hooks on saved tensors.
Least, usual and most of steps of GPT-2 that wait for the host, in PyTorch 2.11 beside an H200."""


@dataclass(frozen=True, slots=True)
class Captured:
    """The calls of one step that launch kernels, in order, and the bytes of tensors at the peak and before the step.

    ``launch_s``: seconds of the host per launch. Places in ``calls``: ``planned``, of attention that cuDNN plans in this step, as no step
    before had its sizes; ``repeated``, where a checkpoint begins to run its forward pass again; ``backward_places``, where the last
    backward pass begins and ends, (0, 0) without one.
    """

    calls: list[Call] = field(repr=False)
    peak_bytes: int
    before_bytes: int
    launch_s: Ends = LAUNCH_S
    planned: list[int] = field(default_factory=list, repr=False)
    repeated: list[int] = field(default_factory=list, repr=False)
    backward_places: tuple[int, int] = (0, 0)

    @property
    def launches(self) -> int:
        """Number of kernels, copies and fills that the host launches."""
        return sum(map(launches, self.calls))

    def save(self, path: str | Path) -> None:
        """Writes the file that ``perfmodel trace`` reads: JSON, compressed if ``path`` ends in .gz."""
        numbers = {call: number for number, call in enumerate(dict.fromkeys(self.calls))}
        content = {
            "schema": SCHEMA,
            "peak_bytes": self.peak_bytes,
            "before_bytes": self.before_bytes,
            "launch_s": self.launch_s,
            "operators": [[call.name, *map(_written, call.arguments)] for call in numbers],
            "calls": [numbers[call] for call in self.calls],
            "planned": self.planned,
            "repeated": self.repeated,
            "backward_places": self.backward_places,
        }
        text = json.dumps(content).encode()
        Path(path).write_bytes(gzip.compress(text, mtime=0) if str(path).endswith(".gz") else text)


def capture(function: Callable[..., Any], *inputs: Any, warm_up: int = 1, launch_us: float | None = None) -> Captured:
    """What ``function(*inputs)`` launches on a GPU and how much memory it takes, without one: a PyTorch program on fake tensors.

    ``function`` is a module, or any function that runs a step: forward, backward and ``optimizer.step()``. Modules, optimizers and tensors
    that it refers to, on the CPU or without values (device "meta"), count as CUDA ones meanwhile; caches that it fills hold fake tensors
    afterwards. ``warm_up``: calls before the one that counts, for the state that they leave. ``launch_us``: what the host takes for a
    launch, 20 to 50 us if it is not given. UsageError if the program asks for a tensor's value, or without PyTorch.

    ``perfmodel.capture(model, tokens).save("step.json")`` writes what ``perfmodel trace step.json --hardware h200`` reads.
    """
    try:
        from perfmodel.program.recorder import ProgramRecorder
    except ImportError as error:
        raise UsageError(f"capture needs PyTorch ({error})", "pip install 'perfmodel[torch]'; a build without CUDA is enough") from None
    recorder = ProgramRecorder()
    recorder.record(function, inputs, warm_up)
    launch_s = LAUNCH_S if launch_us is None else (launch_us * 1e-6,) * 3
    return Captured(recorder.calls, recorder.peak, recorder.before, launch_s, recorder.planned, recorder.repeated, recorder.backward_places)


def _written(argument: Argument) -> Any:
    if isinstance(argument, Operand):
        return {"shape": argument.shape, "dtype": argument.dtype, "strides": argument.strides}
    return list(map(_written, argument)) if isinstance(argument, tuple) else argument


def captured(path: Path) -> Captured | None:
    """The captured program in ``path``; None if the file holds something else, DataError if it is broken."""
    try:
        with opened(path) as file:
            head = file.read(100)
            text = head + file.read(MOST_CHARACTERS) if SCHEMA in head else ""
    except (DataError, OSError, EOFError, zlib.error, UnicodeDecodeError):
        return None  # the file is then read as a profile, whose reader says what is wrong
    if not text:
        return None
    try:
        content = json.loads(text)
        operators = [Call(str(name), tuple(map(_argument, arguments))) for name, *arguments in content["operators"]]
        calls = [operators[number] for number in content["calls"]]
        least_s, usual_s, most_s = map(float, content["launch_s"])
        if not all(0 <= seconds < LATEST_S for seconds in (least_s, usual_s, most_s)):
            raise ValueError("a time that cannot be")
        begin, end = map(int, content.get("backward_places", (0, 0)))
        return Captured(
            calls,
            int(content["peak_bytes"]),
            int(content["before_bytes"]),
            (least_s, usual_s, most_s),
            planned=list(map(int, content.get("planned", ()))),
            repeated=list(map(int, content.get("repeated", ()))),
            backward_places=(begin, end),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError):
        raise DataError(f"{path} is cut off or no captured program", "write it again with perfmodel.capture(...).save") from None


def _argument(written: Any) -> Argument:
    if isinstance(written, Mapping):
        return Operand(tuple(map(int, written["shape"])), str(written["dtype"]), tuple(map(int, written["strides"])))
    if isinstance(written, list):
        return tuple(tensor for part in written if isinstance(tensor := _argument(part), Operand))
    return None if written is None else str(written)


# Kernels of a call


LAUNCHES = {
    **{"addmm": 2, "sum": 2, "native_layer_norm_backward": 2, "native_batch_norm": 3, "embedding_dense_backward": 29},
    **{"_cudnn_attention_forward": 2, "_cudnn_attention_backward": 4, "cudnn_convolution": 3, "convolution_backward": 6},
}
"""Number of kernels and fills of operators that launch several, from profiles of an H200."""
KERNEL_GAP_S = 1.5e-6
"""Seconds between two kernels that were both launched in time."""
LIST_BLOCKS, LIST_TENSORS = 320, (110, 64, 48, 36, 30)
"""Most blocks of a kernel over lists of tensors, and most tensors of one by the number of lists:
aten/src/ATen/native/cuda/MultiTensorApply.cuh."""


def launches(call: Call) -> int:
    """Number of kernels, copies and fills that ``call`` launches."""
    name, lists = call.name.removeprefix("aten::"), [argument for argument in call.arguments if isinstance(argument, tuple)]
    if name.startswith("_foreach_") and lists:
        list_count = min(len(lists) + (not name.endswith("_")), len(LIST_TENSORS))  # an operator not in place has a list of results
        blocks = sum(ceil_div(tensor.elements, LIST_CHUNK) for tensor in lists[0])
        return int(max(ceil_div(blocks, LIST_BLOCKS), ceil_div(len(lists[0]), LIST_TENSORS[list_count - 1])))
    if name == "addmm" and call.tensor(1).dtype == "fp32":
        return 1
    if name == "embedding_dense_backward" and call.tensor(1).elements <= SMALL_EMBEDDING:
        return 1
    return LAUNCHES.get(name, 1)


# Predicted times


def predicted_profile(program: Captured, device: Device, fallbacks: FallbackDevices) -> tuple[ProgramProfile, tuple[float, float]]:
    """The step on ``device`` as a profile of predicted times, and the ends of the interval of its seconds."""
    program = replace(program, planned=program.planned if plans_attention(device) else [])
    low, usual, high = timelines(program, {call: _seconds(call, device, fallbacks) for call in dict.fromkeys(program.calls)})
    return usual, (low.span_s, high.span_s)


def plans_attention(device: Device) -> bool:
    """Whether PyTorch takes cuDNN's attention on ``device``: on Hopper and on Blackwell of data centres."""
    return device.capability in (9.0, 10.0)


def timelines(program: Captured, seconds: Mapping[Call, Ends]) -> list[ProgramProfile]:
    """The step with kernels of these ``seconds`` per call, 0 for a call that is not in it: at the low end, as usual, at the high end."""
    return [_timeline(program, {call: ends[end] for call, ends in seconds.items()}, end) for end in range(3)]


def _seconds(call: Call, device: Device, fallbacks: FallbackDevices) -> Ends:
    """Low end, time and high end of a call in seconds: its lower bound if nothing is predicted, 0 if its work is unknown."""
    low = seconds = high = 0.0
    try:
        for op in counted(call):
            try:
                prediction = operator_prediction(op, op_estimate(op, device), device, fallbacks)
                low, seconds, high = low + prediction.low, seconds + prediction.seconds, high + prediction.high
            except PerfmodelError:
                bound = float(op_estimate(op, device).lower_warm_s)
                low, seconds, high = low + bound, seconds + bound, high + bound
    except UnknownError:
        pass
    return low, seconds, high


def _timeline(program: Captured, seconds: Mapping[Call, float], end: int) -> ProgramProfile:
    """Kernels one after another, each at the earliest when the host has launched it. ``end``: place in ``Ends`` of the host's times."""
    planned, repeated = set(program.planned), set(program.repeated)
    operators: list[Operator] = []
    host_s = device_s = 0.0  # when the host has launched the kernel, and when the device has run it
    for place, call in enumerate(program.calls):
        if place in planned:
            host_s += PLAN_S[end]
        if place in repeated:
            host_s += REPEAT_S[end]
        count = launches(call)
        kernels = []
        for _ in range(count):
            host_s += program.launch_s[end]
            start, length = max(device_s + KERNEL_GAP_S, host_s), seconds.get(call, 0.0) / count
            kernels.append(Launched("", "kernel", start, length, 0, launched_s=host_s))
            device_s = start + length
        operators.append(Operator(call, kernels))
    return ProgramProfile("", 1, device_s, operators)
