"""Operators of shapes drawn at random, one behind the other under a profiler.

``python -m tools.measure.programs.operators SEED SECONDS OUT [FAMILY ...]``.

For the passes over memory of programs: each operand was just written, as in a program. Writes OUT/operators.tar, profiles as torch
writes them.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
import time
from collections.abc import Callable
from math import exp, log
from pathlib import Path
from random import Random
from typing import Any

WIDTHS = (32, 64, 96, 128, 192, 256, 320, 512, 768, 1000, 1024, 1152, 1280, 1600, 2048, 2304, 3072, 4096, 5120, 8192, 11008, 14336)
VOCABULARIES = (1000, 30522, 32000, 50257, 50304, 128256, 151936)
LEAST_BYTES, MOST_BYTES = 4e4, 6e8
EACH = 100
"""Operators under one profiler."""


class Draw:
    """Tensors of random shapes on the GPU."""

    def __init__(self, torch: Any, seed: int) -> None:
        self.torch, self.random = torch, Random(seed)

    def elements(self, size: int = 2) -> int:
        """So many elements that a tensor of them has a drawn number of bytes, its logarithm evenly spread."""
        return int(exp(self.random.uniform(log(LEAST_BYTES), log(MOST_BYTES))) / size)

    def dtype(self) -> Any:
        """bf16 twice as often as fp32, fp16 seldom."""
        t = self.torch
        return self.random.choice((t.bfloat16, t.bfloat16, t.bfloat16, t.float32, t.float32, t.float16))

    def rows(self, width: int | None = None, dtype: Any = None, size: int = 4) -> Any:
        """[rows, width]."""
        width = width or self.random.choice(WIDTHS)
        rows = max(1, self.elements(size) // width)
        rows = max(1, rows // 64 * 64) if rows > 64 and self.random.random() < 0.7 else rows
        return self.torch.randn(rows, width, device="cuda", dtype=dtype or self.dtype())

    def heads(self, dtype: Any = None) -> Any:
        """[b, n, h, d] as products leave them."""
        h, d, n = (
            self.random.choice((4, 8, 12, 16, 32)),
            self.random.choice((64, 80, 96, 128)),
            self.random.choice((128, 512, 1000, 1024, 2048)),
        )
        b = max(1, self.elements(4) // (h * d * n))
        return self.torch.randn(b, n, h, d, device="cuda", dtype=dtype or self.dtype())

    def pictures(self, dtype: Any = None) -> Any:
        """[b, c, edge, edge]."""
        c, edge = (
            self.random.choice((32, 64, 96, 128, 256, 320, 512, 1024, 1344, 2048)),
            self.random.choice((7, 14, 16, 28, 32, 56, 64, 96, 112)),
        )
        b = max(1, self.elements(4) // (c * edge * edge))
        x = self.torch.randn(b, c, edge, edge, device="cuda", dtype=dtype or self.dtype())
        return x.to(memory_format=self.torch.channels_last) if self.random.random() < 0.25 else x


def _unary(d: Draw) -> None:
    f, x = d.torch.nn.functional, d.rows()
    d.random.choice((f.gelu, f.silu, f.relu, d.torch.tanh, d.torch.exp, d.torch.rsqrt, d.torch.neg, lambda y: y * 0.5, lambda y: y.pow(2)))(
        x
    )


def _binary(d: Draw) -> None:
    x = d.rows()
    y = d.torch.randn_like(x)
    d.random.choice((d.torch.add, d.torch.mul, d.torch.sub, d.torch.div))(x, y)
    x += y


def _gradient(d: Draw) -> None:
    x = d.rows().requires_grad_()
    f = d.torch.nn.functional
    y = d.random.choice((f.gelu, f.silu, f.relu, d.torch.tanh))(x)
    y.backward(d.torch.randn_like(y))


def _casts(d: Draw) -> None:
    t = d.torch
    x, narrow = d.rows(dtype=t.float32, size=8), d.random.choice((t.bfloat16, t.bfloat16, t.float16))
    y = x.to(narrow)
    y.to(t.float32)
    d.random.choice((t.add, t.mul))(x, y)
    if d.random.random() < 0.3:
        (y > 0).to(narrow)


def _broadcast(d: Draw) -> None:
    x = d.rows()
    t, (rows, width) = d.torch, x.shape
    x * t.randn(width, device="cuda", dtype=x.dtype)
    x + t.randn(rows, 1, device="cuda", dtype=x.dtype)
    if rows % 8 == 0:
        x.view(8, rows // 8, width) * t.randn(8, 1, width, device="cuda", dtype=x.dtype)
    if x.dtype != t.float32:
        x * t.randn(rows, 1, device="cuda", dtype=t.float32)


def _rotated(d: Draw) -> None:
    t, x = d.torch, d.heads().transpose(1, 2)
    half, cos = x.shape[-1] // 2, t.randn(1, 1, x.shape[2], x.shape[3], device="cuda", dtype=x.dtype)
    t.cat((-x[..., half:], x[..., :half]), dim=-1) * cos + x * cos


def _strides(d: Draw) -> None:
    t, x = d.torch, d.heads()
    y = x.transpose(1, 2).contiguous()
    y.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1)
    x.transpose(1, 2) + y
    x[..., : x.shape[-1] // 2].contiguous()
    z = d.rows()
    z[:, : z.shape[1] // 2] * z[:, z.shape[1] // 2 : 2 * (z.shape[1] // 2)]
    if x.dtype != t.float32:
        x.transpose(1, 2).float()


def _transposed(d: Draw) -> None:
    x = d.pictures()
    b, c, h, w = x.shape
    x.reshape(b, c, h * w).transpose(1, 2).contiguous() + 1.0
    y = d.torch.randn(b, h * w, c, device="cuda", dtype=x.dtype)
    x.flatten(2).transpose(1, 2) + y


def _reduced(d: Draw) -> None:
    x = d.rows()
    x.sum(-1)
    x.sum(0)
    if d.random.random() < 0.5:
        x.float().mean(-1, keepdim=True)
    if d.random.random() < 0.3:
        x.sum()
        x.amax(-1)
    if d.random.random() < 0.3:
        d.pictures().sum(d.random.choice(((0, 2, 3), (2, 3))))


def _joined(d: Draw) -> None:
    t = d.torch
    x, y = d.rows(size=8), None
    y = t.randn_like(x)
    t.cat((x, y), dim=d.random.choice((0, 1)))
    h = d.heads().transpose(1, 2)
    t.cat((h, h[:, :, :1]), dim=2)


def _looked_up(d: Draw) -> None:
    t, vocabulary, width = d.torch, d.random.choice(VOCABULARIES), d.random.choice((512, 768, 1024, 2048, 4096))
    tokens = max(8, min(65536, d.elements(2) // width))
    table = t.randn(vocabulary, width, device="cuda", dtype=d.dtype(), requires_grad=d.random.random() < 0.5)
    found = t.nn.functional.embedding(t.randint(0, vocabulary, (tokens,), device="cuda"), table)
    if table.requires_grad:
        found.backward(t.randn_like(found))
    x = d.rows()
    places = t.randint(0, x.shape[0], (max(1, x.shape[0] // d.random.choice((1, 2, 8))),), device="cuda")
    x[places]
    x.index_add_(0, places, t.randn(len(places), x.shape[1], device="cuda", dtype=x.dtype))


def _norms(d: Draw) -> None:
    t, f, x = d.torch, d.torch.nn.functional, d.rows().requires_grad_()
    weight, bias = (t.randn(x.shape[-1], device="cuda", dtype=x.dtype, requires_grad=True) for _ in range(2))
    y = f.layer_norm(x, (x.shape[-1],), weight, bias) if d.random.random() < 0.7 else f.rms_norm(x, (x.shape[-1],), weight)
    y.backward(t.randn_like(y))


LENGTHS = (49, 64, 128, 196, 197, 256, 512, 577, 785, 1024, 1025, 1500, 2048, 2305, 3136, 3137, 4096, 5185)
"""Keys of attention: of text, and of pictures by patches with a token before them."""


def _softmax(d: Draw) -> None:
    x = d.rows(d.random.choice(LENGTHS)).requires_grad_()
    y = d.torch.softmax(x, -1)
    y.backward(d.torch.randn_like(y))


def _loss(d: Draw) -> None:
    t = d.torch
    x = d.rows(d.random.choice(VOCABULARIES), d.random.choice((t.float32, t.float32, t.bfloat16)), 8).requires_grad_()
    t.nn.functional.cross_entropy(x, t.randint(0, 1000, (x.shape[0],), device="cuda")).backward()


def _channels(d: Draw) -> None:
    _normed(d, d.pictures())


def _large_channels(d: Draw) -> None:
    """Norms of few channels or groups, of many places each."""
    r = d.random
    c, edge = r.choice((16, 24, 32, 48, 64, 96, 128, 256, 512)), r.choice((28, 56, 64, 112, 128, 192, 256, 384, 512))
    b = max(1, min(128, d.elements(8) // (c * edge * edge)))
    _normed(d, d.torch.randn(b, c, edge, edge, device="cuda", dtype=d.dtype()))


def _normed(d: Draw, x: Any) -> None:
    t, f, x = d.torch, d.torch.nn.functional, x.requires_grad_()
    c = x.shape[1]
    weight, bias = (t.randn(c, device="cuda", dtype=x.dtype, requires_grad=True) for _ in range(2))
    if d.random.random() < 0.4 and c % 32 == 0:
        y = f.group_norm(x, 32, weight, bias)
    else:
        mean, variance = t.zeros(c, device="cuda"), t.ones(c, device="cuda")
        weight, bias = (one.detach().float().requires_grad_() for one in (weight, bias))
        y = f.batch_norm(x, mean, variance, weight, bias, training=d.random.random() < 0.7)
    y.backward(t.randn_like(y))


def _pools(d: Draw) -> None:
    f, x = d.torch.nn.functional, d.pictures().requires_grad_()
    chosen = (lambda y: f.max_pool2d(y, 3, 2, 1), lambda y: f.avg_pool2d(y, 2), lambda y: f.adaptive_avg_pool2d(y, 1))
    y = d.random.choice(chosen)(x)
    y.backward(d.torch.randn_like(y))
    f.interpolate(x.detach(), scale_factor=2)


def _dropped(d: Draw) -> None:
    x = d.rows().requires_grad_()
    y = d.torch.nn.functional.dropout(x, 0.1)
    y.backward(d.torch.randn_like(y))


def _lists(d: Draw) -> None:
    t, dtype = d.torch, d.random.choice((d.torch.float32, d.torch.bfloat16))
    count, size = d.random.choice((2, 8, 24)), max(1000, d.elements(4) // 16)
    lists = [[t.randn(size, device="cuda", dtype=dtype) for _ in range(count)] for _ in range(3)]
    t._foreach_mul_(lists[0], 0.9)
    t._foreach_lerp_(lists[0], lists[1], 0.1)
    t._foreach_addcmul_(lists[0], lists[1], lists[2], 0.1)
    t._foreach_sqrt(lists[1])
    t._foreach_addcdiv_(lists[0], lists[1], lists[2])
    t._foreach_add_(lists[0], 1e-8)
    t._foreach_div_(lists[0], 0.5)


def _optimized(d: Draw) -> None:
    """Steps of optimizers, for the tensors of a model: many lists of uneven sizes."""
    t, r = d.torch, d.random
    width, layers, dtype = r.choice((128, 256, 384, 768, 1024, 1536, 2048)), r.choice((2, 6, 12, 24)), r.choice((t.float32, t.bfloat16))
    if width * width * layers > 8e7:
        layers = 4
    shapes = [
        *[(width, width), (width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width)] * layers,
        (r.choice((1000, 30522)), width),
    ]
    parameters = [t.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for shape in shapes]
    for one in parameters:
        one.grad = t.randn_like(one)
    optimizer = r.choice((t.optim.AdamW, t.optim.Adam, t.optim.SGD, t.optim.RMSprop))(parameters, lr=1e-4)
    optimizer.step()
    t.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()


def _depthwise(d: Draw) -> None:
    """Depthwise convolutions as networks have them, in both orders in memory."""
    t, r = d.torch, d.random
    c, edge = r.choice((16, 32, 64, 96, 128, 144, 192, 256, 384, 512, 768, 960, 1024, 1536)), r.choice((7, 14, 16, 28, 32, 56, 64, 112))
    size, stride, dtype = r.choice((3, 3, 5, 7)), r.choice((1, 1, 1, 2)), r.choice((t.bfloat16, t.bfloat16, t.float16, t.float32))
    b, train = max(1, min(256, d.elements(4) // (c * edge * edge))), r.random() < 0.5
    x = t.randn(b, c, edge, edge, device="cuda", dtype=dtype, requires_grad=train)
    w = t.randn(c, 1, size, size, device="cuda", dtype=dtype, requires_grad=train)
    if r.random() < 0.6:
        x = x.detach().to(memory_format=t.channels_last).requires_grad_(train)
    y = t.nn.functional.conv2d(x, w, None, stride, size // 2, 1, c)
    if train:
        y.backward(t.randn_like(y))


def _odd_products(d: Draw) -> None:
    """Products with gradients where a dimension is no multiple of what vector loads need: vocabularies, classes, features."""
    t, r = d.torch, d.random
    odd = r.choice(
        (50257, 250002, 50265, 30522, 21841, 10001, 1001, 513, 251, 197, 101, 31, 13, r.randrange(3, 5000), r.randrange(3, 60000))
    )
    k = r.choice((64, 128, 256, 384, 768, 1024, 2048, 4096, r.randrange(3, 3000)))
    m = max(1, min(16384, int(exp(r.uniform(log(16), log(3e8))) / (odd + k))))
    dtype = r.choice((t.bfloat16, t.bfloat16, t.float16, t.float32))
    x = t.randn(m, k, device="cuda", dtype=dtype, requires_grad=True)
    w = t.randn(odd, k, device="cuda", dtype=dtype, requires_grad=True)
    y = t.nn.functional.linear(x, w)
    y.backward(t.randn_like(y))


def _small_products(d: Draw) -> None:
    """Batches of small products, in each order of the operands in memory."""
    t, r = d.torch, d.random
    sizes = (1, 2, 4, 7, 8, 9, 13, 16, 27, 32, 48, 49, 50, 64, 80, 96, 128, 144, 197, 256)
    m, n, k = (r.choice(sizes) for _ in range(3))
    b = max(2, min(60000, int(exp(r.uniform(log(8e3), log(2e8))) / (m * k + k * n + m * n))))
    dtype = r.choice((t.bfloat16, t.bfloat16, t.float16, t.float32))
    a = t.randn(b, m, k, device="cuda", dtype=dtype) if r.random() < 0.6 else t.randn(b, k, m, device="cuda", dtype=dtype).mT
    c = t.randn(b, k, n, device="cuda", dtype=dtype) if r.random() < 0.5 else t.randn(b, n, k, device="cuda", dtype=dtype).mT
    a @ c


def _masked(d: Draw) -> None:
    t, x = d.torch, d.rows()
    mask = t.rand_like(x, dtype=t.float32) > 0.5
    t.where(mask, x, 0.0)
    x.masked_fill(mask, 0.0)
    x.cumsum(-1)
    if x.numel() < 2e7:
        x.float().argmax(-1)
        t.topk(x[:, : min(x.shape[1], 4096)].float(), 8)


def _convolved(d: Draw) -> None:
    t, f, r = d.torch, d.torch.nn.functional, d.random
    dtype = r.choice((t.bfloat16, t.bfloat16, t.bfloat16, t.float16, t.float32))
    c, k, edge = (
        r.choice((3, 4, 24, 32, 64, 96, 128, 192, 256, 320, 448, 512, 768, 1024, 2048)),
        r.choice((4, 32, 64, 96, 128, 256, 320, 512, 1024)),
        r.choice((7, 14, 28, 32, 56, 64, 112)),
    )
    size, stride = r.choice(((1, 1), (1, 1), (3, 1), (3, 1), (3, 1), (3, 2), (1, 2), (5, 1), (7, 2), (2, 2), (4, 4), (14, 14), (16, 16)))
    edge = max(edge, 2 * size)
    groups = r.choice((1, 1, 1, 1, 1, 1, 1, c, c, max(1, c // 32))) if c > 4 else 1
    if groups > 1:  # as networks have them
        k, (size, stride) = c, r.choice(((3, 1), (3, 2), (5, 1), (7, 1)))
    b = max(1, min(128, d.elements(4) // (max(c, k) * edge * edge)))
    x = t.randn(b, c, edge, edge, device="cuda", dtype=dtype, requires_grad=c > 4)
    w = t.randn(k, c // groups, size, size, device="cuda", dtype=dtype, requires_grad=True)
    if r.random() < 0.3:
        x, w = (one.detach().to(memory_format=t.channels_last).requires_grad_() for one in (x, w))
    bias = t.randn(k, device="cuda", dtype=dtype, requires_grad=True) if r.random() < 0.5 else None
    y = f.conv2d(x, w, bias, stride, size // 2 if stride < 4 else 0, 1, groups)
    y.backward(t.randn_like(y))


def _stems(d: Draw) -> None:
    """First convolutions of networks on pictures."""
    t, r = d.torch, d.random
    size, stride = r.choice(((3, 1), (3, 2), (3, 2), (7, 2), (7, 2), (7, 4), (4, 4), (14, 14), (16, 16)))
    edge, b = r.choice((112, 128, 224, 256, 384)), r.choice((1, 8, 16, 32, 64, 128))
    dtype, train = r.choice((t.bfloat16, t.bfloat16, t.float16, t.float32)), r.random() < 0.4
    x = t.randn(b, 3, edge, edge, device="cuda", dtype=dtype)
    w = t.randn(r.choice((16, 32, 48, 64, 96, 128, 768)), 3, size, size, device="cuda", dtype=dtype, requires_grad=train)
    y = t.nn.functional.conv2d(x, w, None, stride, size // 2 if stride < size else 0)
    if train:
        y.backward(t.randn_like(y))


def _scaled(d: Draw) -> None:
    """Pictures to another resolution, by each of the rules."""
    f, x = d.torch.nn.functional, d.pictures()
    x = x[: max(1, x.shape[0] // 8)].contiguous()
    if d.random.random() < 0.4:
        x = x.to(memory_format=d.torch.channels_last)
    size = d.random.choice((14, 24, 32, 50, 64))
    for mode in ("bicubic", "bilinear", "nearest"):
        f.interpolate(x, size=(size, size), mode=mode, **({} if mode == "nearest" else {"align_corners": False}))


def _lengths(d: Draw) -> None:
    """Norms and means of rows, short and long, few and many."""
    t, width = d.torch, d.random.choice((8, 16, 32, 64, 128, 1024, 4096))
    x = t.randn(max(1, d.elements(8) // width // d.random.choice((1, 1, 64))), width, device="cuda", dtype=d.dtype())
    t.linalg.vector_norm(x, dim=-1, keepdim=True)
    x.mean(-1, keepdim=True)
    x.sum(-1)


def _looked_up_few(d: Draw) -> None:
    t, r = d.torch, d.random
    tokens, width, vocabulary = (
        r.choice((16, 256, 1024, 3072, 4096, 8192, 32768)),
        r.choice((32, 64, 128, 512, 1024)),
        r.choice((1000, 30522, 100_000)),
    )
    table = t.randn(vocabulary, width, device="cuda", dtype=d.dtype(), requires_grad=True)
    y = t.nn.functional.embedding(t.randint(0, vocabulary, (tokens,), device="cuda"), table)
    y.backward(t.randn_like(y))


def _attended(d: Draw) -> None:
    """Attention with a mask that is added, with dropout, or with neither; forward, and backward half of the time."""
    t, r = d.torch, d.random
    h, dim, n = (
        r.choice((4, 8, 12, 16, 32)),
        r.choice((32, 64, 64, 80, 96, 128, 128)),
        r.choice((49, 128, 197, 256, 512, 577, 1024, 2048, 4096)),
    )
    b = max(1, min(2048, d.elements(8) // (h * dim * n)))
    dtype, train = r.choice((t.bfloat16, t.bfloat16, t.float16)), r.random() < 0.5
    q, k, v = (t.randn(b, n, h, dim, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_(train) for _ in range(3))
    kind, mask = r.choice(("mask", "mask", "dropout", "causal", "both")), None
    if kind in ("mask", "both"):
        mask = t.zeros(r.choice((1, b)), r.choice((1, h)) if b * h * n * n < 1e9 else 1, n, n, device="cuda", dtype=dtype)
    y = t.nn.functional.scaled_dot_product_attention(q, k, v, mask, 0.1 if kind in ("dropout", "both") else 0.0, kind == "causal")
    if train:
        y.backward(t.randn_like(y))


def _chains(torch: Any) -> dict[str, Callable[..., Any]]:
    """Chains of passes as models have them, for torch.compile: rows, twice, and weights of a row."""
    f = torch.nn.functional
    return {
        "swiglu": lambda x, y, w: f.silu(x) * y,
        "gelu": lambda x, y, w: f.gelu(x + w),
        "residual": lambda x, y, w: x + y,
        "scaled": lambda x, y, w: x * w + y,
        "cast": lambda x, y, w: (x.float() * 2 + y.float()).to(x.dtype),
        "rms": lambda x, y, w: x.float().mul(torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w,
        "add rms": lambda x, y, w: f.rms_norm(x + y, (x.shape[-1],), w),
        "layer": lambda x, y, w: f.layer_norm(x + y, (x.shape[-1],), w, w),
        "softmax": lambda x, y, w: torch.softmax(x.float(), -1).to(x.dtype),
        "sum": lambda x, y, w: (x * y).sum(0),
        "rotate": lambda x, y, w: torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1) * w + x * y,
        "loss": lambda x, y, w: (x.float() - y.float()).pow(2).mean(),
        "transposed": lambda x, y, w: (x.view(8, -1, x.shape[-1]).transpose(1, 2) + 1).contiguous(),
    }


def _compiled(d: Draw) -> None:
    t, dtype = d.torch, d.dtype()
    chain = d.random.choice(list(_chains(t).values()))
    x = d.rows(dtype=dtype, size=6)
    x = x[: max(8, x.shape[0] // 8 * 8)]
    if x.shape[0] % 8:
        x = t.randn(8, x.shape[1], device="cuda", dtype=dtype)
    t._dynamo.reset()
    run = t.compile(chain, dynamic=False)
    for _ in range(2):
        run(x, t.randn_like(x), t.randn(x.shape[-1], device="cuda", dtype=dtype))


FAMILIES: tuple[Callable[[Draw], None], ...] = (
    *(_unary, _unary, _binary, _gradient, _casts, _broadcast, _rotated, _strides, _transposed, _reduced, _joined, _looked_up, _norms),
    *(_softmax, _loss, _channels, _pools, _dropped, _lists, _masked),
)


RARE = (_depthwise, _large_channels, _optimized, _odd_products, _small_products)


def main(seed: int, limit_s: float, tar: tarfile.TarFile, folder: Path, names: list[str]) -> None:
    """Draw until ``limit_s`` have passed, of the families ``names`` if any are given; a file in a tar for each ``EACH`` operators."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    draw, begin, number = Draw(torch, seed), time.monotonic(), 0
    families = [
        one
        for one in (*FAMILIES, _convolved, _attended, _stems, _scaled, _lengths, _looked_up_few, _compiled, *RARE)
        if one.__name__ in names
    ] or FAMILIES
    while time.monotonic() - begin < limit_s:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as found:
            for place in range(EACH):
                try:
                    families[place % len(families)](draw)
                except RuntimeError as error:
                    print(families[place % len(families)].__name__, str(error)[:120], flush=True)
                if time.monotonic() - begin > limit_s:
                    break
                if place % 20 == 19:
                    torch.cuda.synchronize()
                    torch.cuda.empty_cache()
        path = folder / "trace.json"
        found.export_chrome_trace(str(path))
        content = json.loads(path.read_text())
        path.unlink()
        content["traceEvents"] = [e for e in content["traceEvents"] if e.get("cat") in ("cpu_op", "kernel", "gpu_memcpy", "gpu_memset")]
        ids = {e["args"].get("External id") for e in content["traceEvents"] if e["cat"] != "cpu_op"}
        content["traceEvents"] = [e for e in content["traceEvents"] if e["args"].get("External id") in ids]
        packed = gzip.compress(json.dumps(content).encode(), 9)
        entry = tarfile.TarInfo(f"operators-{seed}-{number}.json.gz")
        entry.size = len(packed)
        tar.addfile(entry, io.BytesIO(packed))
        print(number, f"{time.monotonic() - begin:.0f} s", len(content["traceEvents"]), flush=True)
        number += 1


if __name__ == "__main__":
    out = Path(sys.argv[3])
    with tarfile.open(out / "operators.tar", "w") as written:
        main(int(sys.argv[1]), float(sys.argv[2]), written, out, sys.argv[4:])
