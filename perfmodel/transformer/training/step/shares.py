"""Which layers a pipeline stage holds, as counts of each kind; quick for models of one kind."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.transformer.parallel import stages
from perfmodel.transformer.spec import Layer, ModelSpec

Counts = tuple[tuple[Layer, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """The layers of a model, each different one with its number; equal only to itself, which is quick to tell."""

    model: ModelSpec
    kinds: Counts

    def of_stage(self, pp: int, interleave: int, stage: int) -> Counts:
        """Layers of one stage: a chunk, or every ``pp``-th of several."""
        if len(self.kinds) == 1:
            size, longer = divmod(len(self.model.layers), pp * interleave)
            held = sum(size + (chunk < longer) for chunk in range(stage, pp * interleave, pp))
            return ((self.kinds[0][0], held),)
        counts: dict[Layer, int] = {}
        for chunk in stages(self.model, pp * interleave)[stage::pp]:
            for layer in chunk:
                counts[layer] = counts.get(layer, 0) + 1
        return tuple(counts.items())

    def slow_stages(self, pp: int) -> list[int]:
        """Stages among which is the slowest: of equal layers the first, the last, or one between."""
        return sorted({0, min(1, pp - 1), pp - 1}) if len(self.kinds) == 1 else list(range(pp))


def layers_of(model: ModelSpec) -> Layers:
    """The layers of ``model``."""
    return Layers(model, tuple(model.layer_kinds))
