"""Devices' tokens and identities: both are derived from a device's name, so that no table of devices is needed.

A token is HMAC-SHA256 of the name, with a key that only the controller and its operator have. An identity is a keyed
hash of 63 bits: the book, the file and the log have it in place of the name. Of a million devices two have the same one
with probability 5·10^-8; the second could then not work on the same day as the first.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

from offpath.bindings.device_tokens import keyed, token_of

SECRET_BYTES: Final = 32
_DIGEST_BYTES: Final = 8


class Tokens:
    """Makes tokens with the first of ``keys``, accepts those of all."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keyed = tuple(keyed(key) for key in keys)

    def of(self, device: str) -> str:
        """The device's token: 64 hexadecimal digits."""
        return token_of(self._keyed[0], device)

    def is_valid(self, device: str, token: str) -> bool:
        """Takes equally long for every wrong token of that length."""
        given, is_valid = token.encode(), False
        for each in self._keyed:
            is_valid |= hmac.compare_digest(token_of(each, device).encode(), given)
        return is_valid


class Identities:
    """``secret``: of `SECRET_BYTES`, kept in the controller's file: identities stay the same in its next process."""

    def __init__(self, secret: bytes) -> None:
        self._keyed = hashlib.blake2b(key=secret, digest_size=_DIGEST_BYTES)

    def of(self, device: str) -> int:
        """0 to 2^63 - 1."""
        made = self._keyed.copy()
        made.update(device.encode())
        return int.from_bytes(made.digest(), "little") >> 1


def shown(identity: int) -> str:
    """For a log: 8 hexadecimal digits."""
    return f"{identity & 0xFFFF_FFFF:08x}"
