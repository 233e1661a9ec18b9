"""Tokens of devices for a collaboration controller: HMAC-SHA256 of the device's name, so that no table is needed."""

from __future__ import annotations

import hmac
from typing import Final

_PURPOSE: Final = b"offpath collab device\0"


def keyed(key: bytes) -> hmac.HMAC:
    """The key's part of the work, which is more than the name's: `token_of` does the rest on a copy."""
    return hmac.new(key, _PURPOSE, "sha256")


def token_of(keyed: hmac.HMAC, device: str) -> str:
    """64 hexadecimal digits."""
    made = keyed.copy()
    made.update(device.encode())
    return made.hexdigest()
