"""Brute force, continued: split-KV, memory-efficient and block-sparse attention as loops that count each load and store."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import walker
from walker import Memory, Walk, _backward_memory, _exp, _key_gradients, _per_head, _tile_gradients, visible, walks


@dataclass(frozen=True)
class Shape(walker.Shape):
    splits: int = 1
    pattern: str = ""
    pairs: frozenset[tuple[int, int]] = frozenset()


def _weights(top: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """From the maximum and sum of each part (last axis): the weight of a part, the normalised sum, the logsumexp."""
    whole = top.max(-1)
    scale = np.where(np.isfinite(top), np.exp(top - np.where(np.isfinite(whole), whole, 0.0)[..., None]), 0.0)
    summed = (scale * total).sum(-1)
    safe = np.where(summed > 0, summed, 1)
    return scale, safe, np.where(summed > 0, np.where(np.isfinite(whole), whole, 0.0) + np.log(safe), -np.inf)


# Split-KV: flash2's forward walk, once per split of the key tiles


def split_kv_forward(s: Shape, x: dict[str, np.ndarray]) -> Memory:
    m = Memory(**x)
    per_split = math.ceil(math.ceil(s.kv_len / s.bc) / s.splits)
    m.create("O", s.batch, s.heads, s.n, s.dv)
    m.create("logsumexp", s.batch, s.heads, s.n)
    parts = [range(first, first + per_split) for first in range(0, math.ceil(s.kv_len / s.bc), per_split)]
    m.create("partial O", s.batch, s.heads, s.n, len(parts), s.dv)
    m.create("partial logsumexp", s.batch, s.heads, s.n, len(parts))
    for walk in walks(s, m):
        row_tiles, key_tiles = walk.tiles()
        for rows in row_tiles:
            for part, tiles in enumerate(parts):
                at = walk.of_rows(rows)
                q = m.load("Q", *at)
                o, total, top = np.zeros((len(rows), s.dv)), np.zeros(len(rows)), np.full(len(rows), -np.inf)
                for keys in key_tiles[tiles.start : tiles.stop]:
                    if not walk.sees(rows, keys).any():
                        continue
                    k, v = m.load("K", *walk.of_keys(keys)), m.load("V", *walk.of_keys(keys))
                    scores = walk.scores(q, k, rows, keys)
                    m.computed_scores += s.br * s.bc
                    new = np.maximum(top, scores.max(1))
                    p = _exp(scores, new)
                    decay = np.where(np.isfinite(top), np.exp(top - np.where(np.isfinite(new), new, 0.0)), 0.0)
                    o, total, top = decay[:, None] * o + (p * walk.keep(rows, keys)) @ v, decay * total + p.sum(1), new
                o /= np.where(total > 0, total, 1)[:, None]
                lse = np.where(total > 0, top + np.log(np.where(total > 0, total, 1)), -np.inf)
                if len(parts) == 1:
                    m.store("O", o, *at)
                    m.store("logsumexp", lse, *at)
                else:
                    m.store("partial O", o, *at, part)
                    m.store("partial logsumexp", lse, *at, part)
    if len(parts) > 1:
        everything = slice(None)
        lse = m.load("partial logsumexp", everything)
        scale, total, whole = _weights(lse, np.ones_like(lse))
        o = m.load("partial O", everything)
        m.store("O", (scale[..., None] * o).sum(-2) / total[..., None], everything)
        m.store("logsumexp", whole, everything)
    return m


# Memory-efficient: one chunk of queries and one of keys at a time, all heads together; ordinary kernels over buffers


class _Chunk:
    """One pair of chunks: where it lies in the tensors and in the buffers."""

    def __init__(self, s: Shape, m: Memory, queries: np.ndarray, keys: np.ndarray) -> None:
        self.s, self.m, self.queries, self.keys = s, m, queries, keys
        self.buffer = (slice(None), slice(None), slice(0, len(queries)), slice(0, len(keys)))
        self.rows = (slice(None), slice(None), queries)
        self.columns = (slice(None), slice(None), keys)
        self.keep = m["keep"][:, :, queries][..., keys] / (1 - s.dropout)
        self.seen = visible(s, queries, keys, 1)

    def load_keys(self, name: str) -> np.ndarray:
        """Once per KV head if packed, else once per query head."""
        for _ in range(1 if self.s.packed else self.s.group):
            value = self.m.load(name, *self.columns)
        return _per_head(self.s, value)

    def in_place(self, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
        self.m.store(name, change(self.m.load(name, *self.buffer)), *self.buffer)

    def scores(self) -> None:
        scale = 1 / np.sqrt(self.s.d)
        product = self.m.load("Q", *self.rows) @ self.load_keys("K").swapaxes(-1, -2)
        self.m.computed_scores += product.size
        self.m.store("S", product if self.s.unfused_scale else product * scale, *self.buffer)
        if self.s.unfused_scale:
            self.in_place("S", lambda scores: scores * scale)
        if self.s.mask:
            self.in_place("S", lambda scores: scores + self.for_every_head("mask"))
        if self.s.masked_fill:
            self.in_place("S", lambda scores: np.where(self.for_every_head("boolean mask"), scores, -np.inf))

    def for_every_head(self, name: str) -> np.ndarray:
        """A chunk of one matrix for all heads, loaded for each of them."""
        parts = [self.m.load(name, *np.ix_(self.queries, self.keys)) for _ in range(self.s.batch * self.s.heads)]
        return np.stack(parts).reshape(self.s.batch, self.s.heads, len(self.queries), len(self.keys))

    def dropped(self) -> str:
        if not self.s.dropout:
            return "P"
        self.m.store("dropped P", self.m.load("P", *self.buffer) * self.keep, *self.buffer)
        return "dropped P"

    def add(self, name: str, part: np.ndarray) -> None:
        """Onto the key-shaped gradient: per query head, or over the group if packed."""
        if self.s.packed:
            part = part.reshape(self.s.batch, self.s.kv_heads, self.s.group, *part.shape[2:]).sum(2)
        self.m.store(name, self.m.load(name, *self.columns) + part, *self.columns)


def _cut(length: int, edge: int) -> list[np.ndarray]:
    return [np.arange(i, min(i + edge, length)) for i in range(0, length, edge)]


def _buffers(s: Shape, m: Memory, *names: str) -> None:
    for name in names:
        m.create(name, s.batch, s.heads, min(s.br, s.n), min(s.bc, s.kv_len))


def memory_efficient_forward(s: Shape, x: dict[str, np.ndarray]) -> Memory:
    m = Memory(**x)
    _buffers(s, m, "S", "P", "dropped P")
    key_chunks = _cut(s.kv_len, s.bc)
    m.create("O", s.batch, s.heads, s.n, s.dv)
    m.create("chunk O", len(key_chunks), s.batch, s.heads, min(s.br, s.n), s.dv)
    for name in ("chunk max", "chunk sum"):
        m.create(name, len(key_chunks), s.batch, s.heads, min(s.br, s.n))
    for queries in _cut(s.n, s.br):
        part = (slice(None), slice(None), slice(0, len(queries)))
        for index, keys in enumerate(key_chunks):
            chunk = _Chunk(s, m, queries, keys)
            chunk.scores()
            scores = np.where(chunk.seen, m.load("S", *chunk.buffer), -np.inf)
            top = scores.max(-1)
            p = np.exp(scores - np.where(np.isfinite(top), top, 0.0)[..., None])
            m.store("P", p, *chunk.buffer)
            m.store("chunk max", top, index, *part)
            m.store("chunk sum", p.sum(-1), index, *part)
            m.store("chunk O", m.load(chunk.dropped(), *chunk.buffer) @ chunk.load_keys("V"), index, *part)
        top, total = (np.moveaxis(m.load(name, slice(None), *part), 0, -1) for name in ("chunk max", "chunk sum"))
        scale, total, _ = _weights(top, total)
        o = np.moveaxis(m.load("chunk O", slice(None), *part), 0, -2)
        m.store("O", (scale[..., None] * o).sum(-2) / total[..., None], *part[:2], queries)
    return m


def _chunk_statistics(s: Shape, x: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """What the forward pass saved: maximum and sum of each row and key chunk."""
    scores = x["Q"] @ _per_head(s, x["K"]).swapaxes(-1, -2) / np.sqrt(s.d) + x["mask"]
    scores = np.where(visible(s, np.arange(s.n), np.arange(s.kv_len), 1), scores, -np.inf)
    parts = [scores[..., keys] for keys in _cut(s.kv_len, s.bc)]
    tops = [part.max(-1) for part in parts]
    sums = [np.exp(part - np.where(np.isfinite(top), top, 0.0)[..., None]).sum(-1) for part, top in zip(parts, tops, strict=True)]
    return np.stack(tops, -1), np.stack(sums, -1)


def memory_efficient_backward(s: Shape, x: dict[str, np.ndarray], ref: dict[str, np.ndarray]) -> Memory:
    m, everything, scale = _backward_memory(s, x, ref), slice(None), 1 / np.sqrt(s.d)
    m.fill("dK")
    m.fill("dV")
    _buffers(s, m, "S", "P", "dropped P", "dP", "dS")
    m.tensors["chunk max"], m.tensors["chunk sum"] = _chunk_statistics(s, x)
    for name in ("logsumexp", "D"):
        m.create(name, s.batch, s.heads, s.n)
    m.store("D", (m.load("dO", everything) * m.load("O", everything)).sum(-1), everything)
    m.store("logsumexp", _weights(m.load("chunk max", everything), m.load("chunk sum", everything))[2], everything)
    for queries in _cut(s.n, s.br):
        for keys in _cut(s.kv_len, s.bc):
            chunk = _Chunk(s, m, queries, keys)
            chunk.scores()
            scores, lse = np.where(chunk.seen, m.load("S", *chunk.buffer), -np.inf), m.load("logsumexp", *chunk.rows)
            m.store("P", np.exp(scores - np.where(np.isfinite(lse), lse, 0.0)[..., None]), *chunk.buffer)
            p = m.load(chunk.dropped(), *chunk.buffer)
            chunk.add("dV", p.swapaxes(-1, -2) @ m.load("dO", *chunk.rows))
            m.store("dP", m.load("dO", *chunk.rows) @ chunk.load_keys("V").swapaxes(-1, -2), *chunk.buffer)
            if s.dropout:
                chunk.in_place("dP", lambda dp, keep=chunk.keep: dp * keep)
            row_sum = m.load("D", *chunk.rows)[..., None]
            ds = m.load("P", *chunk.buffer) * (m.load("dP", *chunk.buffer) - row_sum)
            m.store("dS", ds if s.unfused_scale else ds * scale, *chunk.buffer)
            if s.masked_fill:
                chunk.in_place("dS", lambda ds, chunk=chunk: np.where(chunk.for_every_head("boolean mask"), ds, 0))
            if s.unfused_scale:
                chunk.in_place("dS", lambda ds: ds * scale)
            step = m.load("dS", *chunk.buffer) @ chunk.load_keys("K")
            m.store("dQ", m.load("dQ", *chunk.rows) + step, *chunk.rows)
            chunk.add("dK", m.load("dS", *chunk.buffer).swapaxes(-1, -2) @ m.load("Q", *chunk.rows))
    _key_gradients(s, m)
    return m


# Block-sparse: flash1's walks without the zero blocks


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


def masked_reference(s: Shape, x: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Attention and gradients over visible scores in nonzero blocks, the same of every head, packed or not."""
    i, j = np.arange(s.n) // s.br, np.arange(s.kv_len) // s.bc
    has = np.array([[nonzero(s, a, b) for b in range(j.max() + 1)] for a in range(i.max() + 1)])
    seen = np.broadcast_to(has[i][:, j] & visible(s, np.arange(s.n), np.arange(s.kv_len), 1), (s.heads, s.n, s.kv_len))
    k, v, scale = _per_head(s, x["K"]), _per_head(s, x["V"]), 1 / np.sqrt(s.d)
    scores = np.where(seen, x["Q"] @ k.swapaxes(-1, -2) * scale + x["mask"], -np.inf)
    top = scores.max(-1)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0.0)[..., None])
    total = e.sum(-1)
    safe = np.where(total > 0, total, 1)
    p, keep = e / safe[..., None], x["keep"] / (1 - s.dropout)
    dp = (x["dO"] @ v.swapaxes(-1, -2)) * keep
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    per_group = (s.batch, s.kv_heads, s.group, s.kv_len)
    return {
        "O": (p * keep) @ v,
        "dQ": ds @ k * scale,
        "dK": (ds.swapaxes(-1, -2) @ x["Q"] * scale).reshape(*per_group, s.d).sum(2),
        "dV": ((p * keep).swapaxes(-1, -2) @ x["dO"]).reshape(*per_group, s.dv).sum(2),
        "logsumexp": np.where(total > 0, np.where(np.isfinite(top), top, 0.0) + np.log(safe), -np.inf),
        "visible": np.array(seen.sum() * s.batch),
    }


