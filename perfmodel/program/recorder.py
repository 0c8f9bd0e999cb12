"""A recorder of the operators and the memory of a PyTorch function, run on fake CUDA tensors. It needs PyTorch, but no GPU."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from perfmodel.core.errors import UsageError
from perfmodel.program.calls import PLANNED, Argument, Call, Operand
from perfmodel.program.launched import WRAPPED, launched

CUDA, META = torch.device("cuda", 0), torch.device("meta")
DTYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}
DTYPES |= {torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8"}
DTYPES |= {getattr(torch, name): name for name in ("int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128")}
aten = torch.ops.aten
ASSUMED_VALUES: dict[Any, Callable[..., Any]] = {
    aten.all: lambda *_: True,
    aten.any: lambda *_: False,
    aten.sum: lambda x, *_: x.numel() if x.dtype == torch.bool else None,
    aten.rand: lambda *_: 0.5,
    aten.eq: lambda x, other: None if _assumed_value(x) is None else _assumed_value(x) == other,
    aten.lt: lambda x, other: None if _assumed_value(x) is None else _assumed_value(x) < other,
}
"""Values of operators' results, for programs that read a value back: all elements are true, none is special (no token is masked), random
numbers are 0.5. A result keeps its value in an attribute, None if it is not known."""
PRODUCTS = frozenset((aten.mm, aten.addmm, aten.bmm, aten.baddbmm))
WORKSPACE = 32 << 20
"""Bytes of workspace per thread for products on Hopper (aten/src/ATen/cuda/CUDABlas.cpp). Backward passes run in a second thread."""
BLOCK = 512
"""Granularity of PyTorch's allocator in bytes."""
LACKING = ("silu_backward", "mish_backward", "_fused_rms_norm", "_fused_rms_norm_backward")
"""Operators that a build without CUDA would decompose, because it has no kernel for them."""
WIDEST_HEAD = 256
"""Head dimension up to which cuDNN's attention is chosen on Hopper: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp."""


def _assumed_value(tensor: Any) -> Any:
    """The value of ``tensor`` by ``ASSUMED_VALUES``; None if it has none."""
    return getattr(tensor, "_assumed_value", None)


