"""A sweep on a cluster: the same chunks, each a task of dask.distributed, into one folder that every worker can write to.

A worker gets only the study and the places of a chunk's blocks; it writes the rows to the part of the chunk and returns their summary. A
few tasks per worker thread run at a time, so that memory stays flat on both sides. A lost worker's chunks are computed again. Every wait
checks whether the scheduler still answers and still has workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import islice
from threading import local
from time import monotonic, sleep
from typing import Any

from perfmodel.core.errors import DataError, PerfmodelError, UnavailableError, UsageError
from perfmodel.sweep.evaluate import Runner
from perfmodel.sweep.grid import Chunk, SweepGrid, grid_of
from perfmodel.sweep.parts import Output, Parts, opened
from perfmodel.sweep.summary import Findings

TASKS_PER_THREAD = 3
RETRIES = 3
"""Retries of a task whose worker disappeared; after these, the task is blamed."""
CONNECT_S, LOOK_S, PATIENCE_S, CLOSE_S = 4, 1, 5, 1
"""Seconds to reach a scheduler, between checks of it, to wait for its answer and its workers, and to close. Together under ten."""

_LAST = local()
"""The runner of the last study in each thread of a worker, as tasks of one study follow one another."""


def task(parts: Parts, chunk: Chunk) -> Findings:
    """Findings of one chunk on a worker, which writes its part."""
    key = (parts.study.fingerprint(), parts.rows)
    if getattr(_LAST, "key", None) != key:
        _LAST.key, _LAST.runner = key, Runner(grid_of(parts.study), parts.rows)
    runner: Runner = _LAST.runner
    findings = Findings.of(runner.grid, parts.study)
    if not parts.place.is_dir():
        raise DataError(f"{parts.target}: no such folder on the worker", "name a folder on a file system that all workers share")
    parts.write(runner, chunk, findings.update)
    return findings


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """A client of the scheduler at ``address``; UsageError if none answers within CONNECT_S. dask's own log is silent meanwhile."""
    try:
        library: Any = import_module("distributed")
    except ImportError:
        raise UnavailableError("--dask needs dask.distributed, which is not installed", "pip install 'perfmodel[dask]'") from None
    before = logging.root.manager.disable
    logging.disable()
    try:
        client = _client(library, address)
        client.loop.asyncio_loop.set_exception_handler(lambda *_: None)  # else what it leaves unfinished is logged at any later time
        try:
            yield client
        finally:
            with suppress(OSError):
                client.close(timeout=CLOSE_S)
    finally:
        logging.disable(before)


def _client(library: Any, address: str) -> Any:
    """A client of the scheduler at ``address``. Another server there may cause any error: a wrong message size raises MemoryError."""
    try:
        asyncio.run(asyncio.wait_for(_check_answer(address), CONNECT_S))
        return library.Client(address, timeout=CONNECT_S, set_as_default=False)
    except Exception as error:
        if isinstance(error, MemoryError):
            reason = "something else does"
        elif type(error) is TimeoutError:
            reason = f"nothing was said in {CONNECT_S} s"
        else:
            reason = str(error).partition("\n")[0] or type(error).__name__
        fix = "nothing was written; give it as tcp://HOST:8786, where 'dask scheduler' runs"
        if address.startswith("tls:"):
            fix += "; keys for tls:// are those of dask's settings, distributed.comm.tls"
        raise UsageError(f"--dask {address!r}: no scheduler answers: {reason}", fix) from None


async def _check_answer(address: str) -> None:
    """Raises an error if no server answers at ``address``: a client that tries without this check hangs when it is closed."""
    if not address.strip():
        raise ValueError("the address is empty")
    if import_module("dask.config").get("distributed.client.security-loader", None):
        return  # only the client knows how to load the keys
    core: Any = import_module("distributed.comm.core")
    security: Any = import_module("distributed.security")
    comm = await core.connect(address, timeout=CONNECT_S, **security.Security().get_connection_args("client"))
    await comm.close()


def write_cluster(grid: SweepGrid, output: Output, memory: int, findings: Findings) -> None:
    """Writes every chunk on the cluster; ``findings`` takes in the findings of the tasks, in the order of the chunks."""
    address = str(output.dask)
    with connected(address) as client:
        try:
            threads = _threads(client)
        except OSError as error:
            raise UsageError(f"--dask {address!r}: {error}", f"nothing was written; start some: dask worker {address}") from None
        with opened(output, grid.study, grid.chunk_rows(memory)) as parts:
            count = 0
            for chunk_findings in _results(client, threads, parts, grid.chunks(parts.rows)):
                findings.merge(chunk_findings)
                count += 1
            parts.finish(count)


def _threads(client: Any) -> int:
    """Number of threads of all workers; OSError if the scheduler reports no worker within PATIENCE_S."""
    until = monotonic() + PATIENCE_S
    while (left_s := until - monotonic()) > 0:
        try:
            threads: int = sum(client.sync(client.scheduler.ncores, callback_timeout=left_s).values())
        except Exception:  # any that a closing client or a broken connection raises
            raise OSError("the scheduler answers no more") from None
        if threads:
            return threads
        sleep(0.1)
    raise OSError("the scheduler has no workers")


def _results(client: Any, threads: int, parts: Parts, chunks: Iterator[Chunk]) -> Iterator[Findings]:
    """Results of ``chunks``, in order; as one comes back, another is submitted. DataError says which rows are kept."""

    def send(chunk: Chunk) -> Any:
        key = f"perfmodel-sweep-{parts.study.fingerprint()}-{chunk.index}"
        return client.submit(task, parts, chunk, key=key, retries=RETRIES, pure=False)

    try:
        running = deque(map(send, islice(chunks, TASKS_PER_THREAD * threads)))
        while running:
            future = running.popleft()
            yield _result(client, future)
            future.release()
            running.extend(map(send, islice(chunks, 1)))
    except PerfmodelError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        if type(error) is not OSError:
            reason = f"{type(error).__name__}: {reason}"
        kept = sum(1 for _ in parts.place.glob("part-*"))
        words = f"--dask: {reason}; {parts.target} keeps {kept:,} whole file{'' if kept == 1 else 's'}"
        raise DataError(words, "look into the cluster's logs, then go on with the same options and --resume") from None


def _result(client: Any, future: Any) -> Findings:
    """Result of a task; OSError if it can no longer arrive."""
    while True:
        try:
            findings: Findings = future.result(timeout=LOOK_S)
            return findings
        except Exception as error:
            if future.status == "error":  # the task raised it
                raise
            if not isinstance(error, TimeoutError):
                raise OSError("the scheduler went away") from None
            _threads(client)
