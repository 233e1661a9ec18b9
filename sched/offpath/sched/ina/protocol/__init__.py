"""Protocol state machines of ranks, agents, controller and switches, without I/O or clock (docs/ina-protocol.md)."""
