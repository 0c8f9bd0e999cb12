"""Sentences of commands that must be true and read once: each was neither before."""

import re


def test_the_format_of_products_is_the_one_that_the_mfu_counts(run) -> None:
    """Q4_K products run in int8 where the device has it; the note said fp16 beside an MFU of the int8 peak."""
    line = "model llama-3.1-8b --weights-dtype Q4_K_M --phase decode --full --hardware"
    shown = run(f"{line} rtx-4070").out
    assert "q4_k weights: they alone are narrower; read as such, products may run in int8." in shown
    assert "MFU is of the int8 and fp16 peaks." in shown
    assert "perfmodel serve --engine llama.cpp has the times of llama.cpp's own." in shown
    assert "dequantised, and multiplied in fp16." in run(f"{line} m2-pro").out


def test_a_step_launched_one_by_one_is_not_assumed_in_a_graph(run) -> None:
    assert (
        "Assumed: weights from DRAM in every step, each kernel launched behind the one before.\n"
        in run("model llama-3.1-8b --phase decode --eager --hardware m2-pro --full").out
    )


def test_pooled_times_are_one_note_that_names_the_kernels(run) -> None:
    told = [line for line in run("model llama-3.1-8b --phase decode --hardware m2-pro").out.splitlines() if "ooled over" in line]
    assert len(told) == 1
    assert "matmul pooled over" in told[0]
    assert "attention pooled over" in told[0]


def test_a_search_without_slots_for_all_users_says_so(run) -> None:
    """The model fits one GPU, 64 users do not; it said that the nearest layout lacks 0.0 GiB for one sequence."""
    said = run("serve qwen3-32b --hardware h100-sxm --gpus 1 --search --concurrency 64").err
    assert "no layout has room for so many users at once" in said
    assert "fewer users" in said


def test_a_sweep_says_where_flash_attention_wins(run) -> None:
    said = run("sweep --n 1:8192:x2 --d 64 --heads 16 --batch 8 --hardware l4").out
    assert "Lower roof than standard: flash2 in 64% of the configurations, n 32 to 8,192." in said
    said = run("sweep --n 512:8192:x2 --d 64 --heads 16 --batch 8 --hardware l4").out
    assert "Lower roof than standard: flash2 in all of the configurations.\n" in said


def test_a_model_without_its_option_is_told_the_option(run) -> None:
    assert "name the model as --model llama-3-8b" in run("sweep kv-cache llama-3-8b --n 1k").err


def test_a_cache_and_its_weights_in_other_formats_are_both_named(run) -> None:
    assert ", fp16, fp8 weights on " in run("kv-cache llama-3.1-70b --weights-dtype fp8 --n 8k --gpus 2 --hardware h100-sxm").out


def test_a_time_that_is_the_least_reads_as_one_sentence(run) -> None:
    said = run("serve llama-3.1-70b --dtype fp8 --isl 7k --osl 1k --gpus 2 --hardware h100-sxm").out
    assert re.search(r"First token after at least [\d.]+ ms, then one every [\d.]+ ms or more: at most ", said)


def test_a_batch_that_fills_the_memory_says_that_engines_leave_some_free(run) -> None:
    line = "batch llama-3.1-70b --weights-dtype fp8 --kv-len 8k --tp 2 --hardware h100-sxm --full"
    assert "Nothing is held back as an engine does: --reserve 8GB would" in run(line).out
    assert "Nothing is held back" not in run(f"{line} --reserve 8GB").out
