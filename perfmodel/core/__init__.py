"""Numbers with units, devices, kernels as counts, and their bound and roof: what every other package is written in."""
