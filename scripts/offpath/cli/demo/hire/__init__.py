"""`offpath demo hire`: requests for servers and switches on real processes, and a switch that dies meanwhile."""
