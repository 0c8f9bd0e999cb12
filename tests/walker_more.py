"""Brute force, continued: memory-efficient attention, one chunk of queries and one of keys at a time, all heads together.

Ordinary kernels over buffers, as loops that count each load and store.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from walker import Memory, Shape, _backward_memory, _finite, _key_gradients, _per_head, all_visible, cut, visible, weights


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


def _buffers(s: Shape, m: Memory, *names: str) -> None:
    for name in names:
        m.create(name, s.batch, s.heads, min(s.br, s.n), min(s.bc, s.kv_len))


def memory_efficient_forward(s: Shape, x: dict[str, np.ndarray]) -> Memory:
    m = Memory(**x)
    _buffers(s, m, "S", "P", "dropped P")
    key_chunks = cut(s.kv_len, s.bc)
    m.create("O", s.batch, s.heads, s.n, s.dv)
    m.create("chunk O", len(key_chunks), s.batch, s.heads, min(s.br, s.n), s.dv)
    for name in ("chunk max", "chunk sum"):
        m.create(name, len(key_chunks), s.batch, s.heads, min(s.br, s.n))
    for queries in cut(s.n, s.br):
        part = (slice(None), slice(None), slice(0, len(queries)))
        for index, keys in enumerate(key_chunks):
            chunk = _Chunk(s, m, queries, keys)
            chunk.scores()
            scores = np.where(chunk.seen, m.load("S", *chunk.buffer), -np.inf)
            top = scores.max(-1)
            p = np.exp(scores - _finite(top)[..., None])
            m.store("P", p, *chunk.buffer)
            m.store("chunk max", top, index, *part)
            m.store("chunk sum", p.sum(-1), index, *part)
            m.store("chunk O", m.load(chunk.dropped(), *chunk.buffer) @ chunk.load_keys("V"), index, *part)
        top, total = (np.moveaxis(m.load(name, slice(None), *part), 0, -1) for name in ("chunk max", "chunk sum"))
        scale, total, _ = weights(top, total)
        o = np.moveaxis(m.load("chunk O", slice(None), *part), 0, -2)
        m.store("O", (scale[..., None] * o).sum(-2) / total[..., None], *part[:2], queries)
    return m


def _chunk_statistics(s: Shape, x: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """What the forward pass saved: maximum and sum of each row and key chunk."""
    scores = x["Q"] @ _per_head(s, x["K"]).swapaxes(-1, -2) / np.sqrt(s.d) + x["mask"]
    scores = np.where(all_visible(s), scores, -np.inf)
    parts = [scores[..., keys] for keys in cut(s.kv_len, s.bc)]
    tops = [part.max(-1) for part in parts]
    sums = [np.exp(part - _finite(top)[..., None]).sum(-1) for part, top in zip(parts, tops, strict=True)]
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
    m.store("logsumexp", weights(m.load("chunk max", everything), m.load("chunk sum", everything))[2], everything)
    for queries in cut(s.n, s.br):
        for keys in cut(s.kv_len, s.bc):
            chunk = _Chunk(s, m, queries, keys)
            chunk.scores()
            scores, lse = np.where(chunk.seen, m.load("S", *chunk.buffer), -np.inf), m.load("logsumexp", *chunk.rows)
            m.store("P", np.exp(scores - _finite(lse)[..., None]), *chunk.buffer)
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
