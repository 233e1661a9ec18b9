"""The first of many that can: a tree of bit sets, so that finding it costs a logarithm."""

from __future__ import annotations


class FirstFit:
    """Slots 0, 1, … with a set of bits each; finds the first that shares a bit with a mask.

    A binary tree over the slots, node n above 2n and 2n + 1, kept where it is not empty: memory goes with the slots in
    use, not with the greatest. Costs O(log greatest slot).
    """

    __slots__ = ("_nodes", "_size")

    def __init__(self) -> None:
        self._size = 1
        self._nodes: dict[int, int] = {}

    def __getitem__(self, slot: int) -> int:
        return self._nodes.get(self._size + slot, 0) if slot < self._size else 0

    def put(self, slot: int, bits: int) -> None:
        """The slot has these bits now."""
        if slot >= self._size:
            self._grow(slot)
        nodes = self._nodes
        node = self._size + slot
        while True:
            if bits == nodes.get(node, 0):
                return
            if bits:
                nodes[node] = bits
            else:
                del nodes[node]
            if node == 1:
                return
            bits |= nodes.get(node ^ 1, 0)
            node >>= 1

    def _grow(self, slot: int) -> None:
        old = self._size
        leaves = [(node - old, bits) for node, bits in self._nodes.items() if node >= old]
        self._size = 1 << slot.bit_length()
        self._nodes = {}
        for each, bits in leaves:
            self.put(each, bits)

    def first(self, mask: int, start: int = 0) -> int | None:
        """The lowest slot from ``start`` on with a bit of ``mask``; None: no slot has one."""
        get, size = self._nodes.get, self._size
        if start >= size or not get(1, 0) & mask:
            return None
        node = size + start
        while not get(node, 0) & mask:
            while node & 1:  # a right child, or the root: what follows it hangs further up
                node >>= 1
                if node <= 1:
                    return None
            node += 1
        while node < size:
            node *= 2
            if not get(node, 0) & mask:
                node += 1
        return node - size
