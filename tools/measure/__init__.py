"""Campaigns that measured PyTorch on GPUs: how the shipped records were made. Run from the root of the repository.

- ``python -m tools.measure.steps``: whole steps of a transformer, collectives.
- ``python -m tools.measure.training``: training steps, chains of layers, memory of attention.
- ``python -m tools.measure.drawn``: library kernels of shapes drawn at random.
- ``python -m tools.measure.sustained``: kernels and steps that run for seconds, with clock, watts and joules.
- ``ncu ... python -m tools.measure.counted``: library attention under Nsight Compute.
- ``profiler``: which kernels a library launches for a case.
"""
