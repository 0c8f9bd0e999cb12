"""Studies: what a file asks for (workloads, devices, sweeps, comparisons), computed and put into one Report."""
