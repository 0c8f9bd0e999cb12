"""A KV cache on a device: its size, the sequences that fit beside the weights, and the cost of generation with and without it."""

from __future__ import annotations

from dataclasses import field, replace
from typing import NamedTuple

from perfmodel.core.arith import Number
from perfmodel.core.checks import dtype_on, positive_int
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.trace import label, plain
from perfmodel.timing.reference_devices import FallbackDevices
from perfmodel.transformer import kv_cache
from perfmodel.transformer.answer import ModelAnswer, answer
from perfmodel.transformer.generation import MEASURED, Generation, Measured, cache_read, with_cache, without_cache
from perfmodel.transformer.hf import served_as
from perfmodel.transformer.kv_cache import CacheFormat, LayerCache
from perfmodel.transformer.layer import local_layer
from perfmodel.transformer.op import WEIGHTS, total_bytes
from perfmodel.transformer.ops import EMBEDDING, step_ops
from perfmodel.transformer.parallel import MemoryFit, joined_gpus, memory_fit
from perfmodel.transformer.parameters import total
from perfmodel.transformer.routing import router_imbalance
from perfmodel.transformer.spec import LatentAttention, ModelSpec
from perfmodel.transformer.step import DECODE, GENERATE, ModelPass, Request, Split, formats, stored_as_published

CACHE_SOURCE = "perfmodel/transformer/kv_cache.py: Pope et al. 2022, section 3.3; DeepSeek-V2, section 2.1.4; PagedAttention 2023"
FORMATS = "perfmodel/transformer/weight_formats: what the quantization_config of the model's file names"
PARAMETER_SOURCE = "perfmodel/transformer/parameters.py: modules of huggingface/transformers"


@dataclass(frozen=True, slots=True)
class CacheWorkload:
    """``batch`` sequences of ``n`` tokens. ``reserve``: bytes of each GPU that neither weights nor cache may use.

    ``weights_dtype``: format of all weights; with ``weights_from_file`` weights are stored as the model's file says, and it is the format
    of activations. ``tp``: GPUs that share each matrix and the KV heads. With more GPUs than KV heads they keep copies; each keeps the
    whole latent.
    """

    spec: ModelSpec
    n: int
    batch: int = 1
    form: CacheFormat = field(default_factory=CacheFormat)
    weights_dtype: str = "fp16"
    reserve: int = 0
    weights_from_file: bool = False
    tp: int = 1

    @property
    def local_model(self) -> ModelSpec:
        """The model with the share of the cache that one GPU keeps."""
        return replace(self.spec, layers=tuple(local_layer(layer, self.tp) for layer in self.spec.layers))

    def check(self) -> CacheWorkload:
        """This workload, if every value has a meaning; else UsageError names the option and the fix."""
        Split(self.tp).check(self.spec)
        for option, value in (("n", self.n), ("batch", self.batch), ("block-size", self.form.block_size)):
            positive_int(option, value)
        for option, name in (("kv-dtype", self.form.dtype), ("weights-dtype", self.weights_dtype)):
            kv_cache.bits_of(option, name)
        if self.form.rope_dtype is not None:
            kv_cache.bits_of("rope-dtype", self.form.rope_dtype)
            if not any(isinstance(attention, LatentAttention) for attention, _ in kv_cache.attention_kinds(self.spec)):
                raise UsageError(f"--rope-dtype: {self.spec.name} keeps no rotated key of its own", "it is for latent attention")
        if self.form.scale_group is not None:
            positive_int("scale-group", self.form.scale_group)
            if kv_cache.BITS[self.form.dtype] > 8:
                raise UsageError(f"--scale-group: {self.form.dtype} elements have no scales", "give it with --kv-dtype fp8, int8 or int4")
        return self


