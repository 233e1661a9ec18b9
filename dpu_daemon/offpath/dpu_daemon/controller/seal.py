"""Creates and checks proofs of terms: agents and ranks can return a term that a controller issued, but not forge one.

A proof is a message authentication code under a key derived from the controller's secret key, which every controller of
the cluster has and no host does. It covers the term and the controller process that issued it. So a controller detects
the terms that it issued itself, and a second process that began with the same term.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final

_DIGEST_BYTES: Final = 16
_ISSUER_BYTES: Final = 8
_PROOF: Final = re.compile(rf"[0-9a-f]{{{2 * (_ISSUER_BYTES + _DIGEST_BYTES)}}}")


class TermSeal:
    """Creates and checks proofs. ``secret``: the controller's secret key. ``issuer``: 16 hexadecimal digits, unique per
    controller process."""

    def __init__(self, secret: bytes, issuer: str = "") -> None:
        self._key = hashlib.blake2b(secret, person=b"offpath-ina-term").digest()
        self.issuer = issuer or secrets.token_hex(_ISSUER_BYTES)

    def proof(self, term: int) -> str:
        """Proof of a term that this process issues: 48 hexadecimal digits."""
        return self.issuer + self._code(self.issuer, term)

    def issuer_of(self, term: int, proof: str) -> str | None:
        """The controller process that issued the term. None: the proof is invalid."""
        if not _PROOF.fullmatch(proof):
            return None
        issuer, code = proof[: 2 * _ISSUER_BYTES], proof[2 * _ISSUER_BYTES :]
        return issuer if hmac.compare_digest(code, self._code(issuer, term)) else None

    def is_proven(self, term: int, proof: str) -> bool:
        """Whether a controller with this key issued the term."""
        return self.issuer_of(term, proof) is not None

    def _code(self, issuer: str, term: int) -> str:
        message = bytes.fromhex(issuer) + term.to_bytes(8, "little")
        return hashlib.blake2b(message, key=self._key, digest_size=_DIGEST_BYTES).hexdigest()
