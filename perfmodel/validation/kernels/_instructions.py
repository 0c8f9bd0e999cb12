"""Instructions that numba lacks, as numba intrinsics: wide and asynchronous accesses, and exchanges within a warp.

Arrays are one-dimensional float32, indices uint64; 16-byte accesses need an index divisible by 4. ``_simulated.py`` has the same functions
for the simulator. An intrinsic returns the types of its call, and ``lower``, which emits the code.
"""

from __future__ import annotations

from typing import Any

import numba
import numba.cuda
import numpy as np
from llvmlite import ir
from numba.cuda.extending import intrinsic

cuda: Any = numba.cuda
types: Any = cuda.types if hasattr(cuda.types, "float32") else numba.types  # the numba-cuda package has its own
F32, I32, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
F32X4 = ir.VectorType(F32, 4)
FULL_WARP = 0xFFFFFFFF
ONE = np.uint64(1)


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """LLVM pointer to element ``index`` of ``array``."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index], inbounds=True)


def _assembly(builder: Any, result: Any, text: str, constraints: str, *arguments: Any) -> Any:
    """Value of type ``result`` of inline PTX; ``constraints``: registers of the operands, as in LLVM's inline assembly."""
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(ir.InlineAsm(function_type, text, constraints, side_effect=True), arguments)


@intrinsic
def load4(typing: Any, array: Any, index: Any) -> Any:
    """Four neighbouring elements in one 16-byte load."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.bitcast(_address(context, builder, signature.args[0], *args), F32X4.as_pointer())
        loaded = builder.load(pointer, align=16)
        parts = [builder.extract_element(loaded, I32(i)) for i in range(4)]
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(types.float32, 4)(array, types.uint64), lower


@intrinsic
def store4(typing: Any, array: Any, index: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Four neighbouring elements in one 16-byte store."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.bitcast(_address(context, builder, signature.args[0], *args[:2]), F32X4.as_pointer())
        value = ir.Constant(F32X4, ir.Undefined)
        for i, part in enumerate(args[2:]):
            value = builder.insert_element(value, part, I32(i))
        builder.store(value, pointer, align=16)
        return context.get_dummy_value()

    return types.void(array, types.uint64, *[types.float32] * 4), lower


@intrinsic
def copy4(typing: Any, target: Any, to: Any, source: Any, index: Any) -> Any:
    """Copies source[index : index + 4] in global memory to target[to:] in shared memory, past L1 and the registers.

    The copy is asynchronous: it is complete after ``copies_done``.
    """

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target_address = builder.ptrtoint(_address(context, builder, signature.args[0], *args[:2]), I64)
        source_address = builder.ptrtoint(_address(context, builder, signature.args[2], *args[2:]), I64)
        text = "{ .reg .u64 s; cvta.to.shared.u64 s, $0; cp.async.cg.shared.global [s], [$1], 16; }"
        _assembly(builder, ir.VoidType(), text, "l,l,~{memory}", target_address, source_address)
        return context.get_dummy_value()

    return types.void(target, types.uint64, source, types.uint64), lower


@intrinsic
def copies_done(typing: Any) -> Any:
    """Waits for this thread's copies; other threads see them after a barrier."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _assembly(builder, ir.VoidType(), "cp.async.wait_all;", "~{memory}")
        return context.get_dummy_value()

    return types.void(), lower


@intrinsic
def load_global(typing: Any, array: Any, index: Any) -> Any:
    """One element of global memory from L2, past L1, which may hold an older value."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = builder.ptrtoint(_address(context, builder, signature.args[0], *args), I64)
        return _assembly(builder, F32, "ld.global.cg.f32 $0, [$1];", "=f,l,~{memory}", address)

    return types.float32(array, types.uint64), lower


@intrinsic
def load4_global(typing: Any, array: Any, index: Any) -> Any:
    """Four neighbouring elements of global memory in one 16-byte load from L2, past L1."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = builder.ptrtoint(_address(context, builder, signature.args[0], *args), I64)
        text = "ld.global.cg.v4.f32 {$0, $1, $2, $3}, [$4];"
        loaded = _assembly(builder, ir.LiteralStructType([F32] * 4), text, "=f,=f,=f,=f,l,~{memory}", address)
        return context.make_tuple(builder, signature.return_type, [builder.extract_value(loaded, i) for i in range(4)])

    return types.UniTuple(types.float32, 4)(array, types.uint64), lower


@intrinsic
def keep(typing: Any, index: Any) -> Any:
    """``index``, below 2^32, in a register: the compiler cannot see how it was computed.

    Otherwise the compiler computes it again at the head of every loop that uses it, which delays the loop's first loads.
    """

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kept = _assembly(builder, I32, "mov.u32 $0, $1;", "=r,r", builder.trunc(args[0], I32))
        return builder.zext(kept, I64)

    return types.uint64(types.uint64), lower


@cuda.jit(device=True)
def sync_warp() -> None:
    """Barrier of a warp: its threads see each other's earlier stores to shared memory."""
    cuda.syncwarp(FULL_WARP)


@cuda.jit(device=True)
def lane_max(value: Any, lanes: Any) -> Any:
    """Largest value among each ``lanes`` neighbouring threads of a warp."""
    while lanes > ONE:
        lanes = lanes >> ONE
        value = max(value, cuda.shfl_xor_sync(FULL_WARP, value, np.int32(lanes)))
    return value


@cuda.jit(device=True)
def lane_sum(value: Any, lanes: Any) -> Any:
    """Sum over each ``lanes`` neighbouring threads of a warp."""
    while lanes > ONE:
        lanes = lanes >> ONE
        value += cuda.shfl_xor_sync(FULL_WARP, value, np.int32(lanes))
    return value
