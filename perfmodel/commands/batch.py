"""Throughput and latency of decode against the batch: the knee, what bounds each side, where memory ends."""

from __future__ import annotations

from perfmodel.commands._model_options import (
    EpOption,
    FusedOption,
    GraphOption,
    KvDtypeOption,
    KvLenOption,
    ModelArgument,
    PpOption,
    TpOption,
    WeightsDtypeOption,
    request_for,
)
from perfmodel.commands._shared import (
    Command,
    DtypeOption,
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
def batch(
    name: ModelArgument,
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
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Throughput and latency of decode against the batch: the knee, what bounds each side, where memory ends.

    Example: perfmodel batch llama-3-8b --kv-len 2048 --hardware h200
    """
    outputs = check_outputs(output)
    from functools import cache

    from perfmodel.catalog import calibrated_devices
    from perfmodel.report.batch import report
    from perfmodel.transformer.batch import curve
    from perfmodel.transformer.step import DECODE

    request = request_for(
        name,
        device_for(hardware),
        phase=DECODE,
        batch=1,
        n=None,
        kv_len=kv_len,
        dtype=dtype,
        weights_dtype=weights_dtype,
        kv_dtype=kv_dtype,
        tp=tp,
        pp=pp,
        ep=ep,
        fused=fused,
        graph=graph,
    )
    emit(report(curve(request, cache(calibrated_devices))), json, outputs)
