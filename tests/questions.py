"""Random questions that a user could ask, of every command that answers with times: drawn from a seed, the same in every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from fuzzing import RECORDS

from perfmodel.catalog import device_ids, engine_names, model_names, system_names
from perfmodel.kernels.attention.algorithms import names

ENGINES = engine_names()
DTYPES = ("fp32", "tf32", "fp16", "fp16", "bf16", "bf16", "bf16", "fp8")
MODELS, DEVICES, SYSTEMS = model_names(), device_ids(), system_names()
SERVED = ("nvidia-h200-sxm", "nvidia-h100-sxm-80gb", "nvidia-b200-sxm", "nvidia-a100-sxm-80gb", "amd-mi300x", "nvidia-l40s")
CALIBRATED = ("nvidia-h200-sxm", "nvidia-h100-sxm-80gb", "nvidia-a100-sxm-80gb", "nvidia-b200-sxm", "nvidia-l40s")


def _size(r: Random, most: int) -> int:
    """A size from 1 to ``most``, each magnitude as likely; round ones as often as odd ones."""
    size = round(2 ** r.uniform(0, most.bit_length() - 1))
    return 1 << (size.bit_length() - 1) if r.random() < 0.5 else size


def _device(r: Random) -> list[str]:
    return ["--hardware", r.choice(CALIBRATED if r.random() < 0.6 else DEVICES)]


def _flags(r: Random, *flags: str, chance: float = 0.25) -> list[str]:
    return [flag for flag in flags if r.random() < chance]


def _options(r: Random, chance: float, **most: int) -> list[str]:
    """Each option with a size of its own, some left out."""
    return [word for name, top in most.items() if r.random() < chance for word in (f"--{name.replace('_', '-')}", str(_size(r, top)))]


def attention(r: Random) -> list[str]:
    """Any algorithm, pass and option; some combinations are refused."""
    kv_heads = _size(r, 16)
    heads = kv_heads * r.choice([1, 1, 1, 2, 4, 8])
    words = ["--n", str(1 if r.random() < 0.1 else _size(r, 1 << 15)), "--d", str(r.choice([32, 40, 64, 64, 80, 96, 128, 128, 192, 256]))]
    words += ["--heads", str(heads), "--kv-heads", str(kv_heads), "--batch", str(_size(r, 64)), "--dtype", r.choice(DTYPES)]
    words += ["--pass", r.choice(["forward", "forward", "backward", "both"])]
    words += [word for name in r.sample(names(), r.randint(1, 3)) for word in ("--algorithm", name)]
    words += _options(r, 0.15, kv_len=1 << 17, dv=256, window=4096, splits=16, block_q=256, block_kv=256)
    words += ["--sram", f"{_size(r, 256)}KiB"] * (r.random() < 0.05)
    words += _flags(r, "--causal", chance=0.4) + _flags(r, "--mask", "--unfused-scale", "--printed-backward", chance=0.1)
    words += ["--dropout", "0.1"] * (r.random() < 0.1) + ["--packed"] * (heads > kv_heads and r.random() < 0.1)
    if "block-sparse" in words:
        words += r.choice([["--sparsity", f"{r.uniform(0.01, 1):.3f}"], ["--pattern", r.choice(["local-global", "strided", "butterfly"])]])
    return words + _device(r)


def matmul(r: Random) -> list[str]:
    """Shapes from a dot product to a large model's matrices."""
    words = [word for side in "mnk" for word in (f"-{side}", str(_size(r, 1 << 15)))]
    words += ["--sram", f"{_size(r, 256)}KiB"] * (r.random() < 0.05)
    return [*words, *_options(r, 0.15, batch=64, split_k=8, tile_m=256, tile_n=256), "--dtype", r.choice(DTYPES), *_device(r)]


