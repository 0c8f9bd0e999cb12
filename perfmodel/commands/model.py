"""A transformer as a sum of kernels: prefill, decode, training."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from perfmodel.commands._command import ExplainedPicture, command, device_for
from perfmodel.core.errors import UsageError
from perfmodel.core.question import EAGER_ENGINE
from perfmodel.transformer.question import ONE_LAYOUT, ModelQuestion

if TYPE_CHECKING:
    from perfmodel.core.hardware import Device
    from perfmodel.report import Report
    from perfmodel.transformer.training.step.estimate import TrainingEstimate
    from perfmodel.transformer.training.step.system import System


class _InTime(ExplainedPicture):
    OFFERS = ("charts", "timeline")


@command
def model(options: ModelQuestion, to: _InTime) -> None:
    """A transformer as a sum of kernels, in every phase, on one GPU or several.

    Example: perfmodel model llama-3-8b --phase decode --batch 8 --kv-len 2048
    """
    from perfmodel.catalog import calibrated_devices, find_engine, find_model
    from perfmodel.core.checks import measured_s
    from perfmodel.report.model import report
    from perfmodel.transformer.answer import answer

    if to.explained:
        ONE_LAYOUT.check("--explain", options)
    if options.engine == EAGER_ENGINE:
        to.emit(_eager(options, to.explained, to.pictures))
        return
    if options.trains:
        to.emit(_training(options, to.explained, to.pictures))
        return
    device = device_for(options.hardware)
    request = options.request_for(find_model(options.name), device)
    if options.engine is not None:
        request = find_engine(options.engine).for_device(device).runs(request)
    attention = _attention_named(options, device)
    if attention is not None:
        request = request.with_attention(attention)
    result = answer(request, cache(calibrated_devices))
    measured = measured_s(options.measured)
    to.emit(report(result, explained=to.explained, pictures=to.pictures, measured_s=measured))


def _attention_named(options: ModelQuestion, device: Device) -> str | None:
    """The implementation of attention that the options name; None if they leave it open; UsageError for an unknown name."""
    name = options.implementation
    if name is None:
        return None
    from perfmodel.catalog import calibrated_devices
    from perfmodel.timing.select_kernel import check_attention
    from perfmodel.transformer.training.implementations import IMPLEMENTATIONS

    if name in IMPLEMENTATIONS:
        raise UsageError(f"--implementation names a kernel of attention; {name} are layers of training", f"give --model-code {name}")
    check_attention(name, device, cache(calibrated_devices))
    return name


def _eager(options: ModelQuestion, explained: bool, pictures: bool) -> Report:
    """The report of a step of Hugging Face's transformers."""
    from perfmodel.catalog import calibrated_devices, find_model, model_fields
    from perfmodel.core.checks import measured_s
    from perfmodel.program.huggingface import answer, training

    if explained:
        raise UsageError(f"--explain has no formulas of what --engine {EAGER_ENGINE} runs", "leave one of them out")
    model, fields = find_model(options.name), model_fields(options.name)
    device, fallbacks = device_for(options.hardware), cache(calibrated_devices)
    if options.trains:
        return _trained(training(options, model, fields, device, fallbacks), options, pictures)
    from perfmodel.report.model import report

    measured = measured_s(options.measured)
    return report(answer(options, model, fields, device, fallbacks), pictures=pictures, measured_s=measured)


def _training(options: ModelQuestion, explained: bool, pictures: bool) -> Report:
    """The report of a training step, or of a search for the fastest layout."""
    from perfmodel.catalog import calibrated_devices, find_model, find_system
    from perfmodel.transformer.training.implementations import FUSED, implementation_named
    from perfmodel.transformer.training.question import timed

    gpus = None if options.search is None else options.check_search()
    model = find_model(options.name)
    system = None if options.system is None else find_system(options.system)
    device = device_for(system.device if options.hardware is None and system is not None else options.hardware)
    half, precision = options.training_formats(device)
    implementation = implementation_named(options.model_code or FUSED).name
    training = options.training(model, precision)
    fallbacks = cache(calibrated_devices)
    overlap = options.overlap is not False
    attention = _attention_named(options, device)
    if gpus is not None:
        from perfmodel.report.layouts import search_report
        from perfmodel.transformer.training.step.layer_time import machine_of
        from perfmodel.transformer.training.step.search import search

        joined = _joined(gpus, device, system)
        layouts = search(timed(training), gpus, machine_of(device, fallbacks, attention), joined, half=half, overlap=overlap)
        return search_report(layouts, pictures)
    from perfmodel.transformer.training.step.estimate import answer

    joined = _joined(timed(training).parallel.gpus, device, system)
    step = answer(training, device, fallbacks, joined, implementation, half=half, overlap=overlap, attention=attention)
    return _trained(step, options, pictures, explained)


def _trained(step: TrainingEstimate, options: ModelQuestion, pictures: bool, explained: bool = False) -> Report:
    """The report of one training step."""
    from perfmodel.core.power import PowerOptions
    from perfmodel.report.train import report
    from perfmodel.transformer.step_power import training_power

    return report(step, explained=explained, pictures=pictures, power=training_power(step, PowerOptions(options.power_limit)))


def _joined(gpus: int, device: Device, system: System | None) -> System | None:
    """The system that joins the GPUs: the one given, the shipped one of the device, or the device's own links."""
    from perfmodel.catalog import system_of
    from perfmodel.transformer.training.step.system import of_device

    if gpus == 1:
        return None
    joined = (system_of(device.id) or of_device(device)) if system is None else system
    return joined.holds(gpus)
