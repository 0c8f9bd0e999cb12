"""The cheapest schedule within a memory budget whose stored values stay until used: a dynamic program over stretches and bytes."""

from __future__ import annotations

from perfmodel.remat.optimal_dp import LARGEST, Program
from perfmodel.remat.schedule import Strategy

STRATEGY = Strategy(
    "optimal",
    "what is cheapest within --memory",
    "dynamic program over stretches of layers and memory; a stored value stays until its backward step",
    lambda chain, plan: Program(chain, plan.memory).schedule(),
    paper="Beaumont et al. 2019, Optimal checkpointing for heterogeneous chains, arXiv 1911.13214",
    applies=lambda chain, plan: plan.memory is not None and len(chain) <= LARGEST,
)
