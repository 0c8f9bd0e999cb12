"""Captured programs: what their operators are, the file, and the answer; all but the recorder without PyTorch."""

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

import perfmodel
from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.errors import DataError, UsageError
from perfmodel.program.calls import Call, Operand
from perfmodel.program.capture import Captured, captured, launches, predicted_profile
from perfmodel.program.launched import launched

X = Operand((512, 1024), "bf16", (1024, 1))
PRODUCT = Call("aten::mm", (X, Operand((1024, 4096), "bf16", (1, 1024))))
ADDED = Call("aten::add", (X, X, "1"))
STEP = Captured([PRODUCT, ADDED, PRODUCT, Call("aten::_foreach_add_", ((X, X), "1"))], 3 << 30, 1 << 30)


def names(call: Call, *results: Operand) -> list[str]:
    return [one.name.removeprefix("aten::") for one in launched(call, results)]


def test_what_the_dispatcher_sees_is_what_launches() -> None:
    assert names(Call("aten::view", (X, "[512, 1024]")), X) == []
    assert names(Call("aten::_to_copy", (Operand(X.shape, "fp32"), None)), X) == ["copy_"]
    assert launched(Call("aten::zeros", ("[512, 1024]",)), [X]) == [Call("aten::fill_", (X, "0"))]
    assert names(Call("aten::slice_backward", (X, "[512, 2048]", "1", "0", "1024", "1")), Operand((512, 2048), "bf16", (2048, 1))) == [
        "fill_",
        "copy_",
    ]
    index, table = Operand((4, 8), "int64", (8, 1)), Operand((100, 64), "bf16", (64, 1))
    [gather] = launched(Call("aten::embedding", (table, index)), [Operand((4, 8, 64), "bf16", (512, 64, 1))])
    assert gather.name == "aten::gather"
    assert gather.tensor(2) == Operand((32, 64), "int64", (1, 0))
    assert names(Call("aten::embedding", (table, Operand((4, 8), "int64", (0, 1)))), X) == ["copy_", "gather"]
    assert names(Call("aten::embedding", (Operand((100, 12), "bf16", (12, 1)), index)), X) == ["index_select"]
    rule = Call(
        "aten::convolution",
        (Operand((2, 3, 9), "bf16", (27, 9, 1)), Operand((4, 3, 3), "bf16", (9, 3, 1)), None, "[1]", "[1]", "[1]", "False", "[0]", "1"),
    )
    [product] = launched(rule, [Operand((2, 4, 9), "bf16", (36, 9, 1))])
    assert (product.tensor(0).shape, product.arguments[2:5]) == ((2, 3, 1, 9), ("[0, 1]", "[1, 1]", "[1, 1]"))


def test_lists_take_as_many_kernels_as_their_blocks_and_tensors_need() -> None:
    small, large = Operand((8,), "fp32", (1,)), Operand((1 << 26,), "fp32", (1,))
    assert launches(Call("aten::_foreach_mul_", ((small,) * 159, "1"))) == 2
    assert launches(Call("aten::_foreach_addcdiv_", ((small,) * 159,) * 3)) == 4
    assert launches(Call("aten::_foreach_mul_", ((large,), "1"))) == 4


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_a_captured_program_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    STEP.save(tmp_path / name)
    assert captured(tmp_path / name) == STEP
    assert captured(tmp_path / "nowhere.json") is None


def test_whatever_is_cut_off_is_one_message(tmp_path: Path) -> None:
    STEP.save(tmp_path / "step.json")
    text = (tmp_path / "step.json").read_text()
    for end in range(60, len(text) - 1, 7):
        (tmp_path / "cut.json").write_text(text[:end])
        with pytest.raises(DataError, match="cut off"):
            captured(tmp_path / "cut.json")
    content: dict[str, Any] = json.loads(text)
    for key in ("operators", "calls", "peak_bytes", "launch_s"):
        (tmp_path / "cut.json").write_text(json.dumps(content | {key: None}))
        with pytest.raises(DataError, match="cut off"):
            captured(tmp_path / "cut.json")


def test_a_step_lasts_as_long_as_its_kernels_or_the_host() -> None:
    device = find_device("h200")
    profile, (low, high) = predicted_profile(STEP, device, calibrated_devices)
    assert low < profile.span_s < high
    assert profile.span_s >= STEP.launches * STEP.launch_s[1]
    fast, _ = predicted_profile(Captured(STEP.calls, 0, 0, (0.0, 0.0, 0.0)), device, calibrated_devices)
    assert sum(kernel.seconds for kernel in fast.kernels) <= fast.span_s < profile.span_s
    assert fast.waits["host"] == 0.0


