"""What the fuzz tests share: hostile values, command lines and files made of them, and a guarded run of the program.

Commands are found through the command line, readers by their signature; both are fuzzed by being there. A command's line begins
with the example in its help, a reader's file with one that it reads.
"""

from __future__ import annotations

import ast
import io
import json
import re
import resource
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import typed
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

import perfmodel
from perfmodel import catalog
from perfmodel.catalog import device_ids, model_names
from perfmodel.cli import main
from perfmodel.commands._command import examples_apart
from perfmodel.core.errors import UnavailableError
from tools.commands import command

RECORDS = Path(__file__).parent / "data" / "records.jsonl"
"""One of each workload of the record format, and one of every kind that is shipped."""
MOST_S = 120
"""Seconds of this process's time after which an example is taken to hang: the slowest takes two on a quiet machine."""
MOST_WAIT_S = 600
"""Seconds on the clock after which one that only waits is given up."""
LONGEST_MESSAGE = 4_000
MOST_MEMORY = 1_000_000_000
"""Bytes that an example may ask for, beside what the program holds before it."""

ESCAPES = [
    "\x1b[2J\x1b[31mred",
    "\x1b]0;title\x07",
    "\x1b]8;;http://a.b\x1b\\",
    "\x9b0m",
    "a\rb",
    "a\bb",
    "\x7f",
    "\u202egpj.exe",
    "\u2066x",
]
"""What a terminal would obey, or show in another order."""
NUMBERS = [
    *("0", "1", "2", "3", "7", "64", "100", "4096", "65537", "-1", "-0", "1000000000", "999999999999999", "1000000000000000"),
    *("1000000000000001", "9223372036854775808", "9" * 400, "9" * 5000, "0.5", "0.1", "1e-320", "1e308", "1e400", "-0.0", "1e3"),
    *("nan", "NaN", "inf", "-inf", "Infinity", "0x10", "1_000", "١٢", "½", "+5", " 8 ", "1,5", "25%", "1/3"),
]
SENSIBLE = ["1", "2", "3", "8", "63", "128", "4096", "65537", "1000000", "1000000000000000", "0.5"]
SIZES = [
    "0B",
    "1B",
    "64KiB",
    "163KiB",
    "1.5B",
    "80GB",
    "1e15B",
    "1e30TB",
    "+64KiB",
    "-1KiB",
    "1e-3B",
    "10 GFLOP",
    "3 TB/s",
    "2.5us",
    "64 kib",
]
WORDS = [
    *("", " ", "all", "auto", "none", "null", "true", "-", "--", "---", "%s", "{}", "[red]", "*", "a b", "é", "💥", "\u202e", "\x1b[31m"),
    *("/", "/dev/null", "/proc/self/mem", "no/such.yaml", "x.yaml", ".", "..", "../..", "~", "\n", "\ud800", "\0", "a\0.yaml", "$(ls)"),
    *("a" * 300, "b" * 5000 + ".yaml", "A100", "h200", "llama-3-8b", "__import__('os')", "1,2,3", "0,0", "2:64:2", "1..8", "n<9"),
    *(f"{escape}{end}" for escape in ESCAPES for end in ("", ".yaml", ".json")),
]


STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What is never printed: all control characters but newline and tab, and what turns the writing."""
NOT_A_NUMBER = re.compile(r"(?<![a-z])(nan|inf)(?![a-z])", re.IGNORECASE)


class Hangs(Exception):
    """An example did not end in time."""


def SETTINGS(examples: int) -> settings:
    """The same few examples in every run; different ones in a run of many."""
    return settings(
        max_examples=examples,
        derandomize=examples <= 200,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
    )


def no_measuring(monkeypatch: Any) -> None:
    """Commands that would measure this machine say that they cannot, and the shipped records are a few."""
    read_once(monkeypatch)

    def refused(*_: Any, **__: Any) -> Any:
        raise UnavailableError("nothing is measured in a fuzz test")

    for function in ("validation.run.run", "validation.calibration_run.this_machine"):
        monkeypatch.setattr(f"perfmodel.{function}", refused)
    for module in ("study.recorded", "validation.records"):  # the importer first: its own import must not be of the replacement
        monkeypatch.setattr(f"perfmodel.{module}.shipped_records", lambda: [RECORDS])


def read_once(monkeypatch: Any) -> None:
    """Profiles are read once, as a process that asks again and again may do."""
    monkeypatch.setattr("perfmodel.catalog._shipped_device", cache(catalog._shipped_device))


@contextmanager
def guard() -> Iterator[None]:
    """Whatever runs inside ends in time and within memory, or fails."""

    def ring(signum: int, _: object) -> None:
        raise Hangs(f"more than {MOST_S} s" if signum == signal.SIGPROF else f"waits for more than {MOST_WAIT_S} s")

    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, before[1]))
    handlers = [(number, signal.signal(number, ring)) for number in (signal.SIGALRM, signal.SIGPROF)]
    signal.alarm(MOST_WAIT_S)
    signal.setitimer(signal.ITIMER_PROF, MOST_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in handlers:
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def calls(most: float = float("inf")) -> Iterator[Counter[str]]:
    """Counts the ``calls`` of functions inside, in Python and C: a measure of work that a busy machine does not change.

    AssertionError at once beyond ``most``.
    """
    counted = Counter[str]()

    def count(frame: object, event: str, argument: object) -> None:
        counted["calls"] += event in ("call", "c_call")
        assert counted["calls"] <= most

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield counted
    finally:
        sys.setprofile(before)


def answer(args: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the program; whatever is raised is a fault."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors, newline="") for errors in ("strict", "backslashreplace"))
    with guard(), redirect_stdout(out), redirect_stderr(err):
        code = main(args)
    return code, *(printed(stream) for stream in (out, err))


def peak() -> str:
    """The most memory that this process has held."""
    return f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB"


def printed(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined]


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} in JSON")


def check(args: list[str], code: int, out: str, err: str, given: str = "") -> None:
    """An answer, or one message: nothing between. ``given``: the text of an input, which may be told again."""
    given = " ".join([given, *args])
    assert code in (0, 1, 2, 3), code
    for printed_text in (out, err):
        assert not STEERING.search(printed_text), printed_text
    assert "Traceback" not in err
    assert "output cannot be written" not in err, err  # stdout takes everything here: the error was about something else
    if code in (1, 2):
        assert sum(line.startswith(("perfmodel: ", "Error: ")) for line in err.splitlines()) == 1, f"not one message: {err}"
        assert len(err) < LONGEST_MESSAGE, f"a message of {len(err):,} characters"
    if "--json" in args and "--help" not in args and code in (0, 3) and out and asks_for_json(args):
        json.loads(out, parse_constant=refuse)
    if code in (0, 3) and not NOT_A_NUMBER.search(given):
        assert not NOT_A_NUMBER.search(out), out


# Commands


def asks_for_json(args: list[str]) -> bool:
    """Whether ``--json`` is an option here, and not what the option before it is given."""
    words = 2 if getattr(command(args[0]), "commands", {}) else 1
    parser = command(" ".join(args[:words]))
    with parser.make_context(parser.name, args[words:], resilient_parsing=True) as context:
        return bool(context.params["json"])


def examples(name: str) -> list[list[str]]:
    """Arguments of the examples in the help of ``name``."""
    return [shlex.split(line)[1:] for line in examples_apart(command(name).help or "")[1]]


def values(r: Random, param: Any, odd: float) -> str:
    """A value for one option: sensible, which its type and the words of its help tell, else hostile or as people type it."""
    told = re.findall(r"[\w.+-]{2,}", getattr(param, "help", None) or "")
    known = {"hardware": device_ids(), "device": device_ids(), "file": device_ids(), "name": model_names(), "model": model_names()}.get(
        param.name, []
    )
    number = re.search("int|float", str(param.type_descriptor.annotation))
    sensible = SENSIBLE if number else known or [*told, *told, *SIZES[:5], *SENSIBLE[:5]]
    if r.random() >= odd:
        return r.choice(sensible)
    return typed.value(r, sensible) if r.random() < 0.6 else hostile(r)


def hostile(r: Random) -> str:
    """What nobody means."""
    text = "".join(chr(r.choice([r.randrange(0x80), r.randrange(0x800), r.randrange(0x110000)])) for _ in range(r.randrange(8)))
    return r.choice([r.choice(NUMBERS), r.choice(SIZES), r.choice(WORDS), text, str(r.randint(-(2**70), 2**70)), str(r.uniform(-1, 1))])


def lines(r: Random, name: str, base: list[list[str]]) -> list[str]:
    """A line of ``base`` with options taken out, added, changed and put together in another way, and arguments changed or added."""
    words = [*r.choice(base)]
    params = [param for param in command(name).params if param.name != "help"]
    first = len(name.split())
    arguments = next((place for place, word in enumerate(words) if word.startswith("-")), len(words)) - first
    if r.random() < 0.1 and len(words) > first:
        del words[r.randrange(first, len(words))]
        arguments = 0
    odd = r.choice([0.0, 0.2, 0.5, 1.0])
    for _ in range(r.choice([1, 1, 2, 3])):
        param = r.choice(params)
        if param.param_type_name == "argument":
            place = r.randint(0, arguments)
            words[first + place : first + place + (place < arguments)] = [values(r, param, odd)]
            continue
        given = [place for place, word in enumerate(words) if word in (*param.opts, *param.secondary_opts)]
        if given and not param.multiple and r.random() < 0.9:  # twice is refused
            del words[given[0] : given[0] + 1 + (not param.is_flag)]
        words.append(r.choice([*param.opts, *param.secondary_opts]))
        if not param.is_flag:
            words.append(output(r) if param.name == "output" else values(r, param, odd))
    if r.random() < odd / 2:
        place = r.randrange(first, len(words) + 1)
        words[place : place + 1] = [typed.value(r, words[place : place + 1] or [""])]
    return typed.line(r, words, first) if r.random() < odd / 2 else words


def output(r: Random) -> str:
    """A file to write in the working folder, right or wrong."""
    suffixes = [".json", ".md", ".txt", ".json", ".md", ".txt", ".yaml", ".jsonl", ".html", ".csv", ".pdf", "", "/", "/x.json"]
    return f"out{r.choice(suffixes)}" if r.random() < 0.5 else r.choice(["-", "/dev/full", *WORDS])


# Files

SCALARS: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 10**9, 10**15, 10**15 + 1, 2**63, 10**400, 0.5, -0.0, 1e308, 5e-324, float("nan"), float("inf")),
    *("", " ", "nan", "inf", "1e999", "é", "💥", "\ud800", "\0", "a\nb", "x" * 3000, "1e300 TB/s", "1e-300 GB/s", "0 B", "-1 B", "1e30 TB"),
    *("3 GHz", "1e15 B", "fp8", "h200", "__import__('os').system('true')", "/etc/passwd", "<b>", "[red]", "2024-01-01"),
    *ESCAPES,
]
FRAGMENTS = [
    *("\u0000", "\r", "\t", "\n", ": ", "- ", "{", "}", "[", "]", "[" * 3000, "- " * 3000, '{"a":' * 2000, '"', "'", "#", ","),
    *(",,", "&a ", "*a", "!!python/object/apply:os.system [x]", "!!binary x", "<<: *a", "---\n", "...", "? ", "|", ">"),
    *("%YAML 9.9\n", "\ufeff", "\ud7ff", "\u00e9", "NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "0x1F", "1:30", ".inf"),
    *(".nan", "null", "true", "==PROF== x\n", "\\ud800", "\\u0000", "a: &x [1]\n", "a: 1\na: 1\n", "\u2028", "\u0085", "\f"),
    *("\u001c", "\\u001b[31m", "\\e[31m"),
    *ESCAPES,
]


def junk() -> st.SearchStrategy[Any]:
    """Values of any kind, nested a little or a lot."""
    scalars = st.one_of(st.sampled_from(SCALARS), st.integers(), st.floats(), st.text(max_size=5))
    deep = st.integers(5, 200).map(lambda depth: json.loads("[" * depth + "]" * depth))
    return st.one_of(scalars, scalars, st.lists(scalars, max_size=4), st.dictionaries(st.text(max_size=5), scalars, max_size=4), deep)


def written(value: Any, suffix: str) -> str:
    """``value`` as JSON, which is YAML as well but for three numbers."""
    text = json.dumps(value, ensure_ascii=False)
    return text if suffix != ".yaml" else re.sub(r"-?\bInfinity\b", ".inf", re.sub(r"\bNaN\b", ".nan", text))


def similar(value: Any) -> st.SearchStrategy[Any]:
    """Values of the type of ``value``: other numbers, with the unit that it has, and other words."""
    if isinstance(value, (bool, type(None))):
        return st.booleans()
    if isinstance(value, (int, float)):
        others = [scalar for scalar in SCALARS if isinstance(scalar, (int, float))]
        return st.one_of(st.integers(0, 10**4), st.sampled_from(others), st.integers(1, 10**15), st.floats())
    number = re.match(r"[\d.]+", value)
    if number:
        others = st.sampled_from([*SENSIBLE, *NUMBERS]).map(lambda other: other + value[number.end() :])
        return st.one_of(others, st.integers(0, 2**32).map(lambda seed: typed.value(Random(seed), [value])))
    return st.one_of(st.text(max_size=5), st.sampled_from([scalar for scalar in SCALARS if isinstance(scalar, str)]))


@st.composite
def grafted(draw: st.DrawFn, seed: Any) -> Any:
    """``seed`` with a value at some depth changed or replaced, taken out, doubled or renamed."""
    if not isinstance(seed, (dict, list)):
        return draw(junk() if draw(st.integers(0, 4)) == 4 else similar(seed))
    keys = list(seed) if isinstance(seed, dict) else list(range(len(seed)))
    how = draw(st.integers(0, 24))
    if how == 24 or not keys:
        return draw(junk())
    key = draw(st.sampled_from(keys))
    changed: Any = seed.copy()
    if how == 23:
        del changed[key]
    elif how == 22 and isinstance(seed, dict):
        changed[draw(st.one_of(st.sampled_from(["", "id", "value", "\ud800", "a.b", *ESCAPES]), st.text(max_size=4)))] = changed.pop(key)
    elif how == 21 and isinstance(seed, list):
        changed = changed * draw(st.sampled_from([2, 3, 12]))
    else:
        changed[key] = draw(grafted(seed[key]))
    return changed


@st.composite
def edited(draw: st.DrawFn, text: str) -> str:
    """``text`` with up to three words replaced, fragments put in, or parts taken out or doubled."""
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(text)))
        end = min(place + draw(st.integers(0, 40)), len(text))
        word = re.compile(r"[\w.+-]+").search(text, place)
        new = draw(st.one_of(st.sampled_from(FRAGMENTS), st.sampled_from(NUMBERS), st.text(max_size=4)))
        how = draw(st.integers(0, 5))
        if how < 3 and word:
            text = text[: word.start()] + new + text[word.end() :]
        elif how == 3:
            text = text[:place] + new + text[place:]
        else:
            text = text[:place] + text[end:] if how == 4 else text[:end] + text[place:]
    return text


def contents(seeds: list[Any], suffix: str) -> st.SearchStrategy[bytes]:
    """Bytes of files: edited and grafted seeds, and what was never one. A seed is a text, or the value that a text holds."""

    def encoded(text: str) -> bytes:
        return text.encode("utf-8", "surrogatepass")

    texts = [seed if isinstance(seed, str) else json.dumps(seed) for seed in seeds]
    trees = [seed for seed in seeds if not isinstance(seed, str)]
    kinds = [st.sampled_from(texts).flatmap(edited).map(encoded)]
    if trees:
        grafts = st.sampled_from(trees).flatmap(grafted)
        kinds += 3 * [grafts.map(lambda value: encoded(written(value, suffix)))]
        kinds += [st.tuples(grafts, st.sampled_from(trees)).map(lambda two: encoded("\n".join(json.dumps(value) for value in two)))]
    return st.one_of(*kinds, st.one_of(st.binary(max_size=60), junk().map(lambda value: encoded(written(value, suffix)))))


# Readers


def readers() -> dict[str, Callable[[Path], Any]]:
    """Public functions that read a file: load_*, read_*, find_* and parse, of a path alone or of a name that may be one."""
    root = Path(perfmodel.__path__[0])
    found: dict[str, Callable[[Path], Any]] = {}
    for file in sorted(root.rglob("*.py")):
        text = file.read_text()
        if not re.search(r"^def (?:load_|read_|find_|parse\()", text, re.MULTILINE):
            continue
        for node in ast.parse(text).body:
            if not isinstance(node, ast.FunctionDef) or not re.match(r"(load|read|find)_|parse$", node.name):
                continue
            arguments = node.args.args
            kind = ast.unparse(arguments[0].annotation) if arguments and arguments[0].annotation else ""
            named = kind == "str" and ".yaml" in ast.unparse(node)
            if len(arguments) == 1 + len(node.args.defaults) and (kind == "Path" or named):
                module = ".".join(file.relative_to(root.parent).with_suffix("").parts)
                function = getattr(import_module(module), node.name)
                found[f"{module}.{node.name}"] = (lambda path, function=function: function(str(path))) if named else function
    return found
