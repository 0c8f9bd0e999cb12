"""A question about attention as a user puts it, every field optional, and its way to an answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar

from perfmodel.core.dtypes import dtype_named
from perfmodel.core.errors import DataError, UsageError, suggest
from perfmodel.core.hardware import Device
from perfmodel.core.units import parse
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.algorithms import find, names
from perfmodel.kernels.attention.base import Algorithm
from perfmodel.kernels.attention.evaluate import BOTH, Result, compare, sram_bytes_for
from perfmodel.kernels.attention.patterns import block_pattern
from perfmodel.kernels.attention.read_by import READ_BY, check_read, is_read

DEFAULT_ALGORITHMS = ("standard", "flash")
_PASSES = {FORWARD: [FORWARD], BACKWARD: [BACKWARD], BOTH: [FORWARD, BACKWARD]}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was asked, resolved, and the results.

    ``sram_bytes`` is M, None where nothing needed one; ``sram_sizes`` the sizes to compare, empty without a comparison.
    ``predictions``: by algorithm and pass, where a kernel was named.
    """

    workload: Attention
    device: Device
    direction: str
    sram_bytes: int | None
    results: list[Result]
    sram_sizes: tuple[int, ...] = ()
    block_q: int | None = None
    block_kv: int | None = None
    predictions: Mapping[tuple[str, str], Any] = field(default_factory=dict)

    @property
    def tile_given(self) -> bool:
        """Whether an edge of the tile was asked for."""
        return self.block_q is not None or self.block_kv is not None

    def passes(self) -> list[str]:
        """The single passes that were asked for."""
        return _PASSES[self.direction]

    def shown(self) -> list[Result]:
        """Results of the pass that was asked for: the sum where it was both."""
        return [result for result in self.results if result.direction == self.direction]

    def standard(self, direction: str) -> Result | None:
        """The result of standard attention for one pass, None if it was not asked for."""
        found = (result for result in self.results if result.algorithm.name == "standard" and result.direction == direction)
        return next(found, None)

    def tiled_in_sram(self) -> list[Algorithm]:
        """The algorithms with a forward result whose tiles live in SRAM."""
        forward = {r.algorithm.name: r.algorithm for r in self.results if r.direction == FORWARD}
        return [algorithm for algorithm in forward.values() if algorithm.tiling and algorithm.tiling.in_sram]


