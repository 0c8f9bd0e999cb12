"""A sweep on a real dask scheduler with several worker processes on loopback: one dataset, equal to the local one."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster
from sweep_runs import wait_until

from perfmodel.core.errors import DataError
from perfmodel.sweep import dask_run
from perfmodel.sweep.parts import Output, Parts
from perfmodel.sweep.run import run_sweep
from perfmodel.sweep.study import SweepStudy

AXES = {"n": "64:4096:+64", "d": [64, 128], "batch": "1:16:+1", "algorithm": ["standard", "flash1", "flash2"], "hardware": "h200"}
STUDY = SweepStudy("attention", AXES, where=("n * batch <= 32000",), minimize="time", pareto=("sram_bytes", "roofline_s"), top=5).complete()
MEMORY = 1 << 18
"""So little that there are dozens of chunks."""

pytestmark = [
    # what dask itself warns of, here and in the processes it starts
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def _garbage_stays_here() -> Iterator[None]:
    """What dask leaves unclosed is collected while its warnings are ignored."""
    yield
    gc.collect()


def made(workers: int, *, processes: bool = False) -> LocalCluster:
    """A scheduler with so many workers of one thread."""
    settings: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "processes": processes, "protocol": "tcp"}
    return LocalCluster(**settings, dashboard_address=":0", host="127.0.0.1", silence_logs=60)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with made(2, processes=True) as started:
        yield started


def folder_of(path: Path, cluster: LocalCluster | None = None, *, resume: bool = False) -> Output:
    return Output(path, "parquet", folder=True, resume=resume, dask=cluster.scheduler_address if cluster else None)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("local") / "rows"
    return run_sweep(STUDY, folder_of(folder), MEMORY), pq.read_table(folder)


def test_a_worker_killed_midway_changes_nothing(cluster: LocalCluster, local: Any, tmp_path: Path) -> None:
    expected, rows = local
    folder = tmp_path / "rows"
    killed: list[int] = []
    written: list[Path] = []

    def kill_one(points: int) -> None:
        if not killed:
            with Client(cluster, set_as_default=False) as client:
                busy = [address for address, tasks in client.processing().items() if tasks]
                address = [*busy, *client.nthreads()][0]
                killed.append(client.run(os.getpid, workers=[address])[address])
            os.kill(killed[0], signal.SIGKILL)
            written.extend(folder.glob(".*/part-*"))

    found = run_sweep(STUDY, folder_of(folder, cluster), MEMORY, lambda total: kill_one)
    with Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
        assert killed[0] not in client.run(os.getpid).values()
    parts = sorted(folder.iterdir())
    assert 0 < len(written) < len(parts)
    assert pq.read_table(folder).equals(rows)
    assert found.counts == expected.counts
    assert found.summary.best == expected.summary.best
    for other, axes in expected.summary.shares.items():
        for axis, shares in axes.items():
            assert found.summary.shares[other][axis].wins.tolist() == shares.wins.tolist()
    assert found.summary.compared == expected.summary.compared
    assert found.best.rows == expected.best.rows
    assert found.pareto.rows == expected.pareto.rows
    # carried on: only what is missing is written, in chunks as they were begun
    for on, memory in ((cluster, MEMORY), (None, 16 * MEMORY)):
        kept = parts[5].stat().st_mtime_ns
        parts[3].unlink()
        again = run_sweep(STUDY, folder_of(folder, on, resume=True), memory)
        assert pq.read_table(folder).equals(rows)
        assert parts[5].stat().st_mtime_ns == kept
        assert again.counts == expected.counts


def test_engines_are_swept_on_workers(cluster: LocalCluster, tmp_path: Path) -> None:
    axes = {"model": "llama-3.1-8b", "hardware": "h200", "engine": ["vllm", "sglang"], "isl": 64, "osl": 8, "concurrency": [1, 2, 4]}
    study = SweepStudy("serve", axes).complete()
    for name, on in (("there", cluster), ("here", None)):
        run_sweep(study, folder_of(tmp_path / name, on), MEMORY)
    there, here = (pq.read_table(tmp_path / name) for name in ("there", "here"))
    assert there.num_rows == 6
    assert there.equals(here)


def test_what_goes_wrong_on_a_worker_is_said_here(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Parts(tmp_path / "nowhere", tmp_path / "nowhere", "parquet", STUDY, 1000)
    monkeypatch.setattr("perfmodel.sweep.dask_run.opened", lambda output, study, rows: nullcontext(nowhere))  # as if not shared
    with pytest.raises(DataError, match="no such folder on the worker"):
        run_sweep(STUDY, folder_of(tmp_path / "nowhere", cluster), MEMORY)


def test_the_command_on_a_scheduler_of_its_own(tmp_path: Path) -> None:
    """Scheduler and worker as separate programs, the way people start them."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(program: str, *words: str) -> None:
        line = [sys.executable, "-m", f"distributed.cli.dask_{program}", "--scheduler-file", "s.json", "--no-dashboard", *words]
        processes.append(subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.DEVNULL))

    try:
        start("scheduler", "--host", "127.0.0.1", "--port", "0")
        wait_until((tmp_path / "s.json").exists)
        start("worker", "--no-nanny", "--nthreads", "1")
        with Client(scheduler_file=str(tmp_path / "s.json"), set_as_default=False) as client:
            client.wait_for_workers(1, timeout=60)
            address = client.scheduler.address
        line = f"sweep --n 64:6400:+64 --d 64 --hardware h200 --dask {address} -o {tmp_path / 'rows'}"
        done = subprocess.run([sys.executable, "-m", "perfmodel", *line.split()], capture_output=True, text=True, check=False)
        assert (done.returncode, "200 rows." in done.stdout) == (0, True), done.stderr
        assert pq.read_table(tmp_path / "rows").num_rows == 200
        assert_a_lost_scheduler_is_one_message(address, processes[0], tmp_path / "long")
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(timeout=60)


