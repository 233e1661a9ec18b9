"""Listening sockets: bounded accepting of connections, and restoring of removed socket files."""
