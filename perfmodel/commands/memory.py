"""Memory of training a transformer: tensors, the peak, what fits."""

from __future__ import annotations

from perfmodel.commands._command import ExplainedPicture, command, device_for
from perfmodel.transformer.question import MemoryQuestion


@command
def memory(options: MemoryQuestion, to: ExplainedPicture) -> None:
    """Memory of training a transformer: weights, gradients, optimizer state, activations by tensor, and the peak with its moment.

    Example: perfmodel memory llama-3-8b --batch 8 --n 4096 --dp 8 --zero 3 --recompute full
    """
    from perfmodel.catalog import find_model
    from perfmodel.report.memory import report
    from perfmodel.transformer.training.memory import evaluate

    training = options.training(find_model(options.name))
    result = evaluate(training, device_for(options.hardware), options.implementation)
    to.emit(report(result, explained=to.explained, pictures=to.pictures))
