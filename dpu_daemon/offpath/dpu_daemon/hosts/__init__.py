"""The daemon's host side: the host channel, the helper, the lanes and their workers."""
