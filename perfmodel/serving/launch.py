"""Command lines that start an engine with a layout.

Sources: vLLM docs, "Data Parallel Deployment" and "Expert Parallel Deployment" (experts spread over all GPUs of a stage); SGLang docs,
"Server Arguments" (``--tp-size`` counts all GPUs of a stage, ``--dp-size`` the groups among them); TensorRT-LLM docs, "trtllm-serve" and
"Parallelism in TensorRT LLM" (``enable_attention_dp``: one group for each GPU). Formats: vLLM docs, "FP8 W8A8" and "Quantized KV Cache";
SGLang docs, "Server Arguments" and "Quantized KV Cache"; TensorRT-LLM docs, "Quantization" (weights are those of the checkpoint);
llama.cpp, tools/server/README.md.
"""

from __future__ import annotations

import re
from math import ceil

from perfmodel.core.errors import UsageError
from perfmodel.serving.engine import Engine
from perfmodel.serving.load import Load
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import Split

Options = dict[str, int | str | bool]
"""Options of a command by name; True for those without a value."""
QUANTIZED = {"vllm": {"fp8": " --quantization fp8"}, "sglang": {"fp8": " --quantization fp8"}}
"""Options by engine and format that store the weights of a 16-bit checkpoint in that format."""
CACHED = {
    "vllm": {"fp8": " --kv-cache-dtype fp8"},
    "sglang": {"fp8": " --kv-cache-dtype fp8_e4m3"},
    "tensorrt-llm": {"fp8": ", dtype: fp8}"},
}
"""Options by engine and format that store the KV cache in that format."""


def hub_name(model: ModelSpec) -> str:
    """Name of the model on the Hugging Face hub according to its source, else its own name.

    >>> from perfmodel.catalog import find_model
    >>> hub_name(find_model("llama-3.1-70b")), hub_name(find_model("gpt3-175b"))
    ('meta-llama/Meta-Llama-3.1-70B', 'gpt3-175b')
    """
    match = re.search(r"\bof ([\w.-]+/[\w.-]+\w)", model.source)
    return match[1] if match else model.name


def vllm(model: str, split: Split, sequences: int, engine: Engine, longest: int) -> str:
    """The command for vLLM on one node. Groups on other nodes are started there with ``--data-parallel-address``."""
    options: Options = {"tensor-parallel-size": split.tp}
    if split.pp > 1:
        options["pipeline-parallel-size"] = split.pp
    if split.dp > 1:
        options["data-parallel-size"] = split.dp
    if split.ep > 1:
        options["enable-expert-parallel"] = True
    options |= {"max-num-seqs": _per_group(sequences, split), "max-num-batched-tokens": engine.batching.token_budget}
    options |= {"max-model-len": longest, "gpu-memory-utilization": f"{engine.memory_share:g}"}
    return f"vllm serve {model} {_typed(options)}"


def sglang(model: str, split: Split, sequences: int, engine: Engine, longest: int) -> str:
    """The command for SGLang: one server has all groups, and ``--max-running-requests`` counts their requests together."""
    options: Options = {"model-path": model, "tp-size": split.stage}
    if split.pp > 1:
        options["pp-size"] = split.pp
    if split.dp > 1:
        options |= {"dp-size": split.dp, "enable-dp-attention": True}
    if split.ep > 1:
        options["ep-size"] = split.ep
    options |= {"max-running-requests": sequences, "chunked-prefill-size": engine.batching.token_budget * split.dp}
    options |= {"context-length": longest, "mem-fraction-static": f"{engine.memory_share:g}"}
    return f"python -m sglang.launch_server {_typed(options)}"


def tensorrt_llm(model: str, split: Split, sequences: int, engine: Engine, longest: int) -> str:
    """The options file and the command for TensorRT-LLM."""
    if split.dp > 1 and split.tp > 1:
        raise UsageError(f"TensorRT-LLM has no groups of {split.tp} GPUs each", "take groups of one GPU, or one group")
    keys: Options = {"tensor_parallel_size": split.stage, "pipeline_parallel_size": split.pp}
    if split.ep > 1 or split.dp > 1:
        keys |= {"moe_expert_parallel_size": split.ep, "enable_attention_dp": str(split.dp > 1).lower()}
    keys |= {"max_batch_size": _per_group(sequences, split), "max_num_tokens": engine.batching.token_budget, "max_seq_len": longest}
    keys |= {"enable_chunked_prefill": str(engine.batching.chunked).lower()}
    lines = [f"{name}: {value}" for name, value in keys.items()]
    text = "\n".join([*lines, f"kv_cache_config: {{free_gpu_memory_fraction: {engine.memory_share:g}}}"])
    return f"cat > options.yaml <<'END'\n{text}\nEND\ntrtllm-serve {model} --extra_llm_api_options options.yaml"


