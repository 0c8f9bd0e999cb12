"""ZeRO's own account of state: Rajbhandari et al. 2020, arXiv 1910.02054, section 5, Tables 1 and 2. No experts, no vectors apart."""

from __future__ import annotations

from perfmodel.core.arith import Number

ADAM = 12
"""K: bytes per parameter of Adam's state in mixed precision, master weights included."""


def bytes_per_parameter(gpus: Number, stage: int, k: Number = ADAM) -> Number:
    """2 + 2 + K; optimizer state divided from stage 1 on, gradients from 2, weights from 3.

    >>> [bytes_per_parameter(64, stage) for stage in range(4)]
    [16.0, 4.1875, 2.21875, 0.25]
    """
    divided = [gpus if stage >= level else 1 for level in (3, 2, 1)]
    return 2 / divided[0] + 2 / divided[1] + k / divided[2]


def largest_model(memory: Number, gpus: Number, stage: int, model_parallel: Number = 1) -> Number:
    """Parameters whose state fills ``memory`` bytes of each of ``gpus`` data-parallel GPUs, with model parallelism besides.

    >>> round(largest_model(32e9, 64, 2) / 1e9, 1)
    14.4
    """
    return model_parallel * memory / bytes_per_parameter(gpus, stage)


def activation_bytes(hidden: Number, batch: Number, n: Number, layers: Number) -> Number:
    """The paper's footnote: 12 x hidden x batch x n x layers numbers in 16 bits, without saying which.

    >>> round(activation_bytes(1600, 32, 1024, 48) / 1e9, 1)
    60.4
    """
    return 2 * 12 * hidden * batch * n * layers
