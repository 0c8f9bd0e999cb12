"""Training on a GPU measured through PyTorch: time and peak memory of steps, of chains of layers, of attention.

``python3 -m tools.measure.training --out DIR --seconds 60`` needs torch with a CUDA device and, for training steps,
transformers; importing this package loads neither.

- ``gpt2_step``: a whole training step of Hugging Face's GPT-2. Its ``peak_bytes`` are all bytes allocated, weights included.
- ``linear_chain``: linear layers with checkpoints at segments. Its ``peak_bytes`` are above the bytes allocated before.
- ``attention_memory``: attention forward and backward. Its ``peak_bytes`` are above the bytes allocated before.

Bytes are those of PyTorch's allocator (``torch.cuda.memory_allocated``): tensors, rounded up to 512 B each, and the workspaces
of cuBLAS, not what the driver and the allocator hold beyond them.
"""
