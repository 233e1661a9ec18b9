"""The job book: decides every request and lease, sans-IO (docs/design.md, Job book)."""
