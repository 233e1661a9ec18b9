"""Records of sequences: packed, and read back."""

from __future__ import annotations

import pytest

from offpath.dpu_daemon.durability.journal import codec
from offpath.dpu_daemon.durability.journal.ring import JournalCorrupt
from offpath.sched.jobs import commands, events

PLAIN = events.JobSubmitted(1, 2, 3, 4, 14, 1, 10**9, 4096, True, 1 << 40, 5)
VALUES = [
    events.SequenceSubmitted(PLAIN, (1 << 64) - 1, True, False),
    events.SequenceSubmitted(PLAIN, 7, False, True),
    commands.EndSequence(1, 2, 3, 4),
]


@pytest.mark.parametrize("value", VALUES)
def test_a_record_of_a_sequence_is_read_back(value: events.Event | commands.Command) -> None:
    assert codec.unpack(codec.pack(value), 1) == value


def test_a_record_that_is_cut_off_is_refused() -> None:
    kind, data = codec.pack(VALUES[0])
    for nbytes in (0, 5, 10, len(data) - 1):
        with pytest.raises(JournalCorrupt):
            codec.unpack((kind, data[:nbytes]), 1)
