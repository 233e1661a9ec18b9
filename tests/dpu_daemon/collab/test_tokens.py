"""Devices' tokens and identities; what the table of recent devices remembers, and that it does not grow."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.dpu_daemon.collab import tokens
from offpath.dpu_daemon.collab.recent import Rate, Recent, Seen
from offpath.dpu_daemon.collab.tokens import Identities, Tokens, shown

OLD, NEW = b"o" * 32, b"n" * 32


def test_a_token_is_the_hmac_of_the_device_with_the_first_key() -> None:
    digest = hmac.new(NEW, b"offpath collab device\0phone-1", hashlib.sha256).digest()
    assert Tokens([NEW, OLD]).of("phone-1") == digest.hex()


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
@given(device=st.text(max_size=80))
def test_a_key_of_any_length_is_used_as_hmac_has_it(length: int, device: str) -> None:
    key = bytes(range(1, length + 1))
    name = device.encode("utf-8", "replace").decode()
    assert Tokens([key]).of(name) == hmac.new(key, b"offpath collab device\0" + name.encode(), "sha256").hexdigest()


def test_tokens_of_an_older_key_are_accepted_while_it_is_listed() -> None:
    made = Tokens([OLD]).of("a")
    assert Tokens([NEW, OLD]).is_valid("a", made)
    assert not Tokens([NEW]).is_valid("a", made)


@pytest.mark.parametrize("device", ["b", "a ", "A", "a\0"])
def test_a_token_is_of_one_device(device: str) -> None:
    assert not Tokens([OLD]).is_valid(device, Tokens([OLD]).of("a"))


def test_every_key_is_compared_whatever_the_earlier_ones_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that a check takes tells nothing about which key is right, or how much of a token."""
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(tokens.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    Tokens([OLD, NEW]).is_valid("a", Tokens([OLD]).of("a"))
    assert len(compared) == 2


def test_identities_are_keyed_and_fit_a_signed_number_of_64_bits() -> None:
    one, other = Identities(b"1" * 32), Identities(b"2" * 32)
    found = {one.of(f"device {n}") for n in range(2_000)}
    assert len(found) == 2_000
    assert all(0 <= each < 1 << 63 for each in found)
    assert one.of("a") != other.of("a")
    assert "a-device" not in shown(one.of("a-device"))


# -- the table ------------------------------------------------------------------------------------------------------
@given(steps=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 50)), max_size=80))
def test_the_table_knows_what_a_dictionary_would(steps: list[tuple[int, int]]) -> None:
    table, last = Recent(4_096, Rate(1, 100)), dict[int, int]()
    for device, sent_ms in steps:
        seen = table.admit(device, sent_ms, 10**6)
        before = last.get(device)
        if before is None or sent_ms > before:
            assert seen is Seen.NEW
            last[device] = sent_ms
        else:
            assert seen is (Seen.AGAIN if sent_ms == before else Seen.OLDER)
    assert table.forgotten == 0


def test_a_full_bucket_forgets_the_device_that_has_been_silent_longest() -> None:
    table = Recent(1, Rate(1, 9))
    for device in range(4):
        table.admit(device, 10 + device, 0)
    table.admit(0, 20, 0)
    table.admit(9, 21, 0)
    assert table.forgotten == 1
    assert [table.admit(device, 1, 0) for device in (0, 2, 3, 9, 1)] == [*[Seen.OLDER] * 4, Seen.NEW]


def test_the_table_has_one_size_whatever_comes() -> None:
    table = Recent(1_024, Rate(1, 1))
    sizes = [len(each) for each in (table._devices, table._sent_ms, table._full_ms)]
    for device in range(20_000):
        table.admit(device * 7_919, device, device)
    assert [len(each) for each in (table._devices, table._sent_ms, table._full_ms)] == sizes == [1_024] * 3
    assert table.forgotten == 20_000 - 1_024


@given(
    every_ms=st.integers(1, 1_000), burst=st.integers(1, 10),
    gaps=st.lists(st.integers(0, 3_000), min_size=1, max_size=100),
)  # fmt: skip
def test_no_window_has_more_messages_than_the_rate_and_the_burst_allow(
    every_ms: int, burst: int, gaps: list[int]
) -> None:
    table, now_ms, admitted = Recent(16, Rate(every_ms, burst)), 10_000, list[int]()
    for gap in gaps:
        now_ms += gap
        if table.admit(1, now_ms, now_ms) is not Seen.TOO_SOON:
            admitted.append(now_ms)
    for first, begin in enumerate(admitted):
        for last, end in enumerate(admitted[first:], first):
            assert last - first + 1 <= burst + (end - begin) / every_ms


rates = st.builds(Rate, st.integers(1, 1_000), st.integers(1, 10))


@given(before=rates, after=rates, sent=st.integers(1, 30), pause_ms=st.integers(0, 3_000))
def test_with_another_rate_a_device_waits_for_one_message_of_it_at_most(
    before: Rate, after: Rate, sent: int, pause_ms: int
) -> None:
    table = Recent(16, before)
    for number in range(sent):
        table.admit(1, number, 10_000)
    now_ms = 10_000 + pause_ms
    table.limit(after, now_ms)
    assert table.wait_ms(1, now_ms) <= after.every_ms


@given(
    before=rates, after=rates, sent=st.integers(1, 30), gaps=st.lists(st.integers(0, 2_000), min_size=1, max_size=60)
)  # fmt: skip
def test_another_rate_is_kept_from_its_beginning_on(before: Rate, after: Rate, sent: int, gaps: list[int]) -> None:
    table, now_ms, admitted = Recent(16, before), 10_000, list[int]()
    for number in range(sent):
        table.admit(1, number, now_ms)
    table.limit(after, now_ms)
    for gap in gaps:
        now_ms += gap
        if table.admit(1, now_ms, now_ms) in (Seen.NEW, Seen.AGAIN):
            admitted.append(now_ms)
    for first, begin in enumerate(admitted):
        for last, end in enumerate(admitted[first:], first):
            assert last - first + 1 <= after.burst + (end - begin) / after.every_ms


def test_what_was_used_up_of_a_looser_rate_is_used_up_of_a_stricter_one() -> None:
    table = Recent(16, Rate(100, 10))
    assert [table.admit(1, number, 5_000) for number in range(10)] == [Seen.NEW] * 10
    table.limit(Rate(1_000, 1), 5_000)
    assert (table.admit(1, 10, 5_000), table.wait_ms(1, 5_000)) == (Seen.TOO_SOON, 1_000)
    assert table.admit(1, 10, 6_000) is Seen.NEW


def test_a_device_that_waits_as_long_as_it_was_told_is_served() -> None:
    table = Recent(16, Rate(1_000, 2))
    assert [table.admit(1, 5_000 + n, 5_000) for n in range(3)] == [Seen.NEW, Seen.NEW, Seen.TOO_SOON]
    wait_ms = table.wait_ms(1, 5_000)
    assert wait_ms == 1_000
    assert table.admit(1, 5_009, 5_000 + wait_ms - 1) is Seen.TOO_SOON
    assert table.admit(1, 5_009, 5_000 + wait_ms) is Seen.NEW
