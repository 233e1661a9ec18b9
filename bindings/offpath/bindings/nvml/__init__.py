"""NVML through nvidia-ml-py: inventory, MIG instances, Xid events. Only `offpath-migd` and checks of a host use it."""
