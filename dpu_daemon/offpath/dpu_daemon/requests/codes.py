"""Maps the job book's states and reasons to wire codes; a test checks that both enumerations have equal names."""

from __future__ import annotations

from typing import Final

from offpath.bindings.wire import host
from offpath.bindings.wire.codes import Reason, Status
from offpath.sched.jobs.states import FIRST_TERMINAL, EndReason, JobState

STATUS: Final = {state: Status[state.name] for state in JobState if state >= FIRST_TERMINAL}
REASON: Final = {reason: Reason[reason.name] for reason in EndReason}
RESULT_REASON: Final = {
    host.RESULT_OK: EndReason.NONE,
    host.RESULT_KERNEL_RAISED: EndReason.KERNEL_RAISED,
    host.RESULT_TOO_LARGE: EndReason.RESULT_TOO_LARGE,
    host.RESULT_CHECKSUM: EndReason.PAYLOAD_CHECKSUM,
    host.RESULT_STALE: EndReason.WORKER_LOST,
    host.RESULT_MORE: EndReason.NONE,
    host.RESULT_STREAM_MISMATCH: EndReason.STREAM_MISMATCH,
    host.RESULT_STOPPED: EndReason.DAEMON_RESTARTED,
}
