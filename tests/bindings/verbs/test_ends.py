"""The end of a lane's queue pair, as a worker describes it: one spelling of each GID, and no other kind of address."""

from __future__ import annotations

from typing import Any

import pytest

from offpath.bindings.errors import RegionError
from offpath.bindings.verbs.ends import describe, described
from offpath.bindings.verbs.queue import Address

END = Address(qp_num=17, psn=1, gid="::ffff:10.99.1.1", mtu=5)


def test_an_end_is_read_as_it_was_described() -> None:
    read = described(describe(END))
    assert (read.qp_num, read.psn, read.gid_bytes, read.mtu) == (17, 1, END.gid_bytes, 5)


@pytest.mark.parametrize(
    "gid",
    [
        "",
        "fe80::1",
        "::1",
        "10.99.1.1",
        17,
        None,
        "x" * 5000,
        "::ffff:0.0.0.0.0",
        "::ffff:10.99.1.1%eth0",
        "::ffff:a63:101%1",
    ],
)
def test_what_is_no_gid_of_rocev2_over_ipv4_or_names_a_zone_is_refused(gid: Any) -> None:
    with pytest.raises(RegionError, match="is not a GID"):
        described({**describe(END), "gid": gid})
