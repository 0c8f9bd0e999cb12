"""What a command refuses: one message with place and fix, exit code 1 or 2, nothing on stdout, no file."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from each import each
from fuzz_seeds import MEASURING
from fuzzing import examples

from tools.commands import all_commands, command


@pytest.fixture
def refused(run, tmp_path, monkeypatch) -> Callable[..., str]:
    """``refused(words)`` -> its message, after the exit code and all else that a refusal is have been checked."""
    monkeypatch.chdir(tmp_path)

    def call(words: list[str], code: int = 2) -> str:
        outcome = run(words[0], *words[1:])
        assert (outcome.code, outcome.out) == (code, ""), outcome
        assert len(outcome.err.splitlines()) <= 4
        assert "Traceback" not in outcome.err
        assert list(Path().iterdir()) == []
        return str(outcome.err)

    return call


# Laws of every option


def options() -> Iterator[tuple[str, Any, list[str]]]:
    """Each option that has a value, with its command and that command's example without it."""
    for name in all_commands():
        for param in command(name).params:
            if param.param_type_name != "argument" and not param.is_flag:
                words = examples(name)[0]
                at = next((at for at, word in enumerate(words) if word in param.opts), len(words))
                yield name, param, words[:at] + words[at + 2 :]


def long(param: Any) -> str:
    """The option as messages name it."""
    return max(param.opts, key=len)


ZERO = ("dropout", "imbalance", "zero", "stride", "prefix", "draft_tokens", "gpu_hour", "require")
"""Options of numbers that may be 0."""


@each(("name", "param", "words"), options)
def test_a_number_is_one_and_in_its_range(refused, name: str, param: Any, words: list[str]) -> None:
    number = param.get_runtime_param().annotation if hasattr(param, "get_runtime_param") else None
    if number not in (int, float) or name in MEASURING:
        return
    wrong = ["-1", "x", "1e16", *["0"] * (param.name not in ZERO), *["1.5"] * (number is int)]
    for value in wrong:
        assert long(param) in refused([*words, long(param), value]), value


@each(("name", "param", "words"), options)
def test_a_name_is_known(refused, name: str, param: Any, words: list[str]) -> None:
    option = long(param)
    if name in MEASURING or name in ("remat", "report", "compare"):
        return
    if param.name == "hardware":
        told = refused([*words, option, "h201"])
        assert "no device is called 'h201'" in told
        assert "did you mean h20" in told
    if param.name in ("dtype", "weights_dtype", "kv_dtype", "rope_dtype"):
        told = refused([*words, option, "int3"])
        assert f"{option}: unknown dtype 'int3'" in told
        assert "did you mean " in told
    if param.name == "output":
        assert "'.pdf' (x.pdf)" in (told := refused([*words, option, "x.pdf"]))
        assert ".json, " in told
        assert "without suffix" in refused([*words, option, "x"])
        assert "no folder no/such/folder" in refused([*words, option, "no/such/folder/x.json"])


@each("name", all_commands)
def test_what_is_needed_is_asked_for_with_an_example(refused, name: str) -> None:
    needed = {"attention": "n d", "matmul": "m n k", "mlp": "batch d_in d_hidden d_out", "softmax": "rows cols", "fuse": "elements ops"}
    needed |= {"occupancy": "threads", "recompute": "bytes flops", "remat": "layers"}
    for option in needed.get(name, "").split():
        typed = f"--{option.replace('_', '-')}"
        [words] = [words for _, param, words in options() if _ == name and long(param) == typed]
        told = refused(words)
        assert f"{typed} is missing" in told
        assert f"such as: perfmodel {name} -" in told
    if {param.param_type_name for param in command(name).params if param.required} == {"argument"}:
        assert "Usage: perfmodel" in refused(name.split())
    assert "--nothing" in refused([*examples(name)[0], "--nothing"])


# Rules of their own

