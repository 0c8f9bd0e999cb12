"""Options of ``serve``, files of engines among them: each does what it says, or gets one message that names the place and what helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.catalog import engine_names, find_engine, find_model, shipped_implementations
from perfmodel.core.errors import DataError
from perfmodel.transformer.kernel_choice import WORKLOAD_OF
from perfmodel.transformer.step import Split

LLAMA = "serve llama-3.1-8b --hardware h200 --isl 512 --osl 64"


def test_kernels_of_presets_are_known() -> None:
    for name in engine_names():
        find_engine(name).kernels.check(shipped_implementations())


@pytest.mark.parametrize("place", WORKLOAD_OF)
def test_a_kernel_that_is_unknown_is_named_with_its_place(tmp_path: Path, place: str) -> None:
    """The kind counts: no product is an all-reduce."""
    file, other = tmp_path / "engine.yaml", "nccl" if WORKLOAD_OF[place] == "matmul" else "cublas"
    for wrong, words in (("[nvcl]", "'nvcl'"), (f"[{other}]", other), *([] if place == "attention" else [("[]", "is empty")])):
        file.write_text(f"id: mine\nname: Mine\nkernels:\n  {place}: {wrong}\n")
        with pytest.raises(DataError, match=rf"line 4: kernels\.{place}.*{words}") as error:
            find_engine(str(file))
        assert error.value.fix is not None
        assert "nccl" in error.value.fix or WORKLOAD_OF[place] != "collective"


def test_values_of_an_engine_are_named_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("id: mine\nname: Mine\nbatching:\n  token_budget: 0\n")
    with pytest.raises(DataError, match=r"line 4: batching\.token_budget"):
        find_engine(str(file))


def test_a_users_engine_can_be_searched(run, tmp_path: Path) -> None:
    """Its options are not known; the question that is pasted names the file, and every option that was given."""
    file = tmp_path / "mine.yaml"
    file.write_text("id: mine\nname: Mine\n")
    found = run(f"{LLAMA} --engine {file} --gpus 1 --token-budget 2048 --gpu-hour 2 --concurrency 8 --search --json").json
    [again] = found["paste"]
    told = run(f"{again.removeprefix('perfmodel ')} --json").json["inputs"]
    assert (told["engine"], told["token_budget"], told["gpu_hour"], told["isl"]) == ("mine", 2048, 2.0, 512)


def test_every_proposed_tp_fits() -> None:
    """Those of layers with other numbers of heads too."""
    from perfmodel.catalog import model_names
    from perfmodel.core.errors import UsageError

    for name in model_names():
        model = find_model(name)
        with pytest.raises(UsageError) as error:
            Split(997).check(model)
        fits = [int(word) for word in (error.value.fix or "").replace(",", " ").split() if word.isdigit()]
        assert 1 in fits
        for tp in fits:
            Split(tp).check(model)


def test_power_limits_slow_an_engine(run) -> None:
    """The less the slower, and what a GPU draws is within; none falls to a kernel that would draw more at the lowest clock."""
    asked = "serve llama-3.1-8b --hardware h200 --isl 512 --osl 32 --concurrency 16 --json"
    plain, high, low = (run(f"{asked} {more}").json for more in ("", "--power-limit 500W", "--power-limit 300W"))
    assert plain["tpot_s"]["mean"] < high["tpot_s"]["mean"] < low["tpot_s"]["mean"] / 1.1
    assert low["power_w"] <= 300 * 1.01
    assert low["shares"]["the power limit"] > 0.15
    assert sum(low["shares"].values()) == pytest.approx(1)


@pytest.mark.parametrize(("dtype", "roofs"), [("fp8", True), ("bf16", False)])
def test_a_search_says_where_times_are_the_least(run, dtype: str, roofs: bool) -> None:
    """No norm is calibrated on values of 8 bits."""
    found = run(f"serve llama-3.1-8b --hardware h200 --dtype {dtype} --isl 64 --osl 8 --engine vllm --gpus 1 --search --json").json
    assert found["at_least"] is roofs
    assert ("at least" in found["verdict"][1]) is roofs
    assert ("at most" in found["verdict"][0]) is roofs


def test_who_waits_is_not_rounded_beyond_who_is_there(run) -> None:
    said = run("serve llama-3.1-8b --hardware h200 --isl 64 --osl 8 --concurrency 1000000 --max-sequences 16 --json").json["verdict"][0]
    assert "999,984 wait" in said
