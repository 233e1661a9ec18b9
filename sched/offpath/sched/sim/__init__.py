"""Virtual time: the event core, workloads, accounting and records that all simulated experiments share."""
