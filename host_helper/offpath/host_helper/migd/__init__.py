"""`offpath-migd`: the one process of a GPU host that talks to NVML and cuts MIG instances, and its clients."""