class ProgramRecorder(FakeTensorMode):  # type: ignore[misc]
    """A mode of fake tensors that records operators on the device in ``calls``, and counts bytes ``alive`` and at the ``peak``.

    - ``before``: bytes alive before the last call of the function.
    - ``inside``: whether an operator is running, whose parts are not recorded.
    - ``backward``: whether a backward pass runs. ``started``: whether autograd has begun to compute gradients in it.
    - Places in ``calls``: ``planned``, of cuDNN's attention on sizes that no call of the function before the last one had; ``repeated``,
      where a checkpoint begins to run its forward pass again; ``backward_places``, where the backward pass begins and ends.
    - ``repeated_to``: place behind the last call of a repeated forward pass. ``workspaces``: for which threads (forward False, backward
      True) a workspace of products is allocated.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.calls: list[Call] = []
        self.planned: list[int] = []
        self.repeated: list[int] = []
        self.repeated_to = -1
        self.backward_places = (0, 0)
        self.alive = self.peak = self.before = 0
        self.workspaces: set[bool] = set()
        self.inside = self.backward = self.started = False

    def record(self, function: Callable[..., Any], inputs: tuple[Any, ...], warm_up: int) -> None:
        """Run ``function`` and record its last call; UsageError if it asks for a value."""
        with _as_on_device(self, [function, *inputs]):
            try:
                for _ in range(warm_up):
                    function(*inputs)
                warm_up_calls = set(self.calls)
                self.calls, self.before, self.peak = [], self.alive, self.alive
                self.repeated, self.repeated_to, self.backward_places = [], -1, (0, 0)
                function(*inputs)
                first_places: dict[Call, int] = {}
                for place, call in enumerate(self.calls):
                    if PLANNED in call.name:
                        first_places.setdefault(call, place)
                self.planned = [place for call, place in first_places.items() if warm_up and call not in warm_up_calls]
            except (DataDependentOutputException, DynamicOutputShapeException) as error:
                raise UsageError(f"the program asks for a value that only a run can tell ({error.func})", "capture a part of it") from None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs ``func`` and records it, unless it is a part of another operator."""
        if self.in_kernel_invocation:
            return super().__torch_dispatch__(func, types, args, kwargs)
        computes_gradients = self.backward and not self._repeats_forward()
        if func is torch.ops.prim.device.default:  # for a CUDA device, the engine of backward passes would ask for streams
            return META if computes_gradients else args[0].fake_device
        self.started = self.backward and (self.started or not torch.is_grad_enabled())
        computes_gradients = self.backward and not self._repeats_forward()
        kwargs = dict(kwargs or {})
        if kwargs.get("device") in (META, torch.device("meta", 0)):
            kwargs["device"] = CUDA
        if func is aten._to_copy.default and _copies_nothing(args[0], kwargs):
            func, kwargs = aten.alias.default, {}
        if func is aten.add.Tensor and computes_gradients and _is_in_place(*args):
            func = aten.add_.Tensor
        if func is aten._local_scalar_dense.default and _assumed_value(args[0]) is not None:
            self._record(func, args, kwargs, None)
            return _assumed_value(args[0])
        outermost, self.inside = not self.inside, True
        try:
            out = super().__torch_dispatch__(func, types, args, kwargs)
            if func in CONVOLUTIONS and any(map(_is_channels_last, args[:3])):
                out = tree_map_only(torch.Tensor, _channels_last, out)
        finally:
            self.inside = not outermost
        if outermost:
            self._record(func, args, kwargs, out)
        if func.overloadpacket in ASSUMED_VALUES:
            out._assumed_value = ASSUMED_VALUES[func.overloadpacket](*args)
        return out

    def _repeats_forward(self) -> bool:
        """Whether the backward pass is running a part of the forward pass again, as checkpoints do."""
        return self.started and bool(torch.is_grad_enabled())

    def _record(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        """Counts the memory of the results ``out`` of ``func``, and adds to ``calls`` what it launches."""
        results = [tensor for tensor in tree_leaves(out) if _on_device(tensor)]
        operands = [tensor for tensor in tree_leaves((args, kwargs)) if _on_device(tensor)]
        if not results and not operands:
            return
        for result in results:
            self.count(result)
        if func.overloadpacket in PRODUCTS and self.backward not in self.workspaces:
            self.workspaces.add(self.backward)
            self.allocate(WORKSPACE)
        parameters = func._schema.arguments
        values = dict(zip((parameter.name for parameter in parameters), args, strict=False)) | kwargs
        tensor_types = ("Tensor", "number") if func._schema.name in WRAPPED else ("Tensor",)
        arguments = [
            _argument(values.get(parameter.name, parameter.default_value), str(parameter.type) in tensor_types) for parameter in parameters
        ]
        begin = len(self.calls)
        self.calls += launched(Call(func._schema.name, tuple(arguments)), [_tensor(tensor) for tensor in results or operands])
        if self._repeats_forward():
            if begin != self.repeated_to:  # something else has run since the last repeated call: another pass begins
                self.repeated.append(begin)
            self.repeated_to = len(self.calls)

    def count(self, tensor: torch.Tensor) -> None:
        """Counts the memory of ``tensor`` until it is freed; once per storage."""
        storage = tensor.untyped_storage()
        if not hasattr(storage, "_counted"):
            storage._counted = True
            size = -(-storage.nbytes() // BLOCK) * BLOCK
            self.allocate(size)
            weakref.finalize(storage, self.allocate, -size)

    def allocate(self, size: int) -> None:
        """Adds ``size`` bytes, which may be negative."""
        self.alive += size
        self.peak = max(self.peak, self.alive)


def _on_device(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cuda"


CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
"""Operators whose results are stored channels last on a GPU where an operand is. Source: aten/src/ATen/native/ConvUtils.h."""


def _is_channels_last(value: Any) -> bool:
    """Whether ``value`` is a tensor [b, c, h, w] that is stored channels last and no other way."""
    if not isinstance(value, torch.Tensor) or value.dim() != 4:
        return False
    return bool(value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous())


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` stored channels last, if it has four dimensions."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _copies_nothing(tensor: Any, options: dict[str, Any]) -> bool:
    """Whether a conversion with ``options`` would change nothing, so that no copy is made."""
    device, dtype, order = (options.get(name) for name in ("device", "dtype", "memory_format"))
    return (
        _on_device(tensor)
        and (device is None or device.type == "cuda")
        and dtype in (None, tensor.dtype)
        and order in (None, torch.preserve_format)
    )


def _is_in_place(total: Any, addend: Any, *_: Any) -> bool:
    """Whether autograd adds ``addend`` to ``total`` in place, as it does if nothing else holds that memory."""
    return isinstance(addend, torch.Tensor) and total.shape == addend.shape and not total._is_view()


def _tensor(tensor: torch.Tensor) -> Operand:
    return Operand(tuple(tensor.shape), DTYPES[tensor.dtype], tuple(tensor.stride()))


def _argument(value: Any, as_tensor: bool) -> Argument:
    """A value as a profile records it; ``as_tensor``: numbers become tensors without a dimension."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, (list, tuple)):
        tensors = tuple(_tensor(tensor) for tensor in value if isinstance(tensor, torch.Tensor))
        return tensors or f"[{', '.join(map(_written, value))}]"
    if as_tensor and isinstance(value, (bool, int, float)):
        return Operand((), {bool: "bool", int: "int64", float: "fp64"}[type(value)])
    return None if value is None or isinstance(value, str) else _written(value)


def _written(value: Any) -> str:
    return f"{value:.17g}" + "." * value.is_integer() if isinstance(value, float) else str(value)


# A device that is not there


@contextmanager
def _as_on_device(recorder: ProgramRecorder, roots: list[Any]) -> Iterator[None]:
    """Context in which all tensors that ``roots`` hold are fake CUDA tensors, and PyTorch seems to have such a device."""
    run = torch.autograd._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        recorder.backward, begin = True, len(recorder.calls)
        try:
            return run(*args, **kwargs)
        finally:
            recorder.backward, recorder.backward_places = False, (begin, len(recorder.calls))

    if not torch.cuda.is_available():
        _guard_device()
    tensors, states = _tensors_of(roots)
    with ExitStack() as stack:
        for owner, name, value in (
            (torch.autograd, "_engine_run_backward", run_backward),
            (torch.nn.functional, "scaled_dot_product_attention", _attention),  # the thread of backward passes has no _AttentionMode
            (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
            (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
            (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
            (torch.cuda, "synchronize", lambda *_: None),
            (optimizer, "_foreach_supported_types", [*optimizer._foreach_supported_types, FakeTensor]),
            (sys.modules.get("transformers.utils.import_utils"), "is_fake_tensor", lambda _: False),  # it takes another way for them
        ):
            if owner is not None:
                stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        swapped: Swapped = []
        try:
            _swap(tensors, recorder, swapped)
            with recorder, _AttentionMode():
                yield
        finally:
            for state, before in states:
                state.clear()
                state.update(before)
            _swap_back(swapped)


Swapped = list[tuple[Any, torch.Tensor]]
"""Weak references to tensors that were made fake, each with a tensor that holds its former content."""


def _swap(tensors: list[torch.Tensor], recorder: ProgramRecorder, swapped: Swapped) -> None:
    """Makes ``tensors`` fake in place, and adds them to ``swapped``."""
    storages: dict[int, Any] = {}
    while tensors:
        tensor = tensors.pop()
        storage = tensor.untyped_storage()
        memory = storages.setdefault(storage._cdata, torch.UntypedStorage(storage.nbytes(), device="meta"))
        bare = torch.empty(0, dtype=tensor.dtype, device="meta").set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
        fake = FakeTensor(recorder, bare.requires_grad_(tensor.requires_grad), CUDA)
        if isinstance(tensor, torch.nn.Parameter):
            fake._is_param = True
        try:
            torch.utils.swap_tensors(tensor, fake)
        except RuntimeError as error:
            raise UsageError(
                f"a tensor of {tuple(tensor.shape)} cannot be made fake: {error}", "build the model anew, without LSTM or GRU"
            ) from None
        recorder.count(tensor)
        swapped.append((weakref.ref(tensor), fake))


def _swap_back(swapped: Swapped) -> None:
    """Gives the tensors their former content again."""
    gc.collect()  # a tensor that something else holds cannot be swapped
    while swapped:
        reference, before = swapped.pop()
        tensor = reference()
        del reference  # nor can one with weak references
        if tensor is not None:
            with suppress(RuntimeError):  # a graph that an error keeps holds it
                torch.utils.swap_tensors(tensor, before)


def _guard_device() -> None:
    """Gives a PyTorch build without CUDA a device guard and an autograd thread for that device: those of meta tensors."""
    try:
        core = ctypes.CDLL(f"{torch.__path__[0]}/lib/libc10.{'dylib' if sys.platform == 'darwin' else 'so'}")
        guards = (ctypes.c_void_p * 20).in_dll(core, "_ZN3c104impl26device_guard_impl_registryE")
    except (OSError, ValueError):
        raise UsageError("this build of PyTorch has no devices to stand in for CUDA", "capture on Linux or macOS") from None
    if guards[1]:
        return
    from torch.utils.backend_registration import _DummyDeviceGuard

    library = torch.library.Library("aten", "IMPL")
    for name in LACKING:
        library.impl(name, lambda *_: None, "CUDA")
    KEPT.extend((library, _DummyDeviceGuard()))
    torch._C._acc.register_python_privateuseone_device_guard(KEPT[1])
    guards[1] = guards[14]


KEPT: list[Any] = []
"""Objects that PyTorch refers to as long as it is loaded."""


def _tensors_of(roots: list[Any]) -> tuple[list[torch.Tensor], list[tuple[Any, Any]]]:
    """All tensors that ``roots`` hold, and pairs of an optimizer's state and a copy of its content."""
    tensors: dict[int, torch.Tensor] = {}
    states, seen, stack = [], set(), list(roots)
    space = getattr(roots[0], "__globals__", None)
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, (type, ModuleType, str, int, float, torch.dtype, torch.device)):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            tensors[id(item)] = item
        elif isinstance(item, dict):
            stack += item.values()
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack += item
        elif isinstance(item, MethodType):
            stack += [item.__self__, item.__func__]
        elif isinstance(item, FunctionType):
            stack += [cell.cell_contents for cell in item.__closure__ or ()]
            if item.__globals__ is space:
                stack += [space[name] for name in _names(item.__code__) if name in space]
        else:
            stack += [getattr(item, name, None) for name in ("__dict__", "func", "args", "keywords")]
            if isinstance(item, torch.optim.Optimizer):
                states.append((item.state, dict(item.state)))
    return list(tensors.values()), states


def _names(code: CodeType) -> Iterator[str]:
    """Global names that a function and its inner functions use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


class _AttentionMode(TorchFunctionMode):  # type: ignore[misc]
    """A mode that runs ``_attention`` in place of PyTorch's fused attention."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs ``func``."""
        if func is torch._C._nn.scaled_dot_product_attention:
            func = _attention
        return func(*args, **(kwargs or {}))


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention by the kernel that PyTorch chooses on a GPU: cuDNN's in 16 bits, else the memory-efficient one.

    Both take no mask that is trained. The arguments are those of ``scaled_dot_product_attention``.
    """
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
        attn_mask = attn_mask if attn_mask is None or attn_mask.dtype == torch.bool else attn_mask.to(dtype)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        allowed, masked = (torch.scalar_tensor(number, dtype=query.dtype, device=query.device) for number in (0.0, float("-inf")))
        attn_mask = torch.where(attn_mask, allowed, masked)
    statistics = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    operands, options, width = (query, key, value, attn_mask), (dropout_p, is_causal), query.shape[-1]
    if attn_mask is not None and attn_mask.requires_grad:
        return aten._scaled_dot_product_attention_math(*operands, *options, scale=scale)[0]
    if query.dtype in (torch.float16, torch.bfloat16) and width % 8 == 0 and width <= WIDEST_HEAD:
        return aten._scaled_dot_product_cudnn_attention(*operands, statistics, *options, False, scale=scale)[0]
    if query.dim() == 4 and query.shape[1] == key.shape[1]:
        return aten._scaled_dot_product_efficient_attention(*operands, statistics, *options, scale=scale)[0]
    return torch._C._nn.scaled_dot_product_attention(*operands, *options, scale=scale, enable_gqa=enable_gqa)