def mlp(r: Random) -> list[str]:
    """Two layers, each pass."""
    words = [word for name in ("batch", "d-in", "d-hidden", "d-out") for word in (f"--{name}", str(_size(r, 1 << 14)))]
    words += ["--pass", r.choice(["forward", "backward", "both"]), "--dtype", r.choice(DTYPES)]
    return words + _flags(r, "--input-gradient") + _device(r)


def softmax(r: Random) -> list[str]:
    """Rows short and long."""
    words = ["--rows", str(_size(r, 1 << 20)), "--cols", str(_size(r, 1 << 17)), "--dtype", r.choice(DTYPES)]
    return words + _flags(r, "--no-store") + _device(r)


def fuse(r: Random) -> list[str]:
    """Chains of elementwise operations."""
    return ["--elements", str(_size(r, 1 << 30)), "--ops", str(_size(r, 100)), *_device(r)]


def recompute(r: Random) -> list[str]:
    """A tensor kept, or computed again."""
    return ["--bytes", f"{_size(r, 1 << 34)}B", "--flops", f"{_size(r, 1 << 44)}FLOP", *_device(r)]


def _inference(r: Random) -> list[str]:
    words = [word for name in ("tp", "pp", "ep") if r.random() < 0.2 for word in (f"--{name}", str(r.choice([2, 4, 8])))]
    words += ["--dtype", r.choice(DTYPES)] * (r.random() < 0.5)
    words += ["--weights-dtype", r.choice(["fp8", "int8", "int4"])] * (r.random() < 0.2)
    words += ["--kv-dtype", r.choice(["fp8", "int8"])] * (r.random() < 0.15)
    return words + _flags(r, "--fused", "--cuda-graph", "--eager", chance=0.15) + _device(r)


def model(r: Random) -> list[str]:
    """Prefill, decode and generation."""
    n = _size(r, 1 << 13)
    words = [r.choice(MODELS), "--phase", r.choice(["prefill", "decode", "generate"]), "--batch", str(_size(r, 256)), "--n", str(n)]
    words += ["--kv-len", str(n + _size(r, 256))] * (r.random() < 0.5) + _flags(r, "--no-kv-cache", chance=0.05)
    return words + _inference(r)


def training(r: Random) -> list[str]:
    """Steps on one GPU and on many, every way of dividing them."""
    dp, micro = r.choice([1, 1, 2, 8, 64]), r.choice([1, 1, 2, 4])
    words = [r.choice(MODELS), "--phase", "train", "--batch", str(dp * micro * r.choice([1, 2, 4, 16])), "--n", str(128 * _size(r, 64))]
    words += ["--dp", str(dp), "--micro-batch", str(micro), "--zero", str(r.choice([0, 0, 1, 2, 3]))]
    words += [word for name in ("tp", "pp", "cp", "ep") if r.random() < 0.25 for word in (f"--{name}", str(r.choice([2, 4, 8])))]
    words += ["--recompute", r.choice(["none", "selective", "full", "every:2"])]
    words += ["--precision", r.choice(["mixed", "mixed", "bf16", "fp32"])]
    words += _flags(r, "--sp", "--no-flash", "--dropout", "--no-overlap") + ["--interleave", "2"] * (r.random() < 0.1)
    words += ["--lora", "16"] * (r.random() < 0.1) + ["--system", r.choice(SYSTEMS)] * (r.random() < 0.6)
    return words + (["--hardware", r.choice(CALIBRATED)] if "--system" not in words else [])


def batch(r: Random) -> list[str]:
    """Decode against the batch."""
    return [r.choice(MODELS), "--kv-len", str(_size(r, 1 << 14)), *_inference(r)]


def kv_cache(r: Random) -> list[str]:
    """A cache, what fits, and generation with and without it."""
    words = [r.choice(MODELS), "--n", str(_size(r, 1 << 15)), "--batch", str(_size(r, 64))]
    return [*words, "--dtype", r.choice(["fp16", "fp8", "int8"]), *_device(r)]


