"""What is promised, and how a broken promise ends a schedule."""

from __future__ import annotations


class Violation(AssertionError):
    """A promise was broken."""


def promise(is_kept: bool, *said: object) -> None:
    """Raises: Violation: with ``said``, when it is not kept."""
    if not is_kept:
        raise Violation(" ".join(map(str, said)))
