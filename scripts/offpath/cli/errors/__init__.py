"""What every code a user can meet means, and what to do: `offpath errors`, docs/errors.md.

Each module here with ``ENTRIES`` adds to the registry; a new one is found by being there.
"""
