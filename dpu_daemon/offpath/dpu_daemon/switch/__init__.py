"""The emulated switch: a process that aggregates data along trees, with a limited number of concurrent operations."""
