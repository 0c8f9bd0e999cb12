"""Brute force: the real tile loops of every algorithm in numpy, counting each load and store.

Independent of the package: it knows the algorithms from the papers, not the closed forms. Every tensor lives in a ``Memory``
that counts what crosses the SRAM boundary and remembers which elements were ever touched.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache, partial

import numpy as np


@dataclass(frozen=True)
class Shape:
    n: int
    kv_len: int
    d: int
    dv: int
    br: int
    bc: int
    causal: bool = False
    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    packed: bool = False
    mask: bool = False
    masked_fill: bool = False
    dropout: float = 0.0
    unfused_scale: bool = False
    printed_backward: bool = False
    window: int | None = None
    splits: int = 1
    pattern: str = ""
    """Which blocks are nonzero; '': all of them."""
    pairs: frozenset[tuple[int, int]] = frozenset()

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads


class Memory:
    """Tensors outside the SRAM. ``counts[tensor, kind]``: elements moved; ``touched``: distinct ones."""

    def __init__(self, **tensors: np.ndarray) -> None:
        self.tensors = tensors
        self.counts: Counter[tuple[str, str]] = Counter()
        self.computed_scores = 0
        self._touched: dict[tuple[str, str], np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        return self.tensors[name]

    def create(self, name: str, *shape: int) -> None:
        self.tensors[name] = np.full(shape, np.nan)  # poison: a value never written cannot pass

    def _count(self, name: str, kind: str, index: tuple[object, ...]) -> None:
        touched = self._touched.setdefault((name, kind), np.zeros(self.tensors[name].shape, bool))
        self.counts[name, kind] += touched[index].size
        touched[index] = True

    def load(self, name: str, *index: object) -> np.ndarray:
        self._count(name, "read", index)
        return self.tensors[name][index].copy()

    def store(self, name: str, value: np.ndarray, *index: object) -> None:
        self._count(name, "write", index)
        self.tensors[name][index] = value

    def fill(self, name: str, value: float = 0.0) -> None:
        self._count(name, "zero_fill", (slice(None),))
        self.tensors[name][...] = value

    def touched(self, name: str, kind: str) -> int:
        return int(self._touched[name, kind].sum())


def nonzero(s: Shape, i: int, j: int) -> bool:
    """Whether the pattern has block (i, j), by its definition."""
    if s.pattern == "file":
        return (i, j) in s.pairs
    if s.pattern == "butterfly":
        return i == j or (i ^ j).bit_count() == 1
    if s.pattern == "strided":
        return abs(i - j) <= 1 or j % math.ceil(math.sqrt(math.ceil(s.kv_len / s.bc))) == 0
    assert s.pattern == "local-global"
    return abs(i - j) <= 1 or i == 0 or j == 0


@cache
def blocks(s: Shape) -> np.ndarray:
    """``nonzero`` of every block."""
    return np.array([[nonzero(s, i, j) for j in range(math.ceil(s.kv_len / s.bc))] for i in range(math.ceil(s.n / s.br))])


def visible(s: Shape, rows: np.ndarray, keys: np.ndarray, group: int) -> np.ndarray:
    """Which scores of packed ``rows`` x ``keys`` a mask and a pattern of blocks leave."""
    queries = rows // group
    seen = blocks(s)[queries // s.br][:, keys // s.bc] if s.pattern else np.ones((len(rows), len(keys)), bool)
    if not s.causal:
        return seen
    last = queries[:, None] + s.kv_len - s.n
    return seen & (keys[None, :] <= last) & (keys[None, :] > last - (s.window or s.kv_len))


def all_visible(s: Shape) -> np.ndarray:
    """The same of one head's whole matrix."""
    return visible(s, np.arange(s.n), np.arange(s.kv_len), 1)


def inputs(s: Shape, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "Q": rng.standard_normal((s.batch, s.heads, s.n, s.d)),
        "K": rng.standard_normal((s.batch, s.kv_heads, s.kv_len, s.d)),
        "V": rng.standard_normal((s.batch, s.kv_heads, s.kv_len, s.dv)),
        "dO": rng.standard_normal((s.batch, s.heads, s.n, s.dv)),
        "mask": rng.standard_normal((s.n, s.kv_len)) if s.mask else np.zeros((s.n, s.kv_len)),
        "boolean mask": all_visible(s),
        "keep": rng.random((s.batch, s.heads, s.n, s.kv_len)) >= s.dropout,
    }


