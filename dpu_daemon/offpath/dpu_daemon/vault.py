"""Who keeps descriptors while the daemon's process is away: the service manager's store, or nobody."""

from __future__ import annotations

from typing import Final, Protocol


class Vault(Protocol):
    """Descriptors by name. What is stored comes back, under its name, to the next process."""

    @property
    def is_real(self) -> bool:
        """False: nothing outlives this process."""

    def store(self, name: str, fd: int) -> None:
        """Keep a duplicate of ``fd``. Does not block."""

    def forget(self, name: str) -> None:
        """Close what is kept under ``name``. Repeating it is harmless."""


class NoVault:
    """Nobody keeps anything: without a service manager a session's memory ends with the process."""

    is_real = False

    def store(self, name: str, fd: int) -> None:
        """See `Vault.store`."""

    def forget(self, name: str) -> None:
        """See `Vault.forget`."""


NO_VAULT: Final = NoVault()


def slots_name(session: int) -> str:
    """The name a session's slots are kept under."""
    return f"session-{session}-slots"


def answers_name(session: int) -> str:
    """The name a session's answers are kept under."""
    return f"session-{session}-answers"