class _SparseWalk(Walk):
    def tile_pairs(self, rows: np.ndarray, keys: np.ndarray) -> bool:
        """Whether the block is computed: nonzero, and the mask leaves some of it."""
        of_queries = {row // self.g // self.s.br for row in rows.tolist()}
        assert len(of_queries) == 1, "a tile of packed rows lies in one block"
        return nonzero(self.s, *of_queries, keys[0] // self.s.bc) and bool(self.sees(rows, keys).any())


def _sparse_walks(s: Shape, m: Memory) -> list[_SparseWalk]:
    return [_SparseWalk(s, m, walk.batch, walk.slot) for walk in walks(s, m)]


def block_sparse_forward(s: Shape, x: dict[str, np.ndarray]) -> Memory:
    m = Memory(**x)
    m.create("O", s.batch, s.heads, s.n, s.dv)
    m.create("l, m", s.batch, s.heads, s.n, 2)
    m.fill("O")
    m.fill("l, m")
    m.tensors["l, m"][..., 1] = -np.inf
    for walk in _sparse_walks(s, m):
        row_tiles, key_tiles = walk.tiles()
        for keys in key_tiles:
            k, v = m.load("K", *walk.of_keys(keys)), m.load("V", *walk.of_keys(keys))
            for rows in row_tiles:
                if not walk.tile_pairs(rows, keys):
                    continue
                at = walk.of_rows(rows)
                q, o, stats = m.load("Q", *at), m.load("O", *at), m.load("l, m", *at)
                scores = walk.scores(q, k, rows, keys)
                m.computed_scores += scores.size
                old_l, old_m = stats[:, 0], stats[:, 1]
                top = np.maximum(old_m, scores.max(1))
                p = _exp(scores, top)
                decay = np.where(np.isfinite(old_m), np.exp(old_m - np.where(np.isfinite(top), top, 0.0)), 0.0)
                total = decay * old_l + p.sum(1)
                weighted = (decay * old_l)[:, None] * o + (p * walk.keep(rows, keys)) @ v
                m.store("O", weighted / np.where(total > 0, total, 1)[:, None], *at)
                m.store("l, m", np.stack([total, top], 1), *at)
    return m


def block_sparse_backward(s: Shape, x: dict[str, np.ndarray], ref: dict[str, np.ndarray]) -> Memory:
    m = _backward_memory(s, x, ref)
    m.tensors["l, m"] = np.stack([ref["logsumexp"], np.zeros_like(ref["logsumexp"])], -1)
    m.fill("dK")
    m.fill("dV")
    for walk in _sparse_walks(s, m):
        row_tiles, key_tiles = walk.tiles()
        for keys in key_tiles:
            k, v = m.load("K", *walk.of_keys(keys)), m.load("V", *walk.of_keys(keys))
            dk, dv = np.zeros_like(k), np.zeros_like(v)
            for rows in row_tiles:
                if not walk.tile_pairs(rows, keys):
                    continue
                at = walk.of_rows(rows)
                q, o, do, dq = (m.load(name, *at) for name in ("Q", "O", "dO", "dQ"))
                lse = m.load("l, m", *at)[:, 0]
                m.computed_scores += len(rows) * len(keys)
                add_v, add_k, add_q = _tile_gradients(walk, rows, keys, q, k, v, do, lse, (do * o).sum(1))
                dk, dv = dk + add_k, dv + add_v
                m.store("dQ", dq + add_q, *at)
            m.store("dK", dk, walk.batch, walk.slot, keys)
            m.store("dV", dv, walk.batch, walk.slot, keys)
    _key_gradients(s, m)
    return m
