"""Matmuls, softmax, elementwise chains, MLPs and autograd, as claims ask for them."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.claims.devices import SXM_80, device
from perfmodel.core.arith import Number
from perfmodel.core.cost import READ, WRITE, Tile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.occupancy import Multiprocessor, most_threads
from perfmodel.kernels import fuse, mlp
from perfmodel.kernels.matmul import Matmul, flops, minimum_elements, minimum_intensity, tile_reuse
from perfmodel.kernels.softmax import VARIANTS, Softmax, kernel
from perfmodel.remat.autograd import eager_bytes, lazy_bytes, picture, records
from perfmodel.remat.chain import Chain, Layer, uniform
from perfmodel.remat.lecture import plain_steps
from perfmodel.remat.nearest import rebuilt_steps
from perfmodel.remat.segments import segmented
from perfmodel.remat.simulate import simulate

_PASSES = {variant.name: variant for variant in VARIANTS}


# Matmul and softmax


def matmul_flops_of(rows: Number, columns: Number, depth: Number) -> Number:
    """FLOP of [rows, depth] x [depth, columns]."""
    return flops(Matmul(rows, columns, depth))


def intensity(rows: Number, columns: Number, depth: Number) -> Number:
    """FLOP/B at minimum traffic, 16 bit."""
    return minimum_intensity(Matmul(rows, columns, depth))


def fp32_intensity(n: Number) -> Number:
    """The same of a square fp32 matmul."""
    return minimum_intensity(Matmul(n, n, n, dtype=DTYPES["fp32"]))


def seconds_ratio(rows: Number, columns: Number, depth: Number, flops_per_s: Number, bandwidth: Number) -> Number:
    """Seconds at peak over seconds at the DRAM bandwidth, minimum traffic."""
    w = Matmul(rows, columns, depth)
    return (flops(w) / flops_per_s) / (minimum_elements(w) * w.dtype.size / bandwidth)


def loads_left(edge: Number) -> Number:
    """Loads of a matmul in ``edge`` x ``edge`` tiles over those of its multiply-adds."""
    return 1 / tile_reuse(Matmul(64, 64, 64), Tile(edge, edge))


def threads_of(sms: Number, threads: Number, blocks: Number, per_block: Number) -> Number:
    """Threads that are active at most."""
    found = most_threads(Multiprocessor(sms, threads=threads, blocks=blocks), per_block)
    assert found is not None
    return found


def reads(n: Number, name: str) -> Number:
    """Reads per element of a row of ``n`` by the softmax called ``name``."""
    return kernel(Softmax(1, n), _PASSES[name]).elements(READ) / n


def accesses(n: Number, name: str) -> Number:
    """The same with the writes."""
    return kernel(Softmax(1, n), _PASSES[name]).elements(READ, WRITE) / n


# A two-layer MLP; W2 is n x h, so that a1 is batch x n


def _net(batch: Number, n: Number, h: Number) -> mlp.Mlp:
    return mlp.Mlp(batch, n, n, h)


def output_flops(batch: Number, n: Number, h: Number) -> Number:
    """FLOP of a1 W2."""
    return mlp.forward(_net(batch, n, h))[-1].flops


def weight_gradient(batch: Number, n: Number, h: Number) -> Number:
    """FLOP of a1^T dz2."""
    return mlp.backward(_net(batch, n, h))[0].flops


def input_gradient(batch: Number, n: Number, h: Number) -> Number:
    """FLOP of dz2 W2^T."""
    return mlp.backward(_net(batch, n, h))[1].flops


def backward_over_forward(batch: Number, n: Number, h: Number, whole: bool = True) -> Number:
    """FLOP of the backward over those of the forward pass; ``whole``: with the gradient of the net's input."""
    w = _net(batch, n, h)
    return mlp.backward_flops(replace(w, input_gradient=whole)) / mlp.forward_flops(w)


def hidden_bytes(batch: Number, n: Number, h: Number) -> Number:
    """Bytes of a1 that backward needs."""
    return mlp.cached(_net(batch, n, h)).a1