@dataclass(frozen=True, slots=True)
class AttentionRequest:
    """Options of a comparison; None takes the default. Names and meanings are those of the command line."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}  # where a file is read as a request
    OPTION_NAMES: ClassVar[dict[str, str]] = {"pass": "direction"}

    n: int | None = None
    d: int | None = None
    batch: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    kv_len: int | None = None
    dv: int | None = None
    dtype: str | None = None
    causal: bool | None = None
    direction: str | None = None
    algorithm: list[str] | str | None = None
    mask: bool | None = None
    masked_fill: bool | None = None
    dropout: float | None = None
    unfused_scale: bool | None = None
    printed_backward: bool | None = None
    block_q: int | None = None
    block_kv: int | None = None
    sram: list[str] | str | None = None
    packed: bool | None = None
    window: int | None = None
    splits: int | None = None
    sparsity: float | None = None
    pattern: str | None = None
    hardware: str | None = None

    def updated(self, options: Mapping[str, Any]) -> AttentionRequest:
        """This request with every option that is not None put in its place."""
        known = {field.name for field in fields(self)}
        return AttentionRequest(
            **asdict(self) | {name: value for name, value in options.items() if name in known and value not in (None, [])}
        )

    def of(self, algorithm: Algorithm, compared: Iterable[Algorithm]) -> AttentionRequest:
        """This request of one of the ``compared`` algorithms: without options that only others of them read."""
        passes, others = _PASSES.get(self.direction or FORWARD, []), list(compared)
        foreign = [name for name in READ_BY if not is_read(name, [algorithm], passes) and is_read(name, others, passes)]
        changed: Any = dict.fromkeys(foreign)
        return replace(self, **changed, algorithm=algorithm.name)

    def workload(self) -> Attention:
        """The workload, defaults filled in and checked; UsageError names a wrong option."""
        for name in ("n", "d"):
            if getattr(self, name) is None:
                raise UsageError(f"--{name} is missing", "such as: perfmodel attention --n 4096 --d 64")
        if self.window is not None and self.causal is False:
            raise UsageError("--window is of the last keys, so it implies a causal mask", "leave out --no-causal")
        heads = 1 if self.heads is None else self.heads
        if self.packed is not None and self.kv_heads in (None, heads):
            option = "--packed" if self.packed else "--unpacked"
            raise UsageError(f"{option} is for query heads that share K and V", "give fewer --kv-heads than --heads, or leave it out")
        kv_len = self.n if self.kv_len is None else self.kv_len
        return Attention(
            n=self.n,
            kv_len=kv_len,
            d=self.d,
            dv=self.d if self.dv is None else self.dv,
            batch=1 if self.batch is None else self.batch,
            heads=heads,
            kv_heads=heads if self.kv_heads is None else self.kv_heads,
            dtype=dtype_named("fp16" if self.dtype is None else self.dtype),
            causal=bool(self.causal) or self.window is not None,
            window=self.window,
            splits=self.splits,
            sparsity=block_pattern(self.sparsity, self.pattern),
            mask=bool(self.mask),
            masked_fill=bool(self.masked_fill),
            dropout=self.dropout or 0.0,
            unfused_scale=bool(self.unfused_scale),
            printed_backward=bool(self.printed_backward),
            packed=self.n == 1 if self.packed is None else self.packed,
        ).check()

    def compare(self, device: Device) -> Comparison:
        """Evaluate every algorithm that was asked for on ``device``."""
        w = self.workload()
        unit = device.matmul_unit(w.dtype.name, w.dtype.matmul_unit)
        w = replace(w, dtype=replace(w.dtype, matmul_unit=unit))
        direction = FORWARD if self.direction is None else self.direction
        if direction not in _PASSES:
            raise UsageError(f"--pass: unknown pass {direction!r}", suggest(direction, list(_PASSES)))
        for option, edge in (("block-q", self.block_q), ("block-kv", self.block_kv)):
            if edge is not None and edge < 1:
                raise UsageError(f"--{option} is {edge}", "give a whole number of at least 1")
        algorithms = self._algorithms(w, _PASSES[direction])
        texts = _listed(self.sram)
        several = len(texts) > 1 or any(text.startswith("+") for text in texts)
        own = sram_bytes_for(algorithms if several or not texts else [], device)
        sizes = tuple(_size(text, own) for text in texts)
        sram_bytes = sizes[0] if sizes and not several else own
        results = compare(algorithms, w, device, _PASSES[direction], sram_bytes, self.block_q, self.block_kv)
        compared = sorted({*sizes, *(() if own is None else (own,))}) if several else ()
        answer = Comparison(w, device, direction, sram_bytes, results, tuple(compared), self.block_q, self.block_kv)
        if several and not answer.tiled_in_sram():
            raise UsageError("--sram compares sizes for tiled algorithms, forward", "add --algorithm flash, or give one size")
        return answer

    def _algorithms(self, w: Attention, passes: list[str]) -> list[Algorithm]:
        """The algorithms asked for; ``all`` are those that can run the workload, one named must be able to."""
        wanted = _listed(self.algorithm) or list(DEFAULT_ALGORITHMS)
        everything = "all" in wanted
        found = {algorithm.name: algorithm for algorithm in map(find, names() if everything else wanted)}
        given = [option for option in READ_BY if getattr(self, option) not in (None, False, [])]
        check_read(given, list(found.values()), passes)
        for name, algorithm in list(found.items()):
            obstacle = next(filter(None, (algorithm.obstacle(w, direction) for direction in passes)), None)
            if obstacle and (not everything or name in {READ_BY[option][0] for option in given}):
                raise UsageError(f"--algorithm {name}: {obstacle}")
            if obstacle:
                del found[name]
        return list(found.values())


def _listed(value: list[str] | str | None) -> list[str]:
    return [value] if isinstance(value, str) else value or []


def _size(text: str, own: int | None) -> int:
    """Bytes of an SRAM size; one with a plus comes on top of the device's ``own``."""
    try:
        size = int(parse(text.removeprefix("+"), "B"))
    except DataError as error:
        raise UsageError(f"--sram: {error.message}", "write it like 163KiB, or +64KiB for more than the device has") from None
    if size < 1:
        raise UsageError(f"--sram is {text}", "give a size above zero, such as 163KiB")
    if not text.startswith("+"):
        return size
    if own is None:
        raise UsageError(f"--sram {text}: the device has no SRAM size to add to", "give a whole size, such as 163KiB")
    return own + size