def sweep(r: Random) -> list[str]:
    """A small grid of attention or matmul."""
    heads = r.choice(["1", "16", "1,8"])
    if r.random() < 0.3:
        return ["matmul", "--m", f"{_size(r, 512)}:4096:x4", "--n", "512,4096", "--k", str(_size(r, 1 << 14)), *_device(r)]
    words = ["attention", "--n", f"{128 * _size(r, 8)}:16384:x4", "--d", r.choice(["64", "128", "64,128"]), "--heads", heads]
    return [*words, "--algorithm", "all", "--causal", "both", "--pass", r.choice(["forward", "both"]), *_device(r)]


def _layout(r: Random) -> list[str]:
    return [word for name in ("tp", "dp", "pp", "ep") if r.random() < 0.3 for word in (f"--{name}", str(r.choice([2, 4, 8])))]


def serve(r: Random) -> list[str]:
    """Users or requests at a rate, on one layout or the best one."""
    words = [r.choice(MODELS), "--isl", str(_size(r, 1 << 14)), "--osl", str(_size(r, 1 << 11)), "--engine", r.choice(ENGINES)]
    words += ["--rate", f"{2 ** r.uniform(-6, 6):.3g}"] if r.random() < 0.3 else ["--concurrency", str(_size(r, 1 << 10))]
    words += ["--weights-dtype", r.choice(["fp8", "int4"])] * (r.random() < 0.3) + ["--kv-dtype", "fp8"] * (r.random() < 0.2)
    words += ["--spread", "0.5"] * (r.random() < 0.1) + ["--draft-tokens", "2"] * (r.random() < 0.1)
    if r.random() < 0.05:
        return [*words, "--search", "--gpus", "8", "--tpot", "50ms", "--hardware", r.choice(SERVED)]
    return [*words, *_layout(r), "--hardware", r.choice(SERVED if r.random() < 0.8 else DEVICES)]


def memory(r: Random) -> list[str]:
    """Training memory, every way of dividing it."""
    dp = r.choice([1, 1, 2, 8])
    words = [r.choice(MODELS), "--batch", str(dp * r.choice([1, 2, 4])), "--n", str(128 * _size(r, 64)), "--dp", str(dp)]
    words += ["--zero", str(r.randrange(4)), "--recompute", r.choice(["none", "selective", "full", "every:2"])]
    words += ["--precision", r.choice(["mixed", "bf16", "fp32"]), "--optimizer", r.choice(["adam", "sgd", "adafactor", "muon"])]
    return words + _flags(r, "--no-flash", "--sp", "--dropout-masks") + _device(r)


def remat(r: Random) -> list[str]:
    """A chain of layers, alike or a model's."""
    layers = _size(r, 64)
    words = [r.choice(MODELS), "--n", str(128 * _size(r, 32))] if r.random() < 0.5 else ["--layers", str(layers)]
    words += r.choice([[], ["--checkpoints", str(_size(r, layers))], ["--every", str(_size(r, layers))]])
    return words + _device(r)


def occupancy(r: Random) -> list[str]:
    """Blocks of a kernel on a multiprocessor."""
    words = ["--threads", str(32 * r.randint(1, 32)), "--registers", str(r.randint(16, 255)), "--sram", f"{_size(r, 100)}KiB"]
    return words + _device(r)


def roofline(r: Random) -> list[str]:
    """Workloads on the roofline of a device."""
    shape = f"n={_size(r, 1 << 13)} d={r.choice([64, 128])} heads={_size(r, 32)} batch={_size(r, 16)}"
    return ["--attention", shape, "--matmul", "x".join(str(_size(r, 1 << 13)) for _ in range(3)), *_device(r)]


