"""Which job gets which tree, how jobs share a root, and where ranks and switches join it."""
