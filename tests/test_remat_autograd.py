"""What autograd keeps of a chain, against the tape's own passes and the MLP's; the layers of models as chains."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.catalog import calibrated_devices, find_device, find_model
from perfmodel.core.arith import Number
from perfmodel.core.dtypes import DTYPES
from perfmodel.kernels.mlp import Mlp, backward_flops, cached, forward_flops
from perfmodel.remat.autograd import eager_bytes, lazy_bytes, picture, records
from perfmodel.remat.chain import Chain, ChainLayer, uniform
from perfmodel.remat.device_chain import (
    ATTENTION_BACKWARD_OVER_FORWARD,
    BACKWARD_OVER_FORWARD,
    choices,
    linear_chain,
    linear_tensors,
    model_chain,
    model_tensors,
)
from perfmodel.remat.schedule import Plan
from perfmodel.remat.simulate import simulate
from perfmodel.remat.strategies import find
from perfmodel.transformer.training.tape import Tape, TapeNode, backward, forward

H200, A100 = find_device("h200"), find_device("nvidia-a100-sxm-80gb")
MB = 10**6


def tape(chain: Chain, relu: bool = False) -> Tape:
    """The operations of ``chain`` for the tape's own passes; ``relu``: each layer but the last ends in one."""
    nodes, sizes, last = [], {f"x{i}": size for i, size in enumerate(chain.sizes)}, len(chain) - 1
    for i, layer in enumerate(chain.layers):
        made, source, result = (f"z{i}" if relu and i < last else f"x{i + 1}"), f"x{i}", f"x{i + 1}"
        sizes[made] = layer.output
        nodes.append(TapeNode(f"{made} = {source} W{i}", (source,), (made,), (source,), layer.weights))
        if made != result:
            nodes.append(TapeNode(f"{result} = ReLU({made})", (made,), (result,), (result,)))
    return Tape("x0", sizes, nodes)


def saved_bytes(made: Tape) -> Number:
    """Of the tensors that a tape keeps for the backward pass."""
    return sum(made.sizes[name] for name in made.saved())


