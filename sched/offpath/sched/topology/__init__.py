"""Clusters as graphs of hosts and switches: the model, its builders, and readers for other programs' files."""
