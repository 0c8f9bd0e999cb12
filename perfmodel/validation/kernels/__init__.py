"""The project's own GPU kernels in numba.cuda, one file per family; importing this package loads no numba.

Each family has a frozen geometry (tile, threads, shared bytes, grid), a cached ``build`` that makes a kernel, and a ``prepare`` on device
arrays that returns a launch function. Files of attention kernels also have:

- ``KERNELS``: names of the kernels of one launch, in order.
- ``extras(w)``: name and number of elements of each output beside O, in the order of ``prepare(w, shape, q, k, v, o, *extras)``.
- ``main(shape, causal)``: the kernel that records describe, and its shared bytes.
- ``logsumexp(*extras)``: logsumexp of the rows, from these outputs in NumPy; None if they do not tell it.

Under NUMBA_ENABLE_CUDASIM=1, set before numba is first imported, the same kernels run in Python on any array that can be indexed.
"""

FILL = "fill"
"""Name of the kernel that sets outputs before others add to them; its counters belong to no case."""
