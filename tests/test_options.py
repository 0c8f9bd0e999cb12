"""Every option of every command changes the answer or is refused; empty values, absurd numbers and long texts get one short message."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from each import each
from fuzz_seeds import MEASURING
from fuzzing import RECORDS, answer, examples, no_measuring

from perfmodel.commands.matmul import MatmulRun
from perfmodel.core import question
from perfmodel.core.errors import LONGEST_ECHO
from perfmodel.core.question import Question
from perfmodel.kernels.attention.algorithms import names
from perfmodel.kernels.attention.question import AttentionQuestion
from perfmodel.kernels.attention.request import READ_BY as READ_BY_ALGORITHMS
from perfmodel.serving.question import ServeQuestion
from perfmodel.sweep.study import WORKLOADS, workload_named
from perfmodel.transformer.cache_question import CacheQuestion
from perfmodel.transformer.question import PhaseQuestion
from perfmodel.validation.records import shipped_records, unpacked
from tools.commands import all_commands, command

COMMANDS = all_commands()
ABSURD = ["nan", "inf", "-inf", "1e400", "-0", "-1", "9e99", "9" * 5000]
LONG = "x" * 5000


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    no_measuring(monkeypatch)


def base(name: str, without: Any = None) -> list[str]:
    """A line of ``name`` that is answered, if it needs no file of the user's; ``without`` an option that takes a value."""
    words = MEASURING[name].split() if name in MEASURING else [*examples(name)[-1]]
    place = next((place for place, word in enumerate(words) if without is not None and word in without.opts), len(words))
    return words[:place] + words[place + 2 :]


def valued(name: str) -> list[Any]:
    """Options of ``name`` that take a value."""
    return [param for param in command(name).params if param.param_type_name == "option" and not param.is_flag]


def misread(parser: Any, words: list[str]) -> str:
    """What the ``parser`` of a command says of ``words``; it must refuse them."""
    try:
        parser.make_context(parser.name, words)
    except Exception as error:
        return getattr(error, "format_message", error.__str__)()
    raise AssertionError(f"{parser.name} takes {words}")


def refused(args: list[str]) -> str:
    """What is said; it must be a refusal."""
    code, _, err = answer(args)
    assert code in (1, 2), (args, code)
    return err


# Empty


@each("name", COMMANDS)
def test_an_empty_value_is_refused_in_every_option(name):
    """As ``--hardware "$UNSET"`` gives it, in both spellings."""
    parser = command(name)
    for param in valued(name):
        words = base(name, param)[len(name.split()) :]
        for option in param.opts:
            for empty in ([option, ""], [option, " "], *([[f"{option}="]] if option.startswith("--") else [])):
                said = misread(parser, [*words, *empty])
                assert f"the value of {option} is empty" in said
                assert len(said.splitlines()) == 2
    code, out, err = answer([*base(name), "-o", ""])
    assert (code, out) == (2, "")
    assert "empty" in err or name == "hardware check"


@each("name", [name for name in COMMANDS if any(p.param_type_name == "argument" for p in command(name).params)])
def test_an_empty_argument_is_refused(name):
    code, _, err = answer([*name.split(), ""])
    assert code == 2
    assert "is empty" in err


@pytest.mark.parametrize("workload", WORKLOADS)
def test_an_empty_axis_is_refused(workload):
    for one in workload_named(workload).inputs:
        axis = f"--{one.name.replace('_', '-')}"
        for words in ([axis, ""], [f"{axis}="], [axis, "", "--d", "64"]):
            code, out, err = answer(["sweep", workload, *words])
            assert (code, out) == (2, ""), words
            assert f"the value of {axis} is empty" in err


@pytest.mark.parametrize(
    "line",
    [
        ["sweep", "--n", "64,,128", "--d", "64"],
        ["sweep", "--n", "64", "--d", "64", "--hardware", "h200,"],
        ["sweep", "--n", "64", "--d", "64", "--columns", "time,"],
        ["roofline", "--attention", "n=64 d=64 dtype="],
        ["roofline", "--records", "shipped hardware="],
        ["remat", "--layers", "4", "--checkpoints", "2,"],
        ["remat", "--layers", "2", "--cost", "1,"],
    ],
)
def test_an_empty_part_is_refused(line):
    assert answer(line)[0] == 2