def usual(r: Random) -> list[str]:
    """A kernel of the sizes that models have, on any device: where a roof is near."""
    sizes, few = (1024, 2048, 4096, 8192, 16384), (1, 2, 16, 128)
    kind = r.choice(["attention", "decode", "matmul", "softmax"])
    dtype = ["--dtype", r.choice(["fp16", "bf16", "bf16"] + ["fp8", "fp32", "tf32"] * (kind == "matmul"))]
    device = ["--hardware", r.choice(DEVICES)]
    if kind == "matmul":
        shape = [word for side in "nk" for word in (f"-{side}", str(r.choice(sizes)))]
        return [kind, "-m", str(r.choice(sizes + few)), *shape, *dtype, *device]
    if kind == "softmax":
        return [kind, "--rows", str(r.choice(sizes)), "--cols", str(r.choice(sizes)), *dtype, *device]
    batch = ["--batch", str(r.choice([1, 16, 64]))]
    if kind == "decode":
        shape = ["--n", str(r.choice(few[:3])), "--kv-len", str(r.choice([1024, 8192, 131072])), "--kv-heads", str(r.choice([1, 4, 8, 32]))]
        return ["attention", *shape, "--heads", "32", "--d", str(r.choice([64, 128])), *batch, *dtype, *device]
    shape = ["--n", str(r.choice(sizes)), "--d", str(r.choice([64, 128, 256])), "--heads", str(r.choice([8, 32])), *batch]
    return [kind, *shape, "--pass", r.choice(["forward", "backward"]), *_flags(r, "--causal", chance=0.5), *dtype, *device]


def search(r: Random) -> list[str]:
    """The best layout, among formats or pools or for a number of users."""
    words = [r.choice(MODELS), "--search", "--gpus", str(_size(r, 8)), "--isl", str(_size(r, 1 << 13)), "--osl", str(_size(r, 1 << 10))]
    words += _flags(r, "--disaggregated") + ["--concurrency", str(_size(r, 512))] * (r.random() < 0.3)
    words += ["--tpot", r.choice(["1us", "20ms", "100ms"])] * (r.random() < 0.5) + ["--gpu-hour", "2.5"] * (r.random() < 0.3)
    words += ["--weights-dtype", r.choice(["fp8", "bf16,fp8", "int4"])] * (r.random() < 0.3) + ["--kv-dtype", "bf16,fp8"] * (
        r.random() < 0.2
    )
    return [*words, "--engine", r.choice(ENGINES), "--hardware", r.choice(SERVED if r.random() < 0.8 else DEVICES)]


def pools(r: Random) -> list[str]:
    """Workers that run prompts alone, and others that decode."""
    words = [r.choice(MODELS), "--isl", str(_size(r, 1 << 13)), "--osl", str(1 + _size(r, 1 << 10)), "--concurrency", str(_size(r, 256))]
    words += ["--prefill-workers", str(_size(r, 4)), "--workers", str(_size(r, 4))]
    words += [word for name in ("tp", "prefill-tp") for word in (f"--{name}", str(r.choice([1, 2, 4, 8])))]
    return [*words, "--engine", r.choice(ENGINES), "--hardware", r.choice(SERVED)]


def models_swept(r: Random) -> list[str]:
    """A small grid of models, caches or servers."""
    kind, names = r.choice(["model", "kv-cache", "serve"]), ",".join(r.sample(MODELS, 2))
    sizes = {
        "model": ["--batch", "1,8", *r.choice([["--phase", "prefill", "--n", "512"], ["--phase", "decode", "--kv-len", "600"]])],
        "kv-cache": ["--n", f"512,{_size(r, 1 << 14)}", "--batch", "1,16"],
        "serve": ["--isl", "512", "--osl", str(_size(r, 512)), "--concurrency", "1,16", "--engine", r.choice(ENGINES)],
    }
    devices = r.choice(SERVED) if kind == "serve" else ",".join(r.sample(DEVICES, 2))
    return [kind, "--model", names, *sizes[kind], "--hardware", devices]


