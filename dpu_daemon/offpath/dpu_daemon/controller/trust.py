"""Decides which reports count, by proofs of terms and quarantined hosts. The store keeps the quarantines.

A term that no controller issued can only come from an agent, and not by mistake: its host is quarantined. A value that
a rank's state file may contain only affects that rank's own job: its state is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from offpath.bindings.wire import cluster
from offpath.dpu_daemon.controller.jobs import JobRefused
from offpath.dpu_daemon.controller.seal import TermSeal
from offpath.dpu_daemon.controller.store import Store
from offpath.sched.ina.protocol.records import RankState

logger = logging.getLogger(__name__)
TERM_NOT_ISSUED: Final = "term_not_issued"
BY_OPERATOR: Final = "operator"
CLOCKS_APART_NS: Final = 24 * 3600 * 10**9
"""An incarnation is a timestamp. One further than this ahead of the controller's clock is refused: switches fence
everything older than the newest incarnation, so the job's name would be unusable until then."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Why a host's reports are ignored. ``code``: term_not_issued, operator."""

    code: str
    detail: str


class Trust:
    """Checks reports against issued terms and keeps the quarantined hosts."""

    def __init__(self, seal: TermSeal, store: Store) -> None:
        self.seal = seal
        self._store = store
        self.quarantined: dict[str, Quarantine] = {}
        """Quarantines by host."""

    def remember(self) -> None:
        """Load stored quarantines: a restart releases no host."""
        for host, data in self._store.kept.quarantine.items():
            self.quarantined[host] = Quarantine(str(data.get("code", ""))[:63], str(data.get("detail", ""))[:500])

    def rival(self, term: int, report: cluster.AgentReport, states: Iterable[RankState]) -> int | None:
        """The greatest term, ``term`` or above, that another controller process provably issued. None: there is none.

        A controller that lost its store learns the term this way. The ranks' proofs help if the agent restarted too.
        """
        proven = {(state.held >> 32, state.proof) for state in states if state.held >> 32 >= term}
        if report.term >= term:
            proven.add((report.term, report.proof))
        found = [at for at, proof in proven if self.seal.issuer_of(at, proof) not in (None, self.seal.issuer)]
        return max(found, default=None)

    def is_made_up(self, term: int, report: cluster.AgentReport) -> bool:
        """Whether the agent reports a term above ``term`` that no controller issued."""
        return report.term > term and not self.seal.is_proven(report.term, report.proof)

    def quarantine(self, host: str, code: str, detail: str) -> None:
        """Ignore the host's reports until an operator releases it."""
        self.quarantined[host] = Quarantine(code, detail)
        self._store.quarantine(host, {"code": code, "detail": detail})
        logger.error("host %s quarantined (%s): %s", host, code, detail, extra={"code": "host_quarantined"})

    def release(self, host: str) -> None:
        """End the host's quarantine. Raises: JobRefused: it is not quarantined."""
        if self.quarantined.pop(host, None) is None:
            raise JobRefused("not_quarantined", f"{host!r:.80} is not quarantined")
        self._store.release(host)
        logger.warning("host %s released from quarantine", host, extra={"code": "host_released"})