# Numbers


@each("name", COMMANDS)
def test_absurd_numbers_are_refused_in_every_option(name):
    """A number, a size, a share, a name: none of them is read from these, of which each option gets every third."""
    parser = command(name)
    for at, param in enumerate(valued(name)):
        words = base(name, param)[len(name.split()) :]
        if "str" in str(param.type_descriptor.annotation):
            refused([*base(name, param), param.opts[0], ("nan", "1e400")[at % 2]])
        else:
            for value in ABSURD[at % 3 :: 3]:
                assert len(misread(parser, [*words, param.opts[0], value])) < 1000
        misread(parser, [*words, param.opts[0], "-0"])


@pytest.mark.parametrize("workload", WORKLOADS)
def test_absurd_numbers_are_refused_in_every_axis(workload):
    given = {
        "attention": "--n 64 --d 64",
        "matmul": "--m 64 --n 64 --k 64",
        "kv-cache": "--model llama-3-8b",
        "model": "--model llama-3-8b",
        "serve": "--model llama-3-8b --hardware h200",
    }
    for one in workload_named(workload).inputs:
        for value in ABSURD[-1:] if one.kind == "name" else ABSURD:
            refused(["sweep", workload, *given[workload].split(), f"--{one.name.replace('_', '-')}", value])


@pytest.mark.parametrize("option", ["--where", "--subject-to", "--heads"])
def test_absurd_numbers_are_refused_in_expressions(option):
    for value in ("1e400", "9" * 400):
        for unit in ("", " s"):
            err = refused(["sweep", "--n", "64", "--d", "64", option, f"n < {value}{unit}" if option != "--heads" else f"n * {value}"])
            assert "is too large" in err
            assert len(err) < 1000


# Long texts


@each("name", COMMANDS)
def test_messages_cut_what_they_repeat(name):
    texts = [param for param in valued(name) if "str" in str(param.type_descriptor.annotation)]
    for words in (*([*base(name, param), param.opts[0], LONG] for param in texts), [*base(name), f"--{LONG}"]):
        err = refused(words)
        assert LONG[: LONGEST_ECHO + 1] not in err, words
        assert len(err) < 1000, words
    err = refused([*name.split(), f"{LONG},{LONG}"])
    assert LONG[: LONGEST_ECHO + 1] not in err


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_of_one_value_is_taken_once(name):
    """Whatever its values are."""
    parser = command(name)
    for param in (param for param in parser.params if param.param_type_name == "option" and not param.multiple):
        if param.is_flag and not param.secondary_opts:
            continue
        word, *off = [max(param.opts, key=len), *param.secondary_opts]
        value = [] if param.is_flag else ["1"]
        twice = [*base(name, param)[len(name.split()) :], word, *value, *(off or [word]), *value]
        assert f"{'/'.join([word, *off])} is given 2 times, and only one value counts" in misread(parser, twice)


def test_what_turns_something_on_may_be_said_again():
    assert answer(["matmul", "-m", "64", "-n", "64", "-k", "64", "--json", "--json"])[0] == 0


def test_a_file_that_exists_is_named_in_full(tmp_path):
    path = tmp_path / ("deep" * 20) / "mine.yaml"
    path.parent.mkdir()
    path.write_text("a: 1\n")
    assert str(path) in refused(["attention", "--n", "64", "--d", "64", "--hardware", str(path)])


# Options that nothing reads


@pytest.mark.parametrize(
    "line",
    [
        "attention --n 512 --d 64 --algorithm standard --algorithm flash --block-q 64 --unfused-scale",
        "attention --n 512 --d 64 --pass both --printed-backward",
        "attention --n 512 --d 64 --algorithm flash --minimal-backward --fused-scale",
        "sweep --n 512 --d 64 --algorithm standard,flash --block-q 64",
        "compare standard flash --attention n=512,d=64,block_q=64 --hardware h200",
    ],
)
def test_what_some_part_of_a_comparison_reads_is_taken(line):
    code, _, err = answer(line.split())
    assert code == 0, err