def _workload(r: Random) -> list[str]:
    name = r.choice(["prefill n=256", f"decode batch={_size(r, 64)} kv_len={_size(r, 4096)}"])
    shape = f"n={_size(r, 1 << 13)} d={r.choice([64, 128])} heads={_size(r, 16)} batch={_size(r, 8)}"
    return r.choice(
        [
            ["--attention", shape + r.choice(["", " causal"])],
            ["--matmul", "x".join(str(_size(r, 1 << 13)) for _ in range(3))],
            ["--model", f"{r.choice(MODELS)} {name}"],
        ]
    )


def compared(r: Random) -> list[str]:
    """Two devices, two algorithms or two implementations."""
    shape = f"n={_size(r, 1 << 13)} d={r.choice([64, 128])} heads={_size(r, 16)}"
    kind = r.randrange(4)
    if kind == 0:
        return [*r.sample(DEVICES, 2)]
    if kind == 1:
        return [*r.sample(DEVICES, 2), *_workload(r)]
    pair = r.sample(names(), 2) if kind == 2 else r.sample(["torch-sdpa-flash", "torch-sdpa-cudnn", "vllm-flash-attn", "torch-eager"], 2)
    return [*pair, "--attention", shape, "--hardware", r.choice(CALIBRATED)]


def studied(r: Random) -> list[str]:
    """A workload, or one of its sizes swept, on one device or two."""
    words = _workload(r)
    if r.random() < 0.5:
        words = [words[0], words[1].replace("n=", f"n={_size(r, 512)}:9000:x4,", 1)] if words[0] == "--attention" else words
        words[1] = ",".join(part for part in words[1].replace(" ", ",").split(",") if not part.isdecimal())
    return [*words, *(word for device in r.sample(DEVICES, r.choice([1, 2])) for word in ("--hardware", device))]


def hardware(r: Random) -> list[str]:
    """A device."""
    return r.choice([["show", r.choice(DEVICES)], ["show", r.choice(DEVICES), "--explain", "all"], ["list"]])


def claims(r: Random) -> list[str]:
    """Some of the statements."""
    return [f"S{number:03}" for number in r.sample(range(1, 83), 2)]


def validated(r: Random) -> list[str]:
    """Measurements against predictions."""
    return ["--records", str(RECORDS), "--tolerance", f"{r.randrange(1, 100)}%"]


def calibrated(r: Random) -> list[str]:
    """Measurements of a kind fitted."""
    return ["--from-records", str(RECORDS), "--require", "0", "--hardware", r.choice(CALIBRATED)]


QUESTIONS: dict[str, tuple[int, Callable[[Random], list[str]]]] = {
    "attention": (30, attention),
    "matmul": (20, matmul),
    "model": (8, model),
    "training": (6, training),
    "mlp": (8, mlp),
    "softmax": (6, softmax),
    "fuse": (4, fuse),
    "recompute": (3, recompute),
    "occupancy": (2, occupancy),
    "roofline": (2, roofline),
    "serve": (4, serve),
    "memory": (2, memory),
    "remat": (2, remat),
    "kv-cache": (1, kv_cache),
    "batch": (1, batch),
    "sweep": (1, sweep),
    "sweep of models": (1, models_swept),
    "search": (1, search),
    "pools": (1, pools),
    "compare": (3, compared),
    "report": (2, studied),
    "hardware": (1, hardware),
    "claims": (0.3, claims),
    "validate": (0.3, validated),
    "calibrate": (0.3, calibrated),
}
"""What is asked of each command, and how often of about 110."""
COMMANDS = {"training": "model", "sweep of models": "sweep", "search": "serve", "pools": "serve"}
"""Of which command a kind is, where it is not its name."""


def questions(count: int, seed: int) -> Iterator[tuple[str, list[str]]]:
    """``count`` questions as a kind and a command line that asks for JSON."""
    r = Random(seed)
    kinds, weights = list(QUESTIONS), [weight for weight, _ in QUESTIONS.values()]
    for _ in range(count):
        kind = r.choices(kinds, weights)[0]
        yield kind, [COMMANDS.get(kind, kind), *QUESTIONS[kind][1](r), "--json"]
