"""Option values and command lines as people type and paste them: other spellings of what is meant, and slips of the hand."""

from __future__ import annotations

from random import Random

BLANKS = [*" \u00a0\u2009\u202f\u3000\t\u200b\ufeff\r\n"]
"""Spaces of the keyboard, of documents and of web pages, some of them unseen."""
DASHES = [*"\u2212\u2013\u2014\u2010\u2011~+\u00b1", "--", "- "]
QUOTES = [*"\"'`\u201c\u201d\u2018\u2019\u00ab()[]{}<>"]
MARKS = [*",;.:!?%=*#x\u00d7/\\&|\u2026"]
UNITS = (
    "B b KB kB kb KiB kib K k MB M GB gb Gb GiB G g Gi Go TB T bytes GBs GB/s GBps Gbit/s TB/s FLOP FLOPs FLOPS GFLOP TFLOP/s TFLOPS "
    "s sec ms us \u00b5s \u03bcs ns min Hz MHz W % tokens x e e3 E+06 mm million BB kk"
)
NAMES = (
    "FP16|Fp16|fp-16|float16|half|f16|torch.float16|np.float32|float|float32|FP32|double|fp64|TF32|BF16|bfloat16|fp8_e4m3|e4m3|FP8|INT8|"
    "int4|w4a16|16|16bit|fp16,bf16|h100|H100|h100 |H100-SXM|H100_SXM5|H100 SXM|NVIDIA H100 80GB HBM3|nvidia-h100|8xH100|h100x8|h100,h200|"
    "A100-80G|A100 80GB|a100-sxm-80gb|nvidia-a100-sxm4-80gb|a10o|RTX 4090|rtx4090|GeForce RTX 4090|v100|T4|l40s|MI300X|mi300|TPUv5e|cuda|"
    "cuda:0|gpu|cpu|hopper|sm_90|b200|GB200|h200.yaml|meta-llama/Llama-3-8B|meta-llama/Meta-Llama-3.1-8B-Instruct|Llama-3-8B|llama3|"
    "llama3:8b|llama-3-8b |LLAMA_3_8B|llama-3.1-8b|llama-2-7b-hf|mistralai/Mixtral-8x7B-v0.1|mixtral 8x7b|gpt-2|openai-community/gpt2|"
    "GPT2|gpt4|https://huggingface.co/meta-llama/Meta-Llama-3-8B|hf://gpt2|~/models/llama/config.json|./gpt2|gpt2/|config.json|"
    "Qwen/Qwen3-8B|deepseek|gemma-2-2b-it|gpt2,llama-3-8b|yes|no|True|false|on|off|None|N/A|-|default|max|any|both|fwd|causal|flash|Flash-2|"
    "flash_attn|FlashAttention|forward,backward|fwd+bwd|zero-3|ZeRO-3|stage3|adamw_torch"
)
STRAY = (
    r"\ # && | > & $ ... -h --help -hv -v -V --version help = -- - -o --json=true --verbose --no-json --dry-run -y 2>&1 "
    r">out.txt $N ${N} %N% <n> [--n n=64 --pass=both"
)


def number(r: Random) -> str:
    """A size in one of the ways in which sizes are written."""
    size = r.choice([1, 2, 8, 16, 64, 100, 128, 1000, 1024, 4096, 8192, 100_000, 131_072, 1_000_000, 2**30])
    power, wide = size.bit_length() - 1, "".join(chr(0xFF10 + int(digit)) for digit in str(size))
    ways = (
        f"{size:,}|{size:_}|{size / 1024:g}k|"
        f"{size / 1024:g}K|{size // 1024}Ki|{size:.0e}|{size:.1E}|{size}.|{size}.0|{size}f|{size}L|{size:#x}|"
        f"2^{power}|2**{power}|1<<{power}|{size:#o}|0{size}|1/{size}|{size}%|{size}x{size}|{size}\u00d7{size}|{size}*{size}|"
        f"{size} x {size}|"
        f"n={size}|n = {size}|={size}|:{size}|~{size}|<{size}|<={size}|>{size}|{size}+|-{size}|.{size}|64:{size}|64:{size}:x2|64..{size}|"
        f"64-{size}|{size}:64|64:{size}:+64|64:{size}:x1|1:{size}:-1|::|1:2:3:4|64,{size}|64, {size}|64 {size}|64;{size}|[64,{size}]|"
        f"(64, {size})|64,{size},|,{size}|64,,{size}|{wide}|{size}\u00b2|\u2168|\u00bd|four|1e6|1.5e3|8k|4K|1,024.5"
    )
    thousands = [f"{size:,}".replace(",", mark) for mark in " \u00a0\u2009'\u2019."]
    return r.choice([*ways.split("|"), *thousands])


