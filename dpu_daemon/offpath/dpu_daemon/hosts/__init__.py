"""The host channel: the helper, the lanes and their workers."""
