"""Memory that processes or devices share: regions, a session's slots, device registrations."""
