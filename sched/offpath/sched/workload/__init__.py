"""Jobs with a GPU count: queued, placed in batches, started by an engine."""
