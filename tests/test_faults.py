"""What goes wrong around the program: disks, pipes, links, permissions, interrupts, two runs at once. One message, no half file."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fuzz_seeds import MEASURING
from fuzzing import RECORDS, examples, no_measuring

from perfmodel.cli import main
from perfmodel.report.formats import suffixes
from perfmodel.validation.records import shipped_records
from tools.commands import all_commands

pytestmark = pytest.mark.usefixtures("interrupts_arrive")
ASK = "attention --n 64 --d 64"
WRITERS = {
    **dict.fromkeys(suffixes(), ASK),
    ".jsonl": f"validate --records {RECORDS} --tolerance 1000%",
    ".yaml": f"calibrate --from-records {shipped_records('numba-copy')[0]}",
}
"""A line that writes a file of each suffix."""


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    no_measuring(monkeypatch)


def started(line: str, **options: Any) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, "-m", "perfmodel", *line.split()], text=True, **pipes)


def names() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


# Disks


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The system refuses to let a file grow beyond ``size``, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_disk_that_fills_up_leaves_what_was_there(run, suffix):
    path = Path(f"out{suffix}")
    for before in (None, "what was there"):
        if before is not None:
            path.write_text(before)
        with largest_file(100):
            outcome = run(f"{WRITERS[suffix]} -o {path}")
        assert outcome.code == 1, outcome
        assert "File too large" in outcome.err
        assert "nothing was written" in outcome.err
        assert names() == ([] if before is None else [path.name])
    assert path.read_text() == before
    assert run(f"{WRITERS[suffix]} -o {path}").code == 0
    assert path.stat().st_size > 100


def test_a_full_device(run):
    Path("full.json").symlink_to("/dev/full")
    outcome = run(f"{ASK} -o full.json")
    assert (outcome.code, "No space left on device" in outcome.err) == (1, True)


# Folders and links


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write everywhere: be nobody meanwhile."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_is_read_only(run, tmp_path):
    assert run(f"{ASK} -o -").code == 0  # load the modules while they may be read
    tmp_path.chmod(0o555)
    try:
        with unprivileged():
            outcome = run(f"{ASK} -o {tmp_path / 'out.json'}")
    finally:
        tmp_path.chmod(0o755)
    assert outcome.code in (1, 2)
    assert str(tmp_path) in outcome.err
    assert names() == []


def test_a_file_system_that_takes_no_files(run):
    outcome = run(f"{ASK} -o /proc/out.json")
    assert outcome.code in (1, 2)
    assert "/proc/out.json" in outcome.err


def test_links_as_outputs(run):
    Path("target.json").write_text("old")
    Path("link.json").symlink_to("target.json")
    Path("chain.json").symlink_to("link.json")
    Path("dangling.json").symlink_to("made.json")
    for link in ("link.json", "chain.json", "dangling.json"):
        assert run(f"{ASK} -o {link}").code == 0
        assert Path(link).is_symlink()
        assert json.loads(Path(link).read_text())["schema"] == "perfmodel.attention/1"
    assert not Path("target.json").is_symlink()
    assert Path("made.json").is_file()


@pytest.mark.parametrize(
    ("target", "words"), [("loop.json", "symbolic links"), ("nowhere/x.json", "No such file"), (".", "is a folder"), ("/proc/x.json", "")]
)
def test_links_that_lead_nowhere(run, target, words):
    Path("loop.json").symlink_to(target)
    outcome = run(f"{ASK} -o loop.json")
    assert outcome.code in (1, 2)
    assert words in outcome.err
    assert "loop.json" in outcome.err
    assert names() == ["loop.json"]
    assert Path("loop.json").is_symlink()


@pytest.mark.parametrize(
    "name", ["x" * 251 + ".json", "x" * 300 + ".json", "é" * 120 + ".json", "a b\n'\".json", "-.json", "\udcff.json", "💥.json"]
)
def test_strange_names_of_files(run, name):
    outcome = run(ASK, "-o", name)
    assert outcome.code in (0, 1, 2)
    assert names() == ([name] if outcome.code == 0 else [])
    if outcome.code == 0:
        json.loads(Path(name).read_text())
    else:
        assert "File name too long" in outcome.err


def test_two_runs_write_one_file(tmp_path):
    """Whoever reads meanwhile finds the whole answer of one of them."""
    path = tmp_path / "out.json"
    code = "import sys; from perfmodel.cli import main; sys.exit(max(main(sys.argv[1:]) for _ in range(12)))"
    writers = [subprocess.Popen([sys.executable, "-c", code, *ASK.split(), "--heads", str(heads), "-o", path]) for heads in (1, 2)]
    found = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            found.add(json.loads(path.read_text())["inputs"]["heads"])
    assert [writer.returncode for writer in writers] == [0, 0]
    assert found | {json.loads(path.read_text())["inputs"]["heads"]} <= {1, 2}
    assert found
    assert names() == ["out.json"]


# Pipes


@pytest.mark.parametrize("name", all_commands())
def test_a_reader_that_has_gone(monkeypatch, capsys, name):
    """Not a word, whichever command it is: the reader has read enough."""
    read, write = os.pipe()
    os.close(read)
    line = MEASURING[name].split() if name in MEASURING else examples(name)[0]
    with os.fdopen(write, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        code = main([word for word in line if word != "-o"] if "-o" not in line else [*line, "-o", "-"])
        monkeypatch.undo()
    told = capsys.readouterr().err
    assert code == 1
    assert "Traceback" not in told
    assert "pipe" not in told.lower()


@pytest.mark.parametrize("line", ["hardware show h200 --json", ASK, "--help", "hardware check h200"])
def test_a_reader_that_had_gone_before(line):
    """As ``| head`` leaves it, in a process of its own: exit code 1 and not a word, from the interpreter's end neither."""
    read, write = os.pipe()
    os.close(read)
    with started(line, stdout=write) as process:
        os.close(write)
        _, err = process.communicate()
    assert (process.returncode, err) == (1, "")


