"""Tracks the free hosts of a topology, by host and by pod, updated at O(depth) per host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from offpath.sched.errors import SchedError
from offpath.sched.topology.graph import Pod, Topology


class HostsHeld(SchedError):
    """A host to take is not free, or a host to release is."""


class Cluster:
    """Pods are numbered: the outermost is 0, parents precede their children.

    ``children``, ``first``, ``count``, ``free_in`` and ``stamp`` are by pod; a stamp changes with anything in its pod.
    """

    def __init__(self, topology: Topology, busy: Iterable[int] = ()) -> None:
        self.topology = topology
        self.first: list[int] = []
        self.count: list[int] = []
        self.children: list[Sequence[int]] = []
        self._parent: list[int] = []
        self._leaf = [0] * topology.hosts
        waiting: list[tuple[Pod, int]] = [(topology.pods, -1)]
        for pod, parent in waiting:  # the loop appends: breadth first, so that children are consecutive
            number = len(self.first)
            self.first.append(pod.first)
            self.count.append(pod.count)
            self._parent.append(parent)
            begin = len(waiting)
            waiting.extend((child, number) for child in pod.children)
            self.children.append(range(begin, len(waiting)))
            if not pod.children:
                self._leaf[pod.first : pod.first + pod.count] = [number] * pod.count
        self.free_in = list(self.count)
        self.stamp = [0] * len(self.first)
        self._changes = 0
        self._is_free = bytearray(b"\1") * topology.hosts
        self.take(busy)

    @property
    def free(self) -> int:
        """Number of free hosts."""
        return self.free_in[0]

    def is_free(self, host: int) -> bool:
        """True if no job has the host."""
        return bool(self._is_free[host])

    def free_hosts(self, first: int = 0, count: int | None = None) -> Iterator[int]:
        """The free hosts among ``first`` … ``first + count - 1``, in order."""
        end = len(self._is_free) if count is None else first + count
        find = self._is_free.find
        at = find(1, first, end)
        while at >= 0:
            yield at
            at = find(1, at + 1, end)

    def take(self, hosts: Iterable[int]) -> None:
        """Mark the hosts as taken. Raises: HostsHeld: one of them is already taken; then nothing changes."""
        self._set(list(hosts), free=False)

    def release(self, hosts: Iterable[int]) -> None:
        """Mark the hosts as free. Raises: HostsHeld: one of them is already free; then nothing changes."""
        self._set(list(hosts), free=True)

    def _set(self, hosts: list[int], *, free: bool) -> None:
        value = int(free)
        for n, host in enumerate(hosts):
            if not 0 <= host < len(self._is_free) or self._is_free[host] == value:
                for before in hosts[:n]:
                    self._is_free[before] = 1 - value
                raise HostsHeld(f"host {host} is {'free' if free else 'taken'} already, or unknown")
            self._is_free[host] = value
        self._changes += 1
        by_leaf: dict[int, int] = {}
        for host in hosts:
            by_leaf[self._leaf[host]] = by_leaf.get(self._leaf[host], 0) + 1
        for leaf, count in by_leaf.items():
            pod = leaf
            while pod >= 0:
                self.free_in[pod] += count if free else -count
                self.stamp[pod] = self._changes
                pod = self._parent[pod]
