"""Which hosts a job gets: one protocol, MINA's minimum of host fragments, and the baselines."""
