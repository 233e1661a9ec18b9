"""Listening sockets: accepting connections, and the sockets' files."""