VALUES = {
    **dict.fromkeys(("n", "m", "k", "rows", "cols", "elements", "d_in", "d_out", "d_hidden"), "96"),
    **dict.fromkeys(("batch", "heads", "tp", "pp", "ep", "dp", "cp", "interleave", "times", "split_k", "ops", "reads_per_op"), "2"),
    **{"d": "96", "dv": "32", "kv_heads": "1", "kv_len": "3000", "dropout": "0.1", "window": "128", "splits": "3", "sparsity": "0.25"},
    **{"block_q": "32", "block_kv": "32", "tile_m": "64", "tile_n": "64", "sram": "20KiB", "pattern": "butterfly", "stride": "3"},
    **{"dtype": "fp32", "direction": "backward", "algorithm": "flash1", "config": "flashattention-fig2", "hardware": "b200"},
    **{"phase": "generate", "weights_dtype": "int8", "kv_dtype": "int8", "micro_batch": "2", "precision": "bf16", "optimizer": "adafactor"},
    **{"recompute": "selective", "lora": "8", "lora_targets": "qv", "gradients": "both", "gradient_life": "kept", "zero": "1"},
    **{"implementation": "huggingface", "system": "dgx-h100", "search": "16", "example": "sin-cos", "size": "1MiB", "flops": "3FLOP"},
    **{"threads": "96", "registers": "128", "element_bytes": "2", "rope_dtype": "fp32", "scale_group": "32", "block_size": "1000"},
    **{"reserve": "9GiB", "layers": "5", "checkpoints": "2", "every": "2", "slots": "7", "memory": "5", "strategy": "revolve", "cost": "3"},
    **{"backward": "7", "interior": "1", "width": "32", "backend": "cpu"},
    **{"counters_csv": "x.csv", "records": "shipped", "tolerance": "0.0001%", "verdict": "wrong", "ncu": "x.csv", "baseline": "x.json"},
    **{"attention": "n=128 d=64", "matmul": "64x64x64", "model": "gpt2 decode", "threshold": "1%", "fail_on": "changed", "where": "n<600"},
    **{"columns": "n,time", "minimize": "time", "subject_to": "n<600", "pareto": "time,memory", "top": "3", "form": "csv", "dask": "x"},
    **{"dram_bandwidth": "300GB/s", "dram_capacity": "20GiB", "l2": "40MiB", "sms": "60", "clock": "2GHz", "tdp": "70W", "like": "t4"},
    **{"fp16": "99TFLOP/s", "bf16": "99TFLOP/s", "fp8": "200TFLOP/s", "tf32": "50TFLOP/s", "fp4": "400TFLOP/s", "int8": "200TOP/s"},
    **{"fp32": "20TFLOP/s", "from_records": str(RECORDS), "required": "10000000", "explain": "all"},
    **{"cache": "warm", "power_limit": "400W", "host_us": "4", "engine": "sglang"},
    **{"measured": "3ms", "gpu_layers": "3", "host_memory": "90GB/s"},
    **{"gpus": "2", "engine": "sglang", "isl": "200", "osl": "300", "concurrency": "3", "rate": "0.5", "prefix": "64", "draft_tokens": "2"},
    **{
        "requests": "40",
        "acceptance": "0.4",
        "gpu_hour": "3",
        "token_budget": "512",
        "max_sequences": "7",
        "spread": "0.5",
        "ttft": "900ms",
        "tpot": "90ms",
    },
    **{"cache": "warm", "power_limit": "400W", "host_us": "4"},
}
"""One for every option by the name of its parameter, other than the default and than in the example lines."""
OF_COMMAND = {
    ("attention", "implementation"): "torch-sdpa-cudnn",
    ("matmul", "implementation"): "torch-matmul",
    ("calibrate", "implementation"): "torch-sdpa-flash",
    ("roofline", "implementation"): "torch-matmul",
    ("recompute", "size"): "3MiB",
    ("claims", "verdict"): "holds",
    ("memory", "batch"): "64",
    ("serve", "dtype"): "bf16",
    ("model", "system"): "selene-a100",
    **{
        (name, "clock"): clock
        for name, clock in {"attention": "sustained", "matmul": "sustained", "model": "burst", "batch": "burst"}.items()
    },
}
HOW = {("sweep", "memory"): "the bytes of rows held at once: any number gives the same rows"}
"""Options that say how an answer is found and may not change it, and why."""
MODES = {
    "attention": [
        f"--n 900 --d 64 --heads 8 --kv-heads 2 --batch 2 --algorithm {algorithm} --pass {direction}"
        + " --sparsity 0.5" * (algorithm == "block-sparse")
        for algorithm in names()
        for direction in ("forward", "backward")
        if (algorithm, direction) != ("split-kv", "backward")
    ],
    "mlp": [f"--batch 64 --d-in 64 --d-hidden 256 --d-out 64 --pass {direction}" for direction in ("forward", "backward")],
    "model": [
        *(f"llama-3-8b --batch 8 --phase {phase}" for phase in ("prefill", "decode", "generate")),
        "llama-3-8b --phase train --batch 16 --dp 4 --hardware h100-sxm",
        "llama-3-8b --phase train --search 8 --batch 16 --hardware h100-sxm",
    ],
    "memory": [f"llama-3-8b --batch 16 --dp 4 --micro-batch 4 {more}" for more in ("", "--optimizer sgd", "--precision bf16", "--lora 4")],
    "kv-cache": ["llama-3-8b", "llama-3-8b --kv-dtype int8", "deepseek-v3"],
    "fuse": ["--elements 1048576 --ops 30", "--example sin-cos --dtype fp32"],
    "remat": [
        *("--layers 8", "--layers 4 --width 64", "gpt2 --batch 3", "--layers 8 --budget 4"),
        *("--layers 4 --autograd", "--layers 4 --width 64 --autograd --hardware h200"),
    ],
}
"""Lines in which other options are read: every algorithm and pass, phase and kind of question."""


