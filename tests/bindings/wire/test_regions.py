"""Messages of the copy engine `cuda`: whatever arrives is one of them or a typed error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.errors import HostMessageError
from offpath.bindings.wire import regions

NUMBER = st.integers(0, (1 << 64) - 1)
NBYTES = st.integers(1, regions.MOST_REGION_BYTES)


@given(NUMBER, NUMBER, NUMBER, NBYTES)
def test_a_copy_is_what_was_packed(region: int, offset: int, at: int, nbytes: int) -> None:
    packed = regions.pack_copy(region, offset, at, nbytes)
    assert regions.parse(packed) == regions.RegionCopy(region, offset, at, nbytes)


@given(NUMBER, NBYTES, st.booleans())
def test_an_offer_and_its_drop_are_what_was_packed(region: int, nbytes: int, is_writable: bool) -> None:
    offer = regions.pack_region(region, nbytes, is_writable)
    assert regions.parse(offer) == regions.RegionOffer(region, nbytes, is_writable)
    assert regions.parse(regions.pack_drop(region)) == regions.RegionDrop(region)


@given(st.sampled_from(sorted(regions.KINDS)), st.binary(max_size=64))
def test_any_bytes_are_a_message_or_a_typed_error(kind: int, rest: bytes) -> None:
    message = bytes([kind]) + rest
    try:
        found = regions.parse(message)
    except HostMessageError:
        return
    again = {
        regions.RegionCopy: regions.pack_copy,
        regions.RegionOffer: regions.pack_region,
        regions.RegionDrop: regions.pack_drop,
    }[type(found)]
    assert again(*found) == message, "nothing in it was ignored"


@pytest.mark.parametrize("message", [b"", b"\x01" + bytes(39), b"\x06" + bytes(39), regions.pack_drop(1) + b"\0"])
def test_what_is_none_of_them_is_an_error(message: bytes) -> None:
    with pytest.raises(HostMessageError, match="region_message"):
        regions.parse(message)


def test_what_follows_a_message_in_its_packet_is_left() -> None:
    assert regions.split(regions.pack_copy(1, 2, 3, 4) + b"{}") == (regions.pack_copy(1, 2, 3, 4), b"{}")
