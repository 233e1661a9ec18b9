"""The interface as the notes have it, as rows; kept in prototypes.txt for a tree that has no notes beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NOTES = ROOT.parent / "shared" / "notes" / "doca-api.md"
KEPT = Path(__file__).with_name("prototypes.txt")
SECTIONS = ("2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.8")  # 2.7 is RDMA, which nothing here uses
LIBRARIES = {"2.5": "dma", "2.6": "comch", "2.8": "gpunetio"}

_NAME = re.compile(r"\b(doca_\w+)\(")


@dataclass(frozen=True, slots=True)
class Row:
    """One prototype: where it stands, what 3.0 and 2.5 say of it (``-``: its section is in neither)."""

    section: str
    in_30: str
    in_25: str
    prototype: str

    @property
    def name(self) -> str:
        found = _NAME.search(self.prototype)
        assert found is not None, self.prototype
        return found[1]

    @property
    def library(self) -> str:
        """Which library exports it; one row of 2.8 repeats a call of libdoca_common."""
        return "common" if self.name.startswith("doca_ctx_") else LIBRARIES.get(self.section, "common")

    @property
    def node(self) -> str | None:
        """Its version node; None: no symbol."""
        return {"S": "DOCA_2", "E": "EXPERIMENTAL", "-": "EXPERIMENTAL", "inline": None}[self.in_30]

    @property
    def is_in_25(self) -> bool:
        return self.in_25 == "same"


def rows_of(notes: str) -> list[Row]:
    """The rows of the prototype tables."""
    rows, section = [], ""
    for line in notes.splitlines():
        if heading := re.match(r"##+ (\d(?:\.\d)?)", line):
            section = heading[1]
        if section in SECTIONS and line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            releases = ("-", "-") if section == "2.8" else (cells[1], cells[2].split()[0])
            rows.append(Row(section, *releases, cells[0].strip("`")))
    return rows


def enumerators_of(notes: str) -> dict[str, int]:
    """Every enumerator of section 1.1 with its value."""
    text = notes[notes.index("### 1.1") : notes.index("### 1.2")]
    found = {}
    for value, name in re.findall(r"\| (\d+) \| ([A-Z_]+) (?=\|)", text):
        found["DOCA_SUCCESS" if value == "0" else f"DOCA_ERROR_{name}"] = int(value)
    for enum, values in re.findall(r"^\| `(?:enum )?(doca_\w+)`[^|]*\|([^|]*)\|", text, re.MULTILINE):
        given = re.search(r"prefix `(\w+)`", values)
        prefix = given[1] if given else enum.upper() + "_"
        found |= {prefix + name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", values)}
    return found


def kept() -> tuple[list[Row], dict[str, int]]:
    """What prototypes.txt holds."""
    rows, enumerators = [], {}
    for line in KEPT.read_text("utf-8").splitlines():
        if line.startswith("#") or not line:
            continue
        first, *rest = line.split("\t")
        if first == "enum":
            enumerators[rest[0]] = int(rest[1])
        else:
            rows.append(Row(first, *rest))
    return rows, enumerators
