"""The hardware boundary: ports, their adapters, the wire format. No policy."""
