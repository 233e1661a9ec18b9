"""How ranks, agents, controller and switches agree: state machines without I/O or clock (docs/ina-protocol.md)."""