def assert_a_lost_scheduler_is_one_message(address: str, scheduler: subprocess.Popen[bytes], folder: Path) -> None:
    """What the client leaves behind is said after the command's end, so in a process of its own."""
    line = f"sweep --n 1:1000000 --batch 1:200 --d 64 --row-memory 2MiB --hardware h200 --dask {address} -o {folder}"
    with subprocess.Popen([sys.executable, "-m", "perfmodel", *line.split()], stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: any(folder.glob(".*/part-*")))
        scheduler.kill()
        _, told = process.communicate(timeout=60)
    said = [text for text in told.splitlines() if " rows, " not in text]  # but for its progress
    assert (process.returncode, len(said)) == (1, 2), told
    assert re.fullmatch(rf"perfmodel: --dask: the scheduler .*; {folder} keeps [1-9]\d* whole files?", said[0])
    assert said[1].endswith("go on with the same options and --resume")


@pytest.fixture
def waits_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers have a minute of real time, so that no slow machine misses one; a wait between two looks passes at once."""
    now = [0.0]
    limits = {"CONNECT_S": 60, "PATIENCE_S": 60, "LOOK_S": 0.3}
    clock = {"monotonic": lambda: now[0], "sleep": lambda seconds: now.__setitem__(0, now[0] + 60)}
    for name, value in {**limits, **clock}.items():
        monkeypatch.setattr(f"perfmodel.sweep.dask_run.{name}", value)


@pytest.mark.usefixtures("waits_in_vain")
def test_without_workers_nothing_is_written(run: Any, tmp_path: Path) -> None:
    with made(0) as empty:
        outcome = run(f"sweep --n 64 --d 64 --dask {empty.scheduler_address} -o {tmp_path / 'rows'}")
    assert (outcome.code, outcome.err.count("\n"), list(tmp_path.iterdir())) == (2, 2, [])
    assert "has no workers" in outcome.err
    assert f"dask worker {empty.scheduler_address}" in outcome.err


@pytest.mark.usefixtures("waits_in_vain")
def test_workers_that_go_leave_what_they_wrote(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    with made(1) as cluster, pytest.raises(DataError, match=r"has no workers; .* keeps \d+ whole files?\n.*--resume") as told:
        run_sweep(STUDY, folder_of(folder, cluster), MEMORY, lambda total: lambda points: cluster.scale(0))
    assert f"keeps {len(list(folder.glob('.*/part-*')))} whole" in str(told.value)


@pytest.mark.parametrize("scheme", ["tcp", "ws", "tls", "ucx"])
def test_what_accepts_and_says_nothing(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.setattr("perfmodel.sweep.dask_run.CONNECT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        outcome = run(f"sweep --n 64 --d 64 --dask {scheme}://127.0.0.1:{server.getsockname()[1]} -o {tmp_path / 'rows'}")
    assert (outcome.code, outcome.err.count("\n"), list(tmp_path.iterdir())) == (2, 2, []), outcome.err
    assert "no scheduler answers" in outcome.err


def test_the_limits_together_are_under_ten_seconds() -> None:
    assert 2 * dask_run.CONNECT_S + dask_run.CLOSE_S < 10
    assert dask_run.LOOK_S + dask_run.PATIENCE_S + dask_run.CLOSE_S < 10


def test_a_worker_that_fails_is_one_message(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it lacks a library, or has another version of this one."""
    monkeypatch.setattr("perfmodel.sweep.dask_run.task", import_module)  # which takes other arguments
    with pytest.raises(DataError, match=r"--dask: \w+Error: .* keeps 0 whole files\n.*--resume"):
        run_sweep(STUDY, folder_of(tmp_path / "rows", cluster), MEMORY)


