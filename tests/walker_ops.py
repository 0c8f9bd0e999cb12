"""Brute force for the single operations: real loops over tiles, rows, kernels, warps and bytes, counting each load and store.

Independent of the package: it knows the operations, not their closed forms.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from walker import Memory


def tiles(size: int, edge: int) -> list[slice]:
    return [slice(start, min(start + edge, size)) for start in range(0, size, edge)]


def matmul(a: np.ndarray, b: np.ndarray, bm: int, bn: int, depth: int, splits: int = 1) -> tuple[Memory, int]:
    """C = A B over tiles of C, ``splits`` blocks per tile; the memory, and the multiply-adds of whole tiles."""
    batch, m, k = a.shape
    n = b.shape[2]
    memory, executed = Memory(A=a, B=b), 0
    memory.create("C", batch, m, n)
    memory.create("partial C", splits, batch, m, n)
    edges = np.linspace(0, k, splits + 1).astype(int)
    for index in range(batch):
        for rows in tiles(m, bm):
            for columns in tiles(n, bn):
                for part in range(splits):
                    accumulator = np.zeros((rows.stop - rows.start, columns.stop - columns.start))
                    for start in range(edges[part], edges[part + 1], depth):
                        inner = slice(start, min(start + depth, edges[part + 1]))
                        accumulator += memory.load("A", index, rows, inner) @ memory.load("B", index, inner, columns)
                        executed += bm * bn * (inner.stop - inner.start)
                    if splits == 1:
                        memory.store("C", accumulator, index, rows, columns)
                    else:
                        memory.store("partial C", accumulator, part, index, rows, columns)
    if splits > 1:
        memory.store("C", memory.load("partial C", slice(None)).sum(0), slice(None))
    return memory, executed


def softmax(x: np.ndarray, variant: str) -> tuple[Memory, int]:
    """Row by row, element by element; the memory, and the exponentials of the elements."""
    memory, exponentials = Memory(x=x), 0
    memory.create("y", *x.shape)
    rows, columns = x.shape
    for row in range(rows):
        if variant == "fused":
            values = memory.load("x", row)
            e = np.exp(values - values.max())
            exponentials += columns
            memory.store("y", e / e.sum(), row)
            continue
        top, total = -np.inf, 0.0
        if variant == "safe":
            for column in range(columns):
                top = max(top, float(memory.load("x", row, column)))
            for column in range(columns):
                total += np.exp(float(memory.load("x", row, column)) - top)
                exponentials += 1
        else:
            for column in range(columns):
                value = float(memory.load("x", row, column))
                grown = max(top, value)
                total = total * np.exp(top - grown) + np.exp(value - grown)
                exponentials += 2
                top = grown
        for column in range(columns):
            memory.store("y", np.exp(float(memory.load("x", row, column)) - top) / total, row, column)
            exponentials += 1
    return memory, exponentials


def chain(elements: int, operands: list[int], fused: bool) -> tuple[int, int, int]:
    """Elements read, elements written, kernels launched by one elementwise operation after another."""
    known, reads, writes = [np.ones(elements)], 0, 0
    for count in operands:
        inputs = [known[-1 - (index % len(known))] for index in range(count)]
        reads += sum(tensor.size for tensor in inputs)
        known.append(np.sum(inputs, axis=0))
        writes += known[-1].size
    return (elements, elements, 1) if fused else (reads, writes, len(operands))


def mlp_gradients(
    x: np.ndarray, w1: np.ndarray, w2: np.ndarray, dy: np.ndarray, input_gradient: bool
) -> tuple[dict[str, np.ndarray], Counter]:
    """The gradients by the chain rule, and the multiply-adds of each layer's backward pass."""
    work: Counter[int] = Counter()

    def product(a: np.ndarray, b: np.ndarray, layer: int) -> np.ndarray:
        work[layer] += a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b

    a1 = np.maximum(x @ w1, 0)
    found = {"dW2": product(a1.T, dy, 2)}
    dz1 = product(dy, w2.T, 2) * (a1 > 0)
    found["dW1"] = product(x.T, dz1, 1)
    if input_gradient:
        found["dx"] = product(dz1, w1.T, 1)
    return found, work


def blocks_that_fit(
    threads: int,
    registers: int,
    sram: int,
    *,
    register_file: int,
    capacity: int,
    most_threads: int,
    most_blocks: int,
    reserve: int,
    unit: int,
) -> int:
    """Place blocks warp by warp into four sub-partitions until one does not fit."""
    free = [register_file // 4] * 4
    warps, blocks, used, placed = -(-threads // 32), 0, 0, 0
    per_warp = -(-registers * 32 // 256) * 256
    per_block = -(-(sram + reserve) // unit) * unit
    while blocks < most_blocks and used + per_block <= capacity and (placed + warps) * 32 <= most_threads:
        for _ in range(warps):
            part = max(range(4), key=lambda index: free[index])
            if free[part] < per_warp:
                return blocks
            free[part] -= per_warp
        blocks, used, placed = blocks + 1, used + per_block, placed + warps
    return blocks


def sectors(stride: int, element: int, warp: int = 32) -> tuple[int, int]:
    """Sectors of 32 B that a warp touches, byte by byte, and the distinct bytes it asks for."""
    touched = {thread * stride * element + byte for thread in range(warp) for byte in range(element)}
    return len({byte // 32 for byte in touched}), len(touched)
