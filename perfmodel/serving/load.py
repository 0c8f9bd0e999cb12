"""The load of an engine: the requests of its users."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from perfmodel.core.errors import UsageError
from perfmodel.core.frozen import dataclass

MOST_DRAFTS = 64
"""Most tokens drafted in a step: engines draft fewer."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of ``isl`` prompt tokens and ``osl`` output tokens, from ``concurrency`` users or at ``rate`` requests/s.

    Users send the next request when the last has ended (a closed loop); requests at a ``rate`` come at random times (Poisson). Exactly one
    of the two is set. ``prefix``: prompt tokens whose K and V the cache still holds. ``draft_tokens`` are proposed in a step; each is
    accepted with probability ``acceptance`` if all before it were.
    """

    isl: int
    osl: int
    concurrency: int | None = None
    rate: float | None = None
    prefix: int = 0
    draft_tokens: int = 0
    acceptance: float = 0.0

    @property
    def new_tokens(self) -> int:
        """Prompt tokens that prefill computes: those beyond the cached prefix, but at least one."""
        return max(self.isl - self.prefix, 1)

    @property
    def tokens_per_step(self) -> float:
        """Mean output tokens of a sequence in a decode step: (1 - a^(k + 1)) / (1 - a) (Leviathan et al. 2023, equation 1).

        >>> Load(1, 1, 1).tokens_per_step, Load(1, 1, 1, draft_tokens=2, acceptance=0.5).tokens_per_step
        (1.0, 1.75)
        """
        return sum(self.acceptance**step for step in range(self.draft_tokens + 1))

    @property
    def tokens_variance(self) -> float:
        """Variance of the output tokens of a sequence in a decode step: E[X^2] = sum of (2 k + 1) P(X > k), less the squared mean.

        >>> Load(1, 1, 1, draft_tokens=1, acceptance=0.5).tokens_variance
        0.25
        """
        return sum((2 * step + 1) * self.acceptance**step for step in range(self.draft_tokens + 1)) - self.tokens_per_step**2

    @property
    def queries(self) -> int:
        """Tokens of a sequence that a decode step computes: one and the drafted ones."""
        return 1 + self.draft_tokens

    def with_users(self, concurrency: int) -> Load:
        """The same requests from ``concurrency`` users."""
        return replace(self, concurrency=concurrency, rate=None)

    def of_fullest_group(self, groups: int) -> Load:
        """The load of the fullest of ``groups`` that share this load."""
        if self.concurrency is not None:
            return replace(self, concurrency=ceil(self.concurrency / groups))
        return self if self.rate is None else replace(self, rate=self.rate / groups)

    def check(self) -> Load:
        """This load, if every value has a meaning; else UsageError names the option and the fix."""
        for name in ("isl", "osl"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} is {getattr(self, name)}", "give a whole number from 1")
        if (self.concurrency is None) == (self.rate is None):
            raise UsageError("neither --concurrency nor --rate" if self.rate is None else "--concurrency with --rate", "give one of both")
        if self.concurrency is not None and self.concurrency < 1:
            raise UsageError(f"--concurrency is {self.concurrency}", "give a whole number from 1")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise UsageError(f"--rate is {self.rate:g}", "give requests a second, such as 2.5")
        if not 0 <= self.prefix < self.isl:
            raise UsageError(f"--prefix is {self.prefix}", f"give 0 to {self.isl - 1}: the last token of the prompt is always new")
        if self.draft_tokens > MOST_DRAFTS:
            raise UsageError(f"--draft-tokens is {self.draft_tokens:,}", f"give at most {MOST_DRAFTS}")
        if self.draft_tokens < 0:
            raise UsageError(f"--draft-tokens is {self.draft_tokens}", "give a whole number from 0, such as 3")
        if not 0 <= self.acceptance <= 1:
            raise UsageError(f"--acceptance is {self.acceptance:g}", "give a chance from 0 to 1, such as 0.7")
        return self
