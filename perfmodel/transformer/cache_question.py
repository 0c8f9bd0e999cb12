"""The question of a user about the KV cache of a model, and the cache that it becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.core.frozen import dataclass
from perfmodel.core.question import Common, Question, argument, as_in, option

if TYPE_CHECKING:
    from perfmodel.transformer.cache_plan import CacheWorkload
    from perfmodel.transformer.spec import ModelSpec

FORMATS = "fp32, fp16, bf16, fp8, int8 or int4"


def size_of(name: str, text: str | None) -> int:
    """Bytes of the option ``name``, 0 if it is not given."""
    from perfmodel.core.checks import size_bytes

    return 0 if text is None else size_bytes(name, text, least=0)


@dataclass(frozen=True, slots=True)
class CacheQuestion(Question):
    """The KV cache of a model."""

    model: str | None = argument("MODEL", "A name, or the path of a config.json.", None)
    n: int | None = option("Tokens of a sequence. [default: the most the model takes]", "--n", "-n")
    batch: int = option("Sequences.", default=1)
    dtype: str = option(f"KV cache: {FORMATS}.", "--kv-dtype", default="fp16", old="--dtype")
    rope_dtype: str | None = option("Of the rotated key of latent attention. [default: as --kv-dtype]")
    scale_group: int | None = option("Elements that share a 4-byte scale, if quantized. [default: no scales]")
    block_size: int = option("Tokens per page of a paged cache.", default=1)
    weights_dtype: str | None = option(
        f"Of the weights: {FORMATS}. [default: as config.json says, else a 16 or 32 bit --kv-dtype, else fp16]"
    )
    reserve: str | None = option("Held back on each GPU for activations and runtime, such as 4GB. [default: none]")
    tp: int = option("GPUs that share each matrix and the KV heads.", "--gpus", default=1, old="--tp")
    hardware: str | None = as_in(Common, "hardware")

    def workload(self, model: ModelSpec) -> CacheWorkload:
        """The cache of ``model``, checked; UsageError names a wrong option."""
        from perfmodel.core.checks import positive_int
        from perfmodel.transformer.cache_plan import workload
        from perfmodel.transformer.kv_cache import CacheFormat

        positive_int("gpus", self.tp)
        [n] = self.updated({"n": model.max_positions if self.n is None else self.n}).require("kv-cache llama-3-8b --n 8192", "n")
        form = CacheFormat(self.dtype, self.rope_dtype, self.block_size, self.scale_group)
        return workload(model, n, self.batch, form, self.weights_dtype, size_of("reserve", self.reserve), self.tp)
