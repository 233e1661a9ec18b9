"""Fault points: named places where a test makes a real process fail. Off unless ``OFFPATH_FAULTS`` is set at its start.

``OFFPATH_FAULTS="journal.append=raise@3 daemon.answer=kill@100"``: an OSError at the third append, SIGKILL at the
hundredth answer. Code marks a point with ``if faults.armed: faults.hit("journal.append")``: 30 ns when none is armed.
"""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass
from typing import Final

from offpath.bindings.errors import OffpathError

POINTS: Final[dict[str, str]] = {
    "journal.append": "a record is about to be written to the journal",
    "journal.torn": "half of a record is in the journal",
    "journal.checkpoint": "a checkpoint is half written",
    "daemon.handle": "an event was received, the book has not handled it",
    "daemon.event": "the book has handled an event, nothing of it is journalled",
    "daemon.decided": "an event and its decisions are journalled, nothing is carried out",
    "daemon.launch": "a launch is journalled, its message is not sent",
    "daemon.launched": "the launch message is sent",
    "daemon.result": "a result was received, nothing of it is written",
    "daemon.answer": "an answer is decided, not written",
    "daemon.written": "an answer is written, its doorbell not rung",
    "daemon.session": "the service manager holds a session's memory, the peer has nothing",
    "daemon.recovered": "the journal is replayed, nothing is reconnected",
    "helper.open": "an instance is created, its workers are not forked",
    "helper.close": "an instance is to be closed, its workers live",
    "helper.scrub": "an instance is scrubbed, not destroyed",
    "worker.launch": "a launch was received, the kernel has not started",
    "worker.result": "the kernel has ended, its result is not sent",
    "worker.scrub": "the lane is scrubbed, the confirmation not sent",
    "migd.ledger": "the new ledger is half written, the old one is in place",
    "migd.intended": "the ledger names an instance to be created, nothing is cut",
    "migd.cut": "the GPU instance is created, the ledger does not have its id",
    "migd.computed": "the compute instance is created, the ledger does not have it",
    "migd.ready": "a created instance is in the ledger, the reply is not sent",
    "migd.destroying": "the ledger names an instance to be destroyed, nothing is destroyed",
    "migd.stripped": "the compute instance is destroyed, the ledger does not have that",
    "migd.destroyed": "the GPU instance is destroyed, the ledger still names it",
    "migd.freed": "a destroyed instance has left the ledger, the reply is not sent",
    "switch.operation": "an operation's header was received from a member, nothing is requested or forwarded",
    "switch.admitted": "an operation is admitted, no member is notified",
    "switch.chunk": "a chunk is summed, not sent on (raise: it never is)",
    "switch.delivered": "the last of a sum was delivered to one more member, a rank or a switch below",
    "collab.write": "leases are decided, nothing of them is written, no device has an answer",
    "collab.written": "leases are on the disk, no device has an answer",
    "requester.filled": "a slot is filled, the doorbell not rung",
    "requester.answer": "an answer is rung, not taken",
}
_ACTION: Final = re.compile(r"([a-z.]+)=(kill|raise|stop|sleep)(?:@([0-9]+))?")
_SLEEP_S: Final = 2.0


class FaultSyntax(OffpathError):
    """``OFFPATH_FAULTS`` names an unknown point, or an action other than kill, raise, stop or sleep."""


@dataclass(slots=True)
class _Fault:
    action: str
    after: int
    hits: int = 0


armed: dict[str, _Fault] = {}


def arm(text: str) -> None:
    """Replace the armed faults by those in ``text``. Raises: FaultSyntax."""
    wanted = {}
    for word in text.split():
        found = _ACTION.fullmatch(word)
        if found is None or found[1] not in POINTS:
            raise FaultSyntax(f"{word!r}: want POINT=kill|raise|stop|sleep[@N]; `offpath doctor --fault-points` lists")
        wanted[found[1]] = _Fault(found[2], int(found[3] or 1))
    armed.clear()
    armed.update(wanted)


def hit(point: str) -> None:
    """Run the fault armed at ``point``, on its N-th visit. Raises: OSError: the fault is ``raise``."""
    fault = armed.get(point)
    if fault is None:
        return
    fault.hits += 1
    if fault.hits != fault.after:
        return
    if fault.action == "raise":
        raise OSError(5, f"injected at {point}")
    if fault.action == "sleep":
        time.sleep(_SLEEP_S)
    else:
        os.kill(os.getpid(), signal.SIGKILL if fault.action == "kill" else signal.SIGSTOP)


arm(os.environ.get("OFFPATH_FAULTS", ""))
