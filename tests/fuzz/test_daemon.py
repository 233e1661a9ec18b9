"""A real daemon under everything at once: both carriers, tickets, headers, doorbells, strangers on the host channel.
A witness of another tenant works all the time and must notice nothing; the daemon must keep nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..sizes import sized
from ..support.certificates import Authority
from ..support.cluster import free_port
from ..support.processes import until
from ..support.siege import Siege
from .attack import CODES, Attack

MESSAGES = sized(quick=1_000, fast=2_500, slow=10_000, full=100_000)
WARM_UP = 4_000
MIB = 1 << 20
SEED = 20_261_121


@pytest.fixture
def attack(tmp_path: Path) -> Iterator[Attack]:
    """The witness's last word, and the daemon's, come after the test."""
    authority = Authority(tmp_path)
    cert_file, key_file = authority.issue("offpathd", is_server=True)
    port = free_port()
    tls = {"listen": f"127.0.0.1:{port}", "ca_file": authority.ca_file, "cert_file": cert_file, "key_file": key_file}
    siege = Siege(tls=tls)
    try:
        made = Attack(siege, authority.client("eve", "offpath://tenant/eve"), ("127.0.0.1", port), SEED)
        siege.before()
        yield made
        made.close()
        siege.after()
        siege.close()
    finally:
        siege.kill()


def test_hostile_messages_leave_neither_memory_nor_descriptors(
    attack: Attack, capsys: pytest.CaptureFixture[str]
) -> None:
    """Warmed up first: the parser's cache of layouts fills (1 024 entries), and the allocator finds its level."""
    daemon = attack.siege.cluster.daemon
    attack.run(WARM_UP)
    attack.close()
    until(lambda: daemon.open_fds() == attack.siege._fds)
    before, fds = daemon.rss_anon(), daemon.open_fds()
    attack.done.clear()
    attack.run(MESSAGES)
    attack.close()
    until(lambda: daemon.open_fds() == fds)
    grown = daemon.rss_anon() - before
    with capsys.disabled():
        kinds = ", ".join(f"{count} {kind}" for kind, count in attack.done.items())
        print(f"\n{attack.done.total()} hostile messages ({kinds}): RssAnon {grown / 1024:+.0f} KiB, {fds} descriptors")
    assert grown <= 2 * MIB
    assert set(attack.codes) <= CODES, attack.codes
    assert min(attack.codes[code] for code in ("json", "model", "frame_length", "out_of_turn", "denied")) > 0
    assert min(attack.done.values()) > 0