def test_the_lecture_example():
    """Claims S043 to S046: 32 MB per layer of 4000 x 1000 in float64, 64 with its gradient beside it."""
    chain = uniform(5, output=4000 * 1000 * 8)
    assert [eager_bytes(chain, layer) // MB for layer in (1, 2, 3)] == [64, 128, 192]
    assert [lazy_bytes(chain, layer) // MB for layer in range(1, 6)] == [32, 64, 96, 128, 160]
    found = picture(chain)
    assert [(r.operation, r.keeps, r.purpose, r.freed_by) for r in found.records][1] == ("x2 = x1 W1", "x1", "dW1", "x2 = x1 W1")
    assert sum(record.size for record in found.records) == 160 * MB
    assert found.eager_peak == (2 * 160 + 2 * 32) * MB, "values and gradients, the input's too"
    assert found.lazy_peak == (6 + 1) * 32 * MB, "x0 to x5 and the gradient of x5"


@pytest.mark.parametrize("relu", [False, True])
def test_what_is_freed_and_when(relu):
    chain = Chain((ChainLayer(output=3), ChainLayer(output=5), ChainLayer(output=2)), 7)
    found = tape(chain, relu)
    kept = found.saved()
    assert set(kept) == {"x0", "x1", "x2"}, "neither z nor the last output"
    assert list(kept.values()) == (["z0 = x0 W0", "x1 = ReLU(z0)", "x2 = ReLU(z1)"] if relu else ["x1 = x0 W0", "x2 = x1 W1", "x3 = x2 W2"])
    assert sum(record.size for record in records(chain, relu)) == saved_bytes(found) == 7 + 3 + 5
    assert forward(found).net == saved_bytes(found) - 7 + 2, "relative to the input; the output leaves"


sizes = st.lists(st.integers(1, 9), min_size=2, max_size=8)


@given(sizes, st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_timeline_takes_what_the_tape_and_the_schedule_take(found, relu):
    """Forward: with the input there. Backward: with everything kept and the gradient of the output."""
    chain, count = Chain(tuple(ChainLayer(output=size) for size in found[1:]), found[0]), len(found) - 1
    steps, made = picture(chain, relu).lazy, tape(chain, relu)
    nodes = len(made.nodes)
    assert steps[-1][0] == 3 * count
    assert max(taken for _, taken in steps[:nodes]) == found[0] + forward(made).high
    assert max(taken for _, taken in steps[nodes + 1 :]) == saved_bytes(made) + found[-1] + backward(made).high
    if not relu:
        assert max(taken for _, taken in steps) == simulate(chain, find("keep-all").schedule(chain, Plan())).peak


def test_an_mlp_keeps_what_the_mlp_command_says():
    w = Mlp(32, 1024, 4096, 1024, input_gradient=True)
    chain, _ = linear_chain(32, [1024, 4096, 1024], w.dtype, A100)
    assert saved_bytes(tape(chain, relu=True)) == cached(w).total
    hidden = linear_tensors(32, [1024, 4096, 1024], w.dtype, A100)
    assert [tensor.size for tensor in hidden] == [cached(w).a1]
    assert backward_flops(w) == 2 * forward_flops(w)


# Linear layers and models


def test_linear_layers_take_bytes_of_values_weights_and_gradients():
    dtype = DTYPES["bf16"]
    chain, origin = linear_chain(4000, [1000] * 11, dtype, H200, calibrated_devices)
    value, weight = 4000 * 1000 * 2, 1000 * 1000 * 2
    run = simulate(chain, find("keep-all").schedule(chain, Plan()))
    assert run.peak == 10 * weight + 11 * value + value + weight, "at the first backward step"
    assert "predicted" in origin
    assert chain.layers[0].backward == pytest.approx(2 * chain.layers[0].forward, rel=0.2)
    bare, origin = linear_chain(4000, [1000, 1000], DTYPES["fp32"], A100)
    assert "roofline" in origin
    assert bare.layers[0].forward == pytest.approx(2 * 4000 * 1000 * 1000 / 19.5e12, rel=0.1)


def test_choices_count_equal_tensors_once_and_rank_them():
    dtype = DTYPES["fp16"]
    tensors = linear_tensors(4000, [1000, 1000, 1000, 10, 5], dtype, A100)
    found = choices(tensors, dtype, A100)
    assert sorted(choice.tensor.count for choice in found) == [1, 2]
    assert [choice.freed_bytes_per_s for choice in found] == sorted((c.freed_bytes_per_s for c in found), reverse=True)
    for choice in found:
        assert choice.result.recomputes == (choice.result.recompute_s < choice.result.best.store_s)


@pytest.mark.parametrize("name", ["gpt2-medium", "llama-3-8b", "mixtral-8x7b", "deepseek-v2"])
def test_layers_of_models(name):
    model, dtype = find_model(name), DTYPES["bf16"]
    chain, origin = model_chain(model, 2, 512, dtype, H200, calibrated_devices)
    assert len(chain) == len(model.layers)
    assert "H200" in origin
    assert chain.input == 2 * 512 * model.hidden * 2
    for layer in chain.layers:
        assert layer.output == chain.input
        assert BACKWARD_OVER_FORWARD < layer.backward / layer.forward < ATTENTION_BACKWARD_OVER_FORWARD
        assert layer.interior > layer.output, "Q, K, V and the MLP's width"
    twice, _ = model_chain(model, 4, 512, dtype, H200, calibrated_devices)
    assert twice.layers[0].interior == 2 * chain.layers[0].interior


def test_a_layer_of_gpt_keeps_what_korthikanti_counts():
    """34 sbh in all with dropout masks (2 sbh) and without scores, 2 sbh of it the input; norms keep two numbers per token besides."""
    model, tokens = find_model("gpt2-medium"), 2 * 512
    [layer, *_] = model_chain(model, 2, 512, DTYPES["bf16"], H200)[0].layers
    statistics = layer.interior - (34 - 2 - 2) * tokens * model.hidden
    assert 0 < statistics < 0.03 * layer.interior, "norms' and the softmax's, in fp32"


def test_cheap_tensors_come_first():
    """Element-wise results free more bytes per second than those of matmuls; the roofline recomputes the ones and stores the others."""
    dtype = DTYPES["bf16"]
    found = choices(model_tensors(find_model("llama-3-8b"), 1, 4096, dtype, H200), dtype, H200)
    verdicts = [choice.result.recomputes for choice in found]
    assert verdicts == sorted(verdicts, reverse=True)
    assert {choice.tensor.name for choice in found[:4]} == {f"result of {what}" for what in ("RoPE", "norm", "residual add", "SiLU x gate")}
