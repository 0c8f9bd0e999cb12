"""Profiles of programs: what is read, counted and predicted of them, and what the command says."""

import gzip
import json
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.errors import DataError
from perfmodel.program.answer import ProgramAnswer
from perfmodel.program.calls import Call, Operand, UnknownError, broadcast, promoted
from perfmodel.program.capture import captured
from perfmodel.program.gains import gains
from perfmodel.program.operators import counted, table
from perfmodel.program.profile import read, repetitions
from perfmodel.timing.base import PASS
from perfmodel.timing.models.passes import KINDS
from perfmodel.validation.records import Record, read_records, shipped_records
from tools.scores.programs import programs

TRACES = Path(__file__).with_name("data") / "traces"
PAIRS = {"timesformer": (-0.24, 0.35), "bert-small": (-0.04, 0.07), "vit-nsfw": (0.10, -0.12), "qwen1.5": (0.10, -0.09)}
"""Errors of the kernels' time of a program moved from the H100 to the MI300X, and back, as ``docs/programs.md`` has them."""
ON = {
    "timesformer-h100": "h100-sxm",
    "timesformer-mi300x": "mi300x",
    "bert-small-h100": "h100-sxm",
    "bert-small-mi300x": "mi300x",
    "vit-nsfw-h100": "h100-sxm",
    "vit-nsfw-mi300x": "mi300x",
    "compiled-mi300x": "mi300x",
    "gpt-training-h200": "h200",
}
"""Shipped profiles: TimeSformer, bert-small and the compiled one from AMD-AGI/TraceLens (MIT), GPT training measured on an H200."""


def answer(name: str) -> ProgramAnswer:
    device = ON.get(name) or name.rpartition("-")[2]
    return ProgramAnswer(read(TRACES / f"{name}.json.gz"), find_device({"h100": "h100-sxm"}.get(device, device)), calibrated_devices)


def events(kernels: list[tuple[str, float, float]], **more: object) -> dict[str, object]:
    """A profile of copies of 1024 x 1024, each with its operator and launch: name, start and length in us."""
    found = []
    for number, (name, start, length) in enumerate(kernels):
        shapes = {"Input Dims": [[1024, 1024], [1024, 1024]], "Input type": ["float", "float"], "Input Strides": [[1024, 1], [1024, 1]]}
        found += [
            {"ph": "X", "cat": "cpu_op", "name": name, "tid": 1, "ts": start - 8, "dur": 6, "args": {"External id": number, **shapes}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start - 6, "dur": 3, "args": {"correlation": number}},
            {
                **{"ph": "X", "cat": "kernel", "name": "vectorized", "ts": start, "dur": length},
                "args": {"External id": number, "correlation": number, "stream": 7, "grid": [1024, 1, 1]},
            },
        ]
    return {"deviceProperties": [{"name": "NVIDIA H200"}], "traceEvents": found, **more}


def shipped() -> list[Record]:
    return [record for path in shipped_records() if path.name.startswith("programs.") for _, record in read_records(path)]


