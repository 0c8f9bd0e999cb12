"""Models sized as a person does it: what several GPUs keep, what is held back, where more batch stops paying, what is said first."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from each import each
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.catalog import calibrated_devices, device_ids, find_device, find_model
from perfmodel.core.errors import PerfmodelError
from perfmodel.remat.evaluate import evaluate
from perfmodel.remat.schedule import Plan
from perfmodel.remat.source import listed
from perfmodel.report.batch import report as batch_report
from perfmodel.report.memory import by_tensor, over_step, parts_of
from perfmodel.report.remat import POINTS, Units, moments_of, outline, timeline
from perfmodel.transformer.cache_plan import evaluate as evaluate_cache
from perfmodel.transformer.cache_plan import workload
from perfmodel.transformer.generation import Curve, curve
from perfmodel.transformer.kv_cache import CacheFormat
from perfmodel.transformer.parallel import step_memory
from perfmodel.transformer.question import BatchQuestion
from perfmodel.transformer.spec import DenseMlp, GroupedAttention, Layer, ModelSpec, MoeMlp
from perfmodel.transformer.step import DECODE, Request, Split, decode
from perfmodel.transformer.training.memory import evaluate as evaluate_memory
from perfmodel.transformer.training.question import EVERY, FULL, NONE, SELECTIVE, Parallel, Recomputation, TrainingConfig

fallbacks = cache(calibrated_devices)
GB = 10**9


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


# The knee


def holds(found: Curve) -> None:
    """No knee lies past the best throughput, and none is missing where throughput falls before memory ends."""
    assert (found.knee or found.points[-1].batch) <= found.best.batch
    assert found.knee is None or found.knee in [point.batch for point in found.points]
    said, end = batch_report(found).verdict[1].lower(), "knee at batch" if found.knee else "most tokens/s at batch"
    assert f"{end} {found.knee or found.best.batch:,}: " in said


def test_no_knee_is_past_the_best_throughput():
    """By the bound more batch still pays at the end of memory, when the predicted throughput has fallen."""
    asked = BatchQuestion("llama-2-13b", kv_len=128)
    found = curve(asked.request_for(find_model("llama-2-13b"), find_device("a100-pcie-40gb")), fallbacks)
    holds(found)
    assert found.knee == found.best.batch < found.points[-1].batch


mlps = st.builds(DenseMlp, st.sampled_from([256, 1024, 14336])) | st.builds(
    MoeMlp, st.sampled_from([4, 64]), st.sampled_from([1, 2]), st.sampled_from([256, 2048])
)
attentions = st.builds(lambda kv, group, d: GroupedAttention(kv * group, kv, d), *map(st.sampled_from, ([1, 4, 8], [1, 4], [64, 128])))
models = st.builds(
    lambda hidden, attention, mlp, layers: ModelSpec("drawn", "llama", hidden, 32000, (Layer(attention, mlp),) * layers),
    st.sampled_from([256, 1024, 5120]),
    attentions,
    mlps,
    st.sampled_from([1, 8, 40]),
)


def check_knee(model: ModelSpec, device: str, kv_len: int) -> None:
    try:
        found = curve(Request(DECODE, 1, kv_len, kv_len, model=model, device=find_device(device)), fallbacks)
    except PerfmodelError:  # a rate that the profile lacks
        return
    holds(found)


DRAWN = given(models, st.sampled_from(device_ids()), st.sampled_from([16, 128, 2048, 65536]))


@settings(max_examples=3)
@DRAWN
def test_no_knee_is_past_the_best_of_any_model(model, device, kv_len):
    check_knee(model, device, kv_len)


@pytest.mark.slow
@settings(max_examples=300)
@DRAWN
def test_no_knee_is_past_the_best_of_many_models(model, device, kv_len):
    check_knee(model, device, kv_len)


# Caches and weights on several GPUs


@pytest.mark.parametrize(
    ("name", "tp", "size", "copies"),
    [
        ("llama-3-70b", 1, 2 * 80 * 8 * 128 * 2, 1),
        ("llama-3-70b", 8, 2 * 80 * 128 * 2, 1),  # one of 8 KV heads each
        ("llama-3-70b", 16, 2 * 80 * 128 * 2, 2),  # each head on two GPUs
        ("llama-3-70b", 64, 2 * 80 * 128 * 2, 8),
        ("gpt2", 4, 2 * 12 * 3 * 64 * 2, 1),
        ("deepseek-v3", 8, 61 * (512 + 64) * 2, 8),  # the latent is whole on each
    ],
)
def test_what_a_gpu_keeps_of_a_token(run, name, tp, size, copies):
    w = workload(find_model(name), 1000, 3, CacheFormat("fp16"), "fp16", tp=tp)
    found = evaluate_cache(w, find_device("h200"))
    assert (found.per_token, found.total, found.copies) == (size, 3000 * size, copies)
    out = run(f"kv-cache {name} --n 1000 --tp {tp} --full").out
    assert (f"each is kept {copies} times" in out) == (copies > 1 and name != "deepseek-v3")
    assert ("keeps the whole latent" in out) == (name == "deepseek-v3")
    assert ("per GPU" in out) == (tp > 1)


@each("name", ["llama-3-8b", "gemma-2-9b", "mixtral-8x7b", "deepseek-v2", "gpt2", "gpt-oss-20b"])
@each("tp", [1, 2, 4])
def test_a_cache_is_as_large_as_in_a_decode_step(name, tp):
    """And the weights beside it, and the batch that fits, where more is held back than activations take."""
    spec, device, reserve = find_model(name), find_device("h200"), 6 * GB
    found = evaluate_cache(workload(spec, 4096, 2, CacheFormat("bf16"), "bf16", reserve, tp), device)
    step = decode(2, 4096, split=Split(tp=tp))
    held = step_memory(spec, step, device, reserve)
    assert (found.total, found.weights) == (held.kv_cache, held.weights)
    assert held.activations < reserve
    assert held.total == found.total + found.weights + reserve
    assert found.batch == held.max_batch
    assert not held.max_batch or step_memory(spec, replace(step, batch=held.max_batch), device, reserve).fits
    assert not step_memory(spec, replace(step, batch=held.max_batch + 1), device, reserve).fits


def test_a_reserve_is_for_activations_too():
    """What is less than they take changes nothing; what leaves no room leaves no batch."""
    spec, device, step = find_model("llama-3-8b"), find_device("h200"), decode(64, 2048)
    plain = step_memory(spec, step, device)
    small, large = (step_memory(spec, step, device, size) for size in (1000, 200 * GB))
    assert (small.total, small.max_batch) == (plain.total, plain.max_batch)
    assert (large.fits, large.max_batch) == (False, 0)


def test_a_reserve_is_told_by_every_command(run):
    model = run("model gpt2 --phase decode --kv-len 512 --hardware a100-sxm-40gb --tp 2 --reserve 10GB --json").json
    batch = run("batch gpt2 --kv-len 512 --hardware a100-sxm-40gb --tp 2 --reserve 10GB --json").json
    cached = run("kv-cache gpt2 --n 512 --hardware a100-sxm-40gb --tp 2 --reserve 10GB --kv-dtype fp16 --json").json
    assert model["memory"]["max_batch"] == batch["max_batch"] == cached["max_batch"]
    assert model["memory"]["reserve"] == cached["memory"]["reserve_bytes"] == batch["inputs"]["reserve_bytes"] == 10 * GB
    assert batch["max_batch"] < run("batch gpt2 --kv-len 512 --hardware a100-sxm-40gb --tp 2 --json").json["max_batch"]
    assert run("model llama-3-8b --reserve 10").code == run("batch gpt2 --reserve much").code == 2


def test_formulas_of_a_cache_on_several_gpus_end_in_its_numbers(run):
    found = run("kv-cache llama-3-70b --n 8192 --batch 16 --tp 16 --hardware h200 --reserve 4GB --json --explain all").json
    values = {step["name"]: step["value"] for step in found["explanation"][0]["steps"]}
    assert (values["bytes per token"], values["bytes"]) == (found["bytes_per_token"], found["bytes"])
    assert (values["room"], values["max batch"]) == (found["memory"]["room_bytes"], found["max_batch"])
    assert values["with cache, cache read"] == found["generation"]["with_cache"]["cache_read_bytes"]


# Pictures


@pytest.mark.parametrize(
    ("line", "titles"),
    [
        ("model gpt2 --phase decode --kv-len 512 --hardware h200", ["Time by op", "Roofline of its ops"]),
        slow("model gpt2 --phase train --hardware h200", ["Where a step goes", "Time by kernel", "Roofline of its ops"]),
        slow("batch gpt2 --kv-len 512 --hardware h200", ["Tokens per second against time per step"]),
        slow("kv-cache gpt2 --hardware h200 --reserve 1GB", ["Memory over the context"]),
        ("memory gpt2 --hardware h200", ["Memory over the step"]),
        ("remat --layers 10 --checkpoints 5", ["Memory over time", "Peak memory against steps"]),
        slow("remat --layers 6 --budget 5", ["Memory over time"]),
        slow("remat --layers 4 --autograd", ["Memory over time"]),
    ],
)
def test_a_page_has_its_pictures_and_a_terminal_its_own(run, tmp_path, line, titles):
    page, text = tmp_path / "page.html", tmp_path / "page.md"
    assert run(line, "-o", str(page)).code == run(line, "-o", str(text)).code == 0
    html = page.read_text()
    assert all(title in html for title in titles)
    assert "<svg" in html
    assert "█" not in html, "characters of one width are drawn by a font that has others"
    full = run(line, "--full").out
    assert ("█" in full.split("\n\n", 2)[-1]) == line.startswith(("memory", "remat"))
    assert ("```text" in text.read_text()) == line.startswith(("memory", "remat"))


def test_a_schedule_peaks_where_it_does():
    source = listed(10, None, None, None, None)
    found = evaluate(source, Plan((5,)))
    run = found.run_of("segments")
    chart = timeline([("segments", moments_of(run))], "steps", Units(timed=False, sized=False))
    [series], [mark] = chart.series, chart.marks
    assert max(y for _, y in series.points) == mark.y == run.peak
    start = max(moment.end for moment in run.moments if moment.end < run.worst.end)
    assert start <= mark.x <= run.worst.end
    assert series.points[-1][0] == run.cost


def test_a_long_schedule_is_drawn_with_its_peak():
    moments = [(step, 5000 if step == 4800 else step % 7) for step in range(1, 10001)]
    drawn = outline(moments)
    assert len(drawn) <= 2 * POINTS
    assert max(drawn, key=lambda point: point[1])[0] == pytest.approx(4800, abs=50)


@pytest.mark.parametrize("recompute", [*map(Recomputation, (NONE, SELECTIVE, FULL)), Recomputation(EVERY, 5)])
@pytest.mark.parametrize("parallel", [Parallel(), Parallel(pp=4), Parallel(dp=8, zero=3)])
def test_a_step_peaks_where_it_does(parallel, recompute):
    training = TrainingConfig(find_model("gpt2-xl"), 8, 1024, parallel=parallel, recompute=recompute, flash=False)
    result = evaluate_memory(training, find_device("h200"))
    chart = over_step(result)
    peak, parts = result.peak, parts_of(result, result.peak.moment)
    sums = [sum(y for _, y in together) for together in zip(*(one.points for one in chart.series), strict=True)]
    assert max(sums) == pytest.approx(float(peak.bytes))
    assert chart.marks[0].y == peak.bytes
    stacked = {one.name: one.points[int(chart.marks[0].x) - 1][1] for one in chart.series}
    assert {name: size for name, size in stacked.items() if size} == pytest.approx({name: float(size) for name, size in parts.items()})
    before = next(place for place, moment in enumerate(peak.moments) if moment is peak.moment)
    first = sum(moment.count for moment in peak.moments[:before])
    assert first < chart.marks[0].x <= first + peak.moment.count
    tensors = by_tensor(result, chart, chart.series[-1])
    assert all(y >= 0 for one in tensors.series for _, y in one.points)
    whole = [sum(y for _, y in together) for together in zip(*(one.points for one in tensors.series), strict=True)]
    assert whole == pytest.approx([y for _, y in chart.series[-1].points])
