"""In-network aggregation: assigns aggregation trees to jobs and decides which jobs share one."""
