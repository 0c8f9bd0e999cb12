"""The project's own GPU kernels in numba.cuda, one file per family; importing this package loads no numba.

Each family has a frozen geometry (tile, threads, shared bytes, grid), a cached ``build`` and a ``prepare`` on device arrays, which
gives what launches it. Those of attention share more: ``KERNELS``, names of what one launch runs; ``extras(w)``, name and elements
of each output beside O, in the order in which ``prepare(w, shape, q, k, v, o, *extras)`` takes them; ``main(shape, causal)``, the
kernel whose launch records tell, with its shared bytes; ``logsumexp(*extras)`` of outputs in NumPy, None if it writes none. Under
NUMBA_ENABLE_CUDASIM=1, set before numba is first imported, the same kernels run in Python on any array that can be indexed.
"""

FILL = "fill"
"""Name of the kernel that sets outputs before others add to them; its counters are no case's."""
