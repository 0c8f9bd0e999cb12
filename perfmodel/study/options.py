"""Workloads and records as options write them: words such as ``n=4096`` and ``causal``, read like the fields of a study."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.core.errors import UsageError
from perfmodel.kernels.attention.request import AttentionRequest
from perfmodel.study.fields import read
from perfmodel.study.recorded import RecordChoice
from perfmodel.study.workloads import MatmulOptions, ModelOptions, Workload
from perfmodel.transformer.step import PHASES

EXAMPLES = {
    "--attention": "n=4096 d=64 heads=16 batch=8 causal",
    "--matmul": "8192x128x8192",
    "--model": "llama-3-8b decode batch=8 kv_len=2048",
    "--records": "shipped hardware=h200 implementation=torch-sdpa-flash most=12",
}
MODELS: dict[str, Any] = {"attention": AttentionRequest, "matmul": MatmulOptions, "model": ModelOptions}


def workload_of(kind: str, text: str, implementation: str | None = None) -> Workload:
    """``text`` of an option, such as ``n=4096 d=64 causal``, ``8192x128x8192`` or ``llama-3-8b decode batch=8``."""
    option = f"--{kind}"
    words = text.replace(",", " ").split()
    if kind == "matmul" and words and "=" not in words[0] and words[0][:1].isdigit():
        if words[0].count("x") != 2:
            raise UsageError(f"--matmul: {words[0]!r} is not M x N x K", f"write it like --matmul {EXAMPLES['--matmul']}")
        words = [f"{name}={size}" for name, size in zip("mnk", words[0].split("x"), strict=True)] + words[1:]
    if kind == "model":
        words = [word if "=" in word else f"phase={word}" if word in PHASES else word for word in words]
        bare = [word for word in words if "=" not in word and word not in ("fused", "graph")]
        words = [f"name={word}" if word in bare[:1] else word for word in words]
    raw: Any = {kind: options_of(option, words, MODELS[kind])}
    return replace(Workload(**raw), implementation=implementation)


def options_of(option: str, words: list[str], model: type[Any]) -> Any:
    """``key=value`` words as a ``model``; a bare word is a switch; UsageError names the wrong one."""
    from pydantic import ValidationError

    raw: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.replace("-", "_")
        if equals and not value:
            raise UsageError(f"{option}: {key} is empty", "give a value, or leave it out")
        if key in raw:
            raise UsageError(f"{option}: {key} appears twice")
        raw[key] = (value.split("+") if "+" in value else value) if equals else True
    try:
        return read(model, raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"] if part in raw)
        missing = first["type"] == "missing"
        said = "is missing" if missing else first["msg"][:1].lower() + first["msg"][1:]
        field = place or ".".join(map(str, first["loc"][:1]))
        raise UsageError(f"{option}: {field}{' ' if missing else ': '}{said}", f"write it like {option} '{EXAMPLES[option]}'") from None


def records_of(text: str) -> RecordChoice:
    """``shipped hardware=h200 most=12``: a file, or the shipped ones, and conditions."""
    words = text.split()
    if words and "=" not in words[0]:
        words[0] = f"file={words[0]}"
    choice: RecordChoice = options_of("--records", words, RecordChoice)
    return choice
