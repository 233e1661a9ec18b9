"""NVIDIA GPUs by the CUDA driver: a worker's context, its lanes, and scrubs. No process that forks uses it."""
