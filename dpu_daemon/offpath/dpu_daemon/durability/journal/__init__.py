"""The journal: the job book's events and decisions, in a ring buffer that outlives the process."""
