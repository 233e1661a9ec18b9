"""Fixtures and requests that several folders of tests share."""

from __future__ import annotations

import fcntl
import struct
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpath.bindings.wire import admin
from offpath.cli.admin_client import AdminClient
from offpath.host_helper import Requester

from .cluster import Cluster
from .processes import until

Make = Callable[..., Cluster]
NARROW = {"max_share": 14, "profile": "1g.5gb"}
"""A tenant with one slice."""


@pytest.fixture
def make_cluster() -> Iterator[Make]:
    """``make_cluster(tenants, **tables)``: closed, and judged, at the end of the test."""
    made: list[Cluster] = []

    def make(tenants: dict[str, dict[str, Any]], **tables: Any) -> Cluster:
        made.append(cluster := Cluster(tenants, **tables))
        return cluster

    try:
        yield make
        for cluster in reversed(made):
            cluster.close()
    finally:
        for cluster in made:
            cluster.kill()


def until_read(cluster: Cluster, *requesters: Requester) -> None:
    """The daemon has handled every doorbell that they rang: none is left in the socket, and its loop, which reads and
    handles one at a time, has turned since."""
    for requester in requesters:
        bell = requester._link.session.fileno()
        until(lambda bell=bell: not struct.unpack("i", fcntl.ioctl(bell, termios.TIOCOUTQ, bytes(4)))[0])
    with AdminClient(str(cluster.run_folder)) as client:
        client.query(admin.StatusRequest(), admin.Status)


def seconds(value: float) -> list[Any]:
    """The payload of `sleep`, or any number to `echo`."""
    return [np.array([value])]


def path_array(path: Path) -> list[Any]:
    """The payload of kernels that write a file."""
    return [np.frombuffer(str(path).encode(), np.uint8)]


def first_pid(path: Path) -> int:
    """Who wrote the file first."""
    until(lambda: path.exists() and path.read_text())
    return int(path.read_text().split()[0])