def written(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize("name", ON)
def test_shipped_profiles_are_counted_and_predicted_within_their_bounds(name: str) -> None:
    found = answer(name)
    assert found.known_share >= 0.95
    assert found.predicted_share >= 0.90
    assert all(one.lower_s <= one.group.measured_s * 1.0001 for one in found.priced)
    assert found.lower_s <= found.predicted_s("low") <= found.predicted_s() <= found.predicted_s("high")
    assert sum(one.measured_s for one in found.groups) == pytest.approx(sum(kernel.seconds for kernel in found.profile.kernels))
    assert found.profile.busy_s + sum(found.profile.waits.values()) == pytest.approx(found.profile.span_s)


def test_kernels_of_a_training_step_are_predicted_within_a_tenth() -> None:
    found = answer("gpt-training-h200")
    assert found.predicted_s() == pytest.approx(found.compared_s, rel=0.1)
    assert {"aten::mm", "aten::_cudnn_attention_backward", "aten::_foreach_addcdiv_"} <= {one.call.name for one in found.groups}


def test_waits_are_the_hosts_where_it_launches_late(tmp_path: Path) -> None:
    path = written(tmp_path, events([("aten::copy_", 100, 10), ("aten::copy_", 150, 10), ("aten::copy_", 160.5, 10)]))
    profile = read(path)
    assert profile.waits == pytest.approx({"host": 40e-6, "launch": 0.5e-6})
    assert profile.busy_s == pytest.approx(30e-6)


def test_steps_are_those_that_are_marked_or_repeated(tmp_path: Path) -> None:
    kernels = [(name, 100.0 * (place + 1), 10.0) for place, name in enumerate(["aten::copy_", "aten::neg"] * 3)]
    assert read(written(tmp_path, events(kernels))).steps == 3
    marked = events(kernels)
    marked["traceEvents"].append({"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "ts": 280, "dur": 200})  # type: ignore[attr-defined]
    profile = read(written(tmp_path, marked))
    assert (profile.steps, len(profile.kernels)) == (1, 2)
    assert repetitions(["a", "b", "a", "c"]) == 1


def test_steps_without_kernels_do_not_count(tmp_path: Path) -> None:
    marked = events([("aten::copy_", 100, 10), ("aten::neg", 200, 10)])
    for number, start in enumerate((50, 5000, 6000)):
        step = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": start, "dur": 300}
        marked["traceEvents"].append(step)  # type: ignore[attr-defined]
    assert read(written(tmp_path, marked)).steps == 1


def test_kernels_of_a_graph_are_one_step_and_cannot_be_put_into_one(tmp_path: Path) -> None:
    content = events([(f"aten::{name}", 100.0 + 50 * place, 10) for place, name in enumerate(("copy_", "neg", "mul"))])
    for event in content["traceEvents"]:  # type: ignore[attr-defined]
        event["args"].pop("External id", None)
        event["name"] = {"cudaLaunchKernel": "cudaGraphLaunch", "vectorized": f"kernel at {event['ts']}"}.get(event["name"], event["name"])
    found = ProgramAnswer(read(written(tmp_path, content)), find_device("h200"), calibrated_devices)
    assert (found.profile.steps, found.profile.graphs, found.known_share) == (1, 3, 0.0)
    assert gains(found) == []


def test_a_device_on_which_little_is_predicted_is_refused(run: Any) -> None:
    outcome = run("", "trace", str(TRACES / "compiled-mi300x.json.gz"), "--on", "t4")
    assert outcome.code == 1
    assert "is predicted on nvidia-t4: nvidia-t4 has no bf16 peak" in outcome.err


def test_a_host_that_is_late_everywhere_limits_every_device(tmp_path: Path) -> None:
    late = [("aten::copy_", 1000.0 * (place + 1), 5) for place in range(20)]
    found = ProgramAnswer(read(written(tmp_path, events(late))), find_device("h200"), calibrated_devices)
    assert found.on(find_device("b200")).speedup == pytest.approx(1, rel=0.01)
    queued = events([("aten::copy_", 1000.0 + 6.0 * place, 5) for place in range(20)])
    for event in queued["traceEvents"]:  # type: ignore[attr-defined]
        event["ts"] = event["ts"] if event["cat"] == "kernel" else 10.0
    busy = ProgramAnswer(read(written(tmp_path, queued)), find_device("h200"), calibrated_devices)
    assert busy.on(find_device("l4")).speedup < 0.2


def test_whatever_is_cut_off_or_foreign_is_one_message(tmp_path: Path) -> None:
    whole = json.dumps(events([("aten::copy_", 100, 10)] * 3))
    for end in range(0, len(whole) - 2, 37):
        with pytest.raises(DataError):
            read(written(tmp_path, whole[:end]))
    packed = tmp_path / "cut.json.gz"
    packed.write_bytes(gzip.compress(whole.encode())[:-20])
    with pytest.raises(DataError, match="cut off or broken"):
        read(packed)
    for content, said in (
        ("[]", "no kernel"),
        ("{}", "traceEvents"),
        ('{"traceEvents": [1, null, {"cat": "kernel", "ph": "X"}]}', "event 1, .* lacks"),
        ('{"traceEvents": [{}, ' + '{"args":' * 100_000, "event 2 is nested too deep"),
        ('{"traceEvents": [{"ts": ' + "1" * 5000 + "}]}", "too many digits"),
        ('{"a": ' + "[" * 100_000 + '1, "traceEvents": []}', "no kernel"),
        ("<!DOCTYPE html><html></html>", "traceEvents"),
        ("", "traceEvents"),
    ):
        with pytest.raises(DataError, match=said):
            read(written(tmp_path, content))
    (tmp_path / "a.ncu-rep").write_bytes(b"\x00\xff" * 100)
    with pytest.raises(DataError, match="no text") as raised:
        read(tmp_path / "a.ncu-rep")
    assert "ncu --import" in str(raised.value)
    for place, said in ((tmp_path, "not a regular file"), (tmp_path / "none.json", "no such file")):
        with pytest.raises(DataError, match=said):
            read(place)


@pytest.mark.parametrize("rest", ['"a": ' + "[" * 100_000, '"peak_bytes": 1e999}', '"launch_s": [0, NaN, 1]}'])
def test_a_captured_program_that_makes_no_sense_is_one_message(tmp_path: Path, rest: str) -> None:
    fields = '"peak_bytes": 1, "before_bytes": 0, "launch_s": [0, 0, 0], "operators": [["aten::neg"]], "calls": [0], '
    with pytest.raises(DataError, match="no captured program"):
        captured(written(tmp_path, f'{{"schema": "perfmodel.operators/1", {fields}{rest}'))


@pytest.mark.parametrize("seed", range(60))
def test_hostile_events_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    content = events([("aten::copy_", 100, 10), ("aten::mm", 120, 10), ("triton_poi_fused_add_0", 140, 5)])
    strange = [None, -1, "x", [], {}, [[1, -2]], 1e300, float("nan"), [1], 7, "aten::mm"]
    for event in content["traceEvents"]:  # type: ignore[attr-defined]
        for place in (event, event.get("args", {})):
            for key in list(place):
                if key != "args" and random.random() < 0.15:
                    place[key] = strange[random.integers(len(strange))]
    try:
        found = ProgramAnswer(read(written(tmp_path, content)), find_device("h200"), calibrated_devices)
    except DataError:
        return
    assert found.known_share <= 1.0
    assert gains(found) is not None


# Operators


def contiguous(*shape: int, dtype: str = "bf16") -> Operand:
    return Operand(shape, dtype, tuple(int(np.prod(shape[place + 1 :])) for place in range(len(shape))))


def test_products_are_those_of_their_shapes() -> None:
    a, b = contiguous(64, 96), contiguous(96, 160)
    flops = 2 * 64 * 96 * 160
    calls = {
        "aten::mm": (a, b),
        "aten::addmm": (contiguous(160), a, b),
        "aten::bmm": (contiguous(4, 64, 96), contiguous(4, 96, 160)),
        "aten::linear": (a, contiguous(160, 96), contiguous(160)),
    }
    for name, arguments in calls.items():
        [op] = counted(Call(name, arguments))
        assert op.kernel.flops == flops * (4 if name == "aten::bmm" else 1), name
    with pytest.raises(UnknownError):
        counted(Call("aten::mm", (a, contiguous(95, 160))))


def test_rows_of_products_are_aligned_as_they_lie_in_memory() -> None:
    a, odd = contiguous(4096, 768), contiguous(50257, 768)
    transposed = Operand((768, 50257), "bf16", (1, 768))
    assert _aligned(Call("aten::mm", (a, transposed))) == 1  # the result has rows of 50257
    gradient = Operand((50257, 4096), "bf16", (1, 50257))
    assert _aligned(Call("aten::mm", (gradient, contiguous(4096, 768)))) == 1
    assert _aligned(Call("aten::mm", (contiguous(4096, 50304), Operand((50304, 768), "bf16", (768, 1))))) % 8 == 0
    assert odd.stored == 50257 * 768


def _aligned(call: Call) -> int:
    [op] = counted(call)
    assert op.timed is not None
    return int(op.timed.workload.aligned)


@pytest.mark.parametrize("seed", range(30))
def test_element_wise_operators_move_each_distinct_element_once(seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = tuple(int(size) for size in random.integers(1, 6, random.integers(1, 5)))
    arrays = []
    for _ in range(2):
        sizes = [size if random.random() < 0.7 else 1 for size in shape]
        array = np.zeros(sizes, np.float32)
        arrays.append(np.transpose(np.zeros(sizes[::-1], np.float32)) if random.random() < 0.4 else array)
    tensors = [Operand(array.shape, "fp32", tuple(stride // 4 for stride in array.strides)) for array in arrays]
    [op] = counted(Call("aten::add", tuple(tensors)))
    out = np.broadcast_shapes(*(array.shape for array in arrays))
    assert broadcast(*(array.shape for array in arrays)) == out
    assert op.kernel.bytes("write") == 4 * np.prod(out, dtype=int)
    assert op.kernel.bytes("read") == 4 * sum(array.size for array in arrays)
    assert op.timed is not None
    alike = all(array.shape == out and array.flags.c_contiguous for array in arrays)
    if alike and np.prod(out) > 1:
        assert op.timed.workload.kind == "elements"


def test_passes_are_told_apart_by_strides_and_formats() -> None:
    x = contiguous(64, 128, 256)
    heads = Operand((8, 12, 64, 32), "bf16", (12 * 64 * 32, 32, 12 * 32, 1))
    turned = Operand((64, 256, 128), "bf16", (128 * 256, 1, 256))
    kinds = {
        "elements": ("aten::mul", x, x),
        "cast": ("aten::add", x, contiguous(64, 128, 256, dtype="fp32")),
        "strided": ("aten::mul", x, contiguous(256)),
        "strided-cast": ("aten::mul", heads, contiguous(8, 12, 64, 32, dtype="fp32")),
        "transposed": ("aten::copy_", contiguous(64, 256, 128), turned),
        "functions": ("aten::gelu", x),
    }
    for kind, (name, *tensors) in kinds.items():
        [op] = counted(Call(name, tuple(tensors)))
        assert op.timed is not None
        assert op.timed.workload.kind == kind, name
    [rounded] = counted(Call("aten::copy_", (x, contiguous(64, 128, 256, dtype="fp32"))))
    assert rounded.timed is not None
    assert rounded.timed.workload.kind == "elements"  # fp32 to 16 bits has vectors of its own
    assert promoted("bf16", "fp16") == promoted("bf16", "fp32") == "fp32"


def test_every_kind_of_pass_is_calibrated() -> None:
    """Of the operators of all measured programs, and of all records."""
    counted_kinds = {
        op.timed.workload.kind for _, _, groups in programs() for group in groups for op in group.ops if op.timed and op.timed.kind == PASS
    }
    recorded = {record.implementation.removeprefix("torch-") for record in shipped() if record.workload == PASS}
    calibrated = {block.implementation.removeprefix("torch-") for block in find_device("h200").calibration if block.workload == PASS}
    assert counted_kinds | recorded <= set(KINDS) == calibrated


@pytest.mark.parametrize(
    ("mask", "dropout", "keys"), [(None, "0.", 512), (None, "0.1", 512), (512, "0.", 512), (509, "0.", 509), (512, "0.1", 512)]
)
def test_a_mask_or_dropout_makes_fused_attention_slower(mask: int | None, dropout: str, keys: int) -> None:
    q, k = contiguous(2, 8, 512, 64), contiguous(2, 8, keys, 64)
    bias = None if mask is None else contiguous(1, 1, 512, mask)
    call = Call("aten::_cudnn_attention_forward", (q, k, k, bias, None, None, "512", str(keys), "False", dropout, "False"))
    [op] = counted(call)
    assert op.timed is not None
    assert (op.timed.slower > 1) == bool(op.timed.similar) == (mask is not None or dropout != "0.")
    assert any(access.tensor == "mask" for access in op.kernel.accesses) == (mask is not None)


def test_a_convolution_is_a_product_of_its_windows() -> None:
    x, weight = contiguous(4, 64, 28, 28), contiguous(96, 64, 3, 3)
    pads = ("[1, 1]", "[1, 1]", "[1, 1]", "1")
    product, layout = counted(Call("aten::cudnn_convolution", (x, weight, *pads)))
    assert product.kernel.flops == 2 * 4 * 28 * 28 * 96 * 64 * 9
    assert layout.timed is not None
    assert layout.timed.workload.kind == "layout"
    gradient = contiguous(4, 96, 28, 28)
    backward, _ = counted(
        Call("aten::convolution_backward", (gradient, x, weight, None, *pads[:3], "False", "[0, 0]", "1", "[True, True, False]"))
    )
    assert backward.kernel.flops == 2 * product.kernel.flops
    [depthwise] = counted(Call("aten::_conv_depthwise2d", (x, contiguous(64, 1, 3, 3), "[3, 3]", None, "[1, 1]", "[1, 1]", "[1, 1]")))
    assert depthwise.kernel.work.vector == 2 * 4 * 28 * 28 * 64 * 9


@pytest.mark.parametrize("name", ["bilinear", "bicubic", "nearest"])
def test_images_made_larger_count_by_their_planes(name: str) -> None:
    """Twice the images or channels are twice the bytes and the work; mixed pixels take blocks of 1,024 places each."""

    def made(images: int, channels: int) -> tuple[int, int, int]:
        [op] = counted(Call(f"aten::upsample_{name}2d", (contiguous(images, channels, 8, 8), "[16, 96]")))
        assert op.timed is not None
        assert op.timed.workload.rows == (0 if name == "nearest" else 2)
        return int(op.kernel.bytes("read")), int(op.kernel.bytes("write")), op.timed.workload.elements

    one = made(3, 5)
    assert one == (3 * 5 * 64 * 2, 3 * 5 * 16 * 96 * 2, 3 * 5 * (16 * 96 if name == "nearest" else 2048))
    assert made(6, 5) == made(3, 10) == tuple(2 * number for number in one)


@pytest.mark.parametrize(
    ("shape", "axis", "warps", "parts"),
    [
        ((2048, 4096), "[1]", 2048, 0),  # a warp each
        ((128, 12544), "[1]", 128 * 16, 0),  # a block each
        ((1, 1, 2048), "[0, 1]", 16, 0),
        ((52800, 192), "[0]", 6600, 825),  # columns of four beside one another, shared by blocks
        ((64, 8, 14, 14), "[0, 2, 3]", 8 * 16, 0),
    ],
)
def test_warps_of_a_reduction(shape: tuple[int, ...], axis: str, warps: int, parts: int) -> None:
    """As PyTorch's setReduceConfig shares them out on 132 multiprocessors."""
    [op] = counted(Call("aten::sum", (contiguous(*shape), axis)))
    assert op.timed is not None
    w = op.timed.workload
    assert (w.rows, w.parts) == (warps, parts)
    assert w.elements >= prod(shape)
    assert op.kernel.bytes("read") == 2 * prod(shape)


def test_lists_move_what_their_operator_needs() -> None:
    lists = (contiguous(1 << 20), contiguous(1 << 18)), (contiguous(1 << 20), contiguous(1 << 18))
    size, blocks = 2 * ((1 << 20) + (1 << 18)), 20

    def moved(name: str, *operands: Any) -> tuple[int, int]:
        [op] = counted(Call(f"aten::_foreach_{name}", operands))
        return int(op.kernel.bytes("read")), int(op.kernel.bytes("write"))

    assert moved("add_", *lists) == (2 * size, size)
    assert moved("copy_", *lists) == (size, size)
    assert moved("zero_", lists[0]) == (0, size)
    assert moved("norm", lists[0], "2.") == (size, 4 * blocks)
    assert moved("addcmul_", lists[0], *lists) == (2 * size, size), "the factors are one list"


def test_a_stride_beyond_the_window_leaves_elements_unread() -> None:
    """A 1 x 1 window in steps of two needs a quarter of the picture."""
    x, weight = contiguous(8, 64, 28, 28, dtype="fp32"), contiguous(128, 64, 1, 1, dtype="fp32")
    read = []
    for step in ("[1, 1]", "[2, 2]"):
        timed = counted(Call("aten::cudnn_convolution", (x, weight, "[0, 0]", step, "[1, 1]", "1")))[0].timed
        assert timed is not None
        read.append(timed.workload.read_bytes)
    assert read[0] - weight.bytes == x.bytes == 4 * (read[1] - weight.bytes)


def test_gradients_of_a_lookup_are_as_wide_as_its_rows() -> None:
    """Gradients of 64 places are read, with the places of 8 bytes four times to sort them, and added to as many rows."""
    for width in (256, 512):
        call = Call("aten::embedding_dense_backward", (contiguous(4, 16, width), contiguous(4, 16, dtype="int64"), "1000", "-1", "False"))
        [op] = counted(call)
        assert (op.kernel.bytes("read"), op.kernel.bytes("write")) == (64 * width * 2 + 4 * 64 * 8, 64 * width * 2)


def test_gradients_of_grouped_products_are_a_product_for_each_group() -> None:
    offsets = contiguous(8, dtype="int32")
    [op] = counted(Call("aten::_grouped_mm", (contiguous(7168, 4096), contiguous(4096, 1024), offsets)))
    assert op.kernel.flops == 2 * 7168 * 4096 * 1024
    assert op.kernel.bytes("write") == 2 * 8 * 7168 * 1024


def test_collectives_are_known_by_their_records_and_one_gpu_of_several_is_shown(tmp_path: Path) -> None:
    profile = events([("record_param_comms", 100, 30), ("aten::neg", 200, 10), ("aten::neg", 210, 5)])
    kernels = [event for event in profile["traceEvents"] if event["cat"] == "kernel"]  # type: ignore[attr-defined]
    kernels[2]["args"]["device"] = 1
    record = next(event for event in profile["traceEvents"] if event["name"] == "record_param_comms")  # type: ignore[attr-defined]
    record["args"] |= {
        "Collective name": "_allgather_base",
        "Group size": 8,
        "dtype": "BFloat16",
        "In msg nelems": 100,
        "Out msg nelems": 800,
    }
    found = ProgramAnswer(read(written(tmp_path, profile)), find_device("h200"), calibrated_devices)
    assert found.profile.gpus == 2
    assert [kernel.seconds for kernel in found.profile.kernels] == pytest.approx([30e-6, 10e-6])
    gather = next(group for group in found.groups if group.call.name == "c10d::_allgather_base")
    assert gather.ops[0].timed is not None
    w = gather.ops[0].timed.workload
    assert (w.op, w.world, w.bytes) == ("all_gather", 8, 1600)
    assert found.predicted_share == 1


def test_every_operator_refuses_calls_that_make_no_sense() -> None:
    for name in table():
        for arguments in ((), (None, "x"), (contiguous(0, 3),), (contiguous(2), contiguous(3, 3), ())):
            try:
                assert all(op.kernel.flops >= 0 for op in counted(Call(name, arguments)))
            except UnknownError:
                continue


@pytest.mark.parametrize("name", PAIRS)
def test_programs_moved_between_makers_are_as_near_as_the_page_says(name: str) -> None:
    pair = answer(f"{name}-h100"), answer(f"{name}-mi300x")
    for (here, there), error in zip((pair, pair[::-1]), PAIRS[name], strict=True):
        assert here.on(there.device).kernels_s / there.measured_s - 1 == pytest.approx(error, abs=0.006)


# The command


def test_the_command_says_what_can_be_won_and_moves_the_program(run: Any) -> None:
    path = str(TRACES / "gpt-training-h200.json.gz")
    data = run("", "trace", path, "--on", "a100-sxm-80gb", "--on", "b200", "--gpu-hour", "b200=5", "--json").json
    assert data["predicted_s"] == pytest.approx(data["compared_s"], rel=0.1)
    assert data["low_s"] < data["predicted_s"] < data["high_s"]
    assert data["busy_s"] == pytest.approx((1 - data["idle_share"]) * data["span_s"])
    assert {one["what"] for one in data["gains"]} >= {"launch as a CUDA graph"}
    assert all(earlier["seconds"] >= later["seconds"] for earlier, later in pairwise(data["gains"]))
    a100, b200 = data["devices"]
    assert a100["predicted_s"] > data["span_s"] > b200["predicted_s"]
    assert b200["price"] > 0
    assert "the GPU is busy" in run("", "trace", path).out


def test_a_program_compared_with_itself_is_the_same(run: Any) -> None:
    path = str(TRACES / "bert-small-h100.json.gz")
    data = run("", "trace", path, "--compare", path, "--json").json
    assert {one["change"] for one in data["changes"]} == {"SAME"}
    assert sum(one["won_s"] for one in data["changes"]) == 0


# Predictions as traces


@pytest.mark.parametrize("line", ["model llama-3-8b --phase decode --batch 8 --kv-len 2048", "model gpt2 --phase train --batch 8 --n 1024"])
def test_a_predicted_step_is_written_as_a_trace(run: Any, tmp_path: Path, line: str) -> None:
    path = tmp_path / "step.trace.json"
    data = run(line, "--hardware", "h200", "-o", str(path), "-o", "-", "--json").json
    spans = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    kernels = sum(event["dur"] for event in spans) * 1e-6
    assert kernels == pytest.approx(sum(one["time_s"]["predicted"] for one in data["ops"]), rel=1e-3)
    assert all(later["ts"] == pytest.approx(one["ts"] + one["dur"], abs=1e-3) for one, later in pairwise(spans))
    assert spans[0]["name"] == "embedding lookup"
    assert len(spans) == sum(one["count"] for one in data["ops"])


def test_a_profile_and_its_prediction_stand_beside_each_other(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "both.trace"
    assert run("", "trace", str(TRACES / "bert-small-h100.json.gz"), "-o", str(path)).code == 0
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} == {"measured", "predicted"}
    assert "no format is written to '.trace'" in run("attention --n 64 --d 64 -o x.trace").err
