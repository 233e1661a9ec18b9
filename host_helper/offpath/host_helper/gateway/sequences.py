"""Sequences in requests of the Open Inference Protocol: three parameters, checked against the model."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from offpath.host_helper.errors import RequestTimeout
from offpath.host_helper.gateway.errors import Refused, invalid, unsupported
from offpath.host_helper.gateway.models import Model

_MOST_ID: Final = (1 << 64) - 1
_MOST_BEGUN: Final = 4096
_MOST_TEXT: Final = 128
"""Characters of an id that is a text, as Triton has it."""


class TextId(int):
    """An id that is a text, as the number that the daemon knows it by: 64 bits of its digest. Ids belong to a tenant:
    a text that is made to have the number of another can be its own only. It shows itself as the text."""

    text: str

    def __new__(cls, text: str) -> TextId:
        """Never 0, which is the id of none."""
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        made = super().__new__(cls, int.from_bytes(digest) or 1)
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text


def sequence_of(model: Model, parameters: Mapping[str, Any]) -> tuple[int, bool, bool]:
    """The id of the request's sequence, whether it starts it, and whether it ends it. (0, False, False): it is of none.

    Raises: Refused: the model takes requests of sequences only and it is of none, or the reverse; or a parameter that
    no sequence has.
    """
    number = parameters.get("sequence_id", 0)
    if isinstance(number, str):
        if len(number) > _MOST_TEXT:
            raise unsupported(f"string correlation ID cannot be longer than {_MOST_TEXT} characters")
        number = TextId(number) if number else 0
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MOST_ID:
        raise invalid("parameter 'sequence_id' is a text or a whole number from 0")
    is_start, is_end = (_flag(parameters, key) for key in ("sequence_start", "sequence_end"))
    if model.sequences and not number:
        raise invalid(f"inference request to model '{model.name}' must specify a non-zero or non-empty correlation ID")
    if number and not model.sequences:
        raise invalid(f"model '{model.name}' takes no sequences")
    return (number, is_start, is_end) if number else (0, False, False)


def not_started(model: Model, number: int) -> Refused:
    """The request does not start its sequence, and there is none."""
    return invalid(
        f"inference request for sequence {number} to model '{model.name}' must specify the START flag on the first "
        "request of the sequence"
    )


def state_lost(model: Model, number: int) -> Refused:
    """The request does not start its sequence, whose state was lost."""
    return Refused(
        409, "ABORTED", f"the state of sequence {number} of model '{model.name}' was lost: begin the sequence anew"
    )


class Begun:
    """The sequences that were started and not ended, by kernel and id, each with the number of the session that has it;
    0: its state was lost. At most `_MOST_BEGUN`; those that were started first are forgotten first."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, int], int] = {}

    def started(self, kernel: str, number: int, session: int) -> None:
        """A request with its start is sent."""
        self._sessions.pop((kernel, number), None)
        self._sessions[kernel, number] = session
        if len(self._sessions) > _MOST_BEGUN:
            del self._sessions[next(iter(self._sessions))]

    def ended(self, kernel: str, number: int) -> None:
        """A request with its end has ended, in whatever way."""
        self._sessions.pop((kernel, number), None)

    def lost(self, kernel: str, number: int) -> None:
        """A request of the sequence has ended in a way that says so."""
        if (kernel, number) in self._sessions:
            self._sessions[kernel, number] = 0

    def is_lost(self, kernel: str, number: int, session: int) -> bool:
        """Whether the state was lost, if ``session``, the present one, does not have the sequence."""
        return self._sessions.get((kernel, number), session) != session


class Lines:
    """The requests of one sequence, by kernel and id, go to the daemon one after the other: those that wait for a slot
    could pass each other."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, int], asyncio.Lock] = {}
        self._waiting: dict[tuple[str, int], int] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def turn(self, kernel: str, number: int, timeout_s: float | None) -> AsyncIterator[None]:
        """Wait until the requests before this one are answered. Raises: RequestTimeout: not within ``timeout_s``."""
        if not number:
            yield
            return
        key = kernel, number
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._waiting[key] = self._waiting.get(key, 0) + 1
        try:
            try:
                async with asyncio.timeout(timeout_s):
                    await lock.acquire()
            except TimeoutError:
                raise RequestTimeout("the requests before it in its sequence are not answered") from None
            try:
                yield
            finally:
                lock.release()
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key], self._locks[key]


def _flag(parameters: Mapping[str, Any], key: str) -> bool:
    value = parameters.get(key, False)
    if not isinstance(value, bool):
        raise invalid(f"parameter '{key}' is a boolean")
    return value
