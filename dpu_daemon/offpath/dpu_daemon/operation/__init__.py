"""Operator interfaces (admin socket, logs, metrics), self-check, reload and recovery after a restart."""
