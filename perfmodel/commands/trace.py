"""A profiled PyTorch program: what can be won, other devices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.commands._command import Pictured, command
from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import Question, argument, option

if TYPE_CHECKING:
    from perfmodel.program.answer import ProgramAnswer


@dataclass(frozen=True, slots=True)
class TraceQuestion(Question):
    """A profile, the device that it was taken on, and other devices to predict."""

    file: str = argument(
        "FILE",
        "What torch.profiler's export_chrome_trace wrote, with record_shapes=True, or perfmodel.capture: .json or .json.gz. Kernels "
        "alone: CSV of ncu, nsys stats (cuda_gpu_trace), rocprof or rocprofv3.",
    )
    hardware: str | None = option("Device that was profiled: id, words of one, or a profile's path. [default: the one it names]")
    on: list[str] | None = option("Another device to predict the program on. Repeatable.")
    compare: str | None = option("Another profile of the same program: which operators got faster or slower.")
    gpu_hour: list[str] | None = option("Price of an hour of a device: DEVICE=PRICE. Repeatable.")


class _TraceOutput(Pictured):
    OFFERS = ("charts", "timeline")


@command
def trace(options: TraceQuestion, to: _TraceOutput) -> None:
    """A profiled PyTorch program: how busy the GPU is, its kernels beside the best known ones, what can be won, other devices.

    Example: perfmodel trace step.json.gz --on b200 --on mi300x -o step.html
    """
    from perfmodel.catalog import find_device
    from perfmodel.report import kernel_trace
    from perfmodel.report.trace import report

    answer = _answer(options.file, options.hardware)
    prices = _prices(options.gpu_hour or ())
    other = None if options.compare is None else _answer(options.compare, options.hardware)
    named_devices = [find_device(name, "--on") for name in options.on or ()]
    devices = {device.id: device for device in named_devices}
    without_prediction = sorted(set(prices) - set(devices))
    if without_prediction:
        device_id = without_prediction[0]
        raise UsageError(f"--gpu-hour {device_id}: the program is not predicted there", f"add --on {device_id}")
    if other is not None and bool(other.profile.tool) != bool(answer.profile.tool):
        raise UsageError(
            "--compare: one of both files has operators, the other kernels alone", "give two of torch.profiler, or two without"
        )
    if answer.profile.tool:
        if devices:
            raise UsageError(f"--on: {options.file} has kernels alone, nothing is predicted of them", "profile with torch.profiler")
        to.emit(kernel_trace.report(answer, options.file, other, options.compare or "", pictures=to.pictures))
        return
    on_devices = [answer.on(device) for device in devices.values()]
    to.emit(report(answer, options.file, on_devices, prices, other, options.compare or "", pictures=to.pictures))


def _answer(file: str, hardware: str | None) -> ProgramAnswer:
    """The answer for a profile or a captured program on ``hardware``, by default the device that the profile names."""
    from perfmodel.catalog import calibrated_devices, find_device
    from perfmodel.program.answer import ProgramAnswer, captured_answer
    from perfmodel.program.capture import captured
    from perfmodel.program.kernel_files import read_kernel_profile
    from perfmodel.program.profile import read
    from perfmodel.validation.cuda.gpu import profile_of

    no_device = UsageError(f"{file} names no device", "say which one it was taken on: --hardware h200")
    program = captured(Path(file))
    if program is not None:
        if not hardware:
            raise no_device
        return captured_answer(program, find_device(hardware), calibrated_devices)
    profile = read_kernel_profile(Path(file)) or read(Path(file))
    name = hardware or None
    if name is None and profile.device:
        name = profile_of(profile.device)
    if name is None:
        raise no_device
    return ProgramAnswer(profile, find_device(name), calibrated_devices)


def _prices(texts: Iterable[str]) -> dict[str, float]:
    """Price of an hour by device id; UsageError for a text that states none."""
    from perfmodel.catalog import find_device

    prices = {}
    for text in texts:
        name, is_given, price = text.rpartition("=")
        value = float(price) if re.fullmatch(r"\d+(\.\d+)?", price) else None
        if not is_given or value is None:
            raise UsageError(f"--gpu-hour {text!r} is no price of a device", "write it like h200=3.5")
        prices[find_device(name, "--gpu-hour").id] = value
    return prices
