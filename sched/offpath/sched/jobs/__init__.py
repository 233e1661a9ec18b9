"""The job book: every decision about a request, sans-IO (DESIGN §3)."""
