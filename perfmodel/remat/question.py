"""The question about rematerialization: a chain of layers, and schedules or autograd's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.question import DEFAULT_DEVICE, Condition, Question, argument, option

if TYPE_CHECKING:
    from perfmodel.core.arith import Number
    from perfmodel.remat.schedule import Plan
    from perfmodel.remat.source import Source

IN_SCHEDULES = Condition("is for schedules", "leave it out", lambda question: not question.autograd)
_RELU = Condition("goes with --autograd", "schedules take sizes and costs, whatever is in a layer", lambda question: question.autograd)
_OF_MODEL = Condition("is for a model", "leave it out, or name a model", lambda question: question.model is not None)


@dataclass(frozen=True, slots=True)
class RematQuestion(Question):
    """What backward of a chain of layers keeps and computes again."""

    model: str | None = argument("MODEL", "A model whose layers are the chain.", None)
    layers: int | None = option("Layers of the chain.")
    checkpoints: str | None = option("Layers, from 0, whose outputs are kept, such as 2,5.", reader=IN_SCHEDULES)
    every: int | None = option("Layers per segment, for every-k.", reader=IN_SCHEDULES)
    slots: int | None = option(
        "Values stored at once, x_0 among them, for revolve. [default: as the checkpoints, or for one more pass]", reader=IN_SCHEDULES
    )
    memory: str | None = option(
        "Memory: values, or bytes such as 40GB. Adds the optimal schedule within it.", "--budget", old="--memory", reader=IN_SCHEDULES
    )
    strategy: list[str] | None = option("Only this one; the first one's timeline is drawn. Repeatable.", reader=IN_SCHEDULES)
    cost: str | None = option("Forward, per layer or for all: 1,2,1 or 2ms. [default: 1 step]", reader=IN_SCHEDULES)
    backward: str | None = option("Backward, likewise. [default: twice the forward cost]", reader=IN_SCHEDULES)
    size: str | None = option("Of outputs, likewise: 1,2,1 or 32MB. [default: 1 value]")
    interior: str | None = option("Beside its input, what backward of a layer needs. [default: nothing]", reader=IN_SCHEDULES)
    width: str | None = option("Columns of linear layers: one number, or of x_0, x_1, ...")
    batch: int = option("Rows of linear layers, sequences of a model.", default=1)
    n: int | None = option("Tokens of a sequence. [default: 2048, or what the model takes]", reader=_OF_MODEL)
    dtype: str | None = option("fp32, tf32, fp16, bf16, fp8; fp64 for --width. [default: fp16; bf16 for a model]")
    hardware: str | None = option(f"Device that times a model or --width. [default: {DEFAULT_DEVICE}]")
    autograd: bool = option("Show what each operation keeps, and when it goes.", "--autograd", default=False)
    relu: bool = option("With --autograd: a ReLU after each layer but the last.", "--relu", default=False, reader=_RELU)

    def source(self) -> Source:
        """The chain: by numbers and lists, of linear layers, or of a model. UsageError for options that do not go together."""
        from perfmodel.catalog import calibrated_devices, find_device, find_model
        from perfmodel.core.checks import default_dtype, dtype_on, positive_int
        from perfmodel.core.dtypes import DTYPES, WIDER, canonical
        from perfmodel.remat.device_chain import linear, of_model
        from perfmodel.remat.source import listed

        if self.model is None and self.width is None:
            if {"hardware", "dtype", "n", "batch"} & set(self.given()):
                fix = "give --width, or the name of a model"
                raise UsageError("--hardware, --dtype, --batch and --n need layers of known shape", fix)
            return listed(self.layers, self.cost, self.backward, self.size, self.interior)
        self._check_shape()
        device = find_device(self.hardware or DEFAULT_DEVICE)
        positive_int("batch", self.batch)
        if self.width is not None:
            return linear(self.layers, self.batch, self.width, dtype_on(self.dtype, device, known=WIDER), device, calibrated_devices)
        if canonical(self.dtype or "") in WIDER.keys() - DTYPES.keys():
            raise UsageError(f"--dtype {self.dtype} is of the layers of --width", "leave it out, or give --width in place of the model")
        model = find_model(str(self.model))
        length = self.n if self.n is not None else min(2048, model.max_positions or 2048)
        return of_model(model, self.batch, length, dtype_on(self.dtype, device, default_dtype(device, "bf16")), device, calibrated_devices)

    def _check_shape(self) -> None:
        """UsageError for options that contradict a model or ``--width``."""
        given = self.given()
        contradicting = [f"--{name}" for name in ("cost", "backward", "size", "interior") if name in given]
        if self.model is not None and (self.width is not None or self.layers is not None):
            contradicting.append("--width or --layers")
        if contradicting:
            source = "a model" if self.model else "--width"
            raise UsageError(f"{contradicting[0]} does not go with {source}, which has its own", "leave one of them out")

    def budget(self, sized: bool) -> Number | None:
        """The memory budget in the unit of the sizes, which is bytes if ``sized``."""
        from perfmodel.remat.source import quantities

        if self.memory is None:
            return None
        values, has_unit = quantities("budget", self.memory, "B")
        if len(values) > 1 or has_unit != sized:
            fix = "give a size such as 40GB" if sized else "give a number of values, as the sizes have no unit"
            raise UsageError(f"--budget is {self.memory!r}", fix)
        return values[0]

    def plan(self, memory: Number | None) -> Plan:
        """The inputs of the strategies."""
        from perfmodel.remat.schedule import Plan
        from perfmodel.remat.source import layer_numbers

        checkpoints = None if self.checkpoints is None else layer_numbers("checkpoints", self.checkpoints)
        return Plan(checkpoints, self.every, self.slots, memory)
