"""The web page with generated state, as its own process: LEASES TENANTS [hostile|fails|hangs]. Prints its link."""

from __future__ import annotations

import argparse
import sys
import tempfile

from web_world import (
    HOSTILE,
    TWISTED,
    Failing,
    World,
    controller,
    daemon,
    manager,
)  # the script's own folder is first on sys.path

from offpath.cli.files.networks import topology_of
from offpath.cli.web.app import Settings
from offpath.cli.web.guard import LOOPBACK
from offpath.cli.web.reader import Seen
from offpath.cli.web.serving import bound, run

TOPOLOGY = """
SwitchName=s1 Nodes=h[1-2]
SwitchName=s2 Nodes=h[3-4]
SwitchName=s3 Nodes=h[5-6]
SwitchName=s4 Nodes=h[7-8]
SwitchName=s0 Switches=s[1-4]
"""


def main() -> None:
    leases, tenants = int(sys.argv[1]), int(sys.argv[2])
    names = [HOSTILE, TWISTED] if "hostile" in sys.argv else None
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(TOPOLOGY)
        file.flush()
        topology = topology_of(file.name)
    sock = bound("127.0.0.1", 0)
    settings = Settings(LOOPBACK, topology=topology)
    world = World(Seen(daemon(leases, tenants, names), controller(), manager()))
    address = f"http://127.0.0.1:{sock.getsockname()[1]}/"
    is_failing = not {"fails", "hangs"}.isdisjoint(sys.argv)
    source = Failing(world, hangs="hangs" in sys.argv) if is_failing else world
    with sock:
        run(sock, source, settings, "", address, argparse.Namespace(json=True, certificate=None, key=None))


main()
