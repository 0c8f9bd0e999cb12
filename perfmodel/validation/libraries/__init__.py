"""Kernels of libraries, run through PyTorch (extra ``perfmodel[torch]``); importing this package loads no torch.

``attention`` and ``kernels``: what runs a case. ``shapes.json``: what is measured, in two sets without a shape in common: one to fit
a model on, one held out to judge it. ``cases`` turns them into runs, ``measure`` times them.
"""
