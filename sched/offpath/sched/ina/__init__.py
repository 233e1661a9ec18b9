"""In-network aggregation: whose trees, who shares them, which all-reduce uses them (MINA)."""
