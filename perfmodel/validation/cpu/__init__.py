"""The machine's own CPU: kernels in numba, a profile measured on the spot, and runs; importing this package loads no numba."""
