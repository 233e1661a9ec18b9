"""The wire format between requester, daemon and host (docs/protocol.md)."""
