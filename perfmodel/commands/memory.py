"""Memory of training a transformer: weights, gradients, optimizer state, activations by tensor, and the peak with its moment."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.commands._model_options import EpOption, ModelArgument, PpOption, TpOption
from perfmodel.commands._shared import (
    Command,
    ExplainOption,
    HardwareOption,
    JsonOption,
    OutputOption,
    check_outputs,
    device_for,
    emit,
    new_app,
)

app = new_app()


@app.command(cls=Command)
def memory(
    name: ModelArgument,
    batch: Annotated[int, typer.Option(help="Sequences of a step on all GPUs. [default: 1]", show_default=False)] = 1,
    n: Annotated[int | None, typer.Option(help="Tokens of a sequence. [default: 2048, or what the model takes at most]")] = None,
    micro_batch: Annotated[int | None, typer.Option(help="Sequences at a time on one GPU. [default: all of its share]")] = None,
    precision: Annotated[str, typer.Option(help="mixed, bf16 or fp32. [default: mixed]", show_default=False)] = "mixed",
    optimizer: Annotated[
        str, typer.Option(help="adam, adamw, sgd, momentum, adafactor, adam8bit, lion or muon. [default: adam]", show_default=False)
    ] = "adam",
    recompute: Annotated[str, typer.Option(help="none, selective, full or every:K layers. [default: none]", show_default=False)] = "none",
    flash: Annotated[
        bool, typer.Option("--flash/--no-flash", help="FlashAttention, or scores in memory. [default: flash]", show_default=False)
    ] = True,
    dropout: Annotated[
        bool, typer.Option("--dropout/--no-dropout", help="Keep masks of dropout. [default: none]", show_default=False)
    ] = False,
    lora: Annotated[int | None, typer.Option(help="Rank of adapters; all else is frozen. [default: train all]")] = None,
    lora_targets: Annotated[
        str | None, typer.Option(help="Matrices with adapters: all, attention or qv. [default: all]", show_default=False)
    ] = None,
    gradients: Annotated[
        str, typer.Option(help="Kept in mixed precision: 16bit, fp32 or both. [default: 16bit]", show_default=False)
    ] = "16bit",
    gradient_life: Annotated[
        str, typer.Option(help="freed after a step, kept, or applied one by one. [default: freed]", show_default=False)
    ] = "freed",
    fused_optimizer: Annotated[
        bool, typer.Option("--fused-optimizer/--foreach", help="One kernel, or temporary copies. [default: fused]", show_default=False)
    ] = True,
    implementation: Annotated[str, typer.Option(help="What is kept: fused or huggingface. [default: fused]", show_default=False)] = "fused",
    zero: Annotated[int, typer.Option(help="What data-parallel GPUs divide: 0 to 3. [default: 0]", show_default=False)] = 0,
    dp: Annotated[int, typer.Option(help="GPUs with a copy each. [default: 1]", show_default=False)] = 1,
    tp: TpOption = 1,
    sp: Annotated[bool, typer.Option("--sp/--no-sp", help="Divide the rest of a layer too. [default: no]", show_default=False)] = False,
    pp: PpOption = 1,
    interleave: Annotated[int, typer.Option(help="Chunks of layers per stage. [default: 1]", show_default=False)] = 1,
    cp: Annotated[int, typer.Option(help="GPUs that share each sequence. [default: 1]", show_default=False)] = 1,
    ep: EpOption = 1,
    hardware: HardwareOption = None,
    explain: ExplainOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Memory of training a transformer: weights, gradients, optimizer state, activations by tensor, and the peak with its moment.

    Example: perfmodel memory llama-3-8b --batch 8 --n 4096 --dp 8 --zero 3 --recompute full
    """
    outputs = check_outputs(output)
    from perfmodel.catalog import find_model
    from perfmodel.report.memory import report
    from perfmodel.transformer.request import TRAIN, default_length
    from perfmodel.transformer.training.checks import recompute_named
    from perfmodel.transformer.training.memory import evaluate
    from perfmodel.transformer.training.question import ALL, Parallel, TrainingConfig

    model = find_model(name)
    training = TrainingConfig(
        model=model,
        batch=batch,
        n=default_length(model, TRAIN) if n is None else n,
        micro_batch=micro_batch,
        precision=precision,
        optimizer=optimizer,
        recompute=recompute_named(recompute),
        flash=flash,
        lora=lora,
        dropout=dropout,
        parallel=Parallel(tp, sp, pp, interleave, cp, ep, dp, zero),
        gradients=gradients,
        gradient_life=gradient_life,
        lora_targets=ALL if lora_targets is None else lora_targets,
        fused_optimizer=fused_optimizer,
    )
    emit(report(evaluate(training, device_for(hardware), implementation), explained=explain), json, outputs)
