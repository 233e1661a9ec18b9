"""The I/O shell of the DPU daemon and, in another role, of the cluster controller."""