def quantity(r: Random) -> str:
    """A number with a unit, or with what is taken for one, in the right place or not."""
    figure, unit = r.choice(["80", "80", "1.5", "163", "0.5", "4,800", "1_000", ".5", "1e3", "-80"]), r.choice(UNITS.split())
    blank = r.choice(["", "", " ", *BLANKS])
    return r.choice(
        [f"{figure}{blank}{unit}"] * 4 + [f"{unit}{blank}{figure}", f"{figure}{blank}{unit} {unit}", f"{figure} {unit[::-1]}", unit]
    )


def slip(r: Random, word: str) -> str:
    """``word`` with one slip of the hand, or one trace of the document that it comes from."""
    at = r.randrange(len(word) + 1)
    head, letter, tail = word[:at], word[at : at + 1], word[at + 1 :]
    extra = r.choice([BLANKS, QUOTES, MARKS, DASHES])
    put = r.choice(extra)
    changed = [
        word.upper(),
        word.title(),
        word.swapcase(),
        word[::-1],
        head + tail,
        head + letter * 2 + tail,
        head + tail[:1] + letter + tail[1:],
    ]
    changed += [word.replace("-", other) for other in ("_", " ", "", put)]
    changed += [put + word, word + put, head + put + letter + tail, put + word + put, head + put + tail]
    changed += [f"{word},{word}", f"{word}, {word}", f"{word} {word}", f"{word}/{word}", f"org/{word}", f"{word}.yaml"]
    return r.choice(changed)


def value(r: Random, sensible: list[str]) -> str:
    """What may be typed where ``sensible`` would be right."""
    word = r.choice([number(r), quantity(r), r.choice(NAMES.split("|")), r.choice(sensible)])
    for _ in range(r.choice([0, 0, 1, 1, 1, 2])):
        word = slip(r, word)
    return word


def line(r: Random, words: list[str], first: int) -> list[str]:
    """``words``, of which one from ``first`` on is joined, doubled, left out, cut off, moved or pasted."""
    place = r.randrange(first, len(words) + 1)
    if place == len(words):
        return [*words, r.choice(STRAY.split())]
    head, one, rest = words[:place], words[place], words[place + 1 :]
    following, bare = rest[:1], one.lstrip("-")
    joined = [[f"{one}{joint}{''.join(following)}", *rest[1:]] for joint in ("=", "=", " ", "= ", " =", "", ":", "==")]
    dashed = [[f"{dash}{bare}", *rest] for dash in ("-", "--", "---", "\u2014", "\u2013", "\u2212", "/", "+", "--no-", "--no-no-", "")]
    cut = [[f"--{bare[:length]}", *rest] for length in (1, 2, 3)]
    doubled = [[one, *rest, one, *following], [one, one, *rest], [one, *following, *rest]]
    moved = [rest, [*following, one, *rest[1:]], [" ".join([one, *rest])]]
    pasted = [
        [r.choice(STRAY.split()), one, *rest],
        [f"{one} {r.choice(STRAY.split())}", *rest],
        [slip(r, one), *rest],
        [one.replace("-", "_"), *rest],
    ]
    return [*head, *r.choice(r.choice([joined, dashed, cut, doubled, moved, pasted]))]
