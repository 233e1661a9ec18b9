"""The launch that a worker is at, and the messages that it gives."""

from __future__ import annotations

from typing import Final

from offpath.bindings.wire import host
from offpath.host_helper.results import Stored
from offpath.host_helper.streaming import Values

STALE: Final = Stored(host.RESULT_STALE, b"", b"", 0, True)
STOPPED: Final = Stored(host.RESULT_STOPPED, b"", b"", 0, True)
NO_REPLY: Final = (0, 0, 0)
"""No answer waits for a reply: answers are numbered from 1."""


class LaunchedJob:
    """The last launch. ``number``: of the last answer of its stream that was computed; ``awaited``: job, generation and
    number of the answer that waits for its reply. ``ahead``: the message that follows it, if that is computed."""

    def __init__(self, launch: host.Launch, started_ns: int) -> None:
        self.launch = launch
        self.started_ns = started_ns
        self.values: Values | None = None
        self.number = 0
        self.awaited = NO_REPLY
        self.is_inline = True
        self.ahead = b""

    def packed(self, stored: Stored, finished_ns: int) -> bytes:
        """The message for what was computed. Raises: HostMessageError: it exceeds the channel's limit."""
        launch = self.launch
        self.number += stored.status == host.RESULT_MORE
        self.is_inline = stored.is_inline
        return host.pack_result(
            launch.job, launch.generation, stored.status, self.started_ns, finished_ns, stored.nbytes,
            stored.is_inline, stored.tensors, stored.inline, self.number,
        )  # fmt: skip

    def sends(self) -> None:
        """What was computed last is sent now."""
        if self.values is not None:
            self.awaited = self.launch.job, self.launch.generation, self.number


def failed(status: int, message: str) -> Stored:
    """An outcome whose text is the reason."""
    inline = _text(message)
    return Stored(status, b"", inline, len(inline), True)


def _text(message: str) -> bytes:
    return message.encode("utf-8", "replace")[: host.INLINE_RESULT_BYTES]
