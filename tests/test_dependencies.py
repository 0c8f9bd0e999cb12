"""The lock for development holds every declared dependency, in a version that is allowed, and names no place to load it from."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")


def declared(texts: list[str]) -> Iterator[Requirement]:
    """All of ``texts``, with those of the extras of this project that they name."""
    for one in map(Requirement, texts):
        if one.name == PROJECT["name"]:
            for extra in one.extras:
                yield from declared(PROJECT["optional-dependencies"][extra])
        else:
            yield one


def pinned() -> dict[str, set[Version]]:
    found = defaultdict(set)
    for line in LOCK.splitlines():
        if line and not line.startswith("#"):
            one = Requirement(line)
            (pin,) = one.specifier
            assert (pin.operator, one.url) == ("==", None), line
            found[canonicalize_name(one.name)].add(Version(pin.version))
    return found


def test_the_lock_satisfies_what_is_declared() -> None:
    pins = pinned()
    asked = list(declared([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]))
    assert len(asked) > len(PROJECT["dependencies"])
    for one in asked:
        versions = pins[canonicalize_name(one.name)]
        assert versions, f"{one} is not in the lock"
        assert all(version in one.specifier for version in versions), f"{one}: {versions}"


def test_the_lock_says_how_it_was_written_and_not_from_where() -> None:
    assert "uv pip compile" in LOCK.splitlines()[1]
    assert "://" not in LOCK
    assert "--index" not in LOCK
    assert "--find-links" not in LOCK


def test_every_dependency_declares_its_lowest_version() -> None:
    """Without one the lowest version that is tested would be the first one ever."""
    extras = PROJECT["optional-dependencies"]
    for one in declared([*PROJECT["dependencies"], *(text for name in extras for text in extras[name])]):
        assert one.name.startswith("types-") or any(each.operator == ">=" for each in one.specifier), one