def tries(name: str, param: Any) -> Iterator[list[str]]:
    """The option with a value that is not the default; of a pair of switches each."""
    if param.is_flag:
        yield from ([option] for option in (*param.opts, *param.secondary_opts) if option.startswith("--"))
    else:
        yield [param.opts[0], OF_COMMAND.get((name, param.name)) or VALUES[param.name]]


def ignored(name: str, line: list[str]) -> list[str]:
    """Options which, added to ``line``, are taken and change nothing beside what repeats the question; those in it aside."""
    before, found = result([*line, "--json"]), []
    assert before is not None, line
    for param in command(name).params:
        apart = ("help", "json", "full", "output", *(key for own, key in HOW if own == name))
        if (
            param.param_type_name == "argument"
            or param.name in apart
            or any(option in line for option in (*param.opts, *param.secondary_opts))
        ):
            continue
        done = [result([*line, *words, "--json"]) for words in tries(name, param)]
        if all(one == before for one in done):
            found.append(f"{' '.join(line)}: {param.opts[0]}")
    return found


def result(args: list[str]) -> Any:
    """Exit code and answer without the repeated question; None where it is refused."""
    code, out, _ = answer(args)
    if code in (1, 2):
        return None
    data = json.loads(out)
    return code, {key: value for key, value in data.items() if key not in ("inputs", "provenance")}


COPIES = "calibrate --from-records copies.jsonl --require 0"


def write_copies() -> None:
    """Enough records for a fit of few parameters, of which ``--quick`` leaves some out."""
    with Path("copies.jsonl").open("wb") as file:
        for path in shipped_records():
            with unpacked(path) as lines:
                file.writelines(line for line in lines if b'"workload":"copy"' in line)


