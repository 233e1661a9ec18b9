"""Where built-in programs listen: addresses that no other task has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ports:
    """Where built-in programs listen: ports ``first`` … ``last`` of the ``hosts``, by server."""

    hosts: Mapping[str, str]
    first: int
    last: int


class FreePorts:
    """Gives the ports in turn, so that one that became free is given again as late as possible."""

    def __init__(self, ports: Ports) -> None:
        self._ports, self._next = ports, ports.first

    def address(self, server: str, used: Collection[str]) -> str:
        """HOST:PORT of the server that is not ``used``. Empty: all are in use; the program that gets an empty address
        ends at once with an error."""
        host = self._ports.hosts.get(server, "127.0.0.1")
        for _ in range(self._ports.last - self._ports.first + 1):
            address = f"{host}:{self._next}"
            self._next = self._next + 1 if self._next < self._ports.last else self._ports.first
            if address not in used:
                return address
        return ""
