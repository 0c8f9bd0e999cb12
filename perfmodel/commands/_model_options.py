"""Options of commands on whole models, and the request that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from perfmodel.core.hardware import Device
    from perfmodel.transformer.step import Request

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A model's name, such as llama-3-8b, or the path of a config.json.")]
LengthOption = Annotated[int | None, typer.Option(help="Tokens of the prompt. [default: 2048, or what the model takes at most]")]
KvLenOption = Annotated[int | None, typer.Option(help="Tokens of a sequence at the end. [default: n; generate: n + 128]")]
WeightsDtypeOption = Annotated[
    str | None, typer.Option(help="Format of the weights; int8 and int4 too. [default: as config.json says, else the dtype]")
]
KvDtypeOption = Annotated[str | None, typer.Option(help="Format of the KV cache; int8 and int4 too. [default: the dtype]")]
TpOption = Annotated[int, typer.Option(help="GPUs that share each matrix. [default: 1]", show_default=False)]
PpOption = Annotated[int, typer.Option(help="Pipeline stages of consecutive layers. [default: 1]", show_default=False)]
EpOption = Annotated[int, typer.Option(help="Groups of GPUs that hold different experts. [default: 1]", show_default=False)]
FusedOption = Annotated[
    bool,
    typer.Option("--fused/--unfused", help="Run element-wise operations inside other kernels. [default: unfused]", show_default=False),
]
GraphOption = Annotated[
    bool | None, typer.Option("--graph/--eager", help="Launch kernels as a CUDA graph or one by one. [default: graph in decode]")
]


def request_for(
    name: str,
    device: Device,
    *,
    phase: str,
    batch: int,
    n: int | None,
    kv_len: int | None,
    dtype: str | None,
    weights_dtype: str | None,
    kv_dtype: str | None,
    tp: int,
    pp: int,
    ep: int,
    fused: bool,
    graph: bool | None,
    cached: bool = True,
) -> Request:
    """The request that the options make; lengths that are not given fit the model."""
    from perfmodel.catalog import find_model
    from perfmodel.core.checks import dtype_on
    from perfmodel.transformer.step import Request, Split, formats, lengths

    model, form = find_model(name), dtype_on(dtype, device)
    n, kv_len = lengths(model, phase, n, kv_len)
    return Request(
        model=model,
        device=device,
        phase=phase,
        batch=batch,
        n=n,
        kv_len=kv_len,
        dtype=form,
        fused=fused,
        graph=graph,
        cached=cached,
        split=Split(tp, ep, pp),
        **formats(model, form, weights_dtype, kv_dtype),
    ).check()
