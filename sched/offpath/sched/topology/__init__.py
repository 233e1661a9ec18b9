"""Clusters as graphs of hosts and switches: the model, what builds it, and what reads it from other programs' files."""
