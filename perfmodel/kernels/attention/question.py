"""The question about attention: its options, and how they become a workload and a comparison."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from perfmodel.core.errors import DataError, UsageError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import Common, Question, as_in, option

if TYPE_CHECKING:
    from perfmodel.core.hardware import Device
    from perfmodel.core.workload import Attention
    from perfmodel.kernels.attention.base import Algorithm
    from perfmodel.kernels.attention.request import Comparison

RARER = "Rarer options"
"""Heading in ``--help`` of options that few need."""
DEFAULT_ALGORITHMS = ("standard", "flash")
PASSES = {"forward": ["forward"], "backward": ["backward"], "both": ["forward", "backward"]}


@dataclass(frozen=True, slots=True)
class AttentionQuestion(Question):
    """Attention by several algorithms on one device; None takes the default."""

    n: int | None = option("Query length; key length too unless --kv-len.")
    d: int | None = option("Head dim of Q and K; of V too unless --dv.")
    batch: int | None = option("Sequences. [default: 1]")
    heads: int | None = option("Query heads. [default: 1]")
    kv_heads: int | None = option("Key/value heads (GQA, MQA). [default: heads]")
    kv_len: int | None = option("Key/value length. [default: n]")
    dv: int | None = option("Head dim of V and O. [default: d]", group=RARER)
    dtype: str | None = as_in(Common, "dtype")
    causal: bool | None = option("Causal mask, aligned bottom right.", "--causal/--no-causal")
    direction: str | None = option("forward, backward or both. [default: forward]", "--pass")
    algorithm: list[str] | str | None = option("{algorithms} or all; flash is flash2. Repeatable. [default: standard, flash]")
    mask: bool | None = option("Additive n x kv-len mask, read as an input.", "--mask/--no-mask", group=RARER)
    masked_fill: bool | None = option("Causal mask as a kernel: PyTorch's masked_fill.", "--masked-fill/--fused-causal", group=RARER)
    dropout: float | None = option("Dropout probability on P. [default: 0]", group=RARER)
    unfused_scale: bool | None = option("1/sqrt(d) in a kernel of its own.", "--unfused-scale/--fused-scale", group=RARER)
    printed_backward: bool | None = option(
        "flash2 backward loads as Algorithm 2 prints them.", "--printed-backward/--minimal-backward", group=RARER
    )
    layout: str | None = option("Operands: bnhd or bhnd, which torch-sdpa-flash copies backward. [default: bnhd]", group=RARER)
    block_q: int | None = option("Tile rows B_r. [default: the kernel's]", group=RARER)
    block_kv: int | None = option("Tile columns B_c. [default: the kernel's]", group=RARER)
    sram: list[str] | str | None = option("SRAM of a block, as 163KiB or +64KiB. Repeatable.", group=RARER)
    packed: bool | None = option("K, V once per KV head. [default: if n is 1]", "--packed/--unpacked", group=RARER)
    window: int | None = option("A query sees its last N keys; implies --causal.", group=RARER)
    splits: int | None = option("Key parts of split-kv. [default: FlashAttention-2's]", group=RARER)
    sparsity: float | None = option("Share of nonzero blocks, block-sparse: 0.25.", group=RARER)
    pattern: str | None = option("Blocks: local-global, strided, butterfly, or a file.", group=RARER)
    hardware: str | None = as_in(Common, "hardware")

    def passes(self) -> list[str]:
        """The single passes asked for; empty for an unknown pass."""
        return PASSES.get("forward" if self.direction is None else self.direction, [])

    def of(self, algorithm: Algorithm, compared: Iterable[Algorithm]) -> AttentionQuestion:
        """This question for ``algorithm`` alone, without options that only the other ``compared`` ones read."""
        from perfmodel.kernels.attention.request import READ_BY, is_read

        passes, others = self.passes(), list(compared)
        foreign = [name for name in READ_BY if not is_read(name, [algorithm], passes) and is_read(name, others, passes)]
        left_out: Any = dict.fromkeys(foreign)
        return replace(self, **left_out, algorithm=algorithm.name)

    def workload(self) -> Attention:
        """The workload, defaults filled in and checked; UsageError names a wrong option."""
        from perfmodel.core.dtypes import dtype_named
        from perfmodel.core.workload import Attention
        from perfmodel.kernels.attention.patterns import block_pattern

        n, d = self.require("attention --n 4096 --d 64", "n", "d")
        if self.window is not None and self.causal is False:
            raise UsageError("--window is of the last keys, so it implies a causal mask", "leave out --no-causal")
        heads = 1 if self.heads is None else self.heads
        if self.packed is not None and self.kv_heads in (None, heads):
            written = "--packed" if self.packed else "--unpacked"
            raise UsageError(f"{written} is for query heads that share K and V", "give fewer --kv-heads than --heads, or leave it out")
        given = {field.name: value for field in fields(Attention) if (value := getattr(self, field.name, None)) is not None}
        shape = {"n": n, "kv_len": n, "d": d, "dv": d, "kv_heads": heads, "packed": n == 1, **given}
        dtype, pattern = dtype_named("fp16" if self.dtype is None else self.dtype), block_pattern(self.sparsity, self.pattern)
        causal = bool(self.causal) or self.window is not None
        return Attention(**{**shape, "dtype": dtype, "causal": causal, "sparsity": pattern, "dropout": self.dropout or 0.0}).check()

    def compare(self, device: Device) -> Comparison:
        """The comparison of all algorithms asked for, evaluated on ``device``."""
        from perfmodel.core.checks import dtype_on
        from perfmodel.kernels.attention.evaluate import compare, sram_bytes_for
        from perfmodel.kernels.attention.request import Comparison
        from perfmodel.kernels.tile import check_sram

        w = self.workload()
        w = replace(w, dtype=dtype_on(self.dtype, device))
        direction = "forward" if self.direction is None else self.direction
        if direction not in PASSES:
            raise UsageError(f"--pass: unknown pass {direction!r}", suggest(direction, list(PASSES)))
        for name, edge in (("block-q", self.block_q), ("block-kv", self.block_kv)):
            if edge is not None and edge < 1:
                raise UsageError(f"--{name} is {edge}", "give a whole number of at least 1")
        algorithms = self._algorithms(w)
        texts = _listed(self.sram)
        compares_sizes = len(texts) > 1 or any(text.startswith("+") for text in texts)
        device_bytes = sram_bytes_for(algorithms if compares_sizes or not texts else [], device)
        sizes = [_size(text, device_bytes) for text in texts]
        for size in sizes:
            check_sram(size, device)
        sram_bytes = device_bytes if compares_sizes or not sizes else sizes[0]
        compared_sizes: set[int] = set()
        if compares_sizes:
            compared_sizes = {*sizes} if device_bytes is None else {*sizes, device_bytes}
        results = compare(algorithms, w, device, PASSES[direction], sram_bytes, self.block_q, self.block_kv)
        answer = Comparison(w, device, direction, sram_bytes, results, tuple(sorted(compared_sizes)), self.block_q, self.block_kv)
        if compares_sizes and not answer.tiled_in_sram():
            raise UsageError("--sram compares sizes for tiled algorithms, forward", "add --algorithm flash, or give one size")
        return answer

    def _algorithms(self, w: Attention) -> list[Algorithm]:
        """The requested algorithms. ``all`` are those that can run the workload; one that is named, or that an option is for, has to."""
        from perfmodel.kernels.attention.algorithms import find, names
        from perfmodel.kernels.attention.request import READ_BY, check_read

        wanted = _listed(self.algorithm) or list(DEFAULT_ALGORITHMS)
        everything = "all" in wanted
        algorithms = {algorithm.name: algorithm for algorithm in map(find, names() if everything else wanted)}
        options = [name for name in READ_BY if getattr(self, name) not in (None, False, [])]
        check_read(options, list(algorithms.values()), self.passes())
        named = {READ_BY[option].readers for option in options} if everything else set(algorithms)
        able = []
        for algorithm in algorithms.values():
            obstacles = [obstacle for direction in self.passes() if (obstacle := algorithm.obstacle(w, direction))]
            if not obstacles:
                able.append(algorithm)
            elif algorithm.name in named:
                raise UsageError(f"--algorithm {algorithm.name}: {obstacles[0]}")
        return able


def _listed(value: list[str] | str | None) -> list[str]:
    return [value] if isinstance(value, str) else value or []


def _size(text: str, device_bytes: int | None) -> int:
    """Bytes of an SRAM size; one with a plus comes on top of ``device_bytes``."""
    from perfmodel.core.units import parse

    try:
        size = int(parse(text.removeprefix("+"), "B"))
    except DataError as error:
        raise UsageError(f"--sram: {error.message}", "write it like 163KiB, or +64KiB for more than the device has") from None
    if size < 1:
        raise UsageError(f"--sram is {text}", "give a size above zero, such as 163KiB")
    if not text.startswith("+"):
        return size
    if device_bytes is None:
        raise UsageError(f"--sram {text}: the device has no SRAM size to add to", "give a whole size, such as 163KiB")
    return device_bytes + size
