"""Live requests for servers and switches: the state machine of what was submitted, placed and started. No I/O."""
