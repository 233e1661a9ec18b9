"""Errors of ``sched.collab``."""

from __future__ import annotations

from offpath.sched.errors import SchedError


class RequirementInvalid(SchedError):
    """A requirement or a device's properties out of bounds, from a user or a device."""


class TooManyRequirements(SchedError):
    """More different requirements than the plan is made for; jobs may share those that exist."""


class CollabRefused(SchedError):
    """A job or a request that cannot be served; ``code`` is for programs."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
