"""Topologies from files or by name, hostlists and flags: shared by `offpath place` and `offpath trees`."""

from __future__ import annotations

import argparse
from random import Random
from typing import Final

from offpath.bindings.errors import OffpathError
from offpath.sched.placement.registry import PLACEMENTS
from offpath.sched.topology.graph import Topology, TopologyError
from offpath.sched.topology.hostlist import expand
from offpath.sched.topology.imported import is_regular, read, regular

_LARGEST: Final = 256 << 20


class NetworkError(OffpathError):
    """The topology file, the jobs or the hosts are invalid. The text names the line."""


def add_topology(parser: argparse.ArgumentParser) -> None:
    """The flags of both commands."""
    parser.add_argument(
        "topology", metavar="TOPOLOGY",
        help="Slurm's topology.conf or topology.yaml, the output of scontrol show topology, Topograph's JSON, or"
        " fat-tree:K, fat-tree:K/UP, leaf-spine:LEAVESxHOSTSxSPINES, tree:AxBxC",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="random seed (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--picture", metavar="FILE", help="draw the network into this file (.svg, .png, .pdf)")


def add_policy(parser: argparse.ArgumentParser) -> None:
    """The flag of placement."""
    parser.add_argument(
        "--policy", choices=list(PLACEMENTS), default="fragments", help="how hosts are chosen (default %(default)s)"
    )


def topology_of(words: str) -> Topology:
    """A regular topology by its name, or one from a file. Raises: NetworkError."""
    if is_regular(words):
        try:
            return regular(words)
        except TopologyError as fault:
            raise NetworkError(str(fault)) from None
    text = text_of(words)
    try:
        return read(text)
    except TopologyError as fault:
        raise NetworkError(f"{words}:{fault.line}: {fault.what}" if fault.line else f"{words}: {fault}") from None


def text_of(path: str) -> str:
    """The text of a file. Raises: NetworkError."""
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as fault:
        raise NetworkError(f"{path}: {fault.strerror}") from None
    if len(data) > _LARGEST:
        raise NetworkError(f"{path}: larger than {_LARGEST >> 20} MiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise NetworkError(f"{path}: not UTF-8: {fault.reason} at byte {fault.start}") from None


def hosts_of(topology: Topology, words: str, where: str) -> list[int]:
    """Hosts of a hostlist. Raises: NetworkError: not a hostlist, or a host that the topology lacks."""
    try:
        names = expand(words)
    except TopologyError as fault:
        raise NetworkError(f"{where}: {fault}") from None
    numbers = topology.host_numbers
    strange = [name for name in names if name not in numbers]
    if strange:
        some = ", ".join(topology.names[: min(3, topology.hosts)])
        raise NetworkError(f"{where}: no host {strange[0]!r} in the topology, which has {some} …")
    return sorted({numbers[name] for name in names})


def drawn_busy(topology: Topology, words: str, random: Random) -> list[int]:
    """``N%``: that share of the hosts, drawn; else a hostlist. Raises: NetworkError."""
    if words.endswith("%"):
        try:
            share = float(words[:-1])
        except ValueError:
            share = -1.0
        if not 0 <= share <= 100:
            raise NetworkError(f"--busy {words}: from 0% to 100%")
        return sorted(random.sample(range(topology.hosts), round(share / 100 * topology.hosts)))
    return hosts_of(topology, words, "--busy")


def folded(names: list[str]) -> str:
    """Names as a hostlist, for people: consecutive numbers become a range."""
    ranges: list[list[str]] = []
    for name in names:
        head = name.rstrip("0123456789")
        tail = name[len(head) :]
        if ranges and tail and ranges[-1][0] == head:
            _, first, last = ranges[-1]
            if tail == f"{int(last) + 1:0{len(first)}}":
                ranges[-1][2] = tail
                continue
        ranges.append([head, tail, tail])
    return ",".join(head + (first if first == last else f"[{first}-{last}]") for head, first, last in ranges)
