"""``[inc]`` as docs/inc.md lists it."""

from __future__ import annotations

import json
import re
from typing import Any

from offpath.dpu_daemon.manager.inc.config import IncTable, ServerTable, SwitchTable, TenantTable

from ...support.sources import ROOT

TABLES = {"inc": IncTable, "server": ServerTable, "switch": SwitchTable, "tenant": TenantTable}
FIELDS: dict[str, Any] = {
    f"{name}.{key}": info
    for name, table in TABLES.items() for key, info in table.model_fields.items() if key not in TABLES
}  # fmt: skip


def test_the_page_names_every_key_and_its_default() -> None:
    page = (ROOT / "docs" / "inc.md").read_text("utf-8").partition("## Configuration")[2].partition("\n## ")[0]
    named: set[str] = set()
    for line in page.splitlines():
        if not line.startswith("| `"):
            continue
        keys, defaults = (re.findall(r"`([^`]*)`", cell) for cell in line.split(" | ")[:2])
        table = keys[0].partition(".")[0]
        full = [key if "." in key else f"{table}.{key}" for key in keys]
        named |= set(full)
        for key, default in zip(full, defaults, strict=True) if len(defaults) == len(full) else ():
            assert json.dumps(FIELDS[key].default) == default, key
    assert named == FIELDS.keys()