def reference(s: Shape, x: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Plain attention and its gradients, whole matrices at once. Rows that see nothing give zeros."""
    k, v = (np.repeat(x[name], s.group, axis=1) for name in ("K", "V"))
    scale = 1 / np.sqrt(s.d)
    scores = x["Q"] @ k.swapaxes(-1, -2) * scale + x["mask"]
    seen = all_visible(s)
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1)
    e = np.exp(scores - _finite(top)[..., None])
    total = e.sum(-1)
    p = e / _safe(total)[..., None]
    keep = x["keep"] / (1 - s.dropout)
    dropped = p * keep
    dp = (x["dO"] @ v.swapaxes(-1, -2)) * keep
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    per_group = (s.batch, s.kv_heads, s.group)
    return {
        "O": dropped @ v,
        "dQ": ds @ k * scale,
        "dK": (ds.swapaxes(-1, -2) @ x["Q"] * scale).reshape(*per_group, s.kv_len, s.d).sum(2),
        "dV": (dropped.swapaxes(-1, -2) @ x["dO"]).reshape(*per_group, s.kv_len, s.dv).sum(2),
        "P": p,
        "logsumexp": _logsumexp(top, total),
    }


def cut(length: int, edge: int) -> list[np.ndarray]:
    return [np.arange(i, min(i + edge, length)) for i in range(0, length, edge)]


# Fused algorithms: one walk covers one query head, or a whole group of them interleaved when packed


class Walk:
    """Indices of one walk: packed row r is query r // g of head first + r % g."""

    def __init__(self, s: Shape, memory: Memory, batch: int, head: int) -> None:
        self.s, self.m, self.batch = s, memory, batch
        self.g = s.group if s.packed else 1
        self.first = head * self.g
        self.kv = head if s.packed else head // s.group
        self.slot = head  # where this walk stores dK and dV
        self.rows = self.g * s.n

    def tiles(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        return cut(self.rows, self.s.br), cut(self.s.kv_len, self.s.bc)

    def of_rows(self, rows: np.ndarray) -> tuple[object, ...]:
        return self.batch, self.first + rows % self.g, rows // self.g

    def of_keys(self, keys: np.ndarray) -> tuple[object, ...]:
        return self.batch, self.kv, keys

    def sees(self, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return visible(self.s, rows, keys, self.g)

    def scores(self, q: np.ndarray, k: np.ndarray, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        scores = q @ k.T / np.sqrt(self.s.d)
        if self.s.mask:
            scores += self.m.load("mask", *np.ix_(rows // self.g, keys))  # each row of Q, packed or not, looks up its own
        return np.where(self.sees(rows, keys), scores, -np.inf)

    def keep(self, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Dropout decisions, regenerated instead of stored."""
        heads = self.first + rows % self.g
        return self.m["keep"][self.batch, heads, rows // self.g][:, keys] / (1 - self.s.dropout)


def walks(s: Shape, memory: Memory) -> list[Walk]:
    return [Walk(s, memory, b, h) for b in range(s.batch) for h in range(s.kv_heads if s.packed else s.heads)]


def _finite(top: np.ndarray) -> np.ndarray:
    """The maximum to subtract: of a row that saw nothing, 0."""
    return np.where(np.isfinite(top), top, 0.0)


def _exp(x: np.ndarray, top: np.ndarray) -> np.ndarray:
    return np.exp(x - _finite(top)[:, None])


def _decay(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """By what sums under the maximum ``old`` shrink under ``new``."""
    return np.where(np.isfinite(old), np.exp(old - _finite(new)), 0.0)


def _safe(total: np.ndarray) -> np.ndarray:
    return np.where(total > 0, total, 1)


def _logsumexp(top: np.ndarray, total: np.ndarray) -> np.ndarray:
    return np.where(total > 0, _finite(top) + np.log(_safe(total)), -np.inf)


def _forward_memory(s: Shape, x: dict[str, np.ndarray], **widths: int) -> Memory:
    """With O and statistics of each row."""
    m = Memory(**x)
    m.create("O", s.batch, s.heads, s.n, s.dv)
    for name, width in widths.items():
        m.create(name, s.batch, s.heads, s.n, *[width] * (width > 1))
    return m


def flash1_forward(s: Shape, x: dict[str, np.ndarray]) -> Memory:
    """Block-sparse attention is the same walk without the zero blocks."""
    m = _forward_memory(s, x, **{"l, m": 2})
    m.fill("O")
    m.fill("l, m")
    m.tensors["l, m"][..., 1] = -np.inf
    for walk in walks(s, m):
        row_tiles, key_tiles = walk.tiles()
        for keys in key_tiles:
            k, v = m.load("K", *walk.of_keys(keys)), m.load("V", *walk.of_keys(keys))
            for rows in row_tiles:
                if not walk.sees(rows, keys).any():
                    continue
                at = walk.of_rows(rows)
                q, o, stats = m.load("Q", *at), m.load("O", *at), m.load("l, m", *at)
                scores = walk.scores(q, k, rows, keys)
                m.computed_scores += scores.size
                old_l, old_m = stats[:, 0], stats[:, 1]
                top = np.maximum(old_m, scores.max(1))
                p, decay = _exp(scores, top), _decay(old_m, top)
                total = decay * old_l + p.sum(1)
                weighted = (decay * old_l)[:, None] * o + (p * walk.keep(rows, keys)) @ v
                m.store("O", weighted / _safe(total)[:, None], *at)
                m.store("l, m", np.stack([total, top], 1), *at)
    return m


def flash2_forward(s: Shape, x: dict[str, np.ndarray]) -> Memory:
    """Split-KV walks so over each split of the key tiles, and then combines them; flash2 is one split."""
    m = _forward_memory(s, x, logsumexp=1)
    tile_count = math.ceil(s.kv_len / s.bc)
    per_split = math.ceil(tile_count / s.splits)
    parts = [slice(first, first + per_split) for first in range(0, tile_count, per_split)]
    m.create("partial O", s.batch, s.heads, s.n, len(parts), s.dv)
    m.create("partial logsumexp", s.batch, s.heads, s.n, len(parts))
    for walk in walks(s, m):
        row_tiles, key_tiles = walk.tiles()
        for rows in row_tiles:
            for part, tiles in enumerate(parts):
                at = walk.of_rows(rows)
                q = m.load("Q", *at)
                o, total, top = np.zeros((len(rows), s.dv)), np.zeros(len(rows)), np.full(len(rows), -np.inf)
                for keys in key_tiles[tiles]:
                    if not walk.sees(rows, keys).any():
                        continue
                    k, v = m.load("K", *walk.of_keys(keys)), m.load("V", *walk.of_keys(keys))
                    scores = walk.scores(q, k, rows, keys)
                    m.computed_scores += s.br * s.bc  # a kernel computes whole tiles
                    new = np.maximum(top, scores.max(1))
                    p, decay = _exp(scores, new), _decay(top, new)
                    o, total, top = decay[:, None] * o + (p * walk.keep(rows, keys)) @ v, decay * total + p.sum(1), new
                kind, place = ("", at) if len(parts) == 1 else ("partial ", (*at, part))
                m.store(f"{kind}O", o / _safe(total)[:, None], *place)
                m.store(f"{kind}logsumexp", _logsumexp(top, total), *place)
    if len(parts) > 1:
        everything = slice(None)
        lse = m.load("partial logsumexp", everything)
        scale, total, whole = weights(lse, np.ones_like(lse))
        m.store("O", (scale[..., None] * m.load("partial O", everything)).sum(-2) / total[..., None], everything)
        m.store("logsumexp", whole, everything)
    return m


def weights(top: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """From the maximum and sum of each part (last axis): the weight of a part, the normalised sum, the logsumexp."""
    whole = top.max(-1)
    scale = _decay(top, whole[..., None])
    summed = (scale * total).sum(-1)
    return scale, _safe(summed), _logsumexp(whole, summed)


def passes_forward(passes: int, s: Shape, x: dict[str, np.ndarray]) -> Memory:
    """Safe softmax in three passes over the keys, or online softmax in two, scores computed anew in each."""
    m = _forward_memory(s, x, logsumexp=1)

    def streamed_scores(q: np.ndarray, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Scores of a tile whose keys are loaded for them; a kernel computes whole tiles."""
        m.computed_scores += s.br * s.bc
        return walk.scores(q, m.load("K", *walk.of_keys(keys)), rows, keys)

    for walk in walks(s, m):
        row_tiles, key_tiles = walk.tiles()
        for rows in row_tiles:
            at, visited = walk.of_rows(rows), [keys for keys in key_tiles if walk.sees(rows, keys).any()]
            q, top, total = m.load("Q", *at), np.full(len(rows), -np.inf), np.zeros(len(rows))
            for keys in visited:
                found = streamed_scores(q, rows, keys)
                new = np.maximum(top, found.max(1))
                if passes == 2:
                    total = _decay(top, new) * total + _exp(found, new).sum(1)
                top = new
            for keys in visited if passes == 3 else []:
                total += _exp(streamed_scores(q, rows, keys), top).sum(1)
            o = np.zeros((len(rows), s.dv))
            for keys in visited:
                o += (_exp(streamed_scores(q, rows, keys), top) * walk.keep(rows, keys)) @ m.load("V", *walk.of_keys(keys))
            m.store("O", o / _safe(total)[:, None], *at)
            m.store("logsumexp", _logsumexp(top, total), *at)
    return m


def _key_gradients(s: Shape, m: Memory) -> None:
    """Sum the parts that query heads of a group stored apart."""
    for name in ("dK", "dV"):
        parts = m.tensors[name]
        if parts.shape[1] != s.kv_heads:
            summed = parts.reshape(s.batch, s.kv_heads, s.group, *parts.shape[2:]).sum(2)
            m.counts["group sum", "group_sum"] += parts.size + summed.size
            m.tensors[name] = summed


def _backward_memory(s: Shape, x: dict[str, np.ndarray], ref: dict[str, np.ndarray]) -> Memory:
    m = Memory(**x, O=ref["O"], logsumexp=ref["logsumexp"])
    heads = s.kv_heads if s.packed else s.heads
    m.create("dQ", s.batch, s.heads, s.n, s.d)
    m.create("dK", s.batch, heads, s.kv_len, s.d)
    m.create("dV", s.batch, heads, s.kv_len, s.dv)
    m.fill("dQ")
    return m


def _tile_gradients(walk: Walk, rows, keys, q, k, v, do, lse, row_sum):  # type: ignore[no-untyped-def]
    p = _exp(walk.scores(q, k, rows, keys), lse)
    keep = walk.keep(rows, keys)
    ds = p * ((do @ v.T) * keep - row_sum[:, None]) / np.sqrt(walk.s.d)
    return (p * keep).T @ do, ds.T @ q, ds @ k


def flash_backward(version: int, s: Shape, x: dict[str, np.ndarray], ref: dict[str, np.ndarray]) -> Memory:
    """Flash2 sums dO O of each row once, before; flash1 in every tile."""
    m = _backward_memory(s, x, ref)
    if version == 1:
        m.tensors["l, m"] = np.stack([ref["logsumexp"], np.zeros_like(ref["logsumexp"])], -1)  # two statistics per row
        m.fill("dK")
        m.fill("dV")
    else:
        m.create("D", s.batch, s.heads, s.n)
        for walk in walks(s, m):
            for rows in walk.tiles()[0]:
                at = walk.of_rows(rows)
                m.store("D", (m.load("dO", *at) * m.load("O", *at)).sum(1), *at)
    for walk in walks(s, m):
        row_tiles, key_tiles = walk.tiles()
        for keys in key_tiles:
            k, v = m.load("K", *walk.of_keys(keys)), m.load("V", *walk.of_keys(keys))
            dk, dv = np.zeros_like(k), np.zeros_like(v)
            for rows in row_tiles:
                if not walk.sees(rows, keys).any():
                    continue
                at = walk.of_rows(rows)
                q, do, dq = (m.load(name, *at) for name in ("Q", "dO", "dQ"))
                if version == 1:
                    m.computed_scores += len(rows) * len(keys)
                    lse, row_sum = m.load("l, m", *at)[:, 0], (do * m.load("O", *at)).sum(1)
                else:
                    m.computed_scores += s.br * s.bc
                    lse, row_sum = m.load("logsumexp", *at), m.load("D", *at)
                    for name in ("O", "dQ") if s.printed_backward else ():
                        m.load(name, *at)
                add_v, add_k, add_q = _tile_gradients(walk, rows, keys, q, k, v, do, lse, row_sum)
                dk, dv = dk + add_k, dv + add_v
                m.store("dQ", dq + add_q, *at)
            m.store("dK", dk, walk.batch, walk.slot, keys)
            m.store("dV", dv, walk.batch, walk.slot, keys)
    _key_gradients(s, m)
    return m


# Standard attention: one kernel after another, each reads its inputs and writes its outputs once


def _grouped(s: Shape, x: np.ndarray) -> np.ndarray:
    """Query-shaped [batch, heads, n, *] as one tall matrix per KV head."""
    return x.reshape(s.batch, s.kv_heads, s.group * s.n, x.shape[-1])


def _key_loads(s: Shape, m: Memory, name: str) -> np.ndarray:
    """K or V once per KV head if packed, else once per query head."""
    for _ in range(1 if s.packed else s.group):
        value = m.load(name, slice(None))
    return value


def _per_head(s: Shape, x: np.ndarray) -> np.ndarray:
    return np.repeat(x, s.group, axis=1)


def _for_every_head(s: Shape, m: Memory, name: str) -> np.ndarray:
    """One matrix for all heads, loaded for each of them."""
    return np.stack([m.load(name, slice(None)) for _ in range(s.batch * s.heads)]).reshape(s.batch, s.heads, s.n, s.kv_len)


def standard_forward(s: Shape, x: dict[str, np.ndarray]) -> Memory:
    m, everything = Memory(**x), slice(None)
    square = (s.batch, s.heads, s.n, s.kv_len)
    for name in ("S", "P", "dropped P", "dropout mask"):
        m.create(name, *square)
    m.create("O", s.batch, s.heads, s.n, s.dv)
    scale = 1 / np.sqrt(s.d)
    product = m.load("Q", everything) @ _per_head(s, _key_loads(s, m, "K")).swapaxes(-1, -2)
    m.computed_scores += product.size
    m.store("S", product if s.unfused_scale else product * scale, everything)
    if s.unfused_scale:
        m.store("S", m.load("S", everything) * scale, everything)
    if s.mask:
        m.store("S", m.load("S", everything) + _for_every_head(s, m, "mask"), everything)
    if s.masked_fill:
        m.store("S", np.where(_for_every_head(s, m, "boolean mask"), m.load("S", everything), -np.inf), everything)
    scores = m.load("S", everything)
    seen = all_visible(s)
    scores = np.where(seen, scores, -np.inf)
    e = np.exp(scores - _finite(scores.max(-1))[..., None])
    total = e.sum(-1, keepdims=True)
    m.store("P", e / _safe(total), everything)
    probabilities = "P"
    if s.dropout:
        probabilities = "dropped P"
        keep = x["keep"] / (1 - s.dropout)
        m.store("dropped P", m.load("P", everything) * keep, everything)
        m.store("dropout mask", x["keep"], everything)
    m.store("O", m.load(probabilities, everything) @ _per_head(s, _key_loads(s, m, "V")), everything)
    return m


def standard_backward(s: Shape, x: dict[str, np.ndarray], ref: dict[str, np.ndarray]) -> Memory:
    keep = x["keep"] / (1 - s.dropout)
    m, everything = Memory(**x, P=ref["P"]), slice(None)
    m.tensors["dropped P"], m.tensors["dropout mask"] = ref["P"] * keep, x["keep"]
    for name in ("dP", "dS"):
        m.create(name, s.batch, s.heads, s.n, s.kv_len)
    m.create("dQ", s.batch, s.heads, s.n, s.d)
    heads = s.kv_heads if s.packed else s.heads
    m.create("dK", s.batch, heads, s.kv_len, s.d)
    m.create("dV", s.batch, heads, s.kv_len, s.dv)
    scale = 1 / np.sqrt(s.d)

    def transposed_product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        if s.packed:
            left, right = _grouped(s, left), _grouped(s, right)
        return left.swapaxes(-1, -2) @ right

    p, do = m.load("dropped P" if s.dropout else "P", everything), m.load("dO", everything)
    m.store("dV", transposed_product(p, do), everything)
    m.store("dP", m.load("dO", everything) @ _per_head(s, _key_loads(s, m, "V")).swapaxes(-1, -2), everything)
    if s.dropout:
        m.store("dP", m.load("dP", everything) * m.load("dropout mask", everything) / (1 - s.dropout), everything)
    p, dp = m.load("P", everything), m.load("dP", everything)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    m.computed_scores += ds.size
    m.store("dS", ds if s.unfused_scale else ds * scale, everything)
    if s.masked_fill:
        m.store("dS", np.where(_for_every_head(s, m, "boolean mask"), m.load("dS", everything), 0), everything)
    if s.unfused_scale:
        m.store("dS", m.load("dS", everything) * scale, everything)
    m.store("dQ", m.load("dS", everything) @ _per_head(s, _key_loads(s, m, "K")), everything)
    m.store("dK", transposed_product(m.load("dS", everything), m.load("Q", everything)), everything)
    _key_gradients(s, m)
    return m


PASSES = {"two-pass": 2, "three-pass": 3}
FORWARD = {"standard": standard_forward, "flash1": flash1_forward, "flash2": flash2_forward}
FORWARD |= {name: partial(passes_forward, passes) for name, passes in PASSES.items()}
BACKWARD = {"standard": standard_backward, "flash1": partial(flash_backward, 1)}
BACKWARD |= dict.fromkeys(("flash2", *PASSES), partial(flash_backward, 2))
