"""One kernel on one shape, in the words of a measurement record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perfmodel.core.dtypes import dtype_named
from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.workload import Attention

ATTENTION_KEYS = ("batch", "heads", "kv_heads", "n", "kv_len", "d", "causal")
_KEYS = {"attention": ATTENTION_KEYS, "matmul": ("m", "n", "k"), "copy": ("bytes",)}
WORKLOADS = {
    "numba-flash": "attention",
    "numba-flash1": "attention",
    "numba-flash-mma": "attention",
    "numba-standard": "attention",
    "numba-matmul": "matmul",
    "numba-matmul-naive": "matmul",
    "numba-copy": "copy",
}
"""The project's kernels and what they compute."""
TILED = ("numba-flash", "numba-flash1", "numba-flash-mma", "numba-standard", "numba-matmul")
"""Those that want a tile."""


@dataclass(frozen=True, slots=True)
class KernelCase:
    """What to run: ``shape`` under the keys of a record, ``launch`` the tile, ``br`` and ``bc``, where the kernel has one."""

    implementation: str
    dtype: str
    shape: dict[str, Any]
    launch: dict[str, int] = field(default_factory=dict)

    @property
    def workload(self) -> str:
        """attention, matmul or copy."""
        return WORKLOADS[self.implementation]

    @property
    def label(self) -> str:
        """In one line, for progress and messages."""
        sizes = " ".join(f"{key} {value}" for key, value in self.shape.items() if value is not False)
        tile = f" tile {self.launch['br']}x{self.launch['bc']}" if self.launch.get("br") else ""
        return f"{self.implementation} {self.dtype} {sizes}{tile}"

    def check(self) -> KernelCase:
        """This case, if there is such a kernel and every key is there; else UsageError."""
        if self.implementation not in WORKLOADS:
            raise UsageError(f"no kernel of this package is called {self.implementation!r}", suggest(self.implementation, list(WORKLOADS)))
        wanted = _KEYS[self.workload]
        if set(self.shape) != set(wanted):
            raise UsageError(f"{self.implementation}: its shape has {', '.join(self.shape) or 'nothing'}", f"give {', '.join(wanted)}")
        if self.implementation in TILED and not {"br", "bc"} <= set(self.launch):
            raise UsageError(f"{self.implementation}: no tile", "give br and bc")
        return self

    def attention(self) -> Attention:
        """The workload of an attention case, checked."""
        return Attention(**self.shape, dv=self.shape["d"], dtype=dtype_named(self.dtype)).check()


def attention_case(
    implementation: str, heads: tuple[int, int, int], lengths: tuple[int, int], d: int, tile: tuple[int, int], causal: bool, dtype: str
) -> KernelCase:
    """``heads``: batch, query heads, KV heads; ``lengths``: queries, keys."""
    shape = dict(zip(ATTENTION_KEYS, (*heads, *lengths, d, causal), strict=True))
    return KernelCase(implementation, dtype, shape, {"br": tile[0], "bc": tile[1]})


def needed_bytes(case: KernelCase) -> int:
    """Device memory of the case's tensors."""
    shape = case.shape
    if case.workload == "copy":
        return 2 * int(shape["bytes"])
    if case.workload == "matmul":
        m, n, k = shape["m"], shape["n"], shape["k"]
        return 4 * int(m * k + k * n + m * n)
    w = case.attention()
    elements = 2 * w.query_heads * w.n * w.d + 2 * w.stored_kv_heads * w.kv_len * w.d
    elements += 2 * w.query_heads * w.n * w.kv_len if case.implementation == "numba-standard" else 0
    return int(elements * w.dtype.size + 2 * w.query_heads * w.n * 4)