FAST = ("matmul", "mlp", "softmax", "fuse", "recompute", "occupancy", "remat", "hardware show")


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS if name != "hardware check"]
)
def test_every_option_is_read_or_refused(name):
    """In the example line; a new option has no value here, and fails."""
    write_copies()
    lines = [line for line in examples(name) if not any(word.endswith(".json") for word in line)]
    line = {**MEASURING, "calibrate": COPIES}[name].split() if name in MEASURING else lines[0]
    assert ignored(name, line[: line.index("-o")] if "-o" in line else line) == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in MODES.items() for line in lines])
def test_every_option_is_read_or_refused_in_every_mode(name, line):
    assert ignored(name, [name, *line.split()]) == []


SWEEPS = {
    "attention": [line.replace("--batch 2", "--hardware h200") for line in MODES["attention"]],
    "matmul": ["--m 64 --n 64 --k 64 --hardware h200"],
    "kv-cache": MODES["kv-cache"],
    "model": [f"llama-3-8b --phase {phase} --batch 2" for phase in ("prefill", "decode", "generate")],
}
AXES = {"generated": "64", "weights_dtype": "fp8", "pass": "backward", "model": "gpt2", "splits": "5", "rope_dtype": "fp32"}
UNCOUNTED = {"mask": "--algorithm standard --pass backward"}
"""What no column reads there: probabilities are kept, so a mask is not looked at again."""


def swept(line: list[str]) -> Any:
    """The rows; None where there are none."""
    code, out, _ = answer(["sweep", *line, "--json"])
    return None if code in (1, 2) else json.loads(out)["rows"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in SWEEPS.items() for line in lines])
def test_every_axis_is_read_or_refused(name, line):
    """By some column: where it is taken, some number of the rows is another one."""
    columns = [one.name for one in workload_named(name).columns]
    given = ["--model", *line.split()] if name in ("kv-cache", "model") else line.split()
    words = [name, *given, "--columns", ",".join(columns)]
    before, unread = swept(words), []
    assert before
    kernel = "torch-matmul" if name == "matmul" else "torch-sdpa-flash"
    for one in workload_named(name).inputs:
        option, value = f"--{one.name.replace('_', '-')}", AXES.get(one.name) or VALUES.get(one.name, kernel)
        if option in given or UNCOUNTED.get(one.name, "-") in line:
            continue
        value = kernel if one.name == "implementation" else value
        found = [swept([*words, option, value]) for value in (["true", "false"] if one.kind == "flag" else [value])]
        if all(rows and [[row[c] for c in columns] for row in rows] == [[row[c] for c in columns] for row in before] for rows in found):
            unread.append(option)
    assert unread == []


KINDS = {"whole": "int", "number": "float", "name": "str", "flag": "bool"}
ASKED = {"attention": AttentionQuestion, "matmul": MatmulRun, "kv-cache": CacheQuestion, "model": PhaseQuestion, "serve": ServeQuestion}


@pytest.mark.parametrize("name", WORKLOADS)
def test_axes_are_options_of_the_command(name):
    """By name, kind and default; ``generated`` stands for a length that has no option of its own."""
    asked = ASKED[name]
    options = {one.name: one for one in dataclasses.fields(asked)}
    written = {**asked.OPTION_NAMES, **({"model": "name"} if name in ("model", "serve") else {})}
    for one in workload_named(name).inputs:
        if one.name in ("generated", "implementation") and name in ("model", "attention"):
            continue
        field = options[written.get(one.name, one.name)]
        assert ("str" if one.size else KINDS[one.kind]) in str(field.type), one.name
        assert field.default in (None, dataclasses.MISSING, one.default), one.name


def test_rules_are_of_options_that_exist():
    """A rule of a parameter that was renamed would guard nothing."""
    assert set(READ_BY_ALGORITHMS) <= {param.name for param in command("attention").params}


