"""A controller that serves: its shell, its devices, and where they reach it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offpath.dpu_daemon.collab.devices import Devices
from offpath.dpu_daemon.collab.shell import CollabShell

if TYPE_CHECKING:  # each needs a library that a controller without it does not have
    from offpath.dpu_daemon.collab.gateways import Gateways
    from offpath.dpu_daemon.collab.http import HttpServer


@dataclass(slots=True)
class Running:
    """A controller that serves. ``http``, ``gateways``: where devices reach it, as far as configured."""

    shell: CollabShell
    devices: Devices
    is_open: bool = False
    """Devices reach it."""
    http: HttpServer | None = None
    gateways: Gateways | None = None

    @property
    def connections(self) -> int:
        """Of devices and gateways, now."""
        http = self.http.connections if self.http is not None else 0
        return http + (self.gateways.listener.connections if self.gateways is not None else 0)

    @property
    def places(self) -> str:
        """The addresses for devices, for people."""
        found = []
        if self.http is not None:
            host, port = self.http.address
            found.append(f"http{'s' if self.http.is_tls else ''}://{f'[{host}]' if ':' in host else host}:{port}")
        if self.gateways is not None:
            found.append(self.gateways.listener.address)
        return ", ".join(found)
