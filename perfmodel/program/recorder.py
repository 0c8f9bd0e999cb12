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
ANSWERS: dict[Any, Callable[..., Any]] = {
    aten.all: lambda *_: True,
    aten.any: lambda *_: False,
    aten.sum: lambda x, *_: x.numel() if x.dtype == torch.bool else None,
    aten.rand: lambda *_: 0.5,
    aten.eq: lambda x, other: None if getattr(x, "_answer", None) is None else x._answer == other,
    aten.lt: lambda x, other: None if getattr(x, "_answer", None) is None else x._answer < other,
}
"""Values given to a program that asks for one: all elements are true, none is special, such as no masked token; random ones are 0.5."""
PRODUCTS = frozenset((aten.mm, aten.addmm, aten.bmm, aten.baddbmm))
WORKSPACE = 32 << 20
"""Bytes of workspace per thread for products on Hopper (aten/src/ATen/cuda/CUDABlas.cpp). Backward passes run in a second thread."""
BLOCK = 512
"""Granularity of PyTorch's allocator in bytes."""
LACKING = ("silu_backward", "mish_backward", "_fused_rms_norm", "_fused_rms_norm_backward")
"""Operators that a build without CUDA would decompose, because it has no kernel for them."""
WIDEST_HEAD = 256
"""Head dimension up to which cuDNN's attention is chosen on Hopper: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp."""


