"""The job book: every decision about a request, sans-IO (docs/design.md, Job book)."""
