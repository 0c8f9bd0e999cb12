"""Which shapes are run: those that fix the model's parameters and those that judge it, with no pair (d, causal) in common.

Some sit in the caches and are bound by multiply-adds, some stream scores or copies through DRAM; sizes of the latter follow
the last-level cache. Any halved rate of the profile spoils the predictions of some group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfmodel.timing.base import Case
from perfmodel.validation.bounds import case_of
from perfmodel.validation.records import Record, Seconds

DTYPE = "fp32"
STREAMED_N = 1024
"""Sequence length of the shapes whose scores overflow the cache."""
STREAMED_SHARE = 2.0
"""Their S and P together, over the last-level cache; see STREAMED of the time model."""
MOST_HEADS = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """One kernel to time; ``fit``: it fixes parameters, else it judges predictions."""

    implementation: str
    sizes: dict[str, Any]
    fit: bool

    @property
    def workload_name(self) -> str:
        """Key of records."""
        return {"cpu-copy": "copy", "cpu-matmul": "matmul"}.get(self.implementation, "attention")

    @property
    def case(self) -> Case:
        """What the time model sees; it does not depend on the time."""
        return case_of(Record(self.workload_name, self.implementation, "", DTYPE, self.sizes, Seconds(1.0), cache="warm"))


def _attention(heads: int, kv_heads: int, n: int, kv_len: int, d: int, causal: bool) -> dict[str, Any]:
    return {"batch": 1, "heads": heads, "kv_heads": kv_heads, "n": n, "kv_len": kv_len, "d": d, "causal": causal}


def shapes(llc_bytes: int) -> list[Shape]:
    """All shapes for a last-level cache of ``llc_bytes``."""
    heads = min(max(-(-int(STREAMED_SHARE * llc_bytes) // (2 * 4 * STREAMED_N**2)), 2) // 2 * 2, MOST_HEADS)

    def streamed(d: int, causal: bool, group: int = 1) -> dict[str, Any]:
        return _attention(heads, heads // group, STREAMED_N, STREAMED_N, d, causal)

    def mnk(m: int, n: int, k: int) -> dict[str, Any]:
        return {"m": m, "n": n, "k": k}

    def copied(share: float) -> dict[str, Any]:
        return {"bytes": int(llc_bytes * share) // 128 * 64}

    fit = {
        "cpu-flash": [_attention(2, 2, 512, 512, 32, False), _attention(2, 2, 768, 768, 128, True), _attention(2, 2, 512, 512, 96, False)],
        "cpu-standard": [
            _attention(2, 2, 768, 768, 32, False),
            _attention(2, 2, 768, 768, 128, True),
            streamed(32, False),
            streamed(128, True),
        ],
        "cpu-matmul": [mnk(384, 384, 384), mnk(256, 512, 384)],
    }
    judge = {
        "cpu-flash": [
            _attention(2, 2, 768, 768, 64, True),
            _attention(4, 2, 500, 700, 16, True),
            _attention(4, 1, 512, 512, 128, False),
        ],
        "cpu-standard": [
            _attention(2, 2, 768, 768, 64, False),
            streamed(16, False),
            streamed(16, True),
            streamed(48, False),
            streamed(48, True, group=2),
        ],
        "cpu-matmul": [mnk(512, 512, 512), mnk(448, 320, 640)],
        "cpu-copy": [copied(0.6), copied(1.6), copied(2.5), copied(3.0), copied(5.0)],
    }
    return [Shape(name, sizes, fits) for fits, table in ((True, fit), (False, judge)) for name in table for sizes in table[name]]