class ProgramRecorder(FakeTensorMode):  # type: ignore[misc]
    """A mode of fake tensors that records operators on the device in ``calls``, and counts bytes ``alive`` and at the ``peak``.

    ``before``: bytes alive before the last call. ``inside``: whether an operator is running, whose parts are not recorded. ``backward``,
    ``started``: whether a backward pass runs, and whether autograd has begun to compute gradients in it.
    Places in ``calls``: ``planned``, of cuDNN's attention on sizes that no call of the function before the last one had; ``repeated``,
    where a checkpoint begins to run its forward pass again; ``backward_places``, where the backward pass begins and ends.
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
                known = set(self.calls)
                self.calls, self.before, self.peak = [], self.alive, self.alive
                self.repeated, self.repeated_to, self.backward_places = [], -1, (0, 0)
                function(*inputs)
                first = {call: place for place, call in reversed(list(enumerate(self.calls))) if PLANNED in call.name}
                self.planned = sorted(place for call, place in first.items() if warm_up and call not in known)
            except (DataDependentOutputException, DynamicOutputShapeException) as error:
                raise UsageError(f"the program asks for a value that only a run can tell ({error.func})", "capture a part of it") from None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs ``func`` and records it, unless it is a part of another operator."""
        if self.in_kernel_invocation:
            return super().__torch_dispatch__(func, types, args, kwargs)
        if func is torch.ops.prim.device.default:  # the engine of backward passes would ask for streams of CUDA
            return args[0].fake_device if not self.backward or self._computes_again() else META
        self.started = self.backward and (self.started or not torch.is_grad_enabled())
        kwargs = dict(kwargs or {})
        if kwargs.get("device") in (META, torch.device("meta", 0)):
            kwargs["device"] = CUDA
        if func is aten._to_copy.default and _is_same(args[0], kwargs):
            func, kwargs = aten.alias.default, {}
        if func is aten.add.Tensor and self.backward and not self._computes_again() and _is_in_place(*args):
            func = aten.add_.Tensor
        if func is aten._local_scalar_dense.default and getattr(args[0], "_answer", None) is not None:
            self._record(func, args, kwargs, None)
            return args[0]._answer
        outer, self.inside = not self.inside, True
        try:
            out = super().__torch_dispatch__(func, types, args, kwargs)
            if func in CONVOLUTIONS and any(map(_is_channels_last, args[:3])):
                out = tree_map_only(torch.Tensor, _channels_last, out)
        finally:
            self.inside = not outer
        if outer:
            self._record(func, args, kwargs, out)
        if func.overloadpacket in ANSWERS:
            out._answer = ANSWERS[func.overloadpacket](*args)
        return out

    def _computes_again(self) -> bool:
        """Whether the backward pass is running a part of the forward pass again, as checkpoints do."""
        return self.started and bool(torch.is_grad_enabled())

    def _record(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        results, operands = ([tensor for tensor in tree_leaves(tree) if _on_device(tensor)] for tree in (out, (args, kwargs)))
        if not results and not operands:
            return
        for result in results:
            self.count(result)
        if func.overloadpacket in PRODUCTS and self.backward not in self.workspaces:
            self.workspaces.add(self.backward)
            self.allocate(WORKSPACE)
        places = func._schema.arguments
        values = dict(zip((place.name for place in places), args, strict=False)) | kwargs
        numbers = ("Tensor", "number") if func._schema.name in WRAPPED else ("Tensor",)
        arguments = (_argument(values.get(place.name, place.default_value), str(place.type) in numbers) for place in places)
        begin = len(self.calls)
        self.calls += launched(Call(func._schema.name, tuple(arguments)), [_tensor(tensor) for tensor in results or operands])
        if self._computes_again():
            self.repeated += [begin] if begin != self.repeated_to else []  # else only this pass has run since
            self.repeated_to = len(self.calls)

    def count(self, tensor: torch.Tensor) -> None:
        """Count the memory of ``tensor`` until it is freed; once per storage."""
        storage = tensor.untyped_storage()
        if not hasattr(storage, "_counted"):
            storage._counted = True
            size = -(-storage.nbytes() // BLOCK) * BLOCK
            self.allocate(size)
            weakref.finalize(storage, self.allocate, -size)

    def allocate(self, size: int) -> None:
        """Add ``size`` bytes, which may be negative."""
        self.alive += size
        self.peak = max(self.peak, self.alive)


def _on_device(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cuda"


CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
"""Operators whose results are stored channels last on a GPU where an operand is. Source: aten/src/ATen/native/ConvUtils.h."""


def _is_channels_last(value: Any) -> bool:
    """Whether ``value`` is a tensor [b, c, h, w] that is stored channels last and no other way."""
    stored = isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last)
    return bool(stored and not value.is_contiguous())


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` stored channels last, if it has four dimensions."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _is_same(tensor: Any, options: dict[str, Any]) -> bool:
    """Whether a copy with ``options`` would change nothing."""
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
            (torch.nn.functional, "scaled_dot_product_attention", _attended),  # in the thread of backward passes, which has no _Attention
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
            with recorder, _Attention():
                yield
        finally:
            for state, before in states:
                state.clear()
                state.update(before)
            _swap_back(swapped)


Swapped = list[tuple[Any, torch.Tensor]]


def _swap(tensors: list[torch.Tensor], recorder: ProgramRecorder, swapped: Swapped) -> None:
    """Make ``tensors`` fake in place; ``swapped`` collects the originals."""
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
    gc.collect()  # what still holds them
    while swapped:
        reference, before = swapped.pop()
        tensor = reference()
        del reference  # a tensor with references is not swapped
        if tensor is not None:
            with suppress(RuntimeError):  # a graph that an error keeps holds it
                torch.utils.swap_tensors(tensor, before)


def _guard_device() -> None:
    """Give a PyTorch build without CUDA a device guard and an autograd thread for that device: those of meta tensors."""
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


class _Attention(TorchFunctionMode):  # type: ignore[misc]
    """A mode that runs fused attention by the kernel PyTorch chooses on a GPU: cuDNN's in 16 bits, else the memory-efficient one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs ``func``."""
        if func is torch._C._nn.scaled_dot_product_attention:
            func = _attended
        return func(*args, **(kwargs or {}))


def _attended(
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
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
        attn_mask = attn_mask if attn_mask is None or attn_mask.dtype == torch.bool else attn_mask.to(dtype)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        allowed, masked = (torch.scalar_tensor(number, dtype=query.dtype, device=query.device) for number in (0.0, float("-inf")))
        attn_mask = torch.where(attn_mask, allowed, masked)
    statistics = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    width, same_heads = query.shape[-1], query.shape[1] == key.shape[1]
    learned = attn_mask is not None and attn_mask.requires_grad
    if query.dtype in (torch.float16, torch.bfloat16) and width % 8 == 0 and width <= WIDEST_HEAD and not learned:
        return aten._scaled_dot_product_cudnn_attention(query, key, value, attn_mask, statistics, dropout_p, is_causal, False, scale=scale)[
            0
        ]
    if learned:
        return aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[0]
    if query.dim() == 4 and same_heads:
        return aten._scaled_dot_product_efficient_attention(query, key, value, attn_mask, statistics, dropout_p, is_causal, scale=scale)[0]
    return torch._C._nn.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
