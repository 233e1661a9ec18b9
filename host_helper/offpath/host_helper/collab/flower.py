"""Flower's nodes, lent to one run at a time: a `Grid` that shows a strategy only those of its present round.

In the ServerApp one line changes, ``grid = shared(grid, context, demand=4)``; without a controller it changes nothing.
Each time a strategy looks for nodes after it has used the last ones, the controller is asked for a new round. So one
that also evaluates on nodes needs two for each of its own.

The server does not know a node's ``--node-config``. Attributes of nodes are in the settings' file, or the nodes are
queried once: see `flower_node`.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from pydantic import ValidationError

from offpath.bindings.errors import PeerGone
from offpath.bindings.wire.collab_admin import Requirement
from offpath.host_helper.collab.attributes import kept
from offpath.host_helper.collab.borrower import Borrower, JobWish
from offpath.host_helper.collab.controller import LocalController
from offpath.host_helper.collab.flower_node import ACTION, LABELS, NUMBERS
from offpath.host_helper.collab.settings import NodeTable, Settings, load

logger = logging.getLogger(__name__)
_ASK_S: Final = 60.0
_PULL_S: Final = 0.5


def shared(
    grid: Grid, context: Context, *, demand: int, deadline_s: float = 600.0, job: str = "",
    requirement: Mapping[str, Any] | None = None, rounds: int = 0, quorum_percent: int = 80, speed: str = "",
    tiers: int = 0,
) -> Grid:  # fmt: skip
    """The grid for a strategy of a run that shares its nodes with others. Without ``OFFPATH_COLLAB`` it is ``grid``.

    Args:
        demand: nodes of a round. A strategy that samples a part of the nodes it sees gets that part of them.
        deadline_s: of a round, from its request on.
        job: its name at the controller; by default that of the run.
        requirement: what each node must have: ``{"numbers": {"memory_mib": 4096}, "labels": ["camera"]}``.
        Others: `offpath collab open`.
    Raises: OptionRefused, KeyFileRefused: the settings' file, or one that it names; ValidationError: the requirement.
    """
    settings = load()
    if settings is None:
        return grid
    wanted = Requirement.model_validate(dict(requirement or {}))
    name = job or f"flower-{context.run_id}"
    wish = JobWish(name, demand, deadline_s, wanted, rounds, quorum_percent, speed, tiers)
    lent = SharedGrid(grid, borrower_of(settings, wish), settings)
    atexit.register(lent.close)  # a ServerApp's process ends with its run
    return lent


def borrower_of(settings: Settings, wish: JobWish) -> Borrower:
    """Raises: OptionRefused, KeyFileRefused, PlaceUnusable."""
    _, _, key = settings.keys()
    return Borrower(LocalController(settings), wish, key, settings.prefix, settings.poll_s)


class SharedGrid(Grid):
    """``inner``: of the run. Messages go to nodes of the present round only; if the controller did not answer, to
    all."""

    def __init__(self, inner: Grid, borrower: Borrower, settings: Settings) -> None:
        self._inner, self._borrower, self._settings = inner, borrower, settings
        self._lent: list[int] = []
        """The nodes of the present round."""
        self._is_used = True
        """Its messages were sent: the next look for nodes begins another one."""
        self._is_alone = False
        """The controller did not answer: this round is sampled without it."""
        self._known: dict[int, NodeTable] = {}
        self.served: Counter[int] = Counter()
        """Good answers, by node."""

    # -- as the grid below ------------------------------------------------------------------------------------------
    def set_run(self, run: Any) -> None:
        """See `Grid`."""
        self._inner.set_run(run)

    @property
    def run(self) -> Any:
        """See `Grid`."""
        return self._inner.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """See `Grid`."""
        return self._inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """See `Grid`."""
        replies = list(self._inner.pull_messages(message_ids))
        self._report(replies)
        return replies

    # -- rounds -----------------------------------------------------------------------------------------------------
    def get_node_ids(self) -> Iterable[int]:
        """Those of this run's round. Blocks until it has all of them; see `shared`."""
        if not self._is_used:
            return list(self._lent)
        self._borrower.end()
        try:
            self._lent = self._borrower.borrow(self._nodes, self._settings.patience_s)
            self._is_alone = False
        except PeerGone as fault:
            logger.warning("no collaboration controller, so this round is sampled from all nodes: %s", fault)
            self._lent, self._is_alone = list(self._inner.get_node_ids()), True
        self._is_used = False
        return list(self._lent)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """See `Grid`. Raises: ValueError: a message for a node of another run."""
        sent = list(messages)
        for message in sent:
            node = message.metadata.dst_node_id
            if not self._is_alone and not self._borrower.has(node):
                raise ValueError(f"node {node} does not work for this run now")
        self._is_used = True
        return self._inner.push_messages(sent)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """See `Grid`. Waits for the round's deadline at most."""
        left = set(self.push_messages(messages))
        wait_s = timeout if self._is_alone else min(self._borrower.left_s, timeout or self._borrower.left_s)
        end = None if wait_s is None else time.monotonic() + wait_s
        replies: list[Message] = []
        while left and (end is None or time.monotonic() < end):
            found = list(self.pull_messages(left))
            replies += found
            left -= {each.metadata.reply_to_message_id for each in found}
            if left:
                time.sleep(_PULL_S)
        return replies

    def close(self) -> None:
        """The job needs no nodes any more."""
        self._borrower.close()

    def _report(self, replies: Iterable[Message]) -> None:
        results = {each.metadata.src_node_id: not each.has_error() for each in replies}
        self.served.update(node for node, is_good in results.items() if is_good)
        try:
            self._borrower.report(results)
        except PeerGone as fault:
            logger.warning(
                "results of %d nodes are reported with the next ones, or at the end of the round: %s",
                len(results),
                fault,
            )

    # -- attributes of nodes -----------------------------------------------------------------------------------------
    def _nodes(self) -> dict[int, NodeTable]:
        """Nodes that are connected. Unknown ones are queried, all at once."""
        there = list(self._inner.get_node_ids())
        new = [node for node in there if node not in self._known]
        self._known |= {node: self._settings.node[str(node)] for node in new if str(node) in self._settings.node}
        if any(node not in self._known for node in new):
            with kept(self._settings.attributes) as table:  # one job queries, others wait and read its answers
                self._known |= {
                    node: table[str(node)] for node in new if str(node) in table and node not in self._known
                }
                if unknown := [node for node in new if node not in self._known]:
                    answers = self._answers(unknown)
                    self._known |= answers
                    table |= {str(node): answer for node, answer in answers.items()}
        return {node: self._known[node] for node in there}

    def _answers(self, nodes: list[int]) -> dict[int, NodeTable]:
        """Nodes that do not answer have no attributes."""
        messages = [Message(RecordDict(), dst_node_id=node, message_type=f"{MessageType.QUERY}.{ACTION}", ttl=_ASK_S)
                    for node in nodes]  # fmt: skip
        found = dict.fromkeys(nodes, NodeTable())
        for reply in self._inner.send_and_receive(messages, timeout=_ASK_S):
            node = reply.metadata.src_node_id
            if reply.has_error():
                logger.info("node %d: no attributes: %s", node, reply.error.reason)
            elif node in found:
                found[node] = _read(node, reply.content)
        return found


def _read(node: int, content: RecordDict) -> NodeTable:
    """The attributes that a node reports; none if they cannot be read."""
    try:
        return NodeTable.model_validate({
            "numbers": dict(content[NUMBERS]), "labels": list(content[LABELS][LABELS]),
        })  # fmt: skip
    except (KeyError, TypeError, ValidationError) as fault:
        logger.warning("node %d: its attributes cannot be read: %s", node, str(fault)[:200])
        return NodeTable()
