"""KV cache of a model: bytes per token, sequence and batch, what fits a device, what generation costs without it."""

from __future__ import annotations

from typing import Annotated

import typer

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
_FORMATS = "fp32, fp16, bf16, fp8, int8 or int4"


@app.command(cls=Command)
def kv_cache(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A name, or the path of a config.json.", show_default=False)] = None,
    n: Annotated[int | None, typer.Option("--n", "-n", help="Tokens of a sequence. [default: the most the model takes]")] = None,
    batch: Annotated[int, typer.Option(help="Sequences. [default: 1]", show_default=False)] = 1,
    dtype: Annotated[str, typer.Option(help=f"Of the cache: {_FORMATS}. [default: fp16]", show_default=False)] = "fp16",
    rope_dtype: Annotated[str | None, typer.Option(help="Of the rotated key of latent attention. [default: as --dtype]")] = None,
    scale_group: Annotated[int | None, typer.Option(help="Elements that share a 4-byte scale, if quantized. [default: no scales]")] = None,
    block_size: Annotated[int, typer.Option(help="Tokens per page of a paged cache. [default: 1]", show_default=False)] = 1,
    weights_dtype: Annotated[
        str | None, typer.Option(help=f"Of the weights: {_FORMATS}. [default: as config.json says, else a 16 or 32 bit --dtype, else fp16]")
    ] = None,
    reserve: Annotated[str | None, typer.Option(help="Memory for neither weights nor cache, such as 4GiB. [default: none]")] = None,
    hardware: HardwareOption = None,
    explain: ExplainOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """KV cache of a model: bytes per token, sequence and batch, what fits a device, what generation costs without it.

    Example: perfmodel kv-cache llama-3-8b --n 8192 --batch 16 --hardware h100-sxm
    """
    outputs = check_outputs(output)
    from functools import cache

    from perfmodel.catalog import calibrated_devices, find_model
    from perfmodel.core.checks import given, size_bytes
    from perfmodel.report.kv_cache import report
    from perfmodel.transformer.cache_plan import evaluate, generation_on, workload
    from perfmodel.transformer.kv_cache import CacheFormat

    spec = find_model(given_model(model))
    length = given("n", n if n is not None else spec.max_positions, "kv-cache llama-3-8b --n 8192")
    form = CacheFormat(dtype, rope_dtype, block_size, scale_group)
    kept = 0 if reserve is None else size_bytes("reserve", reserve, least=0)
    w, device = workload(spec, length, batch, form, weights_dtype, kept), device_for(hardware)
    emit(report(evaluate(w, device), generation_on(w, device, cache(calibrated_devices)), explained=explain), json, outputs)


def given_model(name: str | None) -> str:
    """The name of a model, which no command can do without."""
    from perfmodel.core.errors import UsageError

    if name is None:
        from perfmodel.catalog import model_names

        raise UsageError("MODEL is missing", f"give one of {', '.join(model_names())}; or the path of a config.json")
    return name
