"""In-network aggregation: which jobs aggregate on which trees, and who shares one."""
