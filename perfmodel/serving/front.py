"""The points that no other beats in both of two quantities, more of each being better."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Protocol, TypeVar


class Rated(Protocol):
    """What is compared: output tokens a second of a GPU, and of a user between the first token and the last."""

    @property
    def tokens_per_s_gpu(self) -> float: ...  # noqa: D102

    @property
    def tokens_per_s_user(self) -> float: ...  # noqa: D102


Point = TypeVar("Point", bound=Rated)


def front(points: Iterable[Point]) -> list[Point]:
    """Those of ``points`` that no other is at least as good as in both and better in one, from most per GPU to most per user.

    Of equal points the first. Sorted by one quantity, a point is on the front if it is the best so far in the other.
    """
    found: list[Point] = []
    for point in sorted(points, key=lambda one: (-one.tokens_per_s_gpu, -one.tokens_per_s_user)):
        if not found or point.tokens_per_s_user > found[-1].tokens_per_s_user:
            found.append(point)
    return found


class Beaten:
    """Whether a point is beaten by one of those seen: their front as steps, rising in one quantity and falling in the other."""

    def __init__(self) -> None:
        self.per_user: list[float] = []
        self.per_gpu: list[float] = []

    def see(self, per_gpu: float, per_user: float) -> None:
        """One more point."""
        if self.by(per_gpu, per_user, strictly=False):
            return
        at = bisect_left(self.per_user, per_user)
        above = at + (at < len(self.per_user) and self.per_user[at] == per_user)
        while at > 0 and self.per_gpu[at - 1] <= per_gpu:
            at -= 1
        del self.per_user[at:above], self.per_gpu[at:above]
        self.per_user.insert(at, per_user)
        self.per_gpu.insert(at, per_gpu)

    def by(self, per_gpu: float, per_user: float, strictly: bool = True) -> bool:
        """Whether a point seen is at least as good in both; ``strictly``: better in both."""
        at = bisect_left(self.per_user, per_user)
        if strictly:
            while at < len(self.per_user) and self.per_user[at] <= per_user:
                at += 1
            return at < len(self.per_user) and self.per_gpu[at] > per_gpu
        return at < len(self.per_user) and self.per_gpu[at] >= per_gpu
