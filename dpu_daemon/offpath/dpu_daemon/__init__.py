"""The daemon on the DPU; in another role, the cluster controller. The I/O shell."""
