"""Memory that processes or devices share: regions, a session's slots, what devices know of them."""