RULES = {
    "": [
        ("attenton", "no command 'attenton'", "did you mean attention"),
        ("kv-cache", "MODEL is missing", "llama-2-7b"),
        ("hardware show a100-pcie", "nvidia-a100-pcie-40gb, nvidia-a100-pcie-80gb"),
    ],
    "attention --n 64 --d": [
        ("200000", "--d 200000 is larger than any tile", "B more than", "smaller --d"),
        ("64 --block-q 1024 --block-kv 1024", "226,304 B more", "--block-q 64 --block-kv 128 fits"),
        ("64 --heads 12 --kv-heads 5", "--kv-heads 5 does not divide --heads 12", "3, 4, 6"),
        ("64 --heads 4 --kv-heads 8", "does not divide"),
        ("64 --pass fwd", "unknown pass 'fwd'", "forward"),
        ("64 --algorithm flsh", "unknown algorithm 'flsh'", "flash"),
        ("64 --algorithm memory-eficient", "did you mean memory-efficient?"),
        ("64 --dropout 1", "--dropout is 1"),
        ("64 --dropout nan", "--dropout is nan"),
        ("64 --sram 163k", "--sram", "163KiB"),
        ("64 --sram 0B", "--sram is 0B"),
        ("64 --sram -1KiB", "--sram"),
        ("64 --sram 1.5B", "whole number of bytes"),
        ("64 --sram 80GB", "--sram is 80000000000 B, more than a block on", "166912 B"),
        ("64 --hardware a100-pcie", "2 devices", "nvidia-a100-pcie-80gb"),
        ("64 --algorithm block-sparse", "--algorithm block-sparse", "--sparsity", "--pattern"),
        ("64 --algorithm block-sparse --sparsity 1.5", "--sparsity is 1.5"),
        ("64 --algorithm block-sparse --sparsity nan", "--sparsity is nan"),
        ("64 --algorithm block-sparse --sparsity 0.5 --pattern strided", "--sparsity and --pattern exclude each other"),
        ("64 --algorithm block-sparse --pattern stride", "no pattern is called 'stride'", "did you mean strided?", "path of a file"),
        ("64 --algorithm block-sparse --pattern butterfly --window 8", "butterfly", "--window"),
        ("64 --algorithm block-sparse --pattern strided --causal --heads 4 --kv-heads 2 --packed", "strided", "--unpacked"),
        ("64 --algorithm split-kv --pass backward", "no split-KV backward pass", "flash2"),
        ("64 --algorithm split-kv --pass both", "no split-KV backward pass"),
        ("64 --implementation nothing", "nothing"),
        ("64 -o x.jsonl", ".jsonl"),
        ("64 --algorithm standard --block-q 64", "--block-q is for algorithms with tiles"),
        ("64 --printed-backward", "--printed-backward is for the backward pass of flash2"),
        ("64 --algorithm flash --unfused-scale", "--unfused-scale is for algorithms that leave scores in memory"),
        ("64 --algorithm flash --causal --masked-fill", "--masked-fill is for"),
        ("64 --algorithm standard --pass backward --sram 64KiB", "--sram is for the forward pass"),
        ("64 --algorithm flash --splits 4", "--splits is for split-kv"),
        ("64 --algorithm flash --sparsity 0.5", "--sparsity is for block-sparse"),
        ("64 --algorithm standard --implementation torch-sdpa-flash", "runs flash2, which is not compared"),
        ("64 --pattern strided --algorithm flash", "--pattern is for block-sparse"),
        ("64 --splits 4 --algorithm all --pass backward", "--algorithm split-kv"),
        ("64 --window 8 --pattern strided --algorithm all", "--algorithm block-sparse"),
        ("64 --window 8 --no-causal", "implies a causal mask"),
        ("64 --masked-fill", "--masked-fill applies a causal mask"),
        ("64 --crossover --block-q 16", "leave out --block-q"),
        ("64 --algorithm standard --crossover", "--algorithm flash"),
        ("64 --unpacked", "--unpacked is for query heads that share K and V"),
        ("64 --algorithm flash1 --hardware mi300x --cache warm", "--cache warm is of a kernel that is predicted"),
    ],
    "attention": [("--config nothing", "no configuration is called 'nothing'", "flashattention-fig2"), ("--n 8q --d 64", "8k (8,000)")],
    "matmul -m 8 -n 8 -k 8": [
        ("--split-k 9", "--split-k 9 is more than --k 8"),
        ("--tile-m 4096 --tile-n 4096", "B of SRAM per block", "more than", "--tile-m 128 --tile-n 128 fits"),
        ("--tile-m 512 --tile-n 512", "B of registers", "--tile-m 128"),
        ("--sram 10B", "more than the 10 B", "--sram"),
        ("--sram 80GB", "--sram is 80000000000 B, more than a block on", "166912 B"),
        ("--implementation nothing", "nothing"),
    ],
    "mlp --batch 8 --d-in 8 --d-hidden 8 --d-out 8": [("--pass fwd", "unknown pass 'fwd'", "forward")],
    "fuse": [
        ("--example sin", "unknown example 'sin'", "sin-cos"),
        ("--example sin-cos --ops 3", "--ops does not go with --example sin-cos", "30 operations"),
    ],
    "occupancy --threads": [
        ("2048", "--threads is 2048", "at most 1024"),
        ("32 --registers 256", "--registers is 256", "at most 255"),
        ("1024 --registers 65", "does not fit a multiprocessor", "--registers 64"),
        ("32 --sram 164KiB", "--sram is 167936 B", "at most 166912 B"),
        ("32 --sram 48", "--sram", "48KiB"),
        ("32 --element-bytes 3", "--element-bytes is 3", "1, 2, 4, 8, 16"),
    ],
    "recompute": [
        ("--bytes 0B --flops 1e9", "--bytes is 0B"),
        ("--bytes 64 --flops 1e9", "--bytes", "48KiB"),
        ("--bytes 64MiB --flops many", "--flops: 'many'", "137.4GFLOP"),
        ("--bytes 64MiB --flops 0", "--flops is 0"),
        ("--bytes 64MiB --flops -1", "--flops"),
        ("--bytes 64MiB --flops 1.5", "--flops is 1.5", "whole number"),
    ],
    "kv-cache": [
        ("lama", "no model is called 'lama'", "did you mean llama"),
        ("llama-3", "could be any of 2"),
        ("gpt2 --rope-dtype bf16", "--rope-dtype", "latent"),
        ("gpt2 --scale-group 8", "--scale-group", "int8"),
        ("gpt2 --kv-dtype int8 --scale-group 0", "--scale-group is 0"),
        ("gpt2 --reserve 4", "--reserve", "48KiB"),
    ],
    "memory": [
        ("lama-3-8b", "no model is called 'lama-3-8b'", "llama-3-8b"),
        ("gpt2 --lora-targets qv", "--lora-targets is for adapters", "--lora"),
        ("gpt2 --batch 4 --micro-batch 3", "--micro-batch 3 does not divide", "one of 1, 2, 4 does"),
        ("gpt2 --zero 4", "--zero 4"),
        ("gpt2 --pp 13", "--pp 13", "12 layers"),
        ("gpt2 --tp 5", "--tp 5 does not divide 12 heads"),
        ("gpt2 --recompute every", "every:4"),
        ("gpt2 --recompute sometimes", "unknown kind 'sometimes'"),
        ("gpt2 --optimizer adamx", "did you mean adam"),
        ("gpt2 --precision int8", "--precision: unknown value 'int8'", "mixed"),
        ("gpt2 --implementation megatron", "unknown implementation", "known: fused, huggingface"),
        ("gpt2 --gradients fp32 --precision bf16", "--gradients fp32: bf16 has one format"),
        ("gpt2 --batch 2 --micro-batch 1 --gradient-life applied", "--gradient-life applied"),
        ("gpt2 --lora 769", "--lora 769"),
        ("gpt2 --lora 4 --lora-targets mlp", "--lora-targets"),
        *((f"gpt2 --recompute {kind}", "--recompute") for kind in ("every:", "every:0", "every:-2", "every:x", "full:2")),
        ("gpt2 --recompute every:13", "has 12 layers"),
        ("gpt2 --sp", "--sp"),
        ("gpt2 --dp 2 --ep 2 --batch 2", "has no experts"),
        ("mixtral-8x7b --dp 3 --ep 2 --batch 3", "--ep 2 does not divide --dp 3"),
        ("gpt2 --cp 3 --n 1024", "--cp 3"),
        ("gpt2 --interleave 2", "--interleave 2 needs"),
        ("gpt2 --batch 2 --micro-batch 1 --pp 2 --interleave 7", "has 12 layers"),
        ("gpt2 --pp 2 --interleave 2 --batch 3 --micro-batch 1", "no multiple of --pp 2"),
        ("gpt2 --optimizer sgd --foreach", "--foreach is for optimizers with temporary copies"),
    ],
    "model": [
        ("llama-3.1-8b --imbalance 1.2", "--imbalance 1.2", "no experts"),
        ("lama-3-8b", "no model is called 'lama-3-8b'", "llama-3-8b"),
        ("llama-3-8b --phase learn", "unknown phase 'learn'"),
        ("llama-3-8b --n 100 --kv-len 50", "--kv-len 50 is less than --n 100"),
        ("llama-3-8b --phase generate --n 100 --kv-len 100", "leaves nothing to generate"),
        ("llama-3-8b --tp 3", "--tp 3 does not divide 32 heads"),
        ("llama-3-8b --ep 2", "has no experts"),
        ("gpt2 --phase decode --kv-len 512 --n 100", "--n 100: a decode step at --kv-len 512 has no prompt to read"),
        ("gpt2 --phase decode --micro-batch 2", "--micro-batch is an option of training"),
    ],
    "batch": [("nothing", "no model is called 'nothing'")],
    "model llama-3-8b --phase train": [
        ("--kv-len 5", "--kv-len is an option of inference"),
        ("--no-kv-cache", "--no-kv-cache is an option of inference"),
        ("--eager", "--eager is an option of inference"),
        ("--search 8 --tp 2", "--tp is what --search looks for"),
        ("--search 8 --recompute full", "--recompute is what --search looks for"),
        ("--search 8 --implementation huggingface", "kernels of fused only"),
        ("--search 8 --hardware h100 --explain all", "--explain is for one layout"),
        ("--micro-batch 3", "--micro-batch 3"),
        ("--batch 4 --micro-batch 3", "--micro-batch 3 does not divide the 4 sequences of a GPU"),
        ("--batch 8 --dp 2 --micro-batch 3 --system h200-x8", "one of 1, 2, 4 does"),
        ("--n 1", "1 token of a sequence"),
        ("--hardware h200 --dp 16 --batch 16", "16 GPUs: one node of 8 H200 has 8", "say with --system"),
        ("--hardware h200 --search 16 --batch 16", "16 GPUs: one node of 8 H200 has 8"),
        ("--hardware h100-sxm --dp 1032 --batch 1032", "1,032 GPUs: DGX H100 nodes has 1,024"),
        ("--hardware h100-nvl --dp 4 --batch 4", "4 GPUs"),
        ("--search 1000000000000000", "--search 1,000,000,000,000,000"),
        ("--dtype fp16 --precision bf16", "--dtype fp16 with --precision bf16"),
        ("--sp", "--sp divides what --tp"),
        ("--zero 4", "--zero 4"),
        ("--recompute sel", "did you mean selective?"),
        ("--optimizer adan", "did you mean adam or"),
        ("--dtype fp8", "--dtype fp8"),
        ("--precision fp16", "--precision"),
        ("--implementation torch", "--implementation"),
        ("--system nowhere", "no system is called 'nowhere'"),
        ("--dp 16 --batch 16 --system h200-x8", "16 GPUs: one node of 8 H200 has 8"),
        ("--tp 3", "--tp 3 does not divide 32 heads"),
    ],
    "serve llama-3.1-8b --hardware h200": [
        ("--isl 512 --osl 64 --draft-tokens 3 --acceptance 1.5", "--acceptance is 1.5"),
        ("--isl 512 --osl 64 --power-limit 900W", "--power-limit", "700 W at most"),
        ("--isl 512 --osl 64 --clock fast", "--clock", "burst"),
        ("--isl 512 --osl 64 --search --power-limit 500W", "--power-limit", "one layout"),
        ("--gpus 6", "--tp 6"),
        ("--gpus 4 --tp 3", "3"),
        ("--ttft 5ms", "--ttft", "--search"),
        ("--search --tpot 5", "--tpot"),
        ("--acceptance 0.5", "--draft-tokens"),
        ("--rate 1e6", "--rate"),
        ("--draft-tokens 1000000", "at most 64"),
        ("--weights-dtype mxfp4", "llama-3.1-8b has none"),
        ("--search --spread 0.5", "--spread is of one layout alone"),
        ("--search --requests 50", "--requests is of one layout alone"),
    ],
    "serve llama-3.1-8b": [
        ("--hardware t4", "no interconnect"),
        ("--hardware t4 --search --gpus 8", "no interconnect"),
        ("--hardware h200 --reserve 200GB", "smaller --reserve"),
    ],
    "remat": [
        ("--width 64 --layers 4 --n 128", "--n is for a model"),
        ("--layers 4 --autograd --strategy revolve", "--strategy is for schedules"),
        ("--layers 4 --autograd --budget 3", "--budget is for schedules"),
    ],
    "roofline": [
        ("--attention 'n=64 d=64 hed=2'", "--attention: hed: unknown field; did you mean"),
        ("--attention 'n=64 d=x'", "--attention: d: input should be a valid integer"),
        ("--attention 'n=64 n=65 d=64'", "n appears twice"),
        ("--attention d=64", "--attention: n is missing"),
        ("--attention 'n=0 d=64'", "--attention: n is 0"),
        ("--attention n=8q,d=64", "--attention", "n"),
        ("--attention 'n=64 d=64 hardware=h200'", "name devices beside the workloads"),
        ("--matmul 8x8", "'8x8' is not M x N x K"),
        ("--matmul 'm=8 n=8'", "--matmul: k is missing"),
        ("--model llama-3-9b", "did you mean llama-3-8b"),
        ("--model 'llama-3-8b decode batch=0'", "--model: batch is 0"),
        ("--attention 'n=64 d=64' --implementation torch-sdpa-flsh", "did you mean torch-sdpa-flash"),
        ("--records 'shipped hardware=h200 implementaton=x'", "--records: implementaton: unknown field; did you mean implementation?"),
        ("--records 'shipped hardware=h200 dtype=fp64'", "no record in shipped meets the conditions"),
        ("nosuch", "no study is called 'nosuch'"),
        ("--hardware h200 --implementation torch-matmul", "--implementation is for attention and matmuls"),
        ("--hardware h200 --model gpt2 --implementation torch-matmul", "--implementation is for attention and matmuls"),
        ("--hardware h200 --require 3", "--require is for --records and --ncu"),
    ],
    "compare": [
        ("stnadard flash2", "nothing is called 'stnadard'\n  did you mean standard"),
        ("standard h200", "of different kinds"),
        ("rtx h200", "could be any of"),
        ("standard flash2", "on which workload?"),
        ("standard flash2 --attention n=64,d=64", "on which device?"),
        ("standard flash2 --matmul 8x8x8 --hardware h200", "algorithms are of attention"),
        ("h200 a100-sxm-80gb --hardware h200", "--hardware, when two devices are compared"),
        ("a.json h200", "is a document and the other is none"),
        ("a.json b.json --hardware h200", "are compared as they are"),
        ("h200 h200 --threshold much", "--threshold is 'much'"),
        ("h200 h200 --fail-on slow", "did you mean slower?"),
        ("standard flash --attention n=512,d=64,packed --hardware h200", "packed is for query heads that share K and V"),
        ("standard memory-efficient --attention n=512,d=64,printed_backward --hardware h200", "printed-backward is for"),
        ("torch-matmul cublas --model gpt2 --hardware h200", "--model is neither"),
    ],
    "sweep": [
        ("--n 64 --d 64 --sram 80GB", "--sram is 80000000000"),
        ("--n 512 --d 64 --algorithm standard --block-kv 64", "--block-kv is for algorithms with tiles"),
        ("--n 512 --d 64 --algorithm flash2 --printed-backward", "--printed-backward is for the backward pass"),
        ("--n 512 --d 64 --packed both", "--packed is for query heads that share K and V"),
        ("--n 512 --d 64 --algorithm standard --implementation torch-sdpa-flash", "runs flash2, which is not compared"),
        ("model --model gpt2 --phase decode --kv-len 512 --n 100", "--n with --kv-len: nothing here reads it"),
        ("model --model gpt2 --phase generate --kv-len 512 --generated 9", "--generated with --kv-len: nothing here reads it"),
        ("--n 512 --d 64 --top 3", "--top is for --minimize"),
        ("matmul --m 64 --n 64 --k 64 --implementation torch-matmul", "--implementation is for the column predicted_s"),
        ("--n 64 --d 64 --algorithm standard --sram 64KiB", "--sram is for algorithms with tiles in SRAM"),
    ],
    "validate": [
        ("--backend tpu", "tpu", "cuda, cpu, simulator"),
        ("--backend cpu --counters", "--counters", "cuda"),
        ("--backend cpu --all", "--all", "only a GPU"),
        ("--all --records shipped", "--records"),
        ("--backend cpu --records shipped", "--records"),
        ("--tolerance lots", "--tolerance", "25%"),
        ("--tolerance -1", "--tolerance"),
        ("--records shipped --hardware nvidia-v100-sxm-32gb", "no record is of"),
        ("-o x.yaml", ".yaml", ".jsonl"),
        ("--counters-csv x.csv --hardware h200", "--hardware is for measurements of time"),
        ("--backend simulator --tolerance 5%", "--tolerance is for measurements of time"),
    ],
    "calibrate": [("--implementation nothing --from-records shipped", "nothing"), ("--require 3", "--require is for --from-records")],
    "serve": [
        ("llama-3.1-70b --hardware h200 --gpus 72", "--tp 72 of --gpus 72", "1, 2, 4, 8, 16, 32, 64", "give --tp too"),
        ("qwen3-235b --hardware h200 --tp 8 --ep 3", "one of 1, 2, 4, 8 does"),
        ("qwen3-235b --hardware h200 --tp 8 --dp 3 --ep 12", "128 experts", "one of 1, 2, 4, 8 does"),
        ("llama-3.1-8b --imbalance 1.2", "--imbalance 1.2", "no experts"),
        ("llama-3.1-70b --hardware h200", "needs"),
        ("gpt2 --isl 1000 --osl 100", "gpt2 takes 1,024 tokens"),
        ("llama-3.1-8b --engine tgi", "--engine"),
    ],
    "report": [
        ("--attention 'n=1:4:x2 d=64:128:x2'", "n and d are swept"),
        ("--attention 'n=64 d=64' standard-vs-flash", "--attention with a study"),
        ("--hardware h200", "is for --attention"),
        ("standard-vs-flash --save-study x.txt", "is no YAML file"),
        ("--schema --json", "only prints a schema"),
        ("--matmul 'm=1:9999:+1 n=1 k=1'", "values"),
    ],
    "serve llama-3-70b --engine llama.cpp --weights-dtype Q4_K_M": [
        ("--hardware rtx-4090", "give --gpus 2 or --gpu-layers"),
        ("--hardware rtx-4090 --gpu-layers 81", "give 1 to 80"),
        ("--hardware m2-ultra --gpu-layers 40", "share one memory"),
        ("--hardware rtx-4090 --host-memory 80GB/s", "give --gpu-layers too"),
        ("--hardware rtx-4090 --tp 2", "hold layers in turn"),
        ("--hardware mi300x", "runs on NVIDIA, Apple devices"),
    ],
    "hardware add": [
        ("my-card --like l44 --dram-bandwidth 432GB/s", "--like: no device is called 'l44'", "did you mean"),
        ("my-card --dram-bandwidth 432GB/s", "--like is missing", "--like l4"),
        ("my-card --like a100-pcie --dram-bandwidth 432GB/s", "--like: 'a100-pcie' could be any of 2 devices"),
        ("My_Card --like l4 --dram-bandwidth 432GB/s", "NAME is 'My_Card'", "small letters"),
        ("nvidia-a10 --like l4 --dram-bandwidth 432GB/s", "nvidia-a10 is the id of a shipped device", "hardware list"),
        ("my-card --like trainium2 --l2 10MiB", "--l2: amazon-trainium2 has no such memory", "nearer --like"),
    ],
    "hardware add my-card --like l4": [
        ("", "nothing says how my-card differs from l4", "--dram-bandwidth 432GB/s"),
        ("--dram-bandwidth 432", "--dram-bandwidth: '432' is not in B/s", "4.8 TB/s"),
        ("--dram-bandwidth 432GFLOP/s", "--dram-bandwidth", "is not in B/s"),
        ("--dram-bandwidth -432GB/s", "--dram-bandwidth: '-432GB/s' is not a number with a unit"),
        ("--dram-bandwidth 432TB/s", "1.44e+03 x the 300.05 GB/s of nvidia-l4", "prefix"),
        ("--sms 0", "--sms is 0", "whole number from 1"),
        ("--sms -4", "--sms is -4"),
        ("--tdp 0W", "--tdp is 0W", "more than zero"),
        ("--tdp 90W -o no/such/card.yaml", "no folder no/such"),
    ],
}
"""By the beginning of a line: how it goes on, and what is said."""
LACKS = {
    "attention --n 64 --d 64": [
        ("--dtype fp8", "nvidia-a100-sxm-80gb has no fp8 peak", "fp16 (tensor)"),
        ("--hardware nowhere.yaml", "nowhere.yaml", "No such file"),
        ("--dtype bf16 --hardware gaudi3 --algorithm flash", "no SRAM size per block", "--sram"),
        ("--algorithm block-sparse --pattern none.txt", "none.txt", "No such file"),
        ("--algorithm block-sparse --pattern ./", "not a regular file"),
    ],
    "hardware check": [("nowhere.yaml", "nowhere.yaml")],
    "matmul -m 8 -n 8 -k 8": [("--hardware gaudi3 --dtype bf16", "no SRAM size per block", "--sram")],
    "occupancy --threads 32": [
        ("--stride 2 --hardware mi300x", "amd-mi300x", "NVIDIA devices only"),
        ("--hardware tpu-v5e", "no multiprocessor limits", "--hardware h200"),
    ],
    "kv-cache": [("nowhere/config.json", "nowhere/config.json", "No such file")],
    "memory": [("mixtral-8x7b --implementation huggingface", "known as huggingface's")],
    "model": [("llama-3-8b --tp 2 --hardware nvidia-t4", "nvidia-t4 has no interconnect")],
    "roofline": [("--records none.jsonl", "none.jsonl: No such file")],
    "compare": [("a.json b.json", "a.json: No such file")],
    "validate": [("--counters-csv missing.csv", "missing.csv")],
    "calibrate": [("--from-records missing.jsonl", "missing.jsonl"), ("--implementation torch-copy", "--from-records")],
    "serve llama-3.1-8b --hardware h200": [("--isl 512 --osl 64 --power-limit 50W", "cannot stay within 50 W")],
    "serve": [("llama-3.1-8b --hardware mi300x --power-limit 500W", "no power model")],
    "hardware add my-card --like l4": [
        ("--fp16 242TFLOP/s", "expected 1024 dense on 8.9", "sparse", "nothing was written"),
        ("--sms 40 --fp16 121TFLOP/s", "peaks.tensor.fp16: 121 TOP/s, expected 83.56 TOP/s", "nothing was written"),
    ],
}
"""The same of what a file or a device does not have."""


def rows() -> Iterator[tuple[int, str, tuple[str, ...]]]:
    for code, table in ((2, RULES), (1, LACKS)):
        for begun, listed in table.items():
            yield from ((code, f"{begun} {line}", words) for line, *words in listed)


@each(("code", "line", "said"), rows)
def test_one_message_with_place_and_fix(refused, monkeypatch, code: int, line: str, said: tuple[str, ...]) -> None:
    monkeypatch.setattr("perfmodel.validation.run.best_backend", lambda: "cpu")
    told = refused(shlex.split(line), code)
    assert all(words in told for words in said), told
