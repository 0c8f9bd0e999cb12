"""A KV cache on a device: its size, what fits beside the weights, and what generation with and without it costs."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfmodel.dtypes import DTYPES
from perfmodel.errors import UnavailableError, UsageError
from perfmodel.hardware import Device
from perfmodel.ops.checks import whole
from perfmodel.transformer.generation import MEASURED, Generation, Measured, with_cache, without_cache
from perfmodel.transformer.kv_cache import (
    BITS,
    CacheFormat,
    LayerCache,
    attention_kinds,
    batch_bytes,
    bits_of,
    largest_batch,
    layer_caches,
    longest_context,
    sequence_bytes,
    token_bytes,
    weight_bytes,
)
from perfmodel.transformer.parameters import total
from perfmodel.transformer.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class CacheWorkload:
    """``batch`` sequences of ``n`` tokens. ``reserve``: bytes of the device that neither weights nor cache may use.

    ``weights_from_file``: nobody gave the format of the weights, and the model's file names one.
    """

    spec: ModelSpec
    n: int
    batch: int = 1
    form: CacheFormat = field(default_factory=CacheFormat)
    weights_dtype: str = "fp16"
    reserve: int = 0
    weights_from_file: bool = False

    def check(self) -> CacheWorkload:
        """This workload, if every value has a meaning; else UsageError names the option and the fix."""
        for option, value in (("n", self.n), ("batch", self.batch), ("block-size", self.form.block_size)):
            whole(option, value)
        for option, name in (("dtype", self.form.dtype), ("weights-dtype", self.weights_dtype)):
            bits_of(option, name)
        if self.form.rope_dtype is not None:
            bits_of("rope-dtype", self.form.rope_dtype)
            if all(attention.kind != "MLA" for attention, _ in attention_kinds(self.spec)):
                raise UsageError(f"--rope-dtype: {self.spec.name} keeps no rotated key of its own", "it is for latent attention")
        if self.form.scale_group is not None:
            whole("scale-group", self.form.scale_group)
            if BITS[self.form.dtype] > 8:
                raise UsageError(f"--scale-group: {self.form.dtype} elements have no scales", "give it with --dtype fp8, int8 or int4")
        return self


@dataclass(frozen=True, slots=True)
class CacheResult:
    """Sizes in bytes. ``capacity``: of the device's memory, ``room``: what is left of it for the cache; None if unknown.

    ``context``: the longest that fits, for the whole batch; with ``endless`` every length does.
    """

    workload: CacheWorkload
    device: Device
    layers: list[LayerCache]
    per_token: int
    per_sequence: int
    total: int
    unpaged: int
    parameters: int
    weights: int
    capacity: int | None
    room: int | None
    batch: int | None
    context: int | None
    endless: bool
    cached: Generation
    uncached: Generation
    peak: float | None
    bandwidth: float | None

    @property
    def fits(self) -> bool | None:
        """Whether weights, reserve and this cache fit; None where the capacity is unknown."""
        return None if self.room is None else self.total <= self.room

    @property
    def measured(self) -> list[Measured]:
        """Published times of this model, on any device."""
        return [row for row in MEASURED if row.model == self.workload.spec.name]


def evaluate(w: CacheWorkload, device: Device) -> CacheResult:
    """Everything about the cache of ``w`` on ``device``."""
    parameters = int(total(w.spec))
    weights = int(weight_bytes(parameters, w.weights_dtype))
    capacity = None if device.dram.capacity is None else int(device.dram.capacity.number)
    room = None if capacity is None else capacity - weights - w.reserve
    context = None if room is None else longest_context(room, w.spec, w.batch, w.form)
    return CacheResult(
        workload=w,
        device=device,
        layers=layer_caches(attention_kinds(w.spec), w.n, w.form),
        per_token=int(token_bytes(w.spec, w.form)),
        per_sequence=int(sequence_bytes(w.spec, w.n, w.form)),
        total=int(batch_bytes(w.spec, w.n, w.batch, w.form)),
        unpaged=int(batch_bytes(w.spec, w.n, w.batch, _unpaged(w.form))),
        parameters=parameters,
        weights=weights,
        capacity=capacity,
        room=room,
        batch=None if room is None else int(largest_batch(room, w.spec, w.n, w.form)),
        context=context,
        endless=room is not None and context is None,
        cached=with_cache(w.spec, w.n, w.weights_dtype, w.form),
        uncached=without_cache(w.spec, w.n, w.weights_dtype),
        peak=matmul_peak(w.weights_dtype, device),
        bandwidth=device.dram.bandwidth_bytes_per_s,
    )


def _unpaged(form: CacheFormat) -> CacheFormat:
    return CacheFormat(form.dtype, form.rope_dtype, 1, form.scale_group)


def compute_dtype(weights_dtype: str, device: Device) -> str:
    """The format that matrices are multiplied in: the weights' own; fp16 for integers, and for fp8 that the device does not multiply."""
    if weights_dtype == "fp8" and "fp8" not in device.peaks_of("tensor"):
        return "fp16"
    return weights_dtype if weights_dtype in DTYPES else "fp16"


def matmul_peak(weights_dtype: str, device: Device) -> float | None:
    """FLOP/s of ``device`` for weights of that format; None if its profile has none."""
    dtype = DTYPES[compute_dtype(weights_dtype, device)]
    try:
        return float(device.matmul_peak(dtype.name, dtype.matmul_unit).number)
    except UnavailableError:
        return None


def roofline_s(cost: Generation, result: CacheResult) -> float | None:
    """Seconds of ``cost`` at the device's datasheet rates; None where one of them is unknown."""
    if result.peak is None or result.bandwidth is None:
        return None
    return float(cost.roofline_s(result.peak, result.bandwidth))


def default_weights_dtype(cache_dtype: str) -> str:
    """16-bit weights, in the cache's own format if that is one; fp32 beside an fp32 cache."""
    return cache_dtype if cache_dtype in ("fp32", "fp16", "bf16") else "fp16"
