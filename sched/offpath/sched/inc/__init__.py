"""In-network computing (INC): one request for servers and switches, placed together (HIRE, ASPLOS 2021)."""
