"""Studies: workloads, devices, sweeps and comparisons of a YAML file, computed and put into one Report."""
