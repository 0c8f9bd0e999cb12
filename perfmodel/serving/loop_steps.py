"""Steps of an engine's loop: how many a request takes, their seconds, and the prompts that they have room for."""

from __future__ import annotations

from math import ceil

from perfmodel.serving.engine import Batching, Overhead
from perfmodel.serving.iteration import Iteration, StepTimes
from perfmodel.serving.load import Load

STANDS = 2e-3
"""Share of a prompt at whose change the queue of prompts stands."""
POINTS = 5
"""Equally likely values that stand for a distribution."""


class LoopSteps:
    """Of ``load`` on an engine, ``times`` its steps. ``slots``: sequences that run at a time. ``spread``: see ``simulate``."""

    def __init__(self, times: StepTimes, load: Load, batching: Batching, overhead: Overhead, slots: int, spread: float = 1.0) -> None:
        self.times, self.load, self.batching, self.overhead, self.spread = times, load, batching, overhead, spread
        self.slots = max(min(slots, batching.max_sequences, batching.token_budget // load.queries if batching.mixed else slots), 1)
        self.sizes = [max(isl - load.prefix, 1.0) for isl in self._points(load.isl)]
        self.prompt = sum(self.sizes) / len(self.sizes)
        self.squared = sum(size**2 for size in self.sizes) / len(self.sizes) / self.prompt**2 - 1
        self.isl, low = (load.isl + max(int(load.isl * spread), 1)) / 2, max(int(load.osl * spread), 1)
        self.osl = (load.osl + low) / 2
        count = load.osl - low + 1
        over = list(range(max(low, 2), load.osl + 1))
        self.inverse = sum(1 / (osl - 1) for osl in over) / len(over) if over else 0.0  # mean of 1 / (osl - 1), of those that decode
        self.decoded = len(over) / count
        self.per_token = self._steps_per_token(over)
        self.steps = sum(self._decode_steps(osl - 1) for osl in over) / count
        self.context = self.isl + sum((osl - 1) * osl / 2 for osl in over) / max(sum(osl - 1 for osl in over), 1) + load.queries / 2
        self.between = 0.0  # steps between two requests of a user
        self.outside = 0.0  # requests a second from outside
        self.last = 1.0  # steps to the first token of the last round
        self.close = STANDS
        self.known: dict[tuple[int, int, int, int], float] = {}

    def _points(self, longest: int) -> list[float]:
        low = max(int(longest * self.spread), 1)
        return [low + (longest - low) * (point + 0.5) / POINTS for point in range(POINTS)] if longest > low else [float(longest)]

    def _decode_steps(self, tokens: int) -> float:
        """Mean steps that give so many tokens: by renewal theory a step's last tokens may be more than are asked."""
        mean_tokens = self.load.tokens_per_step
        if not self.load.draft_tokens or not tokens:
            return float(tokens)
        chances = [
            self.load.acceptance**k * (1 - self.load.acceptance if k < self.load.draft_tokens else 1) for k in range(self.load.queries)
        ]
        if tokens > 4 * self.load.queries:
            second = sum(chance * (k + 1) ** 2 for k, chance in enumerate(chances))
            return (tokens + second / mean_tokens / 2 - 0.5) / mean_tokens
        found = [0.0]
        for left in range(1, tokens + 1):
            found.append(1 + sum(chance * found[max(left - k - 1, 0)] for k, chance in enumerate(chances)))
        return found[-1]

    def _steps_per_token(self, over: list[int]) -> float:
        picked = over[:: max(len(over) // 50, 1)]
        return sum(self._decode_steps(osl - 1) / (osl - 1) for osl in picked) / len(picked) if picked else 0.0

    # Steps

    def steps_late(self, each: float) -> float:
        """Mean number of steps of ``each`` seconds that have begun when a request comes, 0 to twice ``request_s`` after one has ended.

        Its product with ``each`` grows with ``each``: slower steps are never met earlier.

        >>> loop = LoopSteps(None, Load(1, 1, 1), Batching(), Overhead(request_s=3.0), 1)
        >>> loop.steps_late(1.0), loop.steps_late(6.0), loop.steps_late(100.0)
        (3.5, 1.0, 1.0)
        """
        longest = 2 * self.overhead.request_s
        whole = int(longest / each)
        return (whole + 1) * (1 - whole * each / (2 * longest)) if longest else 0.0

    def seconds(self, chunk: float, decodes: float, reached: float = 0.0) -> float:
        """Of a step with ``chunk`` tokens of prompts, whose mean one then has ``reached`` tokens, and ``decodes`` sequences."""
        tokens = max(round(chunk), 1) if chunk > 0 else 0
        low, share = int(decodes + 1e-9), max(decodes - int(decodes + 1e-9), 0.0)
        prompts = max(round(chunk / self.prompt), 1)
        ends = round(reached or self._reached(chunk)) if tokens else 0
        found = self._at(tokens, ends, prompts, low)
        return found if share < 1e-6 else (1 - share) * found + share * self._at(tokens, ends, prompts, low + 1)

    def _at(self, tokens: int, reached: int, prompts: int, decodes: int) -> float:
        key = (tokens, reached, prompts, decodes)
        if key not in self.known:
            step = Iteration(tokens, reached, prompts, decodes, round(self.context) if decodes else 0, self.load.queries)
            self.known[key] = self.times.seconds(step)
        return self.known[key]

    def _reached(self, chunk: float) -> float:
        """Tokens that the mean prompt of a chunk has, with those of the chunk."""
        return self.load.prefix + (self.prompt if self.prompt <= chunk else (self.prompt * (1 + self.squared) + chunk) / 2)

    def room(self, decodes: float) -> float:
        """Tokens of prompts that fit a step; where prompts are not cut, half of one is lost."""
        room = self.batching.token_budget - (decodes * self.load.queries if self.batching.mixed else 0.0)
        if not self.batching.chunked or not self.batching.mixed:
            cut = self.batching.chunked and self.prompt > room
            room = (
                room
                if cut
                else max(room - self.prompt / 2 * (self.spread < 1), self.prompt, room // self.prompt * self.prompt * (self.spread == 1))
            )
        return max(room, 1.0)

    def until(self, tokens: float, size: float, behind: float, room: float, decodes: float, later: float = 0.0) -> float:
        """Seconds of the steps that run ``tokens`` of prompts, the last ``size`` of them the own ones, ``behind`` more after them."""
        whole = max(ceil(tokens / room - 1e-9) - 1, 0)
        budget = self.batching.token_budget
        if (not self.batching.mixed or not self.batching.chunked) and size <= budget:
            whole = 0 if tokens <= budget else max(round((tokens - size) / room), 1)
        last = max(tokens - whole * room, size if size <= room else 1.0)
        if not self.batching.chunked and size > budget:
            return round((tokens - size) / room) * self.seconds(room, decodes) + self.seconds(size, decodes)
        if not whole:
            return self.seconds(max(min(tokens + behind, room), min(tokens, budget)), decodes)
        reached = self._reached(room) if size <= room else self.load.prefix + (size + room) / 2
        later = behind + later
        chunk = min(last + later, room) if self.batching.mixed or self.prompt < room else last
        return whole * self.seconds(room, decodes, reached) + self.seconds(chunk, decodes, self.load.prefix + size)

    def burst(self, tokens: float, room: float) -> float:
        """Seconds of all steps of prompts between two decode steps."""
        if not tokens:
            return 0.0
        if self.prompt <= room:
            whole = int(tokens / room + 1e-9)
            left = tokens - whole * room
            return whole * self.seconds(room, 0) + (self.seconds(left, 0) if left > 0.5 else 0.0)
        each = [self.until(size, size, 0.0, room, 0.0) for size in self.sizes]
        return tokens / self.prompt * sum(each) / len(each)

    def five(self) -> list[float]:
        """Tokens of prompts, equally likely, ``POINTS`` of them."""
        return self.sizes if len(self.sizes) == POINTS else self.sizes * POINTS
