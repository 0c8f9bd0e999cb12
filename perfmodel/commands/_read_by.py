"""Which questions read an option of a command: one that is given where nothing reads it is refused, not ignored.

Those of attention depend on the algorithms: ``perfmodel/kernels/attention/read_by.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perfmodel.core.errors import UsageError

Options = Mapping[str, Any]
Rule = tuple[str, str, Callable[[Options], bool]]
"""What the option is, in words; what to do; whether something reads it. Options by the names of their parameters."""


def _remat_mode(options: Options) -> str:
    if options["graph"] is not None:
        return "graph"
    return next((mode for mode in ("exact", "autograd") if options[mode]), "schedules")


def _of_remat(words: str, *modes: str) -> Rule:
    return f"is for {words}", "leave it out", lambda options: _remat_mode(options) in modes


def _has_temporaries(options: Options) -> bool:
    from perfmodel.transformer.training.state import optimizer_named

    return bool(optimizer_named(options["optimizer"]).temporary)


_TRAINING: Rule = "is an option of training", "give --phase train, or leave it out", lambda options: options["phase"] == "train"
_INFERENCE: Rule = "is an option of inference", "leave it out of --phase train", lambda options: options["phase"] != "train"
_MEASURED: Rule = (
    "is for measurements of time",
    "leave it out",
    lambda options: options["counters_csv"] is None and options["backend"] != "simulator",
)
_CHAIN = _of_remat("a chain of layers", "schedules", "exact", "autograd")
_TIMED_CHAIN = _of_remat("schedules and --exact", "schedules", "exact")
_SCHEDULES = _of_remat("schedules", "schedules")

READ_BY: dict[str, dict[str, Rule]] = {
    "model": {
        **dict.fromkeys(("micro_batch", "precision", "optimizer", "recompute", "flash", "dropout", "lora", "gradients"), _TRAINING),
        **dict.fromkeys(("implementation", "zero", "dp", "sp", "interleave", "cp", "overlap", "system", "search"), _TRAINING),
        **dict.fromkeys(("kv_len", "weights_dtype", "kv_dtype", "fused", "graph", "kv_cache"), _INFERENCE),
        "explain": ("is for one layout", "leave out --search", lambda options: options["search"] is None),
    },
    "memory": {
        "lora_targets": (
            "is for adapters",
            "give their rank with --lora too, or leave it out",
            lambda options: options["lora"] is not None,
        ),
        "fused_optimizer": ("is for optimizers with temporary copies: adam, adamw", "leave it out", _has_temporaries),
    },
    "remat": {
        **dict.fromkeys(("model", "layers", "size", "width", "batch", "dtype", "hardware"), _CHAIN),
        **dict.fromkeys(("cost", "backward", "interior"), _TIMED_CHAIN),
        **dict.fromkeys(("checkpoints", "every", "slots", "strategy", "explain"), _SCHEDULES),
        "memory": _of_remat("schedules, --exact and --graph", "schedules", "exact", "graph"),
        "n": ("is for a model", "leave it out, or name a model", lambda o: o["model"] is not None and _remat_mode(o) != "graph"),
        "exact": _of_remat("a chain of layers; a graph with --memory asks the exact solver", "exact"),
        "autograd": _of_remat("a chain of layers, and no schedule or solver goes with it", "autograd"),
        "relu": ("goes with --autograd", "schedules take sizes and costs, whatever is in a layer", lambda o: _remat_mode(o) == "autograd"),
        "seconds": (
            "is for the exact solver",
            "add --memory with --exact or --graph, or leave it out",
            lambda o: _remat_mode(o) == "exact" or (o["graph"] is not None and o["memory"] is not None),
        ),
    },
    "validate": {"hardware": _MEASURED, "tolerance": _MEASURED},
    "calibrate": {"required": ("is for --from-records", "leave it out", lambda options: bool(options["from_records"]))},
    "roofline": {
        "implementation": (
            "is for attention and matmuls",
            "add --attention or --matmul, or leave it out",
            lambda o: bool(o["study"] or o["ncu_command"] or o["attention"] or o["matmul"]),
        ),
        "required": ("is for --records and --ncu", "leave it out", lambda options: bool(options["records"] or options["ncu"])),
    },
}
"""By command and parameter. What is absent is read by every question of its command, or refused where the question is made."""


def check_read(command: str, option: str, name: str, options: Options) -> None:
    """UsageError if nothing reads the ``option`` that is given as the parameter ``name`` of ``command``."""
    words, fix, read = READ_BY.get(command, {}).get(name, ("", "", lambda options: True))
    if not read(options):
        raise UsageError(f"{option} {words}, and nothing here reads it", fix)
