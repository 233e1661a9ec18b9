"""Loopback adapters: emulate the hardware ports with processes, shared memory and Unix sockets."""