def test_the_command_says_that_it_is_predicted(run: Any, tmp_path: Path) -> None:
    STEP.save(tmp_path / "step.json")
    out = run("", "trace", str(tmp_path / "step.json"), "--hardware", "h200", "--on", "b200", "--full").out
    assert "no GPU ran it" in out
    assert "3 GiB at most, 1 GiB before the step" in out
    assert "than predicted here" in " ".join(out.split())
    data = run("", "trace", str(tmp_path / "step.json"), "--hardware", "h200", "--json").json
    assert data["span_s"] is data["measured_s"] is data["operators"][0]["measured_s"] is None
    assert data["step"]["low"] < data["step"]["predicted_s"] < data["step"]["high"]
    assert data["peak_bytes"] == 3 << 30


def test_without_pytorch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def missing(name: str, *args: Any) -> Any:
        if name == "perfmodel.program.recorder":
            raise ImportError("No module named 'torch'")
        return load(name, *args)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match="needs PyTorch"):
        perfmodel.capture(len)


def test_a_training_step_is_captured_and_leaves_the_model_as_it_was() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.SiLU(), torch.nn.Linear(256, 64)).to("meta")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(32, 64)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    found = perfmodel.capture(step)
    called = [one.name.removeprefix("aten::") for one in found.calls]
    assert (called.count("addmm"), called.count("silu_backward"), called.count("_foreach_addcdiv_")) == (2, 1, 1)
    assert next(one for one in found.calls if one.name == "aten::addmm").tensor(1).dtype == "bf16"
    weights = 4 * sum(one.numel() for one in model.parameters())
    assert 3 * weights <= found.before_bytes - 2 * (32 << 20) <= 3 * weights + 32 * 512 + 32 * 64 * 4
    assert found.before_bytes < found.peak_bytes
    assert {one.device.type for one in model.parameters()} == {"meta"}
    assert (x.device.type, len(optimizer.state)) == ("cpu", 0)


def test_a_layer_that_is_dropped_at_random_is_kept() -> None:
    """A random number is taken as 0.5: layers that few steps leave out run."""
    torch = pytest.importorskip("torch")

    def step(x: Any) -> Any:
        return x if torch.rand([]) < 0.1 else x + 1

    found = perfmodel.capture(step, torch.empty(8, device="meta"))
    assert [call.name for call in found.calls] == ["aten::add"]


def test_a_question_for_a_value_is_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError, match="asks for a value"):
        perfmodel.capture(lambda x: x.sum().item(), torch.zeros(4))
    found = perfmodel.capture(lambda x: x.bool().all().item(), torch.zeros(4))
    assert [one.name for one in found.calls] == ["aten::copy_", "aten::all", "aten::_local_scalar_dense"]


def test_a_checkpoint_runs_again_with_the_same_kernels_and_its_places_are_kept() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint

    layers = torch.nn.ModuleList(torch.nn.Linear(64, 192) for _ in range(3)).to("meta")
    x = torch.randn(2, 128, 64, device="meta", requires_grad=True)

    def attend(layer: Any, y: Any) -> Any:
        q, k, v = layer(y).view(2, 128, 1, 192).transpose(1, 2).split(64, dim=-1)
        return y + torch.nn.functional.scaled_dot_product_attention(q, k, v)[:, 0]

    def step() -> None:
        y = x
        with torch.autocast("cuda", torch.bfloat16):
            for layer in layers:
                y = checkpoint(attend, layer, y, use_reentrant=False)
        y.float().square().mean().backward()

    found = perfmodel.capture(step)
    begin, end = found.backward_places
    names = [one.name.removeprefix("aten::") for one in found.calls]
    assert names[:begin].count("_cudnn_attention_forward") == names[begin:end].count("_cudnn_attention_forward") == 3
    assert len(found.repeated) == 3
    assert begin <= found.repeated[0] < found.repeated[-1] < end


@pytest.mark.parametrize(("grows", "warm_up", "planned"), [(1, 1, 1), (1, 0, 0), (0, 1, 0)])
def test_attention_is_planned_where_its_sizes_are_new(grows: int, warm_up: int, planned: int) -> None:
    torch = pytest.importorskip("torch")
    new = torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16, device="meta")
    kept = [torch.zeros(1, 1, 8, 64, dtype=torch.bfloat16, device="meta")]

    def step() -> None:
        for _ in range(2):
            torch.nn.functional.scaled_dot_product_attention(new, kept[0], kept[0])
        kept[0] = torch.cat([kept[0], *[new] * grows], dim=2)

    found = perfmodel.capture(step, warm_up=warm_up)
    assert [found.calls[place].name for place in found.planned] == ["aten::_cudnn_attention_forward"] * planned
