"""The port of the INA fabric, one of the five of the hardware boundary (`offpath.bindings.ports`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TreeAttached:
    """All switches up to the root have registered this rank."""


@dataclass(frozen=True, slots=True)
class TreeRefused:
    """All ranks run the operation without the tree. The fabric holds nothing of it."""

    index: int


@dataclass(frozen=True, slots=True)
class TreeResult:
    """The operation's target holds the complete sum."""

    index: int


@dataclass(frozen=True, slots=True)
class TreeLost:
    """The session delivers nothing more: it was refused, aborted or hung up on, or made no progress."""

    reason: str


TreeEvent = TreeAttached | TreeRefused | TreeResult | TreeLost


class TreeSession(Protocol):
    """A rank's place in a tree, for one epoch. One thread drives it by calling `poll`."""

    def start(
        self, index: int, dtype: str, source: memoryview, target: memoryview, *, is_last: bool = False
    ) -> None:  # fmt: skip
        """Begin an all-reduce (SUM). ``source`` is read and ``target`` written until the operation's event:
        `TreeResult` or `TreeRefused`. If the session is lost instead, the content of ``target`` is undefined.

        ``dtype``: fp32, fp16, bf16 or int32. Both views are flat bytes of one length, a whole number of elements. One
        operation at a time, with rising ``index``. ``is_last``: computation follows, and other jobs may use the place
        meanwhile. Does not block. Raises: ValueError: an argument breaks these rules; ResourceClosed: the session is
        closed.
        """

    def poll(self, timeout_s: float) -> TreeEvent | None:
        """Send and receive what is possible; return the next event. None: no event within ``timeout_s``."""

    def fileno(self) -> int:
        """Readable when the switch sent something; -1 once the session is over. During an operation `poll` must be
        called anyway: the rate limit of the link releases chunks by time."""

    def close(self) -> None:
        """Leave the tree. An operation in progress is lost for all ranks. Idempotent."""


class InaFabric(Protocol):
    """Connects one rank to the switches that aggregate."""

    def attach(
        self, address: str, *, job: str, incarnation: int, stamp: int, rank: int, ranks: int, token: str
    ) -> TreeSession:
        """Begin to join. `TreeAttached` or `TreeLost` is the session's first event. Does not block.

        Raises: FabricAddressError: ``address`` is not a switch's address.
        """
