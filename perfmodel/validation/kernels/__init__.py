"""The project's own GPU kernels in numba.cuda, one file per family; importing this package loads no numba.

Each family has a frozen geometry (tile, threads, shared bytes, grid), a cached ``build`` and a ``run`` on device arrays. Under
NUMBA_ENABLE_CUDASIM=1, set before numba is first imported, the same kernels run in Python on any array that can be indexed.
"""
