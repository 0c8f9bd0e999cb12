"""Where a chain comes from: equal or listed layers, linear layers of given widths, or the layers of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfmodel.core.arith import Number
from perfmodel.core.dtypes import Dtype
from perfmodel.core.errors import UsageError
from perfmodel.core.hardware import Device
from perfmodel.remat.chain import Chain, Layer, check_length, spread
from perfmodel.remat.linear import linear_chain, linear_tensors
from perfmodel.remat.quantities import quantities
from perfmodel.remat.tensors import Tensor
from perfmodel.timing.predict import FallbackDevices
from perfmodel.transformer.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Source:
    """A chain in words, in its units, with its tensors where their FLOP are known. ``device``: whose times they are."""

    chain: Chain
    title: str
    sized: bool = False
    timed: bool = False
    device: Device | None = None
    dtype: Dtype | None = None
    tensors: tuple[Tensor, ...] = ()
    basis: tuple[str, ...] = ()


def listed(layers: int | None, cost: str | None, backward: str | None, size: str | None, interior: str | None) -> Source:
    """Layers by number and lists: a cost of 1, a backward of twice that, a size of 1 and no interior unless given."""
    options = {"cost": (cost, "s"), "backward": (backward, "s"), "size": (size, "B"), "interior": (interior, "B")}
    read = {name: quantities(name, text, base) for name, (text, base) in options.items() if text is not None}
    length = check_length(_length(layers, [len(values) for values, _ in read.values()]))
    costs, timed = read.get("cost", ([1], False))
    sizes, sized = read.get("size", ([1], False))
    forward = spread("cost", costs, length)
    back = spread("backward", read["backward"][0], length) if "backward" in read else [2 * one for one in forward]
    inside, outputs = spread("interior", read.get("interior", ([0], sized))[0], length), spread("size", sizes, length)
    for name, same in (("backward", timed), ("interior", sized)):
        if name in read and read[name][1] != same:
            raise UsageError(
                f"--{name} is not in the unit of --{'cost' if name == 'backward' else 'size'}", "give both with a unit or without"
            )
    chain = Chain(tuple(map(_layer, forward, back, outputs, inside)), outputs[0])
    return Source(chain, f"{length:,} layer{'s' * (length > 1)}", sized, timed)


def _layer(forward: Number, backward: Number, output: Number, interior: Number) -> Layer:
    return Layer(forward, backward, output, interior)


def _length(layers: int | None, lengths: list[int]) -> int:
    if layers is not None:
        return layers
    longest = max(lengths, default=1)
    if longest == 1:
        raise UsageError("--layers is missing", "such as: perfmodel remat --layers 10 --checkpoints 5")
    return longest


def linear(layers: int | None, batch: int, width: str, dtype: Dtype, device: Device, fallback_devices: FallbackDevices) -> Source:
    """Linear layers: ``width`` is one width for all, or that of every value."""
    widths, unit = quantities("width", width, "B")
    if unit or not all(isinstance(value, int) for value in widths):
        raise UsageError(f"--width is {width!r}", "give columns of x_0, x_1, ..., such as 1000 or 784,4096,10")
    length = check_length(_length(layers, [len(widths) - 1 if len(widths) > 1 else 1]))
    if len(widths) not in (1, length + 1):
        raise UsageError(f"--width has {len(widths)} values for {length} layers", f"give one for all, or {length + 1}")
    each = widths * (length + 1) if len(widths) == 1 else widths
    chain, origin = linear_chain(batch, each, dtype, device, fallback_devices)
    shape = (
        f"{widths[0]} columns" if len(set(each)) == 1 else " -> ".join(map(str, each)) if length < 8 else f"{each[0]} -> ... -> {each[-1]}"
    )
    tensors = tuple(linear_tensors(batch, each, dtype, device))
    title = f"{length:,} linear layer{'s' * (length > 1)}, {batch} rows, {shape}, {dtype.name} on {device.name}"
    return Source(chain, title, True, True, device, dtype, tensors, (origin,))


def of_model(model: ModelSpec, batch: int, n: int, dtype: Dtype, device: Device, fallback_devices: FallbackDevices) -> Source:
    """The layers of ``model``."""
    from perfmodel.transformer.step import prefill

    prefill(batch, n)  # sizes are checked before anything is computed
    transformer = _transformer()
    chain, origin = transformer[0](model, batch, n, dtype, device, fallback_devices)
    tensors = tuple(transformer[1](model, batch, n, dtype, device))
    left_out = "Embedding, head, weights and optimizer are left out of memory and time: perfmodel memory counts them."
    title = f"{len(chain)} layers of {model.name}, {batch} x {n:,} tokens, {dtype.name} on {device.name}"
    return Source(chain, title, True, True, device, dtype, tensors, (origin, left_out))


def _transformer() -> tuple[Callable[..., tuple[Chain, str]], Callable[..., list[Tensor]]]:
    """Its models of layers take longer to import than most questions to answer."""
    from perfmodel.remat.transformer import model_chain, model_tensors

    return model_chain, model_tensors