def llama_cpp(model: str, split: Split, sequences: int, engine: Engine, longest: int) -> str:
    """The command for llama.cpp: GPUs hold layers in turn, and the context is that of all sequences together."""
    options: Options = {
        "n-gpu-layers": 99,
        "parallel": sequences,
        "ctx-size": longest * sequences,
        "ubatch-size": engine.batching.token_budget,
    }
    return f"llama-server --model {model.rsplit('/', maxsplit=1)[-1]}.gguf {_typed(options)}"


COMMANDS = {"vllm": vllm, "sglang": sglang, "tensorrt-llm": tensorrt_llm, "llama.cpp": llama_cpp}
PREFILL_ROLE, DECODE_ROLE = "prefill", "decode"
CONNECTOR = """ --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'"""
"""Option of vLLM for prefill and decode workers. Source: vLLM docs, "NixlConnector Usage Guide"."""


def launch(
    model: ModelSpec, engine: Engine, split: Split, sequences: int, load: Load, role: str = "", *, weights: str = "", cache: str = ""
) -> str:
    """Lines that start ``engine`` for ``sequences`` at a time; UsageError for an engine whose options are unknown.

    ``role``: role of a worker in pools, which stand behind a router. ``weights``, ``cache``: formats of weights and KV cache that differ
    from the checkpoint's; ``unstated`` names formats that no option sets.

    >>> from perfmodel.catalog import find_engine, find_model
    >>> launch(find_model("llama-3.1-70b"), find_engine("vllm"), Split(4), 64, Load(1024, 1024, 64)).split(" --")[0:2]
    ['vllm serve meta-llama/Meta-Llama-3.1-70B', 'tensor-parallel-size 4']
    """
    if engine.id not in COMMANDS:
        raise UsageError(f"no options of {engine.name} are known", f"take one of {', '.join(COMMANDS)}")
    line = COMMANDS[engine.id](hub_name(model), split, sequences, engine, load.isl + load.osl)
    line += QUANTIZED.get(engine.id, {}).get(weights, "")
    cache_option = CACHED.get(engine.id, {}).get(cache, "")
    if engine.id == "tensorrt-llm" and cache_option:  # a key at the end of ``kv_cache_config``
        line = line.replace("}\nEND", f"{cache_option}\nEND")
    else:
        line += cache_option
    if not role:
        return line
    if engine.id == "tensorrt-llm":  # its docs, "Disaggregated Serving"
        return line.replace("\nEND\n", "\ncache_transceiver_config: {backend: DEFAULT}\nEND\n")
    return line + (CONNECTOR if engine.id == "vllm" else f" --disaggregation-mode {role}")


def unstated(model: ModelSpec, engine: Engine, load: Load, weights: str, cache: str) -> list[str]:
    """Comments before the lines of ``launch`` about settings that they cannot state.

    >>> from perfmodel.catalog import find_engine, find_model
    >>> unstated(find_model("gpt3-175b"), find_engine("vllm"), Load(8, 8, 8), "int4", "fp8")
    ['# gpt3-175b: name a checkpoint with int4 weights']
    """
    comments = []
    if weights and weights not in QUANTIZED.get(engine.id, {}):
        comments.append(f"name a checkpoint with {weights} weights")
    if cache and cache not in CACHED.get(engine.id, {}):
        comments.append(f"give the options for a KV cache in {cache}")
    if load.draft_tokens:
        comments.append(f"give the draft model, for {load.draft_tokens} tokens per step")
    return [f"# {hub_name(model)}: {words}" for words in comments]


def _per_group(sequences: int, split: Split) -> int:
    """Sequences of the fullest data-parallel group; engines count them per group."""
    return ceil(sequences / split.dp)


def _typed(options: Options) -> str:
    """``options`` as they are typed."""
    return " ".join(f"--{name}" if value is True else f"--{name} {value}" for name, value in options.items())
