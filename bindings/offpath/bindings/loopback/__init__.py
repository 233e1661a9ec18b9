"""Loopback adapters: emulators of the hardware ports out of processes, shared memory and Unix sockets."""