def kept_for_backward(batch: Number, n: Number, h: Number) -> Number:
    """Bytes of all that backward needs."""
    return mlp.cached(_net(batch, n, h)).total


# Autograd: equal linear layers


def _linear(rows: Number, columns: Number, size: Number, layers: Number) -> Chain:
    return uniform(int(layers), output=rows * columns * size)


def values_and_gradients(rows: Number, columns: Number, size: Number, layers: Number) -> Number:
    """Bytes after that many layers of a forward pass that allocates the gradient of a value with it."""
    return eager_bytes(_linear(rows, columns, size, layers), layers)


def values(rows: Number, columns: Number, size: Number, layers: Number = 1) -> Number:
    """Bytes after that many layers of a forward pass that allocates values alone; of one array."""
    return lazy_bytes(_linear(rows, columns, size, layers), layers)


def growth_in_backward(rows: Number, columns: Number, size: Number, layers: Number, ahead: bool) -> Number:
    """Bytes by which memory grows once backward begins; ``ahead``: gradients are allocated in the forward pass."""
    chain = Chain((Layer(output=rows * columns * size),) * int(layers), input=0)
    found = picture(chain)
    series = [taken for _, taken in (found.eager if ahead else found.lazy)]
    grown: Number = max(series) - series[len(chain) - 1]
    return grown


def nearest_steps(layers: Number, checkpoint: Number) -> Number:
    """Steps with every value but x_n rebuilt from the nearest one kept: x_0, and the output of layer ``checkpoint``."""
    return plain_steps(layers) + rebuilt_steps(layers, [0, checkpoint + 1])


def nearest_and_output_steps(layers: Number, checkpoint: Number) -> Number:
    """The same, with x_n rebuilt as well."""
    return nearest_steps(layers, checkpoint) + (layers - checkpoint - 1)


def segment_steps(layers: int, checkpoint: int) -> int:
    """Steps with each of the two segments rebuilt once, counted by running the schedule."""
    chain = uniform(int(layers))
    return int(simulate(chain, segmented(chain, [0, int(checkpoint) + 1], keep_last=False)).cost)


# Elementwise chains


def _elements(listed: list[fuse.Launches]) -> Number:
    return sum(part.count * part.kernel.elements(READ, WRITE) for part in listed)


def fusion_gain(ops: Number, elements: Number) -> Number:
    """Elements moved by a chain of unary operations over those of its fused kernel."""
    w = fuse.Chain(elements, (1,), ops)
    return _elements(fuse.unfused(w)) / _elements(fuse.fused(w))


def fusion_gain_in_training(ops: Number, elements: Number) -> Number:
    """The same where the fused kernel writes what autograd keeps of each operation but the first, whose input is there anyway."""
    w, kept = fuse.Chain(elements, (1,), ops), records(uniform(int(ops), output=elements))[1:]
    return _elements(fuse.unfused(w)) / (_elements(fuse.fused(w)) + sum(record.size for record in kept))


def _example() -> list[fuse.Result]:
    return fuse.evaluate(fuse.SIN_COS, device(SXM_80))


def example_gain(in_graph: bool = False) -> float:
    """How many times faster the sin-cos example is if fused, on an A100, by launches and roofs; ``in_graph``: in a CUDA graph besides."""
    unfused, graph, fused = _example()
    launch_s = graph.launch_s if in_graph else fused.launch_s
    return float((unfused.total_s or 0) / fuse.with_launches(fused.parts, launch_s or 0))


def example_lower_s(calls: Number) -> float:
    """Seconds that ``calls`` calls of the fused example take at least, on an A100."""
    return float(calls * _example()[-1].lower_s)


def graph_gain(fused: bool) -> float:
    """What a CUDA graph makes of the example's kernels, or of the one that they are fused to, on an A100: times faster."""
    unfused, graph, one = _example()
    parts = one.parts if fused else unfused.parts
    return float(fuse.with_launches(parts, unfused.launch_s or 0) / fuse.with_launches(parts, graph.launch_s or 0))
