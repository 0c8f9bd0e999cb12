"""A sweep on a cluster: the same chunks, each a task of dask.distributed, into one folder that every worker can write to.

Only the study and the number of a chunk travel to a worker; rows go to its file, and what they sum up to comes back. A few tasks per
worker thread are under way at a time, so that memory stays flat on both sides. A lost worker's chunks are computed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from threading import local
from typing import Any

from perfmodel.errors import DataError, UnavailableError, UsageError
from perfmodel.sweep.chunks import Chunk
from perfmodel.sweep.dataset import fill, prepared, write_part
from perfmodel.sweep.grid import Grid, grid_of
from perfmodel.sweep.run import Consumer, Progress, Runner
from perfmodel.sweep.study import Study

TASKS_PER_THREAD = 3
RETRIES = 3
"""Of a task whose worker went away; then it is taken to be the task's fault."""
CONNECT_S = 10

Consumers = Callable[[Grid], Sequence[Consumer]]


@dataclass(frozen=True, slots=True)
class Job:
    """All that a worker must know: ``consumers`` makes what sums rows up, ``rows`` are those of a chunk."""

    study: Study
    rows: int
    folder: str
    consumers: Consumers
    resume: bool


_KEPT = local()
"""The runner of the last study, in each thread of a worker: tasks of one study follow one another."""


def _runner(job: Job) -> Runner:
    key = (job.study.fingerprint(), job.rows)
    if getattr(_KEPT, "key", None) != key:
        _KEPT.key, _KEPT.runner = key, Runner(grid_of(job.study), 0, rows=job.rows)
    found: Runner = _KEPT.runner
    return found


def task(job: Job, chunk: Chunk) -> Sequence[Consumer]:
    """One chunk on a worker: its file written, unless it is there, and what its rows sum up to."""
    runner, folder = _runner(job), Path(job.folder)
    consumers = job.consumers(runner.grid)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder on the worker", "name a folder on a file system that all workers share")
    if job.resume:
        fill(runner, job.study, chunk, folder, consumers)
    else:
        write_part(runner, job.study, chunk, folder, consumers)
    return consumers


def connected(address: str) -> Any:
    """A client of the scheduler at ``address``."""
    try:
        library: Any = import_module("distributed")
    except ImportError:
        raise UnavailableError("--dask needs dask.distributed, which is not installed", "pip install 'perfmodel[dask]'") from None
    try:
        asyncio.run(_reached(address))
        return library.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError, MemoryError) as error:
        text = "something else does" if isinstance(error, MemoryError) else str(error).partition("\n")[0] or type(error).__name__
        raise UsageError(
            f"--dask {address!r}: no scheduler answers: {text}", "give it as tcp://HOST:8786, where 'dask scheduler' runs"
        ) from None


async def _reached(address: str) -> None:
    """Whether something at ``address`` speaks as dask does: a client that finds out by itself hangs when it is taken down.

    What else is there may answer with anything; read as the size of a message, that raises MemoryError.
    """
    if not address.strip():
        raise ValueError("the address is empty")
    if import_module("dask.config").get("distributed.client.security-loader", None):
        return  # keys are the client's to find
    core: Any = import_module("distributed.comm.core")
    security: Any = import_module("distributed.security")
    comm = await core.connect(address, timeout=CONNECT_S, **security.Security().get_connection_args("client"))
    await comm.close()


def write_cluster(address: str, runner: Runner, job: Job, consumers: Sequence[Consumer], tell: Progress | None) -> None:
    """Every chunk on the cluster at ``address``; ``consumers`` take in what the tasks have seen, in the order of the chunks."""
    with connected(address) as client, prepared(Path(job.folder), job.study, job.rows, job.resume) as rows:
        job, runner = replace(job, rows=rows), Runner(runner.grid, 0, tables=False, rows=rows)
        waiting: dict[int, tuple[Sequence[Consumer], int]] = {}
        following = 0
        for chunk, found in _results(client, job, runner.chunks()):
            waiting[chunk.index] = found, chunk.points * len(runner.grid.compared)
            while following in waiting:
                seen, points = waiting.pop(following)
                for own, other in zip(consumers, seen, strict=True):
                    own.merge(other)
                following += 1
                if tell is not None:
                    tell(points)


def _results(client: Any, job: Job, chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, Sequence[Consumer]]]:
    """Chunks with what their tasks found, as they finish; new ones are handed out as old ones come back."""
    library: Any = import_module("distributed")
    sent: dict[str, Chunk] = {}

    def send(chunk: Chunk) -> Any:
        key = f"perfmodel-sweep-{job.study.fingerprint()}-{chunk.index}"
        sent[key] = chunk
        return client.submit(task, job, chunk, key=key, retries=RETRIES, pure=False)

    threads = max(sum(client.nthreads().values()), 1)
    running = library.as_completed(list(map(send, islice(chunks, TASKS_PER_THREAD * threads))), loop=client.loop)
    try:
        for future in running:
            yield sent.pop(future.key), future.result()
            future.release()
            for chunk in islice(chunks, 1):
                running.add(send(chunk))
    except library.KilledWorker as error:
        raise DataError(f"--dask: workers were lost again and again: {error}", "look into their logs; go on with --resume") from None
