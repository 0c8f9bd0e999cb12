"""Sixty command lines whose JSON is kept, to see what a change of the code changes: ``python -m tools.refresh.answers`` writes it anew.

A number that changes is looked at: it is a correction with its own test, or a fault.
"""

from __future__ import annotations

import io
import json
import shlex
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from perfmodel.cli import main
from tools.scores import DATA

FOLDER = DATA / "answers"
LINES = """
attention --n 4096 --d 64
attention --n 4096 --d 64 --heads 16 --batch 8 --causal --pass both --hardware h200
attention --n 1024 --kv-len 4096 --d 128 --heads 32 --kv-heads 8 --dtype bf16 --hardware h100-sxm --mask
attention --n 8192 --d 128 --heads 16 --window 1024 --causal --dropout 0.1 --pass backward --hardware a100-sxm-80gb
attention --n 1 --kv-len 32768 --d 128 --heads 32 --kv-heads 8 --batch 16 --algorithm split-kv --hardware h200
attention --n 4096 --d 64 --algorithm block-sparse --sparsity 0.25 --hardware l40s
attention --n 2048 --d 80 --dv 64 --algorithm flash1 --sram 48KiB --dtype fp32 --hardware v100-sxm-32gb
attention --n 2048 --d 64 --pass backward --printed-backward --algorithm flash2
attention --n 4096 --d 128 --heads 16 --implementation torch-sdpa-cudnn --algorithm flash2 --hardware h200 --dtype bf16
attention --n 4096 --d 64 --hardware mi300x
attention --config flashattention-fig2
attention --n 4096 --d 64 --explain
attention --n 512 --d 128 --dtype bf16 --sram 1MiB --hardware tpu-v5p
matmul -m 8192 -n 128 -k 8192
matmul -m 4096 -n 4096 -k 4096 --dtype bf16 --hardware h200
matmul -m 64 -n 64 -k 65536 --split-k 8 --dtype fp16 --hardware a100-sxm-80gb
matmul -m 512 -n 512 -k 512 --batch 32 --hardware b200 --dtype fp8 --explain
mlp --batch 4096 --d-in 1024 --d-hidden 4096 --d-out 1024
mlp --batch 256 --d-in 512 --d-hidden 2048 --d-out 512 --pass both --hardware h200
softmax --rows 4096 --cols 32768
softmax --rows 128 --cols 1000 --no-store --dtype fp32 --hardware h200
fuse --elements 1048576 --ops 30
fuse --example sin-cos
recompute --bytes 64MiB --flops 10GFLOP
recompute --bytes 1GiB --flops 1TFLOP --hardware h200
occupancy --threads 256 --registers 64 --sram 48KiB --stride 2
occupancy --threads 128 --registers 168 --sram 160KiB --hardware h200
kv-cache llama-3-8b --n 8192 --batch 16 --hardware h100-sxm
kv-cache deepseek-v3 --n 4096 --batch 8 --hardware h200 --dtype fp8
model llama-3-8b --phase decode --batch 8 --kv-len 2048
model llama-3-8b --phase prefill --n 2048 --hardware h200
model llama-3-70b --phase generate --n 1024 --kv-len 1152 --tp 8 --hardware h200
model mixtral-8x7b --phase decode --batch 64 --kv-len 4096 --tp 2 --ep 4 --hardware h100-sxm
model deepseek-v3 --phase decode --batch 128 --kv-len 4096 --tp 8 --ep 8 --dtype fp8 --hardware h200
model gpt-oss-20b --phase decode --batch 4 --kv-len 1024 --hardware h200
model gpt2-xl --phase train --batch 8 --n 1024 --hardware h200
model gpt3-175b --phase train --batch 64 --n 2048 --tp 8 --pp 8 --micro-batch 1 --system selene-a100 --recompute selective --sp
model llama-3-8b --phase train --batch 64 --n 2048 --dp 8 --zero 3 --recompute full --system selene-a100
model llama-3-8b --phase decode --batch 1 --kv-len 128 --weights-dtype int4 --graph --fused --hardware rtx-4090
batch llama-3-8b --kv-len 2048 --hardware h200
serve llama-3.1-8b --hardware h200 --concurrency 16
serve mixtral-8x7b --hardware h200 --gpus 2 --engine vllm --search --tpot 50ms --gpu-hour 2.5
memory llama-3-8b --batch 8 --n 4096 --dp 8 --zero 3 --recompute full
memory gpt3-175b --batch 64 --n 2048 --tp 8 --pp 8 --micro-batch 1 --sp
remat --layers 10 --checkpoints 5
remat gpt2-xl
roofline --attention 'n=4096 d=64 heads=16 batch=8' --matmul 8192x8192x8192 --hardware h200
hardware show h200
hardware show mi300x
attention --n 4096 --d 64 --masked-fill --causal --heads 8 --algorithm standard --hardware h200
hardware list
claims --verdict wrong
compare a100-sxm-80gb h200 --model 'llama-3-8b decode'
compare flash2 standard --attention 'n=4096 d=64' --hardware h200
sweep attention --n 512:8192:x4 --d 64,128 --algorithm all --causal both --hardware a100-sxm-80gb,h200
sweep attention --n 4096 --d 64 --batch 1,8 --pass both --hardware l40s --dtype bf16,fp32
sweep matmul --m 128:4096:x4 --n 512,4096 --k 4096 --hardware h200
sweep kv-cache --model llama-3-8b,llama-3-70b --n 4096 --batch 1,16 --hardware h200
sweep model --model llama-3-8b --batch 1,8 --kv-len 2048 --phase decode --hardware h200
sweep attention --n 512:131072:x2 --d 64 --algorithm standard,flash2 --minimize lower_s
report standard-vs-flash
validate --records tests/data/records.jsonl
"""


def lines() -> list[str]:
    """The command lines."""
    return LINES.split("\n")[1:-1]


def kept(line: str) -> Path:
    """Where the answer to ``line`` is kept."""
    words = "".join(character if character.isalnum() else " " for character in line).split()
    return FOLDER / f"{'-'.join(words)[:120]}.json"


def asked(line: str) -> Any:
    """The JSON that ``line`` answers with, numbers to 12 digits: the last few differ between processors."""
    out = io.StringIO()
    with redirect_stdout(out):
        code = main([*shlex.split(line), "--json"])
    if code not in (0, 3):
        raise SystemExit(f"{line}: exit {code}")
    return rounded(json.loads(out.getvalue()))


def rounded(value: Any) -> Any:
    """``value`` with its numbers to 12 digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


def written(answer: Any) -> str:
    """One line per value, so that a difference is seen."""
    return json.dumps(answer, indent=0, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    answers = {kept(line): written(asked(line)) for line in lines()}
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.iterdir():
        old.unlink()
    for path, text in answers.items():
        path.write_text(text)
