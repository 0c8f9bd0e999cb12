"""Sweeps over KV caches: one row per configuration, by the formulas of ``perfmodel kv-cache``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from perfmodel import catalog
from perfmodel.core.arith import Number
from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device
from perfmodel.sweep.base import HARDWARE, SweepInput, SweepVariant, SweepWorkload, asked, canonical, choice, count, device_named
from perfmodel.transformer.cache_plan import CacheWorkload, stored_bytes, workload
from perfmodel.transformer.kv_cache import (
    BITS,
    CacheFormat,
    batch_bytes,
    largest_batch,
    longest_context,
    sequence_bytes,
    token_bytes,
)
from perfmodel.transformer.question import CacheQuestion
from perfmodel.transformer.spec import ModelSpec


@cache
def model_named(name: str) -> ModelSpec:
    """The model that ``name`` means, read once."""
    return catalog.find_model(name)


MODEL = choice(
    "model",
    "model, by name or the path of a config.json",
    kind="name",
    required=True,
    names=catalog.model_names,
    canonical=lambda name: canonical(name, model_named(name).name),
)
"""The axis of models."""
stored = partial(choice, names=lambda: list(BITS))


@dataclass(frozen=True, slots=True)
class CacheVariant(SweepVariant):
    """One model on one device in one number format; ``weights`` in bytes, ``room`` what they and the reserve leave, None if unknown."""

    probe: CacheWorkload
    device: Device
    weights: int
    room: int | None

    def _form(self, numbers: Mapping[str, Number]) -> CacheFormat:
        return replace(self.probe.form, block_size=numbers["block_size"])

    def formulas(self, numbers: Mapping[str, Number]) -> Mapping[str, Number]:
        """Every column but the longest context."""
        spec, form, n, batch = self.probe.spec, self._form(numbers), numbers["n"], numbers["batch"]
        size = batch_bytes(spec, n, batch, form)
        unknown = float("nan")
        return {
            "bytes_per_token": token_bytes(spec, form),
            "bytes_per_sequence": sequence_bytes(spec, n, form),
            "cache_bytes": size,
            "unused_block_bytes": size - batch_bytes(spec, n, batch, replace(form, block_size=1)),
            "weights_bytes": self.weights,
            "memory_bytes": size + self.weights + self.probe.reserve,
            "room_bytes": unknown if self.room is None else self.room,
            "max_batch": unknown if self.room is None else largest_batch(self.room, spec, n, form),
        }

    def point(self, values: Mapping[str, int], columns: Sequence[str]) -> Mapping[str, float | None]:
        """The longest context that fits; None where every length does, or the capacity is unknown."""
        found = None if self.room is None else longest_context(self.room, self.probe.spec, values["batch"], self._form(values))
        return {"max_context": found}


def variant(choices: Mapping[str, Any]) -> CacheVariant:
    """The variant for one combination of choices; PerfmodelError says why there is none."""
    device, spec = device_named(choices["hardware"]), model_named(choices["model"])
    form = CacheFormat(choices["dtype"], choices["rope_dtype"], 1, choices["scale_group"])
    probe = workload(spec, 1, 1, form, choices["weights_dtype"], choices["reserve"])
    weights = int(stored_bytes(probe))
    capacity = device.dram.capacity
    return CacheVariant(probe, device, weights, None if capacity is None else int(capacity.number) - weights - probe.reserve)


def defaults(choices: Mapping[str, Any]) -> Mapping[str, float]:
    """As in ``perfmodel kv-cache``: the most tokens that the model takes."""
    longest = model_named(choices["model"]).max_positions
    if longest is None:
        raise UsageError(f"--n is missing, and {choices['model']} does not say how much it takes", "give it as --n 8192")
    return {"n": longest}


WORKLOAD = SweepWorkload(
    name="kv-cache",
    inputs=asked(
        CacheQuestion,
        MODEL,
        HARDWARE,
        stored("dtype", "format of the cache"),
        stored("rope_dtype", "of the rotated key of latent attention"),
        choice("scale_group", "elements that share a scale, if quantized"),
        stored("weights_dtype", "format of the weights"),
        choice("reserve", "memory for neither weights nor cache", 0, least=0, unit="B"),
        SweepInput("n", "tokens of a sequence; by default the most that the model takes", varies=True),
        SweepInput("batch", "sequences"),
        SweepInput("block_size", "tokens per page"),
    ),
    columns=(
        count("bytes_per_token", "B", "cache of one token, no window full"),
        count("bytes_per_sequence", "B", "cache of one sequence"),
        count("cache_bytes", "B", "cache of all sequences"),
        count("unused_block_bytes", "B", "of its pages that hold no token"),
        count("weights_bytes", "B", "weights"),
        count("memory_bytes", "B", "weights, cache and reserve"),
        count("room_bytes", "B", "what weights and reserve leave of the device's memory"),
        count("max_batch", "sequences", "sequences whose cache fits"),
        count("max_context", "tokens", "tokens to which every sequence can grow", pointwise=True),
    ),
    variant=variant,
    shown=("bytes_per_token", "bytes_per_sequence", "cache_bytes", "memory_bytes", "max_batch"),
    objective="memory_bytes",
    words={"memory": "memory_bytes", "io": "cache_bytes"},
    always=("model", "hardware", "n", "batch"),
    defaults=defaults,
)
