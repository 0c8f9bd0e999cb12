"""What a serving engine delivers: its kernels, its batches and its cache over the steps of ``transformer``."""
