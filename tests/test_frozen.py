"""``core/frozen.py`` makes dataclasses that behave as those of the standard library."""

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field, fields, replace

import pytest

from perfmodel.core import frozen

OPTIONS = [{}, {"slots": True}, {"eq": False}, {"slots": True, "kw_only": True}]


def both(**options):
    """The same class by this project and by the standard library."""
    made = []
    for dataclass in (frozen.dataclass, dataclasses.dataclass):

        @dataclass(frozen=True, **options)
        class Point:
            x: int
            y: list[int] = field(default_factory=list)
            z: float = 2.0
            hidden: int = field(default=0, compare=False, repr=False)

        made.append(Point)
    return made


def outcome(kind, call):
    try:
        result = call(kind)
    except (TypeError, AttributeError) as error:
        return type(error)
    return [getattr(result, field_.name) for field_ in fields(result)] if isinstance(result, kind) else result


CALLS = [
    lambda kind: kind(x=1),
    lambda kind: kind(1),
    lambda kind: kind(1, [2], 3.0, 4),
    lambda kind: kind(1, [2], z=3.0),
    lambda kind: kind(),
    lambda kind: kind(x=1, w=2),
    lambda kind: kind(1, x=1),
    lambda kind: kind(1, 2, 3, 4, 5),
    lambda kind: setattr(kind(x=1), "x", 2),
    lambda kind: delattr(kind(x=1), "x"),
    lambda kind: replace(kind(x=1), z=5.0),
    lambda kind: copy.deepcopy(kind(x=1, y=[3])),
    lambda kind: kind(x=1) == kind(x=1, hidden=9),
    lambda kind: kind(x=1) == kind(x=2),
    lambda kind: kind(x=1) == 1,
    lambda kind: repr(kind(x=1)),
    lambda kind: kind(x=1).y is kind(x=1).y,
    lambda kind: hash(kind(x=1, y=())) == hash(kind(x=1, y=(), hidden=3)),
    lambda kind: hash(kind(x=1)),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_as_the_standard_library(options):
    """Calls give the same fields, values and kinds of error."""
    own, known = both(**options)
    answers = [(outcome(own, call), outcome(known, call)) for call in CALLS[: -1 if options == {"eq": False} else None]]
    assert [ours for ours, _ in answers] == [theirs for _, theirs in answers]
    assert TypeError in [ours for ours, _ in answers]


@frozen.dataclass(frozen=True, slots=True)
class Kept:
    """A class that pickle can find."""

    x: int
    y: str = "y"


def test_pickled():
    """A copy by pickle is equal, and as frozen."""
    copied = pickle.loads(pickle.dumps(Kept(3)))
    assert copied == Kept(3)
    assert {copied: 1}[Kept(3)] == 1
    with pytest.raises(FrozenInstanceError):
        copied.x = 4


@pytest.mark.parametrize(
    "order", [(frozen.dataclass, dataclasses.dataclass), (dataclasses.dataclass, frozen.dataclass), (frozen.dataclass,) * 2]
)
def test_derived(order):
    """A frozen class of either kind may be derived from one of either kind."""
    base, derived = order

    @base(frozen=True)
    class Base:
        x: int

    @derived(frozen=True, slots=True)
    class Derived(Base):
        y: int = 2

    assert Derived(1) == Derived(1, 2) != Derived(1, 3)
    for name in ("x", "y"):
        with pytest.raises(FrozenInstanceError):
            setattr(Derived(1), name, 4)
