"""Assigns hosts to jobs: the placement port, MINA's minimum of host fragments, and baselines."""
