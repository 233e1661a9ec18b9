"""What a job requires of a device, and which requirements a device meets: its *atom*.

Venn §4.1: each job has a set of devices that can run it, f(J) = S_k. The sets of different requirements may be nested,
overlap, or have nothing in common. All devices that are in the same of these sets are alike to every job. They are an
atom; its number is a bit mask, with bit k for requirement k. So a plan (`irs`) deals with atoms, not with devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from offpath.sched.collab.errors import RequirementInvalid, TooManyRequirements

MOST_REQUIREMENTS: Final = 128
"""Different ones at the same time. Several hundred jobs usually share a few."""
MOST_TERMS: Final = 32
"""Thresholds, versions and labels of a requirement, or properties of a device."""
MOST_NAME: Final = 64
MOST_VALUE: Final = 2**53
"""Above it a JSON number is not exact."""
MOST_KINDS: Final = 16_384
"""Different devices whose atom is remembered and whose check-ins are counted."""
MOST_PARTS: Final = 4
"""Of a version: 14.2.0.1."""
Version = tuple[int, ...]


def _checked(names: Iterable[str]) -> None:
    for name in names:
        if not 0 < len(name) <= MOST_NAME or not name.isprintable():
            raise RequirementInvalid(f"a property's name has 1 to {MOST_NAME} printable characters")


def _check(numbers: Mapping[str, int], versions: Mapping[str, Version], labels: frozenset[str]) -> None:
    """Raises: RequirementInvalid."""
    if len(numbers) + len(versions) + len(labels) > MOST_TERMS:
        raise RequirementInvalid(f"more than {MOST_TERMS} properties")
    _checked((*numbers, *versions, *labels))
    if any(type(value) is not int or not 0 <= value <= MOST_VALUE for value in numbers.values()):
        raise RequirementInvalid(f"a property's number is an integer from 0 to {MOST_VALUE}")
    for version in versions.values():
        if not 0 < len(version) <= MOST_PARTS or any(type(each) is not int or each < 0 for each in version):
            raise RequirementInvalid(f"a version has 1 to {MOST_PARTS} numbers, none of them negative")


@dataclass(frozen=True, slots=True)
class Properties:
    """What a device is: numbers (memory in MiB, a benchmark's points), versions, labels. Raises: RequirementInvalid."""

    numbers: tuple[tuple[str, int], ...] = ()
    versions: tuple[tuple[str, Version], ...] = ()
    labels: frozenset[str] = frozenset()
    _hash: int = field(init=False, repr=False, compare=False)
    """Once: a check-in looks the properties up several times."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.numbers, self.versions, self.labels)))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def of(
        cls,
        numbers: Mapping[str, int] | None = None,
        versions: Mapping[str, Version] | None = None,
        labels: Iterable[str] = (),
    ) -> Properties:
        """Equal properties are equal objects, whatever their order. Raises: RequirementInvalid."""
        found = frozenset(labels)
        _check(numbers or {}, versions or {}, found)
        return cls(tuple(sorted((numbers or {}).items())), tuple(sorted((versions or {}).items())), found)


@dataclass(frozen=True, slots=True)
class Requirement:
    """Every number and version at least this; every label. One without terms is met by all devices."""

    least: Properties = field(default_factory=Properties)

    def is_met_by(self, device: Properties) -> bool:
        """A property that the device does not have is not met. 14.0 is at least 14, and 14 is at least 14.0."""
        numbers, versions = dict(device.numbers), dict(device.versions)
        return (
            all(name in numbers and numbers[name] >= least for name, least in self.least.numbers)
            and all(name in versions and _padded(versions[name]) >= _padded(v) for name, v in self.least.versions)
            and self.least.labels <= device.labels
        )


def text_of(requirement: Requirement) -> str:
    """For people: its terms, or ``any device``."""
    least = requirement.least
    terms = [f"{name} >= {value}" for name, value in least.numbers]
    terms += [f"{name} >= {'.'.join(map(str, version))}" for name, version in least.versions]
    return ", ".join((*terms, *sorted(least.labels))) or "any device"


def _padded(version: Version) -> Version:
    return version + (0,) * (MOST_PARTS - len(version))


class Catalogue:
    """The requirements that open jobs have, each with a bit. A bit is used again when no job needs it."""

    def __init__(self) -> None:
        self.version = 0
        """Increases when atoms change."""
        self._bits: dict[Requirement, int] = {}
        self._uses: dict[Requirement, int] = {}
        self._atoms: dict[Properties, int] = {}

    def __len__(self) -> int:
        return len(self._bits)

    def requirements(self) -> dict[int, Requirement]:
        """Bit → requirement, of all open jobs."""
        return {bit: requirement for requirement, bit in self._bits.items()}

    def open(self, requirement: Requirement) -> int:
        """The bit's number, for one more job. A new one costs O(known devices). Raises: TooManyRequirements."""
        if requirement not in self._bits:
            if len(self._bits) >= MOST_REQUIREMENTS:
                raise TooManyRequirements(f"open jobs have {MOST_REQUIREMENTS} different requirements already")
            used = set(self._bits.values())
            bit = next(bit for bit in range(MOST_REQUIREMENTS) if bit not in used)
            self._bits[requirement], self._uses[requirement] = bit, 0
            for device, atom in self._atoms.items():
                self._atoms[device] = atom | requirement.is_met_by(device) << bit
            self.version += 1
        self._uses[requirement] += 1
        return self._bits[requirement]

    def close(self, requirement: Requirement) -> bool:
        """One job less has it. True: it was the last one, and the bit is free."""
        self._uses[requirement] -= 1
        if self._uses[requirement]:
            return False
        others = ~(1 << self._bits[requirement])
        del self._bits[requirement], self._uses[requirement]
        for device, atom in self._atoms.items():
            self._atoms[device] = atom & others
        self.version += 1
        return True

    def atom(self, device: Properties) -> int:
        """The mask of the requirements that the device meets. It changes with `open` and `close`."""
        found = self._atoms.get(device)
        if found is None:
            found = sum(1 << bit for requirement, bit in self._bits.items() if requirement.is_met_by(device))
            if len(self._atoms) < MOST_KINDS:
                self._atoms[device] = found
        return found
