"""What is promised, and how a broken promise ends a schedule."""

from __future__ import annotations

from typing import NoReturn


class Violation(AssertionError):
    """A promise was broken."""


def promise(is_kept: bool, *said: object) -> None:
    """Raises: Violation: with ``said``, when it is not kept."""
    if not is_kept:
        raise Violation(" ".join(map(str, said)))


def break_promise(*said: object) -> NoReturn:
    """For conditions that are tested after every step, whose message costs more than the test. Raises: Violation."""
    raise Violation(" ".join(map(str, said)))
