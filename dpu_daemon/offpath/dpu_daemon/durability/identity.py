"""The daemon's identity over its processes, and the secrets derived from it."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offpath.dpu_daemon.durability.journal.log import Journal


class DaemonIdentity:
    """``lineage`` names the journal to requesters; without a journal each process has a lineage of its own."""

    def __init__(
        self, journal: Journal | None = None, token: Callable[[], str] = lambda: secrets.token_urlsafe(32)
    ) -> None:
        """``token``: a fresh secret at each call."""
        self.lineage = journal.identity.lineage if journal is not None else secrets.token_hex(8)
        self._secret = journal.identity.secret if journal is not None else secrets.token_bytes(32)
        self.token = token

    def order_token(self, lease: int, generation: int, lane: int = 0, renewal: int = 0) -> str:
        """The token by which the workers of a lease authenticate; the same after a restart. ``renewal`` above 0: the
        token of that worker alone which this renewal of ``lane`` started."""
        what = f"{lease}:{generation}:{lane}:{renewal}" if renewal else f"{lease}:{generation}"
        return hmac.new(self._secret, what.encode(), hashlib.sha256).hexdigest()
