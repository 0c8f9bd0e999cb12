"""Options of ``perfmodel model --phase train`` beside those of inference, and the report that they ask for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from perfmodel.core.hardware import Device
    from perfmodel.report import Report
    from perfmodel.transformer.training.question import Parallel
    from perfmodel.transformer.training.step.system import System

TRAIN = "train"
MOST_GPUS = 10**6
"""Of a search: more take long to be divided in every way, and no system has them."""

MicroBatchOption = Annotated[int | None, typer.Option(help="Training: sequences at a time on one GPU. [default: all of its share]")]
PrecisionOption = Annotated[str | None, typer.Option(help="Training: mixed, bf16 or fp32. [default: mixed]")]
OptimizerOption = Annotated[str | None, typer.Option(help="Training: as perfmodel memory. [default: adam]")]
RecomputeOption = Annotated[str | None, typer.Option(help="Training: none, selective, full or every:K layers. [default: none]")]
FlashOption = Annotated[bool | None, typer.Option("--flash/--no-flash", help="Training: FlashAttention or not. [default: flash]")]
DropoutOption = Annotated[bool | None, typer.Option("--dropout/--no-dropout", help="Training: with dropout. [default: without]")]
LoraOption = Annotated[int | None, typer.Option(help="Training: rank of adapters; all else is frozen. [default: train all]")]
GradientsOption = Annotated[str | None, typer.Option(help="Training: kept as 16bit, fp32 or both. [default: 16bit]")]
ImplementationOption = Annotated[str | None, typer.Option(help="Training: kernels of fused or huggingface. [default: fused]")]
ZeroOption = Annotated[int | None, typer.Option(help="Training: what data-parallel GPUs divide, 0 to 3. [default: 0]")]
DpOption = Annotated[int | None, typer.Option(help="Training: GPUs with a copy each. [default: 1]")]
SpOption = Annotated[bool | None, typer.Option("--sp/--no-sp", help="Training: divide the rest of a layer too. [default: no]")]
InterleaveOption = Annotated[int | None, typer.Option(help="Training: chunks of layers per stage. [default: 1]")]
CpOption = Annotated[int | None, typer.Option(help="Training: GPUs that share each sequence. [default: 1]")]
OverlapOption = Annotated[bool | None, typer.Option("--overlap/--no-overlap", help="Training: exchange beside kernels. [default: yes]")]
SystemOption = Annotated[str | None, typer.Option(help="Training: what joins the GPUs; a name of configs/systems, or a file.")]
SearchOption = Annotated[int | None, typer.Option("--search", metavar="GPUS", help="Training: the fastest layout on so many GPUs.")]


@dataclass(frozen=True, slots=True)
class Trained:
    """The options of training as given; None where they were not."""

    micro_batch: int | None
    precision: str | None
    optimizer: str | None
    recompute: str | None
    flash: bool | None
    dropout: bool | None
    lora: int | None
    gradients: str | None
    implementation: str | None
    zero: int | None
    dp: int | None
    sp: bool | None
    interleave: int | None
    cp: int | None
    overlap: bool | None
    system: str | None
    search: int | None

    def given(self) -> list[str]:
        """Names of the options that were given."""
        return [f"--{field.name.replace('_', '-')}" for field in fields(self) if getattr(self, field.name) is not None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Options that training shares with inference."""

    batch: int
    n: int | None
    dtype: str | None
    tp: int
    pp: int
    ep: int


