"""The journal: what the job book was told and what it decided, in a ring that outlives the process."""
