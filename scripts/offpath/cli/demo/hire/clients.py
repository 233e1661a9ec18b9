"""Clients that read and write through a request's service without pause, and check every answer."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Final

from offpath.bindings.errors import OffpathError
from offpath.cli.inc_values import Values
from offpath.dpu_daemon.switch.inc.store import LEASE_NS

KEYS: Final = 24
_READS_PER_WRITE: Final = 4
_PAUSE_S: Final = 0.004
_LEASE_S: Final = LEASE_NS / 1e9


@dataclass(slots=True)
class Phase:
    """Answers between two marks. ``due``: reads that a cache had to answer, as the lease of their key had not ended;
    on a busy machine few. ``flavors``: implementations that answered."""

    name: str
    reads: int = 0
    writes: int = 0
    due: int = 0
    hits: int = 0
    longest_ms: float = 0.0
    flavors: set[str] = field(default_factory=set)


class Client(threading.Thread):
    """It alone writes its keys: so each read must return the last value that was acknowledged, or one that was sent
    later. ``wrong``: reads that did not."""

    def __init__(self, request: str, composite: str, runtime_dir: str) -> None:
        super().__init__(name=f"client-{request}-{composite}", daemon=True)
        self.request, self.composite = request, composite
        self._is_cache = composite == "cache"
        self._values = Values(request, composite, runtime_dir)
        self._ended = threading.Event()
        self._prefix = f"{composite[:6]}-"
        self.phases: list[Phase] = [Phase("start")]
        self.wrong: list[str] = []
        self.fault = ""
        self._acked = dict.fromkeys(range(KEYS), -1)
        self._sent = dict.fromkeys(range(KEYS), -1)
        self._kept_until = dict.fromkeys(range(KEYS), 0.0)

    @property
    def flavor(self) -> str:
        """The implementation that answered last; empty: a store, without its cache."""
        return self._values.flavor

    @property
    def is_heard(self) -> bool:
        """In this phase a read and a write were answered. Or it has failed."""
        phase = self.phases[-1]
        return bool(self.fault) or (phase.reads > 0 and phase.writes > 0)

    @property
    def is_served(self) -> bool:
        """It is heard and, by a cache, a read was answered from its memory. Or it has failed."""
        return self.is_heard and (bool(self.fault) or not self._is_cache or self.phases[-1].hits > 0)

    def mark(self, name: str) -> None:
        """A new phase begins."""
        self.phases.append(Phase(name))

    def close(self) -> None:
        """Stop, and wait for the last answer, if it runs."""
        self._ended.set()
        if self.ident is not None:
            self.join()
        self._values.__exit__(None, None, None)

    def run(self) -> None:
        """Until `close`."""
        number = 0
        try:
            while not self._ended.is_set():
                key = number // (_READS_PER_WRITE + 1) % KEYS
                began = time.monotonic()
                phase = self.phases[-1]
                if number % (_READS_PER_WRITE + 1) == 0:
                    self._write(key, number)
                    self._kept_until[key] = began + _LEASE_S
                    phase.writes += 1
                else:
                    hit = self._read(key)
                    phase.due += self._is_cache and time.monotonic() < self._kept_until[key]
                    phase.hits += hit
                    phase.reads += 1
                    if not hit:
                        self._kept_until[key] = began + _LEASE_S
                phase.longest_ms = max(phase.longest_ms, (time.monotonic() - began) * 1e3)
                phase.flavors.add(self.flavor)
                number += 1
                time.sleep(_PAUSE_S)
        except OffpathError as fault:
            self.fault = str(fault)

    def _write(self, key: int, number: int) -> None:
        self._sent[key] = number
        self._values.put(f"{self._prefix}{key}", str(number).encode())
        self._acked[key] = number

    def _read(self, key: int) -> int:
        before = self._values.counts.hits
        found = self._values.get(f"{self._prefix}{key}")
        got = int(found[0]) if found is not None else -1
        if not self._acked[key] <= got <= self._sent[key]:
            self.wrong.append(f"{self.composite} key {key}: read {got}, written were {self._acked[key]}…")
        return self._values.counts.hits - before
