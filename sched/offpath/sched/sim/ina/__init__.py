"""The simulator of a cluster whose jobs share in-network aggregation, all-reduce by all-reduce."""
