"""What the modules of huggingface/transformers record in PyTorch, one kernel per written operation.

Found with hooks on saved tensors and by following every storage over a step of transformers 5.17 in PyTorch 2.13: GPT-2, Llama and
Qwen3, their attention eager and through scaled_dot_product_attention, no cache, the logits dropped with the model's output.
"""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.errors import UnavailableError
from perfmodel.transformer.spec import DenseMlp, GroupedAttention, Layer, ModelSpec
from perfmodel.transformer.training import model_tape
from perfmodel.transformer.training.huggingface_attention import attention, mask_bytes
from perfmodel.transformer.training.huggingface_norm import norm
from perfmodel.transformer.training.matrices import TABLE, Matrix, layer_matrices
from perfmodel.transformer.training.question import EVERY, FULL, Recomputation
from perfmodel.transformer.training.recorder import Recorder
from perfmodel.transformer.training.shape import Shape
from perfmodel.transformer.training.tape import Node, Tape

INDEX_SIZE = model_tape.INDEX_SIZE
WORKSPACES = 2 * (32 + 1) * 2**20
"""On Hopper each of the two threads that multiply matrices, forward and backward, has 32 MiB of cuBLAS and 1 MiB of cuBLASLt.

Sources: PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp; what is allocated beside weights and state in the steps measured on an H200.
"""


def layer_tape(model: ModelSpec, layer: Layer, shape: Shape) -> Tape:
    """One layer; UnavailableError for one whose modules were not looked at."""
    mlp, a, p = layer.mlp, layer.attention, shape.parallel
    if not isinstance(mlp, DenseMlp) or not isinstance(a, GroupedAttention) or layer.norms != 2 or a.shared_kv or a.sinks:
        raise UnavailableError(f"{model.name}: only layers like those of GPT-2, Llama and Qwen3 are known as huggingface's", "take fused")
    if p.tp > 1 or p.pp > 1 or p.ep > 1 or shape.length != shape.keys or shape.rank is not None:
        fix = "leave out --tp, --pp, --cp, --ep and --lora, or take fused"
        raise UnavailableError("huggingface's modules are known for one GPU's whole model without adapters", fix)
    tape = Recorder(shape, "layer input")
    matrices = {matrix.name: matrix for matrix in layer_matrices(model, layer, p)}
    tape.part = "norms"
    inputs = norm(tape, "norm before attention", "layer input", "attention input")
    branch = attention(tape, model, a, matrices, inputs)
    tape.part = "attention"
    branch = tape.dropout("dropout after attention", branch, "attention result after dropout", shape.tokens * shape.hidden)
    middle = tape.residual("sum with attention", "layer input", branch, "input of the MLP's norm")
    tape.part = "norms"
    inputs = norm(tape, "norm before the MLP", middle, "MLP input")
    tape.part = "MLP"
    branch = _mlp(tape, mlp, matrices, inputs)
    branch = tape.dropout("dropout after the MLP", branch, "MLP result after dropout", shape.tokens * shape.hidden)
    tape.residual("sum with the MLP", middle, branch, "layer output")
    return tape.tape


def _mlp(tape: Recorder, w: DenseMlp, matrices: dict[str, Matrix], inputs: str) -> str:
    s, bias = tape.shape, w.width if w.bias else 0
    up = tape.linear("up projection", inputs, "up", s.tokens, [matrices["up"]], biases=bias)
    if w.gated:
        gate = tape.linear("gate projection", inputs, "gate", s.tokens, [matrices["gate"]], biases=bias)
        active = tape.activation("gate after its activation function", s.tokens, w.width)
        tape.add(Node("activation function", (gate,), (active,), (gate,)))
        product = tape.activation("activation", s.tokens, w.width)
        tape.add(Node("product with the gate", (active, up), (product,), (active, up)))
    else:
        product = _new_gelu(tape, up, s.tokens * w.width * s.size)
    return tape.linear("down projection", product, "MLP result", s.tokens, [matrices["down"]], biases=s.hidden if w.bias else 0)


def _new_gelu(tape: Recorder, x: str, size: Number) -> str:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), an operation at a time: five tensors are kept."""

    def step(name: str, reads: tuple[str, ...], result: str, saves: tuple[str, ...] = (), scratch: Number = 0) -> str:
        tape.tensor(result, size)
        tape.add(Node(f"GELU, {name}", reads, (result,), saves, backward_scratch=scratch))
        return result

    half = step("half of x", (x,), "x / 2")
    cube = step("cube", (x,), "x^3", (x,), 2 * size)  # backward makes x^2 and 3 x^2
    cube = step("factor of the cube", (cube,), "0.0447 x^3")
    inner = step("sum", (x, cube), "x + 0.0447 x^3")
    inner = step("factor of the sum", (inner,), "argument of tanh")
    tanh = step("tanh", (inner,), "tanh", ("tanh",))
    one_more = step("1 + tanh", (tanh,), "1 + tanh")
    return step("product", (half, one_more), "activation", (half, one_more))


def head_tape(model: ModelSpec, shape: Shape) -> Tape:
    """Last norm, logits, the same in fp32, log-softmax, loss: the model's output holds the first logits until the step drops it."""
    tape = Recorder(shape, "last layer output")
    tape.part = "norms"
    inputs = norm(tape, "last norm", "last layer output", "head input")
    tape.part = "head"
    logits = tape.linear("head", inputs, "logits", shape.tokens, [Matrix("head", TABLE, shape.hidden, model.vocab)])
    first, size = tape.tape.sizes[logits], 4 * shape.tokens * model.vocab
    if shape.size != 4:
        wide = tape.tensor("logits in fp32", size)
        tape.add(Node("logits to fp32", (logits,), (wide,)))
        logits = wide
    probabilities = tape.tensor("log-softmax", size)
    # the two copies of the logits are named by functions that have not returned yet
    tape.add(Node("log-softmax", (logits,), (probabilities,), (probabilities,), scratch=first if shape.size != 4 else 0))
    labels = tape.tensor("labels, shifted", INDEX_SIZE * shape.tokens)
    tape.tensor("loss", 4)
    tape.add(Node("loss", (probabilities,), ("loss", labels), (probabilities, labels)))
    return tape.tape


def embedding_tape(model: ModelSpec, shape: Shape) -> Tape:
    """Lookup and, if learned, positions; else the cosine and sine that turn Q and K of every layer.

    A tied table's gradients, of the head and of the lookup, are added into a third tensor.
    """
    tape, a = model_tape.embedding_tape(model, shape, sums=2), model.layers[0].attention
    if not model.learned_positions and isinstance(a, GroupedAttention):
        tape.sizes["cosine and sine"] = 2 * shape.length * a.head_dim * shape.size
        tape.parts["cosine and sine"] = "embedding"
        tape.nodes.insert(0, Node("RoPE's tables", (), ("cosine and sine",), ("cosine and sine",)))
    return tape


def constant_bytes(model: ModelSpec, shape: Shape) -> Number:
    """Workspaces of the library that multiplies matrices."""
    return WORKSPACES


def waiting_bytes(model: ModelSpec, shape: Shape, recompute: Recomputation) -> Number:
    """The mask of the scores, which layers that run again take as an argument. Otherwise it is gone before the head runs."""
    waits = not shape.flash and recompute.kind in (FULL, EVERY)
    return mask_bytes(shape.sequences, shape.length, shape.size) if waits else 0
