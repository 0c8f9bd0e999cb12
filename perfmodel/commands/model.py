"""A transformer as a sum of kernels: prefill, decode, generation and training, memory, several GPUs."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.commands._model_options import (
    EpOption,
    FusedOption,
    GraphOption,
    KvDtypeOption,
    KvLenOption,
    LengthOption,
    ModelArgument,
    PpOption,
    TpOption,
    WeightsDtypeOption,
    request_for,
)
from perfmodel.commands._shared import (
    Command,
    DtypeOption,
    ExplainOption,
    HardwareOption,
    JsonOption,
    OutputOption,
    check_outputs,
    device_for,
    emit,
    new_app,
)
from perfmodel.commands._train_options import (
    TRAIN,
    CpOption,
    DpOption,
    DropoutOption,
    FlashOption,
    GradientsOption,
    ImplementationOption,
    InterleaveOption,
    LoraOption,
    MicroBatchOption,
    OptimizerOption,
    OverlapOption,
    PrecisionOption,
    RecomputeOption,
    SearchOption,
    Sizes,
    SpOption,
    SystemOption,
    Trained,
    ZeroOption,
    train_report,
)

app = new_app()


@app.command(cls=Command)
def model(
    name: ModelArgument,
    phase: Annotated[str, typer.Option(help="prefill, decode, generate or train. [default: prefill]", show_default=False)] = "prefill",
    batch: Annotated[int, typer.Option(help="Sequences. [default: 1]", show_default=False)] = 1,
    n: LengthOption = None,
    kv_len: KvLenOption = None,
    dtype: DtypeOption = None,
    weights_dtype: WeightsDtypeOption = None,
    kv_dtype: KvDtypeOption = None,
    hardware: HardwareOption = None,
    tp: TpOption = 1,
    pp: PpOption = 1,
    ep: EpOption = 1,
    fused: FusedOption = False,
    graph: GraphOption = None,
    kv_cache: Annotated[
        bool, typer.Option("--kv-cache/--no-kv-cache", help="Keep K and V, or compute all tokens anew. [default: keep]", show_default=False)
    ] = True,
    micro_batch: MicroBatchOption = None,
    precision: PrecisionOption = None,
    optimizer: OptimizerOption = None,
    recompute: RecomputeOption = None,
    flash: FlashOption = None,
    dropout: DropoutOption = None,
    lora: LoraOption = None,
    gradients: GradientsOption = None,
    implementation: ImplementationOption = None,
    zero: ZeroOption = None,
    dp: DpOption = None,
    sp: SpOption = None,
    interleave: InterleaveOption = None,
    cp: CpOption = None,
    overlap: OverlapOption = None,
    system: SystemOption = None,
    search: SearchOption = None,
    explain: ExplainOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """A transformer as a sum of kernels: prefill, decode, generation and training, memory, several GPUs.

    Example: perfmodel model llama-3-8b --phase decode --batch 8 --kv-len 2048
    """
    outputs = check_outputs(output)
    trained = Trained(
        micro_batch,
        precision,
        optimizer,
        recompute,
        flash,
        dropout,
        lora,
        gradients,
        implementation,
        zero,
        dp,
        sp,
        interleave,
        cp,
        overlap,
        system,
        search,
    )
    if phase == TRAIN:
        sizes = Sizes(batch, n, dtype, tp, pp, ep)
        emit(train_report(name, hardware, trained, sizes, explained=explain), json, outputs)
        return
    from functools import cache

    from perfmodel.catalog import calibrated_devices
    from perfmodel.report.model import report
    from perfmodel.transformer.answer import answer

    request = request_for(
        name,
        device_for(hardware),
        phase=phase,
        batch=batch,
        n=n,
        kv_len=kv_len,
        dtype=dtype,
        weights_dtype=weights_dtype,
        kv_dtype=kv_dtype,
        tp=tp,
        pp=pp,
        ep=ep,
        fused=fused,
        graph=graph,
        cached=kv_cache,
    )
    emit(report(answer(request, cache(calibrated_devices)), explained=explain), json, outputs)
