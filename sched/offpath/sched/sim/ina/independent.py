"""A large set of trees no two of which conflict, by reducing and peeling (Chang, Li, Zhang, SIGMOD 2017).

The rules that lose nothing are applied as long as one applies: a tree without conflicts is taken, a tree with one is
taken too. Then the tree with the most conflicts is put aside, and so on; what was put aside is taken in the end where
nothing stands against it. Sets of trees are bit sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def bits(mask: int) -> Iterator[int]:
    """The members of a bit set, least first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def independent(conflicts: Sequence[int], weights: Sequence[int] | None = None) -> list[int]:
    """``conflicts[v]``: bit set of what v conflicts with, without v itself. Returns a maximal set, sorted.

    ``weights``: what each is worth, 1 or more; taken is then what is worth more than all it conflicts with, and put
    aside what is worth least for each of its conflicts. Of equals the last is put aside.
    """
    count = len(conflicts)
    worth = list(weights) if weights is not None else [1] * count
    alive = (1 << count) - 1
    degree = [mask.bit_count() for mask in conflicts]
    taken: list[int] = []
    aside: list[int] = []
    due = list(range(count - 1, -1, -1))

    def remove(v: int) -> None:
        nonlocal alive
        alive &= ~(1 << v)
        for u in bits(conflicts[v] & alive):
            degree[u] -= 1
            due.append(u)

    def is_free(v: int) -> bool:
        if degree[v] == 0:
            return True
        if weights is None:
            return degree[v] == 1
        return worth[v] >= sum(worth[u] for u in bits(conflicts[v] & alive))

    while alive:
        while due:
            v = due.pop()
            if alive >> v & 1 and is_free(v):
                taken.append(v)
                for u in bits(conflicts[v] & alive):
                    remove(u)
                alive &= ~(1 << v)
        if alive:
            v = min(bits(alive), key=lambda u: (worth[u] / degree[u], -u))
            aside.append(v)
            remove(v)
    chosen = 0
    for v in taken:
        chosen |= 1 << v
    for v in reversed(aside):
        if not conflicts[v] & chosen:
            chosen |= 1 << v
    return list(bits(chosen))
