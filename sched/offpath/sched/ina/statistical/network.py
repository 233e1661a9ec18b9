"""The network of a cluster with statistical INA: servers in racks, access links, uplinks, and each ToR's PAT.

One big switch joins the racks (NetPack §4.1): a rack has one uplink, whose capacity holds the oversubscription. Links
are undirected: the results return on the path of the gradients (§3.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from offpath.sched.errors import SchedError


class NetworkInvalid(SchedError):
    """A number of the network is not possible: RTT 0, NaN, a negative capacity, a rack without servers."""


def pat_gbps(memory_bytes: float, rtt_s: float) -> float:
    """Peak aggregation throughput of a switch: memory / RTT (§4.1), in Gbit/s.

    Raises: NetworkInvalid: a negative or unbounded memory, an RTT that is not above 0.

    >>> pat_gbps(5e6, 40e-6)
    1000.0
    """
    if not (math.isfinite(memory_bytes) and memory_bytes >= 0):
        raise NetworkInvalid(f"switch memory of {memory_bytes} bytes: give 0 or more")
    if not (math.isfinite(rtt_s) and rtt_s > 0):
        raise NetworkInvalid(f"RTT of {rtt_s} s: give more than 0")
    return round(memory_bytes * 8 / rtt_s / 1e9, 9)


@dataclass(frozen=True)
class Network:
    """Servers are numbered rack by rack. All capacities in Gbit/s; 0: the link is down."""

    racks: tuple[int, ...]
    """Servers of each rack, shape [R]."""
    link_gbps: tuple[float, ...]
    """Access link of each server, shape [S]."""
    uplink_gbps: tuple[float, ...]
    """Uplink of each rack, shape [R]."""
    pat_gbps: tuple[float, ...]
    """Of each ToR, shape [R]; 0: it does not aggregate."""

    def __post_init__(self) -> None:
        """Raises: NetworkInvalid."""
        if not self.racks or any(count < 1 for count in self.racks):
            raise NetworkInvalid("each rack has at least one server, and a network at least one rack")
        for name, values, count in (
            ("link_gbps", self.link_gbps, self.servers), ("uplink_gbps", self.uplink_gbps, len(self.racks)),
            ("pat_gbps", self.pat_gbps, len(self.racks)),
        ):  # fmt: skip
            if len(values) != count:
                raise NetworkInvalid(f"{name}: {len(values)} values for {count}")
            if any(math.isnan(value) or value < 0 for value in values):
                raise NetworkInvalid(f"{name}: a value is negative or NaN")
        if any(math.isinf(value) for value in self.link_gbps):
            raise NetworkInvalid("link_gbps: an access link is unbounded")

    @cached_property
    def servers(self) -> int:
        """Number of servers."""
        return sum(self.racks)

    @cached_property
    def rack_of(self) -> tuple[int, ...]:
        """The rack of each server, shape [S]."""
        return tuple(rack for rack, count in enumerate(self.racks) for _ in range(count))

    @cached_property
    def fastest_gbps(self) -> float:
        """C of the paper's formulas: the capacity of the fastest access link."""
        return max(self.link_gbps)


def regular(
    racks: int, servers: int, *, link_gbps: float = 100.0, oversubscription: float = 1.0, pat: float = 1_000.0
) -> Network:
    """``racks`` equal racks of ``servers``; an uplink has the capacity of its access links / ``oversubscription``.

    Raises: NetworkInvalid.
    """
    if racks < 1 or servers < 1:
        raise NetworkInvalid(f"{racks} racks of {servers} servers: give 1 or more of each")
    if not (math.isfinite(oversubscription) and oversubscription > 0):
        raise NetworkInvalid(f"oversubscription of {oversubscription}: give more than 0")
    up = servers * link_gbps / oversubscription
    return Network((servers,) * racks, (link_gbps,) * (racks * servers), (up,) * racks, (pat,) * racks)
