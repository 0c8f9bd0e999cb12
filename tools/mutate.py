"""Do the tests notice? Small faults are put into a copy of the package, one at a time, and the tests that run the place are run.

    python -m tools.mutate                 200 places, always the same ones
    python -m tools.mutate --places 15     the first 15 of them
    python -m tools.mutate --only cache.py

A mutant dies if a test fails or takes too long. Survivors are printed as file and line, without and with the fault. Each wants a test,
or, if it does the same as the code before, a block in tools/equivalent.txt that says why. Which tests run which places is found once,
by a run of the tests, and kept in the file of ``--map``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.faults import ROOT, Mutant, every
from tools.forked import Job, in_forks, write
from tools.reached import Reached, environment, pytest_command, reached

COPIED = ("perfmodel", "tests", "tools", "hardware_specs", "configs", "docs", "README.md", "pyproject.toml")
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
PLACES, ANYWAY_S, TIMES_AS_LONG = 200, 20.0, 5.0
"""A mutant hangs if its tests take longer than ``ANYWAY_S`` and so many times what they took before."""


def equivalent() -> dict[tuple[str, str, str], str]:
    """Why a fault changes nothing, by its path and lines: blocks of path, ``- line``, ``+ line with the fault``, reason."""
    blocks = [block.strip().split("\n", 3) for block in EQUIVALENT.read_text().split("\n\n") if block.strip()]
    return {(path, was.removeprefix("- "), becomes.removeprefix("+ ")): why for path, was, becomes, why in blocks}


def copied(folder: Path) -> Path:
    """A copy of what the tests need."""
    for name in COPIED:
        take = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        take(ROOT / name, folder / name)
    return folder


def killer(mutant: Mutant, tests: list[str], limit_s: float, copy: Path) -> str:
    """The test that fails, or '' if none does; the copy is as it was afterwards."""
    file = copy / mutant.path
    source = file.read_bytes()
    write(file, mutant.apply(source))
    try:
        code, failed = _run(tests, copy, limit_s)
        if code == 4:  # the fault changes names of tests, or nothing can be imported: the files tell
            code, failed = _run(sorted({test.partition("::")[0] for test in tests}), copy, 10 * limit_s)
        return failed or ("" if code in (0, 5) else f"exit code {code}")
    finally:
        write(file, source)


def _run(tests: list[str], copy: Path, limit_s: float) -> tuple[int, str]:
    command = pytest_command("-x", *tests)
    with subprocess.Popen(command, cwd=copy, env=environment(copy), stdout=-1, stderr=-2, text=True, start_new_session=True) as run:
        try:
            out, _ = run.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            return 1, "no end"
    found = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", out, re.MULTILINE)
    return run.returncode, found[1] if found else ""


def job(known: Reached, number: int, mutant: Mutant) -> Job:
    """A fault, its tests, and the most seconds that they may take."""
    tests = known.of(number, mutant)
    return mutant, tests, ANYWAY_S + TIMES_AS_LONG * sum(known.seconds[test] for test in tests)


def survivors(jobs: list[Job], copy: Path) -> list[Mutant]:
    """Those that no test notices, each printed as it is found; what kills the others goes to stderr, and must pass without a fault."""
    alive: list[Mutant] = []
    deaths: set[str] = set()
    later: list[Job] = []

    def heard(job: Job, test: str | None) -> None:
        mutant = job[0]
        if test is None:
            later.append(job)
            return
        if test:
            deaths.add(test)
        else:
            alive.append(mutant)
            path, was, becomes = mutant.change
            print(f"{path}:{mutant.line}\n- {was}\n+ {becomes}\n", flush=True)
        print(f"{len(alive)} alive; {mutant.path}:{mutant.line}: {test or '-'}", file=sys.stderr, flush=True)

    files = sorted({test.partition("::")[0] for _, tests, _ in jobs for test in tests})
    in_forks(jobs, files, copy, heard)
    for job in later:
        heard(job, killer(*job, copy))
    code, failed = _run(named, copy, 3600) if (named := sorted(test for test in deaths if "::" in test)) else (0, "")
    if code:
        raise SystemExit(f"fails without a fault, so that it tells nothing: {failed}")
    return alive


def main() -> int:
    """Prints each survivor as it is found, and the score."""
    parser = argparse.ArgumentParser(description="Put small faults into a copy of the package and run the tests on it.")
    parser.add_argument("--places", type=int, default=PLACES, help=f"how many faults [default: {PLACES}]")
    parser.add_argument("--only", default="", help="faults in files whose path holds this")
    parser.add_argument(
        "--map", type=Path, default=Path(tempfile.gettempdir()) / "perfmodel-reached.json", help="which tests run which places"
    )
    asked = parser.parse_args()
    everything, same = every(), equivalent()
    for path, was, _ in same.keys() - {mutant.change for mutant in everything}:
        print(f"{EQUIVALENT.name}: no such line any more: {path}: {was}", file=sys.stderr)
    sampled = [mutant for mutant in everything if asked.only in mutant.path][: asked.places]
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        known = reached(asked.map, sampled, lambda: copied(Path(first)))
        jobs = [job(known, number, mutant) for number, mutant in enumerate(sampled) if mutant.change not in same]
        alive = survivors(jobs, copied(Path(second)))
    print(f"{len(jobs) - len(alive)} of {len(jobs)} mutants died; {len(sampled) - len(jobs)} more do the same as the code")
    return 0


if __name__ == "__main__":
    sys.exit(main())
