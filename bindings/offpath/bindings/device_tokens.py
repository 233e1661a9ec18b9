"""Tokens of devices for a collaboration controller: HMAC-SHA256 of the device's name, so that no table is needed."""

from __future__ import annotations

import base64
import hmac
from typing import Final

_PURPOSE: Final = b"offpath collab device\0"


def token_of(key: bytes, device: str) -> str:
    """43 characters of base64url."""
    digest = hmac.digest(key, _PURPOSE + device.encode(), "sha256")
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
