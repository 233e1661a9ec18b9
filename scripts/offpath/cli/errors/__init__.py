"""The meaning and fix of every code that a user can meet: `offpath errors`, docs/errors.md.

Each module here with ``ENTRIES`` adds to the registry, which finds modules by listing the package.
"""
