"""numba-flash-mma: results on a GPU; without one, its geometry, its source as nvcc compiles it, and what it refuses."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from each import each
from numba import cuda

from perfmodel.core.cost import Tile
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.core.workload import Attention
from perfmodel.kernels.attention.algorithms import find
from perfmodel.validation.kernels import flash_mma, reference
from perfmodel.validation.kernels.flash_mma import MmaGeometry, geometry

SHAPES = [  # batch, heads, kv_heads, n, kv_len
    (1, 2, 2, 256, 256),
    (2, 8, 2, 1000, 1500),  # grouped heads, partial tiles on both sides
    (1, 2, 1, 300, 100),  # causal: rows that see no key
    (1, 1, 1, 129, 700),
    (1, 2, 2, 1, 17),
]
GEOMETRIES = [
    MmaGeometry(64, 128, 128),
    geometry(64, 128, 128),
    MmaGeometry(64, 64, 64, slots=3),
    geometry(128, 128, 64),
    MmaGeometry(128, 64, 64, slots=2),
]
SOURCES = [*GEOMETRIES, geometry(64, 128, 128, "bf16"), MmaGeometry(64, 128, 64, warps=8)]


def attention(g: MmaGeometry, batch: int, heads: int, kv_heads: int, n: int, kv_len: int, causal: bool) -> Attention:
    return Attention(n=n, kv_len=kv_len, d=g.d, dv=g.d, batch=batch, heads=heads, kv_heads=kv_heads, dtype=DTYPES[g.dtype], causal=causal)


def name(g: MmaGeometry) -> str:
    return f"{g.dtype}-d{g.d}-{g.br}x{g.bc}-warps{g.warps}-slots{g.slots}"


@each("g", GEOMETRIES)
@each("shape", SHAPES)
def test_grid_and_shared_memory_are_the_models(g: MmaGeometry, shape: tuple[int, ...]) -> None:
    batch, heads, _, n, _ = shape
    launch = find("flash2").forward(attention(g, *shape, causal=False), Tile(g.br, g.bc, g.threads))[0].launch
    assert launch is not None
    more_slots = (g.slots - 2) * g.bc * g.d * 2
    assert (np.prod(g.grid(n, heads, batch)), g.shared_bytes - more_slots) == (launch.blocks, launch.sram_bytes)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"d": 96}, "multiple of 64"),
        ({"br": 96}, "96 query rows"),
        ({"bc": 24}, "24 keys"),
        ({"dtype": "fp32"}, "fp32, not fp16 or bf16"),
        ({"slots": 1}, "1 slots"),
        ({"bc": 512, "slots": 4}, "shared memory"),
    ],
)
def test_tile_that_cannot_be_computed(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        MmaGeometry(**({"d": 64, "br": 128, "bc": 128} | wrong))


def array(elements: int, typestr: str = "<f2", address: int = 4096) -> Any:
    return SimpleNamespace(__cuda_array_interface__={"shape": (elements,), "typestr": typestr, "data": (address, False), "strides": None})


@pytest.mark.parametrize(
    "bad", [array(256 * 64 - 1), array(256 * 64, "<f4"), array(256 * 64, address=4104)], ids=["short", "fp32", "unaligned"]
)
def test_array_that_the_kernel_would_overrun(bad: Any) -> None:
    w = attention(geometry(64, 128, 128), 1, 1, 1, 256, 256, causal=False)
    good = array(256 * 64)
    with pytest.raises(UsageError, match="V has"):
        flash_mma.prepare(w, geometry(64, 128, 128), good, good, bad, good, array(256, "<f4"))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (geometry(128, 128, 64), "head dims 64 and 64 in a kernel for 128"),
        (geometry(64, 128, 128, "bf16"), "fp16 inputs in a kernel for bf16"),
    ],
    ids=["head dim", "type"],
)
def test_kernel_of_another_shape(other: MmaGeometry, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        flash_mma.prepare(attention(geometry(64, 128, 128), 1, 1, 1, 1, 1, causal=False), other, *[array(64)] * 5)


def test_builtin_target_of_numba_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_mma, "cuda", SimpleNamespace(declare_device=lambda name, sig: None))
    with pytest.raises(UnavailableError, match="numba-cuda"):
        flash_mma.build.__wrapped__(geometry(64, 128, 128), False)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH to compile flash_mma.cu with")
@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["full", "causal"])
@pytest.mark.parametrize("g", SOURCES, ids=name)
def test_source_compiles_to_the_instructions_of_one_tile(g: MmaGeometry, causal: bool, tmp_path: Path) -> None:
    (tmp_path / "tile.cu").write_text(flash_mma.source(g, causal))
    line = ["nvcc", "-arch=sm_90", "-rdc=true", "-ptx", "-o", str(tmp_path / "tile.ptx"), str(tmp_path / "tile.cu")]
    built = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")
    ptx = (tmp_path / "tile.ptx").read_text()

    def count(instruction: str) -> int:
        return len(re.findall(rf"^\s*(?:@%p\d+ )?{instruction}", ptx, re.M))

    rows, products = g.br // g.warps // 16, g.bc * g.d // (8 * 16)  # fragments of query rows of a warp; of one K or V
    per_thread = {rows: rows * g.d // 8 // g.threads for rows in (g.br, g.bc)}
    fetches = g.slots - 1 + 2  # before the loop; K and V in it
    assert count(r"mma\.sync\.aligned\.m16n8k16") == 2 * rows * products
    assert count(r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared") == rows * g.d // 16 + products // 2
    assert count(r"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans") == products // 2
    assert count(r"ex2\.approx") == rows * 2 * (g.bc // 4 + 1)  # a score each, and one decay per row
    assert count(r"cp\.async\.cg\.shared\.global") == per_thread[g.br] + fetches * per_thread[g.bc]
    assert count(r"ld\.(global|v\d|[ubf]\d)") == 0, "Q, K and V come by asynchronous copies alone"


def bits16(values: Any, dtype: str) -> tuple[Any, Any]:
    """``values`` as 16-bit numbers for the device, and the same numbers as float64; bf16 is the upper half of fp32."""
    if dtype == "fp16":
        half = values.astype(np.float16)
        return half, half.astype(np.float64)
    upper = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return upper, from_bits16(upper, dtype)


def from_bits16(values: Any, dtype: str) -> Any:
    wide = values if dtype == "fp16" else (values.astype(np.uint32) << 16).view(np.float32)
    return wide.astype(np.float64)


@pytest.mark.gpu
@pytest.mark.skipif(not cuda.is_available(), reason="no CUDA device: results of flash_mma are not checked")
@pytest.mark.filterwarnings("ignore:.*Grid size")  # of numba: a few small tiles do not fill the device
@pytest.mark.parametrize("dtype", flash_mma.DTYPES)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("g", GEOMETRIES, ids=name)
def test_results_on_a_gpu(g: MmaGeometry, shape: tuple[int, ...], causal: bool, dtype: str) -> None:
    g = MmaGeometry(g.d, g.br, g.bc, dtype, g.warps, g.slots)
    w = attention(g, *shape, causal=causal)
    random = np.random.default_rng()
    rows, keys = (w.query_heads, w.n, w.d), (w.stored_kv_heads, w.kv_len, w.d)
    (q, q64), (k, k64), (v, v64) = (bits16(random.standard_normal(size), dtype) for size in (rows, keys, keys))
    poison, _ = bits16(np.full(rows, np.nan), dtype)
    o, lse = cuda.to_device(poison), cuda.to_device(np.full(rows[:2], np.nan, np.float32))
    flash_mma.prepare(w, g, *map(cuda.to_device, (q, k, v)), o, lse)()
    found, statistics = from_bits16(o.copy_to_host(), dtype), lse.copy_to_host()
    for head in range(w.query_heads):
        expected, logsumexp = reference.attention(q64[head], k64[head // w.group], v64[head // w.group], causal)
        assert reference.relative_error(found[head], expected) < reference.TOLERANCE[dtype]
        assert reference.relative_error(statistics[head], logsumexp) < reference.TOLERANCE[dtype]
