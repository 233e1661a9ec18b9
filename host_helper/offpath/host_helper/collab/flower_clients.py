"""Flower's nodes, lent to one run at a time, for strategies of the older API: a `ClientManager` that samples through
the collaboration controller.

In ``server_fn`` one line changes: ``ServerAppComponents(…, client_manager=shared_clients(context))``. Each sample is a
round of its own; without a controller Flower's own manager samples.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from flwr.app import Context
from flwr.server import ClientManager, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.criterion import Criterion

from offpath.bindings.errors import PeerGone
from offpath.bindings.wire.collab_admin import Requirement
from offpath.host_helper.collab.borrower import Borrower, JobWish
from offpath.host_helper.collab.flower import borrower_of
from offpath.host_helper.collab.settings import NodeTable, Settings, load

logger = logging.getLogger(__name__)
_DEADLINE_S: Final = 600.0


def shared_clients(
    context: Context, *, deadline_s: float = _DEADLINE_S, job: str = "",
    requirement: Mapping[str, Any] | None = None, rounds: int = 0, quorum_percent: int = 80,
) -> ClientManager:  # fmt: skip
    """The manager of a run that shares its nodes with others; arguments as of `flower.shared`. Attributes of nodes
    are in the settings' file. Raises: as `flower.shared`."""
    settings = load()
    if settings is None:
        return SimpleClientManager()
    wanted = Requirement.model_validate(dict(requirement or {}))
    wish = JobWish(job or f"flower-{context.run_id}", 1, deadline_s, wanted, rounds, quorum_percent)
    manager = SharedClientManager(borrower_of(settings, wish), settings)
    atexit.register(manager.close)  # a ServerApp's process ends with its run
    return manager


class SharedClientManager(SimpleClientManager):
    """See the module."""

    def __init__(self, borrower: Borrower, settings: Settings) -> None:
        super().__init__()
        self._borrower, self._settings = borrower, settings
        self._lock = threading.Lock()
        """Clients answer in several threads."""

    def close(self) -> None:
        """The job needs no clients any more."""
        with self._lock:
            self._borrower.close()

    def sample(
        self, num_clients: int, min_num_clients: int | None = None, criterion: Criterion | None = None
    ) -> list[ClientProxy]:
        """See `ClientManager`. Blocks until the controller has lent so many."""
        self.wait_for(min_num_clients if min_num_clients is not None else num_clients)
        with self._lock:
            self._borrower.end()
            try:
                lent = self._borrower.borrow(lambda: self._nodes(criterion), self._settings.patience_s, num_clients)
            except PeerGone as fault:
                logger.warning("no collaboration controller, so this round is sampled from all nodes: %s", fault)
                return super().sample(num_clients, min_num_clients, criterion)
        clients = dict(self.clients)
        return [_Lent(clients[str(node)], self._report) for node in lent if str(node) in clients]

    def _nodes(self, criterion: Criterion | None) -> dict[int, NodeTable]:
        there = {
            cid: client for cid, client in list(self.clients.items()) if criterion is None or criterion.select(client)
        }
        return {int(cid): self._settings.node.get(cid, NodeTable()) for cid in there if cid.lstrip("-").isdigit()}

    def _report(self, node: int, is_good: bool) -> None:
        with self._lock:
            try:
                self._borrower.report({node: is_good})
            except PeerGone as fault:
                logger.warning("a result is reported with the next one, or at the end of the round: %s", fault)


class _Lent(ClientProxy):
    """A client that reports its answer to the controller. ``report``: with the node's number, whether it is good."""

    def __init__(self, client: ClientProxy, report: Callable[[int, bool], None]) -> None:
        super().__init__(client.cid)
        self.properties = client.properties
        self._client, self._report = client, report

    def _reported(self, call: Callable[[], Any]) -> Any:
        is_good = False
        try:
            found = call()
            is_good = True
        finally:
            self._report(int(self.cid), is_good)
        return found

    def fit(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        """See `ClientProxy`."""
        return self._reported(lambda: self._client.fit(ins, timeout, group_id))

    def evaluate(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        """See `ClientProxy`."""
        return self._reported(lambda: self._client.evaluate(ins, timeout, group_id))

    def get_properties(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        """See `ClientProxy`."""
        return self._client.get_properties(ins, timeout, group_id)

    def get_parameters(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        """See `ClientProxy`."""
        return self._reported(lambda: self._client.get_parameters(ins, timeout, group_id))

    def reconnect(self, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        """See `ClientProxy`."""
        return self._client.reconnect(ins, timeout, group_id)
