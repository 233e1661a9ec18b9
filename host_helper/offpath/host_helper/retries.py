"""Which requests a requester sends again by itself."""

from __future__ import annotations

from typing import Final

from offpath.bindings.wire.codes import Status
from offpath.host_helper.errors import RequestFailed
from offpath.host_helper.slots import Options

RETRIES: Final = 3


def may_retry(failed: RequestFailed, attempt: int, options: Options) -> bool:
    """Whether a request that ended so is sent again. ``attempt``: how often it was sent again before.

    It is not if it may have started. Nor is one of a sequence: later requests of the sequence may have run meanwhile,
    and it would run after them.
    """
    return failed.status is Status.RETRY_SAFE and attempt < RETRIES and not options.sequence_id
