"""Questions that two commands can both answer, drawn from a seed: pairs of numbers that have to be equal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

from fuzzing import answer
from questions import CALIBRATED, DEVICES, ENGINES, MODELS, SERVED, SYSTEMS

from perfmodel import api
from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.workload import Attention
from perfmodel.kernels.matmul import Matmul
from perfmodel.study.workloads import ModelOptions
from perfmodel.timing.implementations import algorithm_of
from perfmodel.transformer.answer import answer as answer_model
from perfmodel.transformer.op_time import LARGEST_SAVING, launch_correction
from perfmodel.validation.records import raw_of, read_records, shipped_records

FALLBACKS = cache(calibrated_devices)


class Pair(NamedTuple):
    """One number as two questions give it."""

    what: str
    first: float | None
    second: float | None


def size(r: Random, most: int) -> int:
    """A size from 1 to ``most``, each magnitude as likely."""
    return round(2 ** r.uniform(0, most.bit_length() - 1))


def device(r: Random) -> str:
    return r.choice(CALIBRATED if r.random() < 0.6 else DEVICES)


def ask(line: str) -> Any:
    """What a line prints as JSON; None if it is refused."""
    code, out, _ = answer([*line.split(), "--json"])
    return json.loads(out) if code in (0, 3) else None


def at(found: Any, path: str) -> float | None:
    """The number at ``path``; None where there is none."""
    for key in path.split("."):
        found = None if found is None else found[int(key)] if key.isdecimal() else found.get(key)
    return found


def pairs(first: str, second: str, **paths: tuple[str, str]) -> Iterator[Pair]:
    """The numbers at ``paths`` of the answers to two lines; nothing where one of the lines is refused."""
    one, other = ask(first), ask(second)
    if one is not None and other is not None:
        for name, (here, there) in paths.items():
            yield Pair(f"{name}: {first} | {second}", at(one, here), at(other, there))


def rows_of_a_model(r: Random) -> Iterator[Pair]:
    """A product or an attention of a model, and the command that asks for it alone: a row of a step saves its launch."""
    name, on, prefill = r.choice(MODELS), device(r), r.random() < 0.5
    length, batch = size(r, 2048), size(r, 32)
    asked = {"phase": "prefill", "n": length} if prefill else {"phase": "decode", "kv_len": length}
    chip = find_device(on)
    try:
        request = ModelOptions(name=name, batch=batch, clock="burst", **asked).request(chip)
        found = answer_model(request, FALLBACKS)
    except PerfmodelError:
        return
    saving = launch_correction(chip, FALLBACKS).saving_s(request.in_graph(request.phase))
    rows = [line.row for line in found.lines if line.row.op.timed is not None and line.row.prediction is not None]
    for kind in (Matmul, Attention):
        own = [row for row in rows if isinstance(row.op.timed.workload, kind) and row.prediction.case.workload == row.op.timed.workload]
        if not own:
            continue
        row = r.choice(own)
        w = row.op.timed.workload
        if isinstance(w, Matmul):
            line = f"matmul -m {w.m} -n {w.n} -k {w.k} --batch {w.batch}"
        else:
            line = (
                f"attention --n {w.n} --kv-len {w.kv_len} --d {w.d} --dv {w.dv} --batch {w.batch} --heads {w.heads} --kv-heads {w.kv_heads}"
            )
            line += " --causal" * w.causal + f" --window {w.window}" * bool(w.window)
        line += f" --dtype {w.dtype.name} --hardware {on} --implementation {row.prediction.calibration.implementation}"
        there = ask(line)
        if there is not None:
            alone = next(one for one in there["results"] if one.get("algorithm") != "standard")["time_s"]["predicted"]
            inside = None if alone is None else max(alone - min(saving, alone * LARGEST_SAVING), 0)
            yield Pair(
                f"predicted: {row.op.name} of {name} {asked} batch {batch} | {line}", float(row.prediction.seconds / row.op.count), inside
            )


def caches(r: Random) -> Iterator[Pair]:
    """Bytes of a cache, of the weights, and how many sequences fit."""
    name, on, length, batch, tp = r.choice(MODELS), r.choice(SERVED), size(r, 8192), size(r, 16), r.choice([1, 1, 2, 4])
    form = r.choice(["", " --kv-dtype fp8"])
    cached, model = f"kv-cache {name} --n {length} --batch {batch}{form} --hardware {on}", f"model {name} --phase decode --kv-len {length}"
    yield from pairs(
        cached,
        f"{model} --batch {batch}{form} --hardware {on}",
        bytes=("bytes", "memory.kv_cache"),
        weights=("memory.weights_bytes", "memory.weights"),
    )
    serve = f"serve {name} --isl {max(length - 1, 1)} --osl 1 --concurrency 1{form} --tp {tp} --hardware {on}"
    yield from pairs(f"{model} --batch 1 --tp {tp}{form} --hardware {on}", serve, weights=("memory.weights", "memory.weights"))


def batches(r: Random) -> Iterator[Pair]:
    """A step of decode, at one number of sequences and over all."""
    name, on, length = r.choice(MODELS), device(r), size(r, 8192)
    found = ask(f"batch {name} --kv-len {length} --hardware {on}")
    one = r.choice(found["results"]) if found else None
    alone = ask(f"model {name} --phase decode --kv-len {length} --batch {one['batch']} --hardware {on}") if one else None
    if one is not None and alone is not None:
        for here, there in (("seconds", "totals.time_s.predicted"), ("tokens_per_s", "tokens_per_s"), ("memory_bytes", "memory.total")):
            if here in one:
                yield Pair(f"{here}: batch {name} --kv-len {length} --hardware {on} at {one['batch']}", one[here], at(alone, there))


def rows_of_a_sweep(r: Random) -> Iterator[Pair]:
    """A row of a sweep, and the command that answers for it."""
    on, batch, way = device(r), size(r, 16), r.choice(["forward", "backward"])
    kind, algorithm = r.choice(["attention", "matmul", "kv-cache", "model", "serve"]), r.choice(["standard", "flash2", "flash1"])
    if kind == "attention":
        shape = f"--n {size(r, 8192)} --d {r.choice([64, 128])} --heads {size(r, 16)} --batch {batch} --pass {way}"
        line, paths = f"{kind} {shape} --algorithm {algorithm} --hardware {on}", KERNEL
    elif kind == "matmul":
        line, paths = f"{kind} --m {size(r, 8192)} --n {size(r, 8192)} --k {size(r, 8192)} --batch {batch} --hardware {on}", KERNEL
    elif kind == "kv-cache":
        line = f"{kind} {{}}{r.choice(MODELS)} --n {size(r, 8192)} --batch {batch} --hardware {on}"
        paths = {"cache_bytes": "bytes", "bytes_per_token": "bytes_per_token", "max_batch": "max_batch"}
    elif kind == "model":
        line = f"{kind} {{}}{r.choice(MODELS)} --phase decode --kv-len {size(r, 4096)} --batch {batch} --hardware {on}"
        paths = {"predicted_s": "totals.time_s.predicted", "roofline_s": "totals.time_s.roofline", "tokens_per_s": "tokens_per_s"}
        paths |= {"memory_bytes": "memory.total", "max_batch": "memory.max_batch"}
    else:
        line = (
            f"{kind} {{}}{r.choice(MODELS)} --isl {size(r, 2048)} --osl {size(r, 512)} --concurrency {batch} --engine {r.choice(ENGINES)}"
        )
        line += f" --hardware {r.choice(SERVED)}"
        paths = {"ttft_s": "ttft_s.mean", "tpot_s": "tpot_s.mean", "tokens_per_s": "tokens_per_s"}
    alone = line.format("").replace("--m ", "-m ").replace("--n ", "-n ").replace("--k ", "-k ") if kind == "matmul" else line.format("")
    swept, found = ask(f"sweep {line.format('--model ')} --columns {','.join(paths)}"), ask(alone)
    if swept is not None and found is not None and swept["rows"]:
        for column, path in paths.items():
            yield Pair(f"{column}: sweep {line.format('--model ')} | {alone}", swept["rows"][0].get(column), at(found, path))


KERNEL = {"flops": "results.0.flops", "dram_bytes": "results.0.traffic.dram.bytes", "roofline_s": "results.0.time_s.roofline"}
KERNEL |= {"lower_s": "results.0.time_s.lower", "predicted_s": "results.0.time_s.predicted"}


def points(r: Random) -> Iterator[Pair]:
    """A workload on a roofline, compared between two devices, and by its own command."""
    on, other = r.sample(CALIBRATED, 2)
    if r.random() < 0.5:
        shape = f"n={size(r, 8192)},d={r.choice([64, 128])},heads={size(r, 16)},batch={size(r, 8)}"
        line, option = (
            "attention " + " ".join(f"--{part.replace('=', ' ')}" for part in shape.split(",")),
            f"--attention {shape},algorithm=flash2",
        )
        line += " --algorithm flash2"
    else:
        sizes = [size(r, 8192) for _ in range(3)]
        line, option = (
            "matmul " + " ".join(f"-{side} {value}" for side, value in zip("mnk", sizes, strict=True)),
            f"--matmul {'x'.join(map(str, sizes))}",
        )
    own = f"{line} --hardware {on}"
    drawn = {
        "predicted": ("charts.0.points.0.predicted.value", "results.0.time_s.predicted"),
        "roofline": ("charts.0.points.0.roofline_s", "results.0.time_s.roofline"),
    }
    for command in ("roofline", "report"):
        yield from pairs(f"{command} {option} --hardware {on}", own, **drawn)
    found = ask(f"compare {on} {other} {option}")
    if found is not None:
        rows = {row[1]: row[2] for table in found["data_tables"] for row in table["rows"]}
        named = [word for said in found["reasons"] for word in re.findall(r"is predicted for (\S+) on each device", said)]
        alone = ask(f"{own} --implementation {named[0]}") if named else ask(own)
        for name, path in (("time, predicted", "predicted"), ("time at the roof", "roofline")):
            if alone is not None and name in rows:
                yield Pair(f"{path}: compare {on} {other} {option}", rows[name], at(alone, f"results.0.time_s.{path}"))


def trainings(r: Random) -> Iterator[Pair]:
    """Memory of a training step, by the command for memory and by that for its time."""
    name, dp = r.choice(MODELS), r.choice([1, 2, 8])
    shared = f"{name} --batch {dp * r.choice([1, 2])} --n {128 * size(r, 16)} --dp {dp} --zero {r.randrange(4)} "
    shared += f" --recompute {r.choice(['none', 'full'])} --precision {r.choice(['mixed', 'bf16'])} --hardware {r.choice(CALIBRATED)}"
    system = f" --system {r.choice(SYSTEMS)}" * (dp > 1)
    if dp == 1:
        paths = {
            "peak": ("bytes.peak", "memory.peak"),
            "weights": ("bytes.weights", "memory.weights"),
            "parameters": ("parameters", "parameters.total"),
        }
        yield from pairs(f"memory {shared}", f"model {shared.replace(name, f'{name} --phase train', 1)}{system}", **paths)


def validations(r: Random) -> Iterator[Pair]:
    """A record against its prediction, and the command that predicts its kernel."""
    row = r.choice(recorded())
    shape, kind = row["shape"], row["workload"]
    sizes = {
        name.replace("_", "-"): value for name, value in shape.items() if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    words = [word for name, value in sizes.items() for word in ("-" * (1 + (len(name) > 1 or kind != "matmul")) + name, str(value))]
    words += [f"--{name}" for name in ("causal", "mask") if shape.get(name)]
    words += ["--pass", row["pass"]] if kind == "attention" else []
    state = row["cache"].replace("cold", "clean")
    line = f"{kind} {' '.join(words)} --dtype {row['dtype']} --hardware {row['hardware']} --cache {state}"
    found = ask(f"{line} --implementation {row['implementation']}")
    if found is None:
        return
    ran = (algorithm_of(row["implementation"]), row["pass"])
    known = [one for one in found["results"] if (one.get("algorithm"), one.get("pass")) == ran] if kind == "attention" else found["results"]
    alone = found["predicted"] if kind == "softmax" else known[0]
    yield Pair(f"predicted: {row['source'][-60:]} | {line}", row["predicted_s"], alone["time_s"]["predicted"])


MEASURED = ("torch-attention", "torch-matmul", "torch-eager", "torch-warm", "torch-decode", "torch-rows", "public-fp8-matmul")


@cache
def recorded() -> list[dict[str, Any]]:
    """Some of the shipped measurements as ``validate`` compares them: those that say nothing of the kernel that no option does."""
    r, every = Random(1), [raw_of(one) for path in shipped_records(*MEASURED) for _, one in read_records(path)]
    plain = [one for one in every if "cache" in one and not (one.get("launch") or "clock_mhz" in one.get("environment", ()))]
    plain = [one for one in plain if "row-major" not in one["source"]]
    with NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(f"{json.dumps(one)}\n" for one in r.sample(plain, 300))
        file.flush()
        found = ask(f"validate --records {file.name}")
    return [row for row in found["rows"] if row["predicted_s"] is not None and row["workload"] in ("attention", "matmul", "softmax")]


def python(r: Random) -> Iterator[Pair]:
    """Every number of a command's answer, from the command line and from Python."""
    name, on, n = r.choice(MODELS), device(r), size(r, 4096)
    command, places, options = r.choice(
        [
            ("matmul", (), {"m": n, "n": size(r, 4096), "k": 128, "hardware": on}),
            ("softmax", (), {"rows": n, "cols": 512, "hardware": on}),
            ("kv-cache", (name,), {"n": n, "batch": 4, "hardware": on}),
            ("model", (name,), {"phase": "decode", "kv_len": n, "batch": 4, "hardware": on}),
            ("batch", (name,), {"kv_len": n, "hardware": on}),
            ("memory", (name,), {"n": 128, "batch": 2, "hardware": on}),
            ("serve", (name,), {"isl": n, "osl": 16, "concurrency": 4, "hardware": r.choice(SERVED)}),
            ("attention", (), {"n": n, "d": 64, "heads": 8, "hardware": on}),
        ]
    )
    words = " ".join(
        [
            command,
            *places,
            *(f"{'-' if len(key) == 1 and command == 'matmul' else '--'}{key.replace('_', '-')} {value}" for key, value in options.items()),
        ]
    )
    there = ask(words)
    try:
        here: Any = api.answer(command, *places, **options)
    except PerfmodelError:
        here = None
    yield Pair(f"refused: {words}", here is None, there is None)
    if here is not None and there is not None:
        here.pop("provenance", None), there.pop("provenance", None)
        yield Pair(f"all: {words}", float(here == there), 1.0)


KINDS: dict[str, Callable[[Random], Iterator[Pair]]] = {
    "rows of a model": rows_of_a_model,
    "caches": caches,
    "batches": batches,
    "rows of a sweep": rows_of_a_sweep,
    "points": points,
    "trainings": trainings,
    "validations": validations,
    "python": python,
}