def train_report(name: str, hardware: str | None, asked: Trained, sizes: Sizes, *, explained: bool) -> Report:
    """The report of a training step, or of a search."""
    from functools import cache

    from perfmodel.catalog import calibrated_devices, find_model
    from perfmodel.transformer.request import default_length
    from perfmodel.transformer.training.checks import recompute_named, timed
    from perfmodel.transformer.training.implementations import FUSED, implementation_named
    from perfmodel.transformer.training.question import MIXED, SIXTEEN_BIT, TrainingConfig

    if asked.search is not None:
        _check_search(asked, sizes)
    model = find_model(name)
    device, system = _machine(hardware, asked.system)
    half, precision = _formats(sizes.dtype, asked.precision, device)
    made = implementation_named(asked.implementation or FUSED).name
    training = TrainingConfig(
        model=model,
        batch=sizes.batch,
        n=default_length(model, TRAIN) if sizes.n is None else sizes.n,
        micro_batch=asked.micro_batch,
        precision=precision or MIXED,
        optimizer=asked.optimizer or "adam",
        recompute=recompute_named(asked.recompute or "none"),
        flash=asked.flash is not False,
        lora=asked.lora,
        dropout=bool(asked.dropout),
        parallel=_parallel(asked, sizes),
        gradients=asked.gradients or SIXTEEN_BIT,
    )
    fallback_devices, overlap = cache(calibrated_devices), asked.overlap is not False
    if asked.search is not None:
        from perfmodel.report.train_search import report as search_report
        from perfmodel.transformer.training.step.layer_time import machine
        from perfmodel.transformer.training.step.search import search

        joined = _joined(asked.search, device, system)
        return search_report(search(timed(training), asked.search, machine(device, fallback_devices), joined, half=half, overlap=overlap))
    from perfmodel.report.train import report
    from perfmodel.transformer.training.step.estimate import answer

    joined = _joined(timed(training).parallel.gpus, device, system)
    return report(answer(training, device, fallback_devices, joined, made, half=half, overlap=overlap), explained=explained)


def _parallel(asked: Trained, sizes: Sizes) -> Parallel:
    from perfmodel.core.errors import UsageError
    from perfmodel.transformer.training.question import Parallel as Laid

    for name in ("dp", "cp", "interleave"):
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} is {value}", "give a whole number of at least 1")
    return Laid(
        tp=sizes.tp,
        sp=bool(asked.sp),
        pp=sizes.pp,
        interleave=asked.interleave or 1,
        cp=asked.cp or 1,
        ep=sizes.ep,
        dp=asked.dp or 1,
        zero=asked.zero or 0,
    )


def _machine(hardware: str | None, system: str | None) -> tuple[Device, System | None]:
    """The device, by default that of the system; the system that was named."""
    from perfmodel.catalog import find_system
    from perfmodel.commands._shared import device_for

    found = None if system is None else find_system(system)
    return device_for(found.device if hardware is None and found is not None else hardware), found


def _formats(dtype: str | None, precision: str | None, device: Device) -> tuple[str, str | None]:
    """Which 16-bit format, and the precision: ``--dtype fp32`` says both."""
    from perfmodel.core.errors import UsageError
    from perfmodel.transformer.training.question import BF16, FP32

    if dtype == FP32 and precision in (None, FP32):
        return "bf16", FP32
    if dtype not in (None, "bf16", "fp16"):
        raise UsageError(f"--dtype {dtype} with --phase train", "give bf16, fp16 or fp32, and --precision for the rest")
    if precision == BF16 and dtype == "fp16":
        raise UsageError("--dtype fp16 with --precision bf16", "leave one of them out")
    known = {**device.peaks.tensor, **device.peaks.vector}
    return dtype or ("bf16" if precision == BF16 or "bf16" in known else "fp16"), precision


def _joined(gpus: int, device: Device, system: System | None) -> System | None:
    """What joins the GPUs: the system that was named, the shipped one of the device, or the device's own links."""
    from perfmodel.catalog import system_of
    from perfmodel.transformer.training.step.system import of_device

    if gpus == 1:
        return None
    found = (system_of(device.id) or of_device(device)) if system is None else system
    return found.holds(gpus)


def _check_search(asked: Trained, sizes: Sizes) -> None:
    from perfmodel.core.checks import whole
    from perfmodel.core.errors import UsageError
    from perfmodel.transformer.training.implementations import HUGGINGFACE

    open_ones = ("--micro-batch", "--recompute", "--zero", "--dp", "--sp", "--interleave", "--cp")
    clash = [option for option in asked.given() if option in open_ones]
    clash += [option for option, value in (("--tp", sizes.tp), ("--pp", sizes.pp), ("--ep", sizes.ep)) if value != 1]
    if clash:
        raise UsageError(f"{clash[0]} is what --search looks for", "leave it out, or leave out --search")
    if asked.implementation == HUGGINGFACE:
        raise UsageError("--search knows the kernels of fused only", "leave out --implementation")
    assert asked.search is not None
    whole("search", asked.search)
    if asked.search > MOST_GPUS:
        raise UsageError(f"--search {asked.search:,}: more GPUs than any system has", f"give at most {MOST_GPUS:,}")
