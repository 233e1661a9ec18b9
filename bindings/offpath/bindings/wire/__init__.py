"""The wire format: what crosses between requester, daemon and host, byte by byte (docs/protocol.md)."""