PROFILE = Path(__file__).with_name("data") / "traces" / "bert-small-h100.json.gz"
READING = {
    "trace": [f"{PROFILE} --hardware h100-sxm --on h200 --gpu-hour h200=2 --compare {PROFILE} --full"],
    "serve": [
        "llama-3.1-8b --hardware h200 --concurrency 4 --draft-tokens 2 --acceptance 0.5",
        "llama-3.1-8b --hardware h200 --gpus 2 --engine vllm --search --disaggregated --ttft 1s --tpot 30ms",
        "llama-3.1-8b --hardware h200 --prefill-workers 1 --prefill-tp 1 --prefill-dp 1 --prefill-ep 1 --workers 2 --concurrency 4",
        "llama-3.1-8b --hardware rtx-4090 --engine llama.cpp --gpu-layers 30 --host-memory 90GB/s",
    ],
    "model": ["gpt2", "gpt2 --phase train --hardware h100-sxm", "gpt2 --phase train --search 2 --hardware h100-sxm"],
    "remat": MODES["remat"],
    "softmax": ["--rows 64 --cols 1024 --hardware h200 --implementation torch-softmax"],
    "roofline": ["--matmul 64x64x64 --hardware h200", f"--records {RECORDS} --require 0"],
    "calibrate": [COPIES.partition(" ")[2]],
    "validate": [f"--records {RECORDS}", "--backend cuda"],
    "compare": ["standard flash --attention n=512,d=64 --hardware h200"],
}
"""Lines that between them read every option; of other commands the examples do."""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_field_of_every_question_is_read(name, monkeypatch):
    """By something else than what treats all fields alike: an option that no formula looks at cannot exist."""
    write_copies()
    read = set()
    alike = (question.__file__, dataclasses.__file__)

    def noted(self, field):
        caller = sys._getframe(1).f_code
        if caller.co_filename not in alike or caller.co_name == "require":
            read.add(field)
        return object.__getattribute__(self, field)

    monkeypatch.setattr(Question, "__getattribute__", noted, raising=False)
    for line in [[*name.split(), *line.split()] for line in READING.get(name, [])] or examples(name):
        assert answer([*line, *["--json"] * (name != "hardware check")])[0] != 2, line
    assert {param.name for param in command(name).params} - {"help"} <= read


# Nothing checked


def damaged(key: str) -> str:
    """A file of records whose ``key`` names nothing that exists."""
    lines = [{**json.loads(line), key: "attenton"} for line in RECORDS.read_text().splitlines()[:3]]
    Path("records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return "records.jsonl"


@each("line", ["validate --records", "validate --scoreboard --records", "calibrate --from-records", "roofline --records"])
@each("key", ["workload", "hardware", "nothing"])
def test_nothing_checked_is_no_success(line, key):
    """An empty file, a workload or a device that does not exist; a file that was asked for is not written."""
    if key == "nothing":
        Path("records.jsonl").write_text("")
    else:
        damaged(key)
    code, out, err = answer([*line.split(), "records.jsonl", "-o", "report.md"])
    assert (code, out) == (2, "")
    assert err
    assert not Path("report.md").exists()


def test_rows_that_are_required():
    lines = RECORDS.read_text().splitlines()
    Path("some.jsonl").write_text(f"{lines[0]}\n{json.dumps({**json.loads(lines[0]), 'workload': 'attenton'})}\n")
    assert answer(["validate", "--records", "some.jsonl", "--tolerance", "1000", "--require", "1"])[0] in (0, 3)
    err = refused(["validate", "--records", "some.jsonl", "--require", "2"])
    assert "1 rows were checked, and --require is 2" in err
    assert "1: no model of workload 'attenton'" in err
    for line in ("validate --records", "calibrate --from-records", "roofline --records"):
        code, _, err = answer([*line.split(), damaged("workload"), "--require", "0"])
        assert code == 0, err


def test_a_profile_without_durations_is_no_success():
    Path("x.csv").write_text('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n"0","k","dram__bytes_read.sum","byte","64"\n')
    assert "none of its 1 kernels has a duration" in refused(["roofline", "--ncu", "x.csv", "--hardware", "h200"])
