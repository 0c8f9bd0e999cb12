"""Single operations: matmul, MLP, softmax, elementwise chains; occupancy; store or recompute. One file per operation."""
