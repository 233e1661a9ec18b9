"""State that outlives the daemon process: the journal, the service manager and its descriptor store."""
