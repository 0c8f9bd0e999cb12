"""Steps in explicit vector instructions, as numba intrinsics: what the compiler would otherwise vectorise now and then.

Arrays are one-dimensional float32, indices uintp. LLVM splits a vector that is wider than the machine's registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

cgutils: Any = _cgutils
LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8
"""float32 values per vector."""
ROWS = 8
"""Rows of a register block: with one vector each they hide the latency of an FMA and fit 16 registers."""
CHAINS = 12
"""Independent FMA chains: the latency of an FMA times two units on any x86 core so far, and 16 registers hold them."""

_F32 = ir.FloatType()
_VECTOR = ir.VectorType(_F32, LANES)


def instruction(typed: Callable[..., Any]) -> Any:
    """A numba intrinsic; ``typed`` gives its signature and what writes its code."""
    return intrinsic(typed)


def _fma(builder: Any) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fma.v{LANES}f32")


def _splat(builder: Any, scalar: Any) -> Any:
    first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _data(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    return context.make_array(array_type)(context, builder, array).data


def _vector_at(builder: Any, data: Any, index: Any) -> Any:
    return builder.bitcast(builder.gep(data, [index]), _VECTOR.as_pointer())


@instruction
def fma_chains(typing: Any, count: Any) -> Any:
    """``count`` rounds of CHAINS independent vector FMAs in registers; 2 * LANES * CHAINS FLOP a round."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        chains = [cgutils.alloca_once(builder, _VECTOR) for _ in range(CHAINS)]
        for number, chain in enumerate(chains):
            builder.store(ir.Constant(_VECTOR, [1.0 + number + lane / LANES for lane in range(LANES)]), chain)
        factor, summand, fma = ir.Constant(_VECTOR, [0.75] * LANES), ir.Constant(_VECTOR, [0.25] * LANES), _fma(builder)
        with cgutils.for_range(builder, args[0]):
            for chain in chains:
                builder.store(builder.call(fma, [builder.load(chain), factor, summand]), chain)
        total = builder.load(chains[0])
        for chain in chains[1:]:
            total = builder.fadd(total, builder.load(chain))
        return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

    return types.float32(types.uintp), lower


@instruction
def power_of_two(typing: Any, exponent: Any) -> Any:
    """2^exponent as float32, for -126 <= exponent <= 127: the exponent's bits, shifted into place."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        biased = builder.add(args[0], ir.Constant(ir.IntType(32), 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(ir.IntType(32), 23)), _F32)

    return types.float32(types.int32), lower


@instruction
def larger(typing: Any, a: Any, b: Any) -> Any:
    """The larger of two finite float32 numbers; unlike a comparison and a choice, a loop of it becomes vector instructions."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_F32, [_F32] * 2), "llvm.maxnum.f32")
        return builder.call(function, args, fastmath=("fast",))

    return types.float32(types.float32, types.float32), lower


@instruction
def add_products(
    typing: Any, out: Any, o: Any, o_pitch: Any, a: Any, a_at: Any, a_pitch: Any, b: Any, b_at: Any, b_pitch: Any, depth: Any
) -> Any:
    """out[r, :LANES] += sum over k < depth of a[r, k] b[k, :LANES], for ROWS rows r, held in registers.

    Row r of ``out`` begins at ``o + r * o_pitch``; likewise ``a`` and ``b``.
    """

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out, o, o_pitch, a, a_at, a_pitch, b, b_at, b_pitch, depth = args
        out, a, b = (_data(context, builder, signature.args[i], x) for i, x in ((0, out), (3, a), (6, b)))
        row = [ir.Constant(o.type, r) for r in range(ROWS)]
        places = [_vector_at(builder, out, builder.add(o, builder.mul(r, o_pitch))) for r in row]
        begins = [builder.gep(a, [builder.add(a_at, builder.mul(r, a_pitch))]) for r in row]
        sums, fma = [cgutils.alloca_once(builder, _VECTOR) for _ in row], _fma(builder)
        for place, held in zip(places, sums, strict=True):
            builder.store(builder.load(place, align=4), held)
        with cgutils.for_range(builder, depth) as loop:
            right = builder.load(_vector_at(builder, b, builder.add(b_at, builder.mul(loop.index, b_pitch))), align=4)
            for begin, held in zip(begins, sums, strict=True):
                left = _splat(builder, builder.load(builder.gep(begin, [loop.index])))
                builder.store(builder.call(fma, [left, right, builder.load(held)]), held)
        for place, held in zip(places, sums, strict=True):
            builder.store(builder.load(held), place, align=4)
        return context.get_dummy_value()

    index = types.uintp
    return types.void(out, index, index, a, index, index, b, index, index, index), lower
