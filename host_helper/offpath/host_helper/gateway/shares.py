"""How tenants share what the gateway has once: calls, connections, memory.

Half of the whole is guaranteed, to each tenant an equal part of it. The other half goes to who comes first. One of
several tenants has at most half of the whole. So whatever the other tenants hold, a tenant finds its part.
"""

from __future__ import annotations

from collections.abc import Iterable


class Shares:
    """Divides ``whole`` units among tenants. `take` and `give` count what each one holds."""

    def __init__(self, whole: int, names: Iterable[str] = ()) -> None:
        self._whole = whole
        self._guaranteed = self._most = whole
        self._names: frozenset[str] = frozenset()
        self._held: dict[str, int] = {}
        self.held = 0
        """Units of all tenants."""
        self.divide(whole, names)

    def divide(self, whole: int, names: Iterable[str]) -> None:
        """Divide ``whole`` units among these tenants from now on. What is held stays."""
        self._whole, self._names = whole, frozenset(names)
        several = len(self._names) > 1
        self._guaranteed = whole // (2 * len(self._names)) if several else whole
        self._most = max(whole // 2, 1) if several else whole

    def most(self) -> int:
        """What one tenant may hold at most."""
        return self._most

    def of(self, name: str) -> int:
        """What the tenant holds."""
        return self._held.get(name, 0)

    def holders(self) -> list[str]:
        """Tenants that hold something, the one with the most first."""
        return sorted(self._held, key=self._held.__getitem__, reverse=True)

    def take(self, name: str, units: int = 1) -> bool:
        """Whether the tenant may hold so many more; if so, it does."""
        wanted = self.of(name) + units
        if wanted > self._most:
            return False
        if wanted > self._guaranteed and self.held + units + self._owed(name) > self._whole:
            return False
        if not units:
            return True
        self._held[name] = wanted
        self.held += units
        return True

    def give(self, name: str, units: int = 1) -> None:
        """The tenant holds so many less."""
        self.held -= units
        left = self._held.pop(name, 0) - units
        if left:
            self._held[name] = left

    def _owed(self, name: str) -> int:
        """What the other tenants are guaranteed and do not hold yet."""
        return sum(max(self._guaranteed - self.of(other), 0) for other in self._names if other != name)