def test_no_scheduler_is_one_message(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfmodel.sweep.dask_run.CONNECT_S", 0.2)
    outcome = run(f"sweep --n 64 --d 64 --dask tcp://127.0.0.1:1 -o {tmp_path / 'rows'}")
    assert (outcome.code, "no scheduler answers" in outcome.err) == (2, True)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert "pip install 'perfmodel[dask]'" in run(f"sweep --n 64 --d 64 --dask tcp://127.0.0.1:1 -o {tmp_path / 'rows'}").err


ASKED = """
import sys
from perfmodel.cli import main
folder, *addresses = sys.argv[1:]
print([main(["sweep", "--n", "64", "--d", "64", "--dask", address, "-o", f"{folder}/"]) for address in addresses])
"""


def refused(folder: Path, *addresses: str) -> list[str]:
    """What the command says of each, in a process of its own: what a client says as it is taken down comes after the command's end."""
    line = [sys.executable, "-c", ASKED, str(folder), *addresses]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    said = done.stderr.splitlines()
    assert (done.stdout, len(said), folder.exists()) == (f"{[2] * len(addresses)}\n", 2 * len(addresses), False), done.stderr
    return ["\n".join(lines) for lines in zip(said[::2], said[1::2], strict=True)]


def test_no_address_is_one_message_at_once(tmp_path: Path) -> None:
    words = {
        "garbage": "missing port number",
        "": "the value of --dask is empty",
        "x://h:1": "unknown",
        "tls://127.0.0.1:1": "distributed.comm.tls",
    }
    for said, expected in zip(refused(tmp_path / "rows", *words), words.values(), strict=True):
        assert expected in said


def test_something_else_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as taken:
                taken.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                taken.recv(1 << 16)

        thread = threading.Thread(target=answer)
        thread.start()
        assert "something else does" in refused(tmp_path / "rows", f"tcp://127.0.0.1:{server.getsockname()[1]}")[0]
        thread.join()


def test_a_task_writes_its_chunk_and_sums_it_up(tmp_path: Path, local: Any) -> None:
    """What a worker does, without one."""
    from perfmodel.sweep.dask_run import task
    from perfmodel.sweep.evaluate import Runner
    from perfmodel.sweep.grid import grid_of
    from perfmodel.sweep.summary import Counts

    grid = grid_of(STUDY)
    runner = Runner(grid, grid.chunk_rows(MEMORY))
    parts = Parts(tmp_path, tmp_path, "parquet", STUDY, runner.rows, resume=True)
    total = Counts()
    for chunk in runner.chunks():
        for _ in range(2):  # a chunk that is there is not written again, but summed up
            seen = task(parts, chunk)
        total.merge(seen.counts)
    assert total == local[0].counts
    assert pq.read_table(tmp_path).equals(local[1])
