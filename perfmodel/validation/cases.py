"""One kernel on one shape to measure, with the field names of a measurement record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, cast

from perfmodel.core.dtypes import dtype_named
from perfmodel.core.frozen import dataclass
from perfmodel.core.workload import FORWARD, Attention
from perfmodel.timing.base import CLEAN
from perfmodel.validation.records import Record, Seconds

FIT, HELD_OUT = "fit", "held out"
SDPA_BACKENDS = {
    "torch-sdpa-flash": "FLASH_ATTENTION",
    "torch-sdpa-cudnn": "CUDNN_ATTENTION",
    "torch-sdpa-efficient": "EFFICIENT_ATTENTION",
}
"""Implementations that PyTorch's scaled_dot_product_attention runs, with its names for them."""
ATTENTION_KEYS = ("batch", "heads", "kv_heads", "n", "kv_len", "d", "causal")
UNTIMED = Seconds(1.0)
"""Placeholder time of records that need no measured one."""


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One kernel to run. ``workload``, ``shape``, ``dtype``, ``direction`` and ``launch`` are as in its record.

    ``role``: FIT or HELD_OUT; empty if the record does not say. ``cache``: what the L2 holds before each run, a state of
    ``timing.cache_state``. ``row_major``: a matmul's second operand is stored [k, n], like V; otherwise [n, k], like K and the weights of a
    linear layer. ``launch``: the tile, ``br`` and ``bc``, if the kernel has one.
    """

    workload: str
    implementation: str
    shape: Mapping[str, Any]
    dtype: str = "bf16"
    direction: str = FORWARD
    role: str = ""
    cache: str = CLEAN
    row_major: bool = False
    launch: dict[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """One line for progress and messages."""
        sizes = " ".join(f"{key} {value}" for key, value in self.shape.items() if value is not False)
        tile = f" tile {self.launch['br']}x{self.launch['bc']}" if self.launch.get("br") else ""
        return f"{self.implementation} {self.dtype} {sizes}{tile}"

    def attention(self) -> Attention:
        """The workload of an attention case, checked."""
        return Attention(**self.shape, dv=self.shape["d"], dtype=dtype_named(self.dtype)).check()

    def record(self, hardware: str = "", time_s: Seconds = UNTIMED, source: str = "", **more: Any) -> Record:
        """The measurement record of this case. Memory order and role are appended to ``source``. ``more``: other fields."""
        return Record(
            self.workload,
            self.implementation,
            hardware,
            self.dtype,
            dict(self.shape),
            time_s,
            cast(Any, self.direction),  # what runs the case has checked it
            cast(Any, "cold" if self.cache == CLEAN else self.cache),
            launch=self.launch,
            source="; ".join(filter(None, (source, "B row-major" if self.row_major else "", self.role))),
            **more,
        )


def attention_shape(heads: tuple[int, int, int], lengths: tuple[int, int], d: int, causal: bool) -> dict[str, Any]:
    """Shape of an attention record. ``heads``: batch, query heads, KV heads; ``lengths``: queries, keys; ``d``: the head dim."""
    return dict(zip(ATTENTION_KEYS, (*heads, *lengths, d, causal), strict=True))
