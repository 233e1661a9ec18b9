"""What outlives the daemon's process: the journal's bytes, and the service manager with the sessions' memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from offpath.dpu_daemon.durability.journal.log import our_schema
from offpath.dpu_daemon.durability.journal.ring import HEADER_PAGE, RECORD_BYTES, Identity

from .wires import SessionMemory

_JOURNAL_BYTES = HEADER_PAGE + 4_096 * RECORD_BYTES
IDENTITY = Identity(
    "simulated-boot-id-of-36-characters--", "simulated-lineag", b"simulated secret of 32 bytes....", our_schema()
)


class DaemonKilled(BaseException):
    """The daemon's process ends here; no handler of its may see that."""


class SimStorage:
    """A journal's bytes; they outlive the daemon."""

    def __init__(self) -> None:
        self._bytes = bytearray(_JOURNAL_BYTES)

    def view(self) -> memoryview:
        return memoryview(self._bytes)

    def clear(self) -> None:
        self._bytes[:] = bytes(len(self._bytes))

    def cool(self) -> None:
        """It is as cool as it gets."""

    def close(self) -> None:
        """The bytes stay."""


class SimManager:
    """The service manager, which outlives the daemon and keeps its sessions' memory."""

    has_manager = True

    def __init__(self, memories: dict[int, SessionMemory]) -> None:
        self._memories = memories
        self.notifier = self
        self.kept: dict[str, SessionMemory] = {}

    pending = retries = 0

    def keep(self, name: str, fds: Sequence[int], when_sent: Callable[[], None], when_held: Callable[[], None]) -> None:
        self.kept[name] = self._memories[fds[0]]
        when_sent()
        when_held()

    def forget(self, name: str) -> None:
        self.kept.pop(name, None)

    def adopt(self, name: str) -> None:
        """It holds it still."""

    def is_held(self, name: str) -> bool:
        return name in self.kept

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        """It outlives its user."""

    def stored(self, keep: Callable[[SessionMemory], int]) -> dict[str, list[int]]:
        """As the next process gets it."""
        return {name: [keep(memory), keep(memory)] for name, memory in self.kept.items()}
