"""A search answers for the machine that was asked for, and its table agrees with its headline."""

from __future__ import annotations

import pytest
from reports import data, text

LINE = "serve llama-3.1-8b --hardware h200 --search --engine vllm"


def test_the_best_fills_all_gpus_and_heads_the_table() -> None:
    shown, found = text(f"{LINE} --gpus 4"), data(f"{LINE} --gpus 4")
    best = found["best"]
    assert best["gpus"] == 4
    assert best["users"] % best["copies"] == 0
    assert max(row["tokens_per_s_gpu"] for row in found["front"]) <= best["tokens_per_s_gpu"]
    rows = shown[shown.index("engine  layout") :].splitlines()
    assert f"{best['users']:,}" in rows[1]
    assert f"seq 0 {best['copies'] - 1}" in found["paste"][0]


@pytest.mark.parametrize("line", [f"{LINE} --gpus 7 --disaggregated --osl 64", LINE.replace("3.1-8b", "3.1-70b") + " --gpus 6"])
def test_tokens_per_gpu_are_those_of_all_gpus(line: str) -> None:
    """Also where a layout leaves some idle: five workers of seven GPUs."""
    asked = data(line)
    gpus, osl = asked["inputs"]["gpus"], asked["inputs"]["osl"]
    assert any(row["gpus"] < gpus for row in asked["front"])
    for row in [asked["best"], *asked["front"]]:
        assert row["tokens_per_s_gpu"] == pytest.approx(row["requests_per_s"] * osl / gpus, rel=0.01)


def test_rows_beyond_the_limits_are_left_out_and_counted() -> None:
    line = f"{LINE} --gpus 2 --tpot 10ms"
    front, shown = data(line)["front"], text(line, full=True)
    beyond = sum(row["tpot_s"] > 0.01 for row in front)
    assert 0 < beyond < len(front)
    times = [row.split()[-2] for row in shown[shown.index("engine  layout") : shown.index("to paste")].splitlines()[1:] if row.strip()]
    assert len(times) == len(front) - beyond
    assert max(map(float, times)) <= 10
    assert f"{beyond} points of the front are beyond the limits and left out of the table." in " ".join(shown.split())


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", "--quantization fp8 --kv-cache-dtype fp8"),
        ("sglang", "--quantization fp8 --kv-cache-dtype fp8_e4m3"),
        ("tensorrt-llm", "kv_cache_config: {free_gpu_memory_fraction: 0.9, dtype: fp8}\nEND"),
    ],
)
def test_the_line_to_paste_starts_the_formats_that_were_asked_for(engine: str, words: str) -> None:
    line = f"serve llama-3.1-8b --hardware h200 --search --concurrency 8 --engine {engine} --gpus 2"
    *first, start, _ = data(f"{line} --weights-dtype fp8 --kv-dtype fp8")["paste"]
    assert words in start
    assert first == ["# meta-llama/Meta-Llama-3.1-8B: name a checkpoint with fp8 weights"] * (engine == "tensorrt-llm")
    plain = data(f"{line} --weights-dtype bf16")["paste"]
    assert len(plain) == 2
    assert "fp8" not in plain[0]
    told = data(f"{line} --weights-dtype int4 --kv-dtype int8 --draft-tokens 2")["paste"][:3]
    assert [said.partition(": ")[2] for said in told] == [
        "name a checkpoint with int4 weights",
        "give the options for a KV cache in int8",
        "give the draft model, for 2 tokens per step",
    ]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("more", ["", "--disaggregated --isl 8192 --osl 512"])
def test_what_a_screen_gives_to_paste_is_whole(engine: str, more: str) -> None:
    shown = text(f"serve llama-3.1-70b --hardware h200 --gpus 4 --search --concurrency 64 --weights-dtype int4 --engine {engine} {more}")
    pasted = shown[shown.index("to paste") :].partition("\n\n")[0].splitlines()
    assert not pasted[-1].endswith("\\")
    assert shown.count("<<'END'") == sum(row == "END" for row in pasted)


def test_users_who_need_few_gpus_are_not_spread_over_all() -> None:
    """What is best on two GPUs stays so where eight are at hand, at the same price."""
    few, many = (data(f"{LINE} --gpus {gpus} --concurrency 64 --tpot 30ms --gpu-hour 2")["best"] for gpus in (2, 8))
    assert many["price_per_million"] <= few["price_per_million"] * 1.01


@pytest.mark.parametrize(("gpus", "users"), [(8, 3), (4, 65)])
@pytest.mark.parametrize("more", ["", " --disaggregated"])
def test_users_that_no_copies_share_evenly_are_no_more(gpus: int, users: int, more: str) -> None:
    """Three users keep three of eight copies busy; of 65 users on two, the fuller has 33."""
    front = data(f"{LINE} --gpus {gpus} --concurrency {users}{more}")["front"]
    assert {row["users"] for row in front} == {users}
    for row in front:
        assert row["tokens_per_s_gpu"] * row["gpus"] <= users * row["tokens_per_s_user"] * 1.001
        assert row["gpus"] <= gpus


def test_nothing_within_the_limits_is_exit_code_3(run) -> None:
    found = run(f"{LINE} --gpus 2 --tpot 1us")
    assert found.code == 3
    assert "tpot" in found.out


def test_pools_are_judged_in_one_sentence() -> None:
    shown = text(f"{LINE} --gpus 2 --disaggregated")
    assert "Separate prefill and decode workers" in shown
    assert "pay: their best is" in shown


def test_formats_that_are_listed_are_searched_and_named(run) -> None:
    """Each format's best is that of a search of its own; the line to paste asks for it."""
    line = f"{LINE} --gpus 2 --concurrency 8"
    both = data(f"{line} --weights-dtype bf16,fp8 --kv-dtype fp8")
    alone = {form: data(f"{line} --weights-dtype {form} --kv-dtype fp8") for form in ("bf16", "fp8")}
    assert both["best"]["tokens_per_s_gpu"] == max(one["best"]["tokens_per_s_gpu"] for one in alone.values())
    assert both["searched"]["evaluated"] == sum(one["searched"]["evaluated"] for one in alone.values())
    assert "fp8 weights, fp8 KV" in both["best"]["layout"]
    assert "--weights-dtype fp8 --kv-dtype fp8" in both["paste"][-1]
    assert "unknown dtype" in run(f"{LINE} --gpus 2 --kv-dtype fp8,nothing").err


def test_a_sweep_ranks_by_the_time_of_a_request_with_its_wait(run, tmp_path) -> None:
    to = tmp_path / "rows.csv"
    line = f"sweep serve --model llama-3.1-70b --hardware h200 --weights-dtype fp8 --gpus 1,2,8 --max-sequences 4,256 -o {to}"
    assert "Least time of a request" in run(line).out
    header, *rows = (row.split(",") for row in to.read_text().splitlines())
    place = {name: header.index(name) for name in ("ttft_s", "tpot_s", "request_s")}
    for row in rows:
        ttft, tpot, whole = (float(row[place[name]]) for name in ("ttft_s", "tpot_s", "request_s"))
        assert whole == pytest.approx(ttft + 1023 * tpot)


def test_a_search_without_slots_for_all_users_says_so(run) -> None:
    """The model fits one GPU, 64 users do not; it said that the nearest layout lacks 0.0 GiB for one sequence."""
    said = run("serve qwen3-32b --hardware h100-sxm --gpus 1 --search --concurrency 64").err
    assert "no layout has room for so many users at once" in said
    assert "fewer users" in said
