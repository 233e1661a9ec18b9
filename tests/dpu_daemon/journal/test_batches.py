"""Records of batches: packed, read back, and no burden on the records of other requests."""

from __future__ import annotations

import pytest

from offpath.dpu_daemon.durability.journal import codec
from offpath.dpu_daemon.durability.journal.ring import JournalCorrupt
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.states import EndReason

PLAIN = events.JobSubmitted(1, 2, 3, 4, 14, 1, 10**9, 4096, True, 1 << 40, 5)
BATCH = commands.CopyBatch(7, 1, 3, 2, 6, ((7, 0), (9, 4)))


@pytest.mark.parametrize(
    "value",
    [
        events.StackSubmitted(PLAIN, 3, 0xFEDC_BA98_7654_3210),
        events.BatchResult(7, 3, EndReason.NONE, 1, 2, ((9, EndReason.RESULT_TOO_LARGE),)),
        BATCH,
    ],
)
def test_a_record_of_a_batch_is_read_back(value: events.Event | commands.Command) -> None:
    assert codec.unpack(codec.pack(value), 1) == value


def test_the_record_of_a_request_that_does_not_batch_is_as_it_was() -> None:
    kind, data = codec.pack(PLAIN)
    assert (kind, data.hex()) == (
        0x12,
        "010000000000000002000000000000000300000000000000040000000e00010100ca9a3b00000000"
        "001000000000000000000000000100000500000000000000",
    )


def test_a_batch_whose_members_are_cut_off_is_refused() -> None:
    kind, data = codec.pack(BATCH)
    for nbytes in (0, 10, len(data) - 12, len(data) - 1):
        with pytest.raises(JournalCorrupt):
            codec.unpack((kind, data[:nbytes]), 1)
