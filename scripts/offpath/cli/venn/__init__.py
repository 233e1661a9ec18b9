"""Venn's evaluation (§5): a population of devices, workloads of federated jobs, runs of one policy on them."""
