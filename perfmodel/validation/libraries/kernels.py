"""Kernels of PyTorch, made ready to run: matmul (cuBLAS), copy, softmax, norms, element-wise steps and attention. ``LIBRARIES`` has all.

``torch-matmul`` is distinct from ``cublas``, whose published times were taken in CUDA graphs and lack the events' overhead.

Element-wise steps are implementations of the workload ``scale``. torch-scale reads one matrix and writes one. torch-add and torch-silu-mul
(two kernels) read two. torch-rope (three kernels, heads of ROPE_HEAD_DIM) also reads a cosine and a sine per position. torch-mask adds a
mask of ``mask_rows`` rows to each group of as many rows.

Fused attention has three backends: FlashAttention-2, cuDNN and memory-efficient. Operands are stored as in models: in prefill as [batch,
length, heads, d], as a projection wrote them (from any other order the flash backward pass copies the output and its gradient first), in
decode as [batch, kv_heads, kv_len, d], as a cache has them. The backward pass is timed alone, through autograd, on a retained graph. Eager
attention is batched Q K^T, scale, additive causal mask, softmax, batched P V, with the scores in memory each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from perfmodel.core.errors import DataError, UnavailableError, suggest
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.validation.cases import SDPA_BACKENDS, KernelCase
from perfmodel.validation.libraries import Prepare, Prepared, Torch, dtype_of, relative_error

CHECKED_ROWS, CHECKED_MATMUL_ROWS, CHECKED_COPY = 64, 32, 1 << 16
"""Number of rows, of rows of a matmul and of elements of a copy, at the end of a result, that are checked."""
EPSILON = 1e-5
ROPE_HEAD_DIM = 128
FACTOR = 0.125

Step = Callable[[Torch, Any, Any, Any], Any]
"""A row-wise step: (torch, x [rows, cols], y [rows, cols], weight [cols]) -> [rows, cols]."""


def _rope(torch: Torch, x: Any, y: Any, weight: Any) -> Any:
    """RoPE of ``x``; numbers of ``y`` stand for cosines and sines."""
    shape = (-1, x.shape[1] // ROPE_HEAD_DIM, ROPE_HEAD_DIM)
    angles = y[:, None, :ROPE_HEAD_DIM]
    return rotated(torch, x.view(shape), (angles, angles)).view(x.shape)


def rotated(torch: Torch, x: Any, angles: tuple[Any, Any]) -> Any:
    """RoPE in three kernels: exchange of halves, product with the cosine, and its sum with the product with the signed sine."""
    cosine, sine = angles
    half = x.shape[-1] // 2
    return torch.addcmul(x * cosine, torch.cat((x[..., half:], x[..., :half]), -1), sine)


STEPS: dict[str, tuple[str, Step]] = {
    "torch-softmax": ("softmax", lambda torch, x, y, weight: torch.softmax(x, -1)),
    "torch-layer-norm": ("norm", lambda torch, x, y, w: torch.nn.functional.layer_norm(x, w.shape, w, None, EPSILON)),
    "torch-rms-norm": ("norm", lambda torch, x, y, w: torch.nn.functional.rms_norm(x, w.shape, w, EPSILON)),
    "torch-scale": ("scale", lambda torch, x, y, weight: x * FACTOR),
    "torch-add": ("scale", lambda torch, x, y, weight: x + y),
    "torch-silu-mul": ("scale", lambda torch, x, y, weight: torch.nn.functional.silu(x) * y),
    "torch-rope": ("scale", _rope),
}


def _prepare_step(step: Step, case: KernelCase, torch: Torch) -> Prepared:
    dtype, cols = dtype_of(case, torch), case.shape["cols"]
    x, y = (torch.randn((case.shape["rows"], cols), dtype=dtype, device="cuda") for _ in range(2))
    weight = torch.randn((cols,), dtype=dtype, device="cuda")

    def error(result: Any) -> float:
        last = slice(-CHECKED_ROWS, None)
        return relative_error(result[last], step(torch, x[last].double(), y[last].double(), weight.double()))

    return Prepared(lambda: step(torch, x, y, weight), error)


def _prepare_mask(case: KernelCase, torch: Torch) -> Prepared:
    s, dtype = case.shape, dtype_of(case, torch)
    shape = (int(s["rows"]) // int(s["mask_rows"]), s["mask_rows"], s["cols"])
    x, mask = (torch.randn(size, dtype=dtype, device="cuda") for size in (shape, shape[1:]))
    return Prepared(lambda: x + mask, lambda result: relative_error(result[-1], x[-1].double() + mask.double()))


def _prepare_copy(case: KernelCase, torch: Torch) -> Prepared:
    """Copy between two buffers of ``bytes``."""
    dtype = dtype_of(case, torch)
    count, remainder = divmod(int(case.shape["bytes"]), dtype.itemsize)
    if remainder or not count:
        raise UnavailableError(f"{case.shape['bytes']} B hold no whole number of {case.dtype} elements")
    source = torch.randn((count,), dtype=dtype, device="cuda")
    target = torch.full_like(source, float("nan"))
    last = slice(-CHECKED_COPY, None)
    return Prepared(lambda: target.copy_(source), lambda result: relative_error(result[last], source[last].double()))


def _prepare_matmul(case: KernelCase, torch: Torch) -> Prepared:
    """Matmul with B stored [n, k] and used transposed, or [k, n] if ``row_major``."""
    s, dtype = case.shape, dtype_of(case, torch)
    batch = (s["batch"],) if "batch" in s else ()
    a = torch.randn((*batch, s["m"], s["k"]), dtype=dtype, device="cuda")
    stored = (s["k"], s["n"]) if case.row_major else (s["n"], s["k"])
    b = torch.randn((*batch, *stored), dtype=dtype, device="cuda")
    b = b if case.row_major else b.transpose(-2, -1)

    def error(result: Any) -> float:
        last_a, last_b, last_c = (a[-1], b[-1], result[-1]) if batch else (a, b, result)
        rows = slice(-CHECKED_MATMUL_ROWS, None)
        return relative_error(last_c[rows], last_a[rows].double() @ last_b.double())

    return Prepared(lambda: torch.matmul(a, b), error)


def _prepare_grouped_mm(case: KernelCase, torch: Torch) -> Prepared:
    """Grouped matmul with rows spread as evenly as possible over the first ``touched`` matrices; B stored [experts, n, k]."""
    s, dtype = case.shape, dtype_of(case, torch)
    rows, touched = s["tokens"] * s["top_k"], s["touched"]
    ends = [rows * min(expert + 1, touched) // touched for expert in range(s["experts"])]
    a = torch.randn((rows, s["k"]), dtype=dtype, device="cuda")
    b = torch.randn((s["experts"], s["n"], s["k"]), dtype=dtype, device="cuda").transpose(-2, -1)
    offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")
    last_begin = ends[touched - 2] if touched > 1 else 0
    last = slice(max(last_begin, rows - CHECKED_MATMUL_ROWS), rows)

    def error(result: Any) -> float:
        return relative_error(result[last], a[last].double() @ b[touched - 1].double())

    return Prepared(lambda: torch._grouped_mm(a, b, offs=offsets), error)


def operands(case: KernelCase, torch: Torch, length_first: bool) -> tuple[Any, Any, Any]:
    """Random Q [batch, heads, n, d], K and V [batch, kv_heads, kv_len, d]; ``length_first``: stored as [batch, length, heads, d]."""
    s, dtype = case.shape, dtype_of(case, torch)

    def draw(heads: Any, length: Any) -> Any:
        stored = (s["batch"], length, heads, s["d"]) if length_first else (s["batch"], heads, length, s["d"])
        tensor = torch.randn(stored, dtype=dtype, device="cuda")
        heads_first = tensor.transpose(1, 2) if length_first else tensor
        return heads_first.requires_grad_(case.direction == BACKWARD)

    return draw(s["heads"], s["n"]), draw(s["kv_heads"], s["kv_len"]), draw(s["kv_heads"], s["kv_len"])


def attention(case: KernelCase, torch: Torch, q: Any, k: Any, v: Any, run: Any) -> Prepared:
    """The pass of ``case``: ``run``, which computes attention of ``q``, ``k`` and ``v``, or only its backward pass."""
    causal = bool(case.shape["causal"])
    if case.direction == FORWARD:
        return Prepared(run, partial(output_error, torch, q, k, v, causal))
    out = run()
    grad = torch.randn_like(out)

    def backward() -> Any:
        return torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

    return Prepared(backward, partial(gradient_error, torch, q, k, v, causal, grad))


def _prepare_fused(case: KernelCase, torch: Torch) -> Prepared:
    """Attention by one SDPA backend."""
    causal, grouped = bool(case.shape["causal"]), case.shape["heads"] != case.shape["kv_heads"]
    if causal and case.shape["n"] != case.shape["kv_len"]:
        raise UnavailableError(f"{case.implementation}: PyTorch aligns a causal mask to the first key", "give n = kv_len")
    q, k, v = operands(case, torch, length_first=case.shape["n"] != 1)
    return attention(case, torch, q, k, v, fused(case.implementation, torch, q, k, v, causal, grouped))


def fused(implementation: str, torch: Torch, q: Any, k: Any, v: Any, causal: bool, grouped: bool = False) -> Callable[[], Any]:
    """Function that runs the forward pass by one SDPA backend, the only one allowed."""
    module = import_module("torch.nn.attention")
    backend = getattr(module.SDPBackend, SDPA_BACKENDS[implementation])

    def run() -> Any:
        with module.sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    return run


def _prepare_eager(case: KernelCase, torch: Torch) -> Prepared:
    """The whole eager sequence. A causal case also has ``mask``, as a kernel adds the mask as a tensor, without ``masked_fill``."""
    causal, masked = bool(case.shape["causal"]), bool(case.shape.get("mask", False))
    if causal != masked or case.shape["heads"] != case.shape["kv_heads"]:
        raise UnavailableError("torch-eager: causal without mask, or grouped heads", "give causal and mask alike, kv_heads = heads")
    q, k, v = operands(case, torch, length_first=False)  # from another order each matmul would copy first
    return attention(case, torch, q, k, v, eager(torch, q, k, v, causal)[0])


def eager(torch: Torch, q: Any, k: Any, v: Any, causal: bool) -> tuple[Callable[[], Any], list[Any]]:
    """Function that runs the eager forward pass, kernel by kernel, and a list of its additive mask, if it has one."""
    scale = 1 / math.sqrt(q.shape[-1])
    masks = [torch.full((q.shape[2], k.shape[2]), -math.inf, dtype=q.dtype, device="cuda").triu(1)] if causal else []

    def run() -> Any:
        scores = torch.matmul(q, k.transpose(-2, -1)) * scale
        for mask in masks:
            scores = scores + mask
        return torch.matmul(torch.softmax(scores, -1), v)

    return run, masks


ROWS = 48
"""Query rows checked per head of a large problem."""
MOST_CHECKED_SCORES = 1 << 22
"""Most scores of one KV head for which every row is checked, and so the gradients of K and V."""


def _attend(torch: Torch, q: Any, k: Any, v: Any, rows: Any, causal: bool) -> Any:
    """Attention of q [group, rows, d], k [kv_len, d] and v [kv_len, dv]; a causal mask hides the keys after each of ``rows``."""
    scores = q @ k.T / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.arange(k.shape[0], device="cuda") > rows[:, None], -math.inf)
    return scores.softmax(-1) @ v


def _checked_rows(torch: Torch, q: Any, k: Any) -> Iterator[tuple[int, int, slice, Any]]:
    """(batch, KV head, its query heads, rows to check) of the first and the last KV head."""
    (batches, heads, n, _), (_, kv_heads, kv_len, _) = q.shape, k.shape
    group = heads // kv_heads
    count = n if group * n * kv_len <= MOST_CHECKED_SCORES else min(n, ROWS)
    rows = torch.linspace(0, n - 1, count, device="cuda").long().unique()
    for batch, kv_head in ((0, 0), (batches - 1, kv_heads - 1)):
        yield batch, kv_head, slice(kv_head * group, (kv_head + 1) * group), rows


def _worst(errors: list[float]) -> float:
    """The largest of ``errors``; NaN if one is NaN."""
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def output_error(torch: Torch, q: Any, k: Any, v: Any, causal: bool, out: Any) -> float:
    """Largest relative error of the checked heads of ``out``. Tensors are [batch, heads, length, d]."""
    errors = []
    for batch, kv_head, heads, rows in _checked_rows(torch, q, k):
        queries = q[batch, heads][:, rows].double()
        expected = _attend(torch, queries, k[batch, kv_head].double(), v[batch, kv_head].double(), rows, causal)
        errors.append(relative_error(out[batch, heads][:, rows], expected))
    return _worst(errors)


def gradient_error(torch: Torch, q: Any, k: Any, v: Any, causal: bool, grad: Any, gradients: tuple[Any, Any, Any]) -> float:
    """Largest relative error of dQ, and of dK and dV if every row is checked. ``grad``: gradient of the output."""
    errors = []
    for batch, kv_head, heads, rows in _checked_rows(torch, q, k):
        parts = (q[batch, heads][:, rows], k[batch, kv_head], v[batch, kv_head])
        leaves = [part.detach().double().requires_grad_() for part in parts]
        out = _attend(torch, leaves[0], leaves[1], leaves[2], rows, causal)
        expected = torch.autograd.grad(out, leaves, grad[batch, heads][:, rows].double())
        errors.append(relative_error(gradients[0][batch, heads][:, rows], expected[0]))
        if len(rows) == q.shape[2]:
            errors += [relative_error(gradients[i][batch, kv_head], expected[i]) for i in (1, 2)]
    return _worst(errors)


LIBRARIES: dict[tuple[str, str], Prepare] = {
    **{("attention", name): _prepare_fused for name in SDPA_BACKENDS},
    ("attention", "torch-eager"): _prepare_eager,
    **{(workload, name): partial(_prepare_step, step) for name, (workload, step) in STEPS.items()},
    ("scale", "torch-mask"): _prepare_mask,
    ("copy", "torch-copy"): _prepare_copy,
    ("matmul", "torch-matmul"): _prepare_matmul,
    ("grouped-matmul", "torch-grouped-mm"): _prepare_grouped_mm,
}
"""Function that prepares each library kernel, by workload and name."""


def directions(workload: str) -> tuple[str, ...]:
    """Passes of ``workload`` that library kernels run."""
    return (FORWARD, BACKWARD) if workload == "attention" else (FORWARD,)


def find(case: KernelCase, table: Mapping[tuple[str, str], Prepare] = LIBRARIES) -> Prepare:
    """Function of ``table`` that prepares ``case``; DataError if there is none."""
    preparation = table.get((case.workload, case.implementation))
    if preparation is None:
        names = sorted(name for workload, name in table if workload == case.workload)
        raise DataError(f"no library kernel {case.implementation!r} for {case.workload!r}", suggest(case.implementation, names))
    if case.direction not in directions(case.workload):
        raise DataError(f"{case.implementation} has no {case.direction} pass here", f"give one of {', '.join(directions(case.workload))}")
    return preparation
