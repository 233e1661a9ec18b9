"""How ranks, agents, controller and switches agree: state machines without I/O, clock or threads (DESIGN.md §6)."""