@pytest.mark.parametrize(("redirection", "code"), [("2>&-", 0), (">&- 2>&-", 1), ("<&-", 0), ("2>/dev/full", 0)])
def test_closed_streams(redirection, code):
    line = f"{sys.executable} -m perfmodel {ASK} {redirection}"
    finished = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stderr) == (code, "")
    assert finished.stdout.startswith("Attention") == (code == 0)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_terminals_that_know_few_letters(encoding):
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    with started(ASK, env=environment, encoding=encoding) as process:
        out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "\\u2588" in out  # a bar of a meter


def test_names_that_are_not_unicode(tmp_path):
    profile = tmp_path / os.fsdecode(b"\xff.yaml")
    profile.write_text((Path(__file__).parents[1] / "hardware_specs" / "nvidia-l4.yaml").read_text())
    with started(f"hardware check {profile}") as process:
        out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert out.endswith(".yaml: NVIDIA L4 is sound\n")


# Interrupts


def rest(pid: int) -> None:
    """Until the process has begun and then takes no more time of a processor."""
    before, now = -1, 0
    while now < 3 or now > before:
        time.sleep(0.2)
        before, now = now, sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))


def test_an_interrupt_while_it_waits(tmp_path):
    """The pipe has no reader: the run waits for one, with everything computed and nothing written."""
    os.mkfifo("pipe.json")
    with started(f"{ASK} -o pipe.json") as process:
        rest(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")
    assert names() == ["pipe.json"]


@pytest.mark.parametrize("step", ["os.chmod", "os.replace", "perfmodel.report.render_for", "tempfile.NamedTemporaryFile"])
@pytest.mark.parametrize("before", [None, "what was there"])
def test_an_interrupt_at_any_step_of_writing(run, monkeypatch, step, before):
    if before is not None:
        Path("out.json").write_text(before)

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(step, interrupt)
    assert run(f"{ASK} -o out.json").code == 130
    assert names() == ([] if before is None else ["out.json"])
    assert before is None or Path("out.json").read_text() == before


def test_an_interrupt_while_modules_are_loaded(monkeypatch):
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    from perfmodel.__main__ import run

    monkeypatch.setitem(sys.modules, "perfmodel.cli", Interrupted("perfmodel.cli"))
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 130


def test_too_little_memory_is_said(run, monkeypatch):
    def full(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("perfmodel.catalog.find_device", full)
    outcome = run(ASK)
    assert (outcome.code, "not enough memory" in outcome.err) == (1, True)
