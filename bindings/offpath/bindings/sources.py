"""The checksum of the C sources of `_path`, for the build hook and for `offpath.bindings.native`. Imports no package:
the hook reads this file before there is one."""

from __future__ import annotations

import zlib
from pathlib import Path


def checksum(folder: Path) -> str:
    """Of the names and contents of the C files in ``folder``. Raises: OSError."""
    crc = 0
    for path in sorted(folder.glob("*.[ch]")):
        crc = zlib.crc32(path.name.encode() + b"\0" + path.read_bytes() + b"\0", crc)
    return f"{crc:08x}"
