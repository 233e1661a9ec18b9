"""What outlives the process: the journal, the service manager and what it stores."""