class CacheResult(NamedTuple):
    """Sizes in bytes on each GPU. ``capacity``: bytes of its memory; ``room``: bytes of it that are left for the cache; None if unknown.

    ``per_token``, ``per_sequence``, ``total``: bytes of the cache, ``total`` for the whole batch; ``unpaged``: the same without unfilled
    pages. ``batch``: the most sequences that fit; ``context``: the longest sequences that fit, for the whole batch; with ``endless`` any
    length fits. ``cached``, ``uncached``: cost of generation over all GPUs, with and without a cache.
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

    @property
    def fits(self) -> bool | None:
        """Whether weights, reserve and this cache fit; None if the capacity is unknown."""
        return None if self.room is None else self.total <= self.room

    @property
    def copies(self) -> float:
        """Copies of the cache that all GPUs together keep; 1 if they share the KV heads."""
        w = self.workload
        return w.tp * self.total / int(kv_cache.batch_bytes(w.spec, w.n, w.batch, w.form))

    @property
    def measured(self) -> list[Measured]:
        """Published times of this model, on any device."""
        return [row for row in MEASURED if row.model == self.workload.spec.name]


def evaluate(w: CacheWorkload, device: Device, traced: CacheWorkload | None = None) -> CacheResult:
    """Sizes, capacity and reads of the cache of ``w`` on ``device``. ``traced``: ``w`` with traced numbers, whose formulas are recorded."""
    traced = traced or w
    model, plain_model = traced.local_model, w.local_model
    per_token = label("bytes per token", "B in all layers", kv_cache.token_bytes(model, traced.form), source=CACHE_SOURCE)
    per_sequence = label("bytes per sequence", "B", kv_cache.sequence_bytes(model, traced.n, traced.form), source=CACHE_SOURCE)
    size = label("bytes", "B of the batch", kv_cache.batch_bytes(model, traced.n, traced.batch, traced.form), source=CACHE_SOURCE)
    parameters = total(traced.spec)
    from_file, by_matrix = w.weights_from_file, w.weights_from_file or w.tp > 1
    memory = memory_of(w, device)
    weights = memory.weights if by_matrix else kv_cache.weight_bytes(parameters, traced.weights_dtype)
    weights = label("weights", "B, with scales" if from_file else "B", weights, traced.n, FORMATS if from_file else PARAMETER_SOURCE)
    capacity, room, batch, context = memory.capacity, memory.free, memory.max_batch, None
    if capacity is not None:
        capacity = label("capacity", "B of memory", capacity, traced.n, f"profile of {device.id}")
        reserved = {"reserve": label("reserve", "B", w.reserve, traced.n, "given")}
        labelled = replace(memory, capacity=capacity, weights=weights, reserved=reserved)
        room = label("room", "B for the cache", labelled.free, source=CACHE_SOURCE)
        context = kv_cache.longest_context(plain(room), plain_model, w.batch, w.form)
        if room > 0:
            batch = label("max batch", "sequences", kv_cache.largest_batch(room, per_sequence), source=CACHE_SOURCE)
    cached = with_cache(traced.spec, traced.n, w.weights_dtype, traced.form)
    uncached = without_cache(traced.spec, traced.n, w.weights_dtype)
    if by_matrix:
        read = traced.n * label(
            "weights per token", "B, with scales" if from_file else "B on all GPUs", int(read_bytes(w)), traced.n, FORMATS
        )
        cached, uncached = cached._replace(weights_read=read), uncached._replace(weights_read=read)
    if w.tp > 1:
        cached = cached._replace(cache_read=w.tp * cache_read(model, traced.n, traced.form))
    return CacheResult(
        workload=w,
        device=device,
        layers=kv_cache.layer_caches(kv_cache.attention_kinds(plain_model), w.n, w.form),
        per_token=per_token,
        per_sequence=per_sequence,
        total=size,
        unpaged=kv_cache.batch_bytes(plain_model, w.n, w.batch, w.form._replace(block_size=1)),
        parameters=parameters,
        weights=weights,
        capacity=capacity,
        room=room,
        batch=batch,
        context=context,
        endless=room is not None and context is None,
        cached=cached,
        uncached=uncached,
    )


def workload(
    spec: ModelSpec, n: int, batch: int, form: CacheFormat, weights_dtype: str | None, reserve: int = 0, tp: int = 1
) -> CacheWorkload:
    """The workload with weights as given, else as the model's file stores them, else in 16 bits; UsageError as in ``check``."""
    spec, stored = served_as(spec, weights_dtype)
    from_file = stored_as_published(spec, stored)
    if not weights_dtype or (from_file and weights_dtype not in kv_cache.BITS):
        weights_dtype = default_weights_dtype(form.dtype)
    return CacheWorkload(spec, n, batch, form, weights_dtype, reserve, from_file, tp).check()


def read_bytes(w: CacheWorkload) -> Number:
    """Bytes of the weights that a step of one token reads on all GPUs, matrix by matrix, without a row of the embedding."""
    return w.tp * total_bytes((op for op in step_ops(w.spec, _step(w)) if op.name != EMBEDDING), WEIGHTS)


def _step(w: CacheWorkload) -> ModelPass:
    bits = formats(w.spec, DTYPES["fp16"], None if w.weights_from_file else w.weights_dtype, None)["weight_bits"]
    return ModelPass(DECODE, 1, 1, 1, weight_bits=bits, weights_from_file=w.weights_from_file, split=Split(w.tp))


def memory_of(w: CacheWorkload, device: Device) -> MemoryFit:
    """Memory of the fullest GPU for ``w``, and how many of its sequences fit."""
    sequence = kv_cache.sequence_bytes(w.local_model, w.n, w.form)
    return memory_fit(w.spec, replace(_step(w), batch=w.batch), device, sequence, reserved={"reserve": w.reserve})


def smallest_tp(w: CacheWorkload, device: Device) -> int | None:
    """The fewest linked GPUs whose memory holds weights, reserve and cache of ``w``; None if no number of them does."""
    if device.dram.capacity is None or device.interconnect is None:
        return None
    tp = w.tp
    while 2 * tp <= joined_gpus(device):
        tp *= 2
        try:
            divided = replace(w, tp=tp).check()
        except UsageError:
            continue
        if memory_of(divided, device).fits:
            return tp
    return None


def generation_on(
    w: CacheWorkload, device: Device, fallbacks: FallbackDevices = tuple
) -> tuple[ModelAnswer, ModelAnswer] | UnavailableError:
    """Generation of ``w.n`` tokens of one sequence, with a cache and without: ``perfmodel model --phase generate --n 1`` to one token more.

    Times leave out scales of the cache and a separate format of the rotated key. UnavailableError if the profile lacks a rate.
    """
    given = None if w.weights_from_file else w.weights_dtype
    name = given if given in DTYPES and given != "fp8" else default_weights_dtype(w.form.dtype)
    try:
        dtype = dtype_on(name, device)
        options = {"split": Split(w.tp), "imbalance": router_imbalance(w.spec), **formats(w.spec, dtype, given, w.form.dtype)}
        request = Request(GENERATE, 1, 1, w.n + 1, dtype, model=w.spec, device=device, **options)
        return answer(replace(request, cached=True), fallbacks), answer(replace(request, cached=False), fallbacks)
    except UnavailableError as error:
        return error


def default_weights_dtype(cache_dtype: str) -> str:
    """Default format of weights: the cache's if it has 16 or 32 bits, else fp16."""
    return cache_dtype if cache_dtype in ("fp32", "fp16", "bf16") else "fp16"
