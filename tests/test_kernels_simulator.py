"""Every GPU kernel in the CUDA simulator: right results, and as many loads and stores as the closed forms say."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any

import pytest
from each import each

from perfmodel.core.cost import READ, Tile
from perfmodel.core.errors import PerfmodelError
from perfmodel.kernels.attention.algorithms import find
from perfmodel.validation import simulator
from perfmodel.validation.simulator import Case, copy, counted, fused, matmul, predicted, simulated, standard, workload

LENGTHS = [(13, 19), (12, 12), (9, 3), (8, 16)]  # partial tiles, square, rows that see nothing, more keys than queries
TILES = [(4, 8, 4), (8, 4, 8), (4, 8, 2)]  # B_r, B_c, most scores per thread and row: the last needs two chunks per tile
HEADS = [(1, 2, 2), (2, 4, 2)]

FUSED: dict[str, Case] = dict(
    fused(name, n, kv_len, HEADS[at % 2], bool((at + first) % 2), TILES[(at + first) % 3])
    for first, name in enumerate(("flash2", "flash1"))
    for at, (n, kv_len) in enumerate(LENGTHS)
)
STANDARD: dict[str, Case] = dict(
    standard(n, kv_len, br, bc, causal)
    for n, kv_len, br, bc in ((13, 12, 16, 16), (13, 20, 8, 8), (9, 4, 8, 8))
    for causal in (False, True)
)
MATMUL: dict[str, Case] = dict(matmul(*sizes) for sizes in ((16, 16, 16, 8), (13, 12, 20, 8), (9, 20, 4, 1)))  # tile 1: no shared memory
COPY: dict[str, Case] = dict(copy(size) for size in (4, 100, 1024))
CASES = simulator.CASES | FUSED | STANDARD | MATMUL | COPY


def quiet(message: str) -> None:
    pass


@cache
def results() -> dict[str, Any]:
    return simulated(CASES, quiet, ("-W", "error"))


@pytest.mark.parametrize("key", CASES)
def test_result_is_right(key: str) -> None:
    assert results()[key]["error"] < 1e-6


@each("key", CASES)
def test_every_tensor_moves_as_predicted(key: str) -> None:
    assert results()[key]["counts"] == predicted(CASES[key], results()[key])


@pytest.mark.parametrize("key", STANDARD)
def test_standard_reads_again_only_with_its_tiles(key: str) -> None:
    case, row = CASES[key], results()[key]
    w, (br, bc) = workload(case), case["tile"]
    kernels = find("standard").forward(w, Tile(1, 1))
    once = {access.tensor: access.elements for kernel in kernels for access in kernel.accesses if access.kind == READ}
    loads = {name: count["loads"] for name, count in row["counts"].items() if count["loads"]}
    assert all(loads[name] >= count for name, count in once.items())
    assert (loads == once) == (br >= w.n and bc >= w.kv_len)


@pytest.mark.parametrize("key", MATMUL)
def test_matmul_loads_a_tile_factor_less(key: str) -> None:
    sizes, row = CASES[key]["shape"], results()[key]
    assert row["counts"]["A"]["loads"] + row["counts"]["B"]["loads"] == row["own_loads"]
    assert row["counts"]["C"] == {"loads": 0, "stores": sizes["m"] * sizes["n"]}


@pytest.mark.parametrize("key", COPY)
def test_copy_touches_each_element_once(key: str) -> None:
    assert results()[key]["single_pass"]


def test_validate_counts_what_is_predicted(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "simulated", lambda cases, _: {key: results()[key] for key in cases})
    outcome = run("validate --backend simulator --json")
    assert outcome.code == 0
    counts = outcome.json["counts"]
    assert len(counts) >= 90
    assert all(count["predicted"] == count["counted"] for count in counts)
    assert {count["kernel"].split()[0] for count in counts} >= {"numba-flash2", "numba-flash1", "numba-copy"}


def test_counted_reports_every_kernel_and_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = dict([standard(5, 4, 8, 8, True), copy(8)])
    monkeypatch.setattr(simulator, "CASES", asked)
    said: list[str] = []
    counts = counted(said.append)
    quantities = [f"{tensor} {kind}" for tensor in "QKSPVO" for kind in ("loads", "stores")]
    assert [(count.kernel.split()[0], count.quantity) for count in counts] == [
        *(("numba-standard", quantity) for quantity in quantities),
        *(("numba-copy", f"{tensor} {kind}") for tensor in ("source", "target") for kind in ("loads", "stores")),
    ]
    assert all(count.agrees for count in counts)
    assert len(said) == len(asked)


def test_a_wrong_count_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    key, case = copy(8)
    monkeypatch.setattr(simulator, "CASES", {key: case})
    monkeypatch.setattr(
        simulator, "simulated", lambda cases, progress: {key: {"counts": {"source": {"loads": 9, "stores": 0}}, "error": 0.0}}
    )
    counts = {count.quantity: count for count in counted(quiet)}
    assert {name for name, count in counts.items() if not count.agrees} == {"source loads", "target stores"}
    assert (counts["target stores"].predicted, counts["target stores"].counted) == (8, 0)


def test_a_simulator_that_fails_says_why() -> None:
    key, case = matmul(8, 8, 6, 8)
    with pytest.raises(PerfmodelError, match="after 0 of 1 cases: give multiples of 4"):
        simulated({key: case}, quiet)


def test_asking_loads_no_numba() -> None:
    code = "import sys, perfmodel.validation.simulator; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
