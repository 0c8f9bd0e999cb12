"""Compare standard attention with FlashAttention: FLOP, IO, bound and roofline."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.commands._shared import (
    OFFERS,
    Command,
    DtypeOption,
    ExplainOption,
    HardwareOption,
    ImplementationOption,
    JsonOption,
    PictureOption,
    check_outputs,
    device_for,
    emit,
    new_app,
    pictured,
)

app = new_app()


@app.command(cls=Command)
def attention(
    n: Annotated[int | None, typer.Option(help="Query length; also the key length unless --kv-len is given.")] = None,
    d: Annotated[int | None, typer.Option(help="Head dim of Q and K; also of V unless --dv is given.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences. [default: 1]")] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads. [default: 1]")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Key/value heads (GQA, MQA). [default: heads]")] = None,
    kv_len: Annotated[int | None, typer.Option(help="Key/value length. [default: n]")] = None,
    dv: Annotated[int | None, typer.Option(help="Head dim of V and O. [default: d]")] = None,
    dtype: DtypeOption = None,
    causal: Annotated[bool | None, typer.Option("--causal/--no-causal", help="Causal mask, aligned bottom right.")] = None,
    direction: Annotated[str | None, typer.Option("--pass", help="forward, backward or both. [default: forward]")] = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            help="standard, flash1, flash2 (flash), block-sparse, memory-efficient, split-kv or all. Repeatable. [default: standard, flash]"
        ),
    ] = None,
    mask: Annotated[
        bool | None, typer.Option("--mask/--no-mask", help="Additive n x kv-len mask, an input, broadcast over batch and heads.")
    ] = None,
    masked_fill: Annotated[
        bool | None,
        typer.Option("--masked-fill/--fused-causal", help="The causal mask as a kernel of its own: PyTorch's masked_fill."),
    ] = None,
    dropout: Annotated[float | None, typer.Option(help="Dropout probability on P. [default: 0]")] = None,
    unfused_scale: Annotated[bool | None, typer.Option("--unfused-scale/--fused-scale", help="1/sqrt(d) in a kernel of its own.")] = None,
    printed_backward: Annotated[
        bool | None,
        typer.Option("--printed-backward/--minimal-backward", help="flash2 backward loads as Algorithm 2 prints them."),
    ] = None,
    block_q: Annotated[int | None, typer.Option(help="Tile rows B_r. [default: the kernel's]")] = None,
    block_kv: Annotated[int | None, typer.Option(help="Tile columns B_c. [default: the kernel's]")] = None,
    sram: Annotated[
        list[str] | None,
        typer.Option(help="SRAM per block M, such as 163KiB. Repeated, or as +64KiB, compares sizes. [default: the device's]"),
    ] = None,
    packed: Annotated[
        bool | None,
        typer.Option("--packed/--unpacked", help="Read K, V once per KV head / query head. [default: packed if n is 1]"),
    ] = None,
    window: Annotated[int | None, typer.Option(help="Sliding window: a query sees its last W keys; implies --causal.")] = None,
    splits: Annotated[int | None, typer.Option(help="Parts of the keys in split-kv. [default: FlashAttention-2's heuristic]")] = None,
    sparsity: Annotated[float | None, typer.Option(help="Share of nonzero blocks for block-sparse, such as 0.25.")] = None,
    pattern: Annotated[
        str | None,
        typer.Option(help="Nonzero blocks of --block-q x --block-kv, or 128 x 128: local-global, strided, butterfly, or a file."),
    ] = None,
    config: Annotated[str | None, typer.Option(help="Take options from a shipped configuration or a YAML file.")] = None,
    hardware: HardwareOption = None,
    implementation: ImplementationOption = None,
    crossover: Annotated[bool, typer.Option("--crossover", help="Find the N, d and M at which tiling stops paying.")] = False,
    explain: ExplainOption = False,
    json: JsonOption = False,
    output: PictureOption = None,
) -> None:
    """Compare standard attention with FlashAttention: FLOP, IO, bound, roofline and predicted time.

    Counts are exact totals over batch and heads. Example: perfmodel attention --n 4096 --d 64 --heads 16 --batch 8
    """
    given = {
        name: value
        for name, value in locals().items()
        if name not in ("config", "implementation", "crossover", "explain", "json", "output")
    }
    outputs = check_outputs(output, OFFERS)
    from perfmodel.catalog import calibrated_devices, load_config
    from perfmodel.kernels.attention.request import AttentionRequest
    from perfmodel.report.attention import report
    from perfmodel.timing.select_kernel import answered

    request = load_config(config, "attention", AttentionRequest) if config else AttentionRequest()
    request = request.updated(given)
    comparison = request.compare(device_for(request.hardware))
    comparison, known, missing = answered(comparison, implementation, calibrated_devices)
    found = report(comparison, predictions=known, unpredicted=missing, explained=explain, crossover=crossover, pictures=pictured(outputs))
    emit(found, json, outputs)
