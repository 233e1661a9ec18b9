"""Tables as TOML text, for configurations that tests write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def to_toml(tables: Mapping[str, Any]) -> str:
    """Plain values first, then tables and arrays of tables, one level deep as the daemon's configuration is."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in tables.items() if not _is_table(value)]
    for name, value in tables.items():
        if _is_table(value):
            for table in value if isinstance(value, list) else [value]:
                lines.append(f"[[{name}]]" if isinstance(value, list) else f"[{name}]")
                lines += [f"{key} = {json.dumps(inner)}" for key, inner in table.items() if inner is not None]
    return "\n".join(lines) + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))
