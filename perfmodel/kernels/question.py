"""Questions about single kernels: their options and the workloads that these mean. The question about attention is in ``attention/``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import Common, Question, as_in, option

if TYPE_CHECKING:
    from perfmodel.core.hardware import Device
    from perfmodel.core.occupancy import ThreadBlock
    from perfmodel.kernels.fuse import FusedChain, Published
    from perfmodel.kernels.matmul import Matmul
    from perfmodel.kernels.mlp import Mlp
    from perfmodel.kernels.occupancy import StridedLoad
    from perfmodel.kernels.recompute import Recompute
    from perfmodel.kernels.softmax import Softmax


@dataclass(frozen=True, slots=True)
class MatmulQuestion(Question):
    """C [m, n] = A [m, k] B [k, n], ``batch`` times."""

    m: int | None = option("Rows of A and C.", "--m", "-m")
    n: int | None = option("Columns of B and C.", "--n", "-n")
    k: int | None = option("Columns of A, rows of B.", "--k", "-k")
    batch: int = option("Independent matmuls of this shape.", default=1)
    tile_m: int | None = option("Tile rows. [default: 128, less for fewer rows or little SRAM]")
    tile_n: int | None = option("Tile columns. [default: as --tile-m; 16 bit on Hopper and B200: 256]")
    split_k: int = option("Blocks that share the k of a tile.", default=1)
    sram: str | None = option("SRAM per block, such as 163KiB. [default: the device's]")
    dtype: str | None = option("fp32, tf32, fp16, bf16, fp8, int8, mxfp4, nvfp4. [default: fp16/bf16]")
    hardware: str | None = as_in(Common, "hardware")

    def on(self, device: Device) -> Device:
        """``device`` with the SRAM that was asked for."""
        from perfmodel.core.checks import size_bytes
        from perfmodel.kernels.tile import with_sram

        return device if self.sram is None else with_sram(device, size_bytes("sram", self.sram))

    def workload(self, device: Device) -> Matmul:
        """The matmul, checked; UsageError names a wrong option."""
        from perfmodel.core.checks import dtype_on
        from perfmodel.core.dtypes import PRODUCTS
        from perfmodel.kernels.matmul import Matmul

        m, n, k = self.require("matmul -m 8192 -n 8192 -k 8192", "m", "n", "k")
        return Matmul(m, n, k, self.batch, self.split_k, dtype_on(self.dtype, device, known=PRODUCTS)).check()


@dataclass(frozen=True, slots=True)
class SoftmaxQuestion(Question):
    """softmax over each of ``rows`` rows of ``cols`` elements."""

    rows: int | None = option("Rows.")
    cols: int | None = option("Elements of a row.")
    store: bool = option("Count the write of the output. [default: store]", "--store/--no-store", default=True)
    dtype: str | None = as_in(Common, "dtype")
    hardware: str | None = as_in(Common, "hardware")

    def workload(self, device: Device) -> Softmax:
        """The softmax, checked; UsageError names a wrong option."""
        from perfmodel.core.checks import dtype_on
        from perfmodel.kernels.softmax import Softmax

        rows, cols = self.require("softmax --rows 4096 --cols 32768", "rows", "cols")
        return Softmax(rows, cols, self.store, dtype_on(self.dtype, device)).check()


@dataclass(frozen=True, slots=True)
class MlpQuestion(Question):
    """x [batch, d_in] W1, ReLU, W2 -> y [batch, d_out]."""

    batch: int | None = option("Rows of x.")
    d_in: int | None = option("Columns of x.")
    d_hidden: int | None = option("Columns of the hidden layer.")
    d_out: int | None = option("Columns of y.")
    direction: str = option("forward, backward or both.", "--pass", default="both")
    input_gradient: bool = option("Compute dx as well. [default: no]", "--input-gradient/--no-input-gradient", default=False)
    dtype: str | None = as_in(Common, "dtype")
    hardware: str | None = as_in(Common, "hardware")

    def passes(self) -> list[str]:
        """The single passes that are asked for."""
        from perfmodel.kernels.mlp import KERNELS

        passes = {**{name: [name] for name in KERNELS}, "both": list(KERNELS)}
        if self.direction not in passes:
            raise UsageError(f"--pass: unknown pass {self.direction!r}", suggest(self.direction, list(passes)))
        return passes[self.direction]

    def workload(self, device: Device) -> Mlp:
        """The two layers, checked; UsageError names a wrong option."""
        from perfmodel.core.checks import dtype_on
        from perfmodel.kernels.mlp import Mlp

        usage = "mlp --batch 4096 --d-in 1024 --d-hidden 4096 --d-out 1024"
        batch, d_in, d_hidden, d_out = self.require(usage, "batch", "d_in", "d_hidden", "d_out")
        return Mlp(batch, d_in, d_hidden, d_out, self.input_gradient, dtype_on(self.dtype, device)).check()


@dataclass(frozen=True, slots=True)
class FuseQuestion(Question):
    """A chain of elementwise operations, by its sizes or as a published ``example``."""

    elements: int | None = option("Elements of each tensor.")
    ops: int | None = option("Elementwise operations, one kernel each if unfused.")
    reads_per_op: int | None = option("Operands per operation; those beyond the first are earlier results. [default: 1]")
    example: str | None = option("sin-cos: x = sin(x) + cos(x) ten times on 1024 x 1024 fp32, beside published times.")
    dtype: str | None = option("fp32, tf32, fp16, bf16, fp8. [default: fp16/bf16; sin-cos: fp32]")
    hardware: str | None = as_in(Common, "hardware")

    def workload(self, device: Device) -> tuple[FusedChain, Published | None]:
        """The chain, and published times if it is an example; UsageError names a wrong option."""
        from perfmodel.core.checks import dtype_on

        chain, published = self._chain()
        return replace(chain, dtype=dtype_on(self.dtype, device, chain.dtype.name if published else "")), published

    def _chain(self) -> tuple[FusedChain, Published | None]:
        from perfmodel.kernels.fuse import EXAMPLES, FusedChain

        if self.example is None:
            elements, ops = self.require("fuse --elements 1048576 --ops 30", "elements", "ops")
            return FusedChain(elements, (1 if self.reads_per_op is None else self.reads_per_op,), ops).check(), None
        if self.example not in EXAMPLES:
            raise UsageError(f"--example: unknown example {self.example!r}", suggest(self.example, list(EXAMPLES)))
        chain, published = EXAMPLES[self.example]
        for name, value in (("ops", self.ops), ("reads-per-op", self.reads_per_op)):
            if value is not None:
                fix = f"leave it out: the example has {chain.ops} operations"
                raise UsageError(f"--{name} does not go with --example {self.example}", fix)
        return (chain if self.elements is None else replace(chain, elements=self.elements)).check(), published


@dataclass(frozen=True, slots=True)
class RecomputeQuestion(Question):
    """A tensor that is stored and read back, or computed again."""

    size: str | None = option("Size of the tensor, such as 64MiB.", "--bytes")
    flops: str | None = option("FLOP to compute it once, such as 137.4GFLOP or 1.374e11.")
    times: int = option("Later uses of it.", default=1)
    dtype: str | None = option("Sets the unit that recomputes: fp32 vector, fp16 tensor, ... [default: fp16/bf16]")
    hardware: str | None = as_in(Common, "hardware")

    def workload(self, device: Device) -> Recompute:
        """The tensor, checked; UsageError names a wrong option."""
        from perfmodel.core.checks import dtype_on, flop_count, size_bytes
        from perfmodel.kernels.recompute import Recompute

        size, flops = self.require("recompute --bytes 64MiB --flops 10GFLOP", "size", "flops")
        return Recompute(size_bytes("bytes", size), flop_count("flops", flops), dtype_on(self.dtype, device), self.times).check()


@dataclass(frozen=True, slots=True)
class OccupancyQuestion(Question):
    """A thread block, and the load of one of its warps."""

    threads: int | None = option("Threads per block.")
    registers: int | None = option("Registers per thread. [default: no limit]")
    sram: str | None = option("Shared memory per block, such as 48KiB. [default: none]")
    stride: int | None = option("Elements between the loads of neighbouring threads. [default: 1]")
    element_bytes: int | None = option("Bytes that a thread loads: 1, 2, 4, 8 or 16. [default: 4]")
    hardware: str | None = as_in(Common, "hardware")

    def block(self) -> ThreadBlock:
        """The thread block; UsageError names a wrong option."""
        from perfmodel.core.checks import size_bytes
        from perfmodel.core.occupancy import ThreadBlock

        [threads] = self.require("occupancy --threads 256 --registers 64 --sram 48KiB", "threads")
        return ThreadBlock(threads, self.registers, 0 if self.sram is None else size_bytes("sram", self.sram, 0))

    def access(self) -> StridedLoad | None:
        """The load of a warp; None if no option of it was given."""
        from perfmodel.kernels.occupancy import StridedLoad

        if self.stride is None and self.element_bytes is None:
            return None
        stride = 1 if self.stride is None else self.stride
        return StridedLoad(stride, 4 if self.element_bytes is None else self.element_bytes)
