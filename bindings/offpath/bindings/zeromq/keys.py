"""Reads and makes CURVE key files: the own secret key, the daemon's public key, and the list of allowed clients.

A key is 40 characters of Z85 (ZeroMQ RFC 32), a file's only line. Only the owner may read a secret key. Public keys may
be read by all, but only their owner may write them, because the list controls access.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from offpath.bindings.errors import KeyFileRefused, NobodyAllowed

_KEY: Final = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MOST_BYTES: Final = 1 << 20
MAX_CLIENTS: Final = 1024


def read_secret(path: str, *, others: int = 0o077) -> bytes:
    """A secret key. ``others``: mode bits that must not be set.

    Raises: KeyFileRefused: unreadable, accessible to others, or no key.
    """
    return _key(path, _read(path, others, "may be read or written by others; chmod 600 it"))


def read_public(path: str) -> bytes:
    """A public key. Raises: KeyFileRefused: unreadable, writable by others, or no key."""
    return _key(path, _read(path, 0o022, "may be written by others; chmod go-w it"))


def read_allowed(path: str) -> dict[bytes, str]:
    """The allowed clients: public key → name. ``path`` is a folder with a file NAME.pub per client, or a file of lines
    ``NAME KEY`` (``#`` begins a comment).

    Raises: NobodyAllowed: it lists no client. KeyFileRefused: unreadable, writable by others, or no list of keys.
    """
    try:
        is_folder = os.path.isdir(path)
        if is_folder and os.stat(path).st_mode & 0o022:
            raise KeyFileRefused(f"{path} may be written by others; chmod go-w it")
        found = _folder(path) if is_folder else _lines(path)
    except OSError as fault:
        raise KeyFileRefused(f"{path}: {fault.strerror or fault}") from None
    allowed: dict[bytes, str] = {}
    for name, key in found:
        if not _NAME.fullmatch(name):
            raise KeyFileRefused(f"{path}: {name!r} is not a valid name (letters, digits, '.', '_', '-')")
        if key in allowed:
            raise KeyFileRefused(f"{path}: {name} has the same key as {allowed[key]}")
        if name in allowed.values():
            raise KeyFileRefused(f"{path}: {name} is listed twice")
        allowed[key] = name
    if not allowed:
        raise NobodyAllowed(f"{path} lists no client's key: put its .pub file there (`offpath keys NAME` makes a pair)")
    if len(allowed) > MAX_CLIENTS:
        raise KeyFileRefused(f"{path}: more than {MAX_CLIENTS} clients")
    return allowed


def _folder(path: str) -> list[tuple[str, bytes]]:
    files = sorted(Path(path).glob("*.pub"))
    return [(file.stem, read_public(str(file))) for file in files]


def _lines(path: str) -> list[tuple[str, bytes]]:
    found = []
    for line in _read(path, 0o022, "may be written by others; chmod go-w it").splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise KeyFileRefused(f"{path}: want lines of NAME KEY")
        found.append((words[0], _key(path, words[1])))
    return found


def _read(path: str, others: int, complaint: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not block
        with open(fd, encoding="ascii") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise KeyFileRefused(f"{path} is not a regular file")
            if found.st_mode & others:
                raise KeyFileRefused(f"{path} {complaint}")
            return file.read(_MOST_BYTES)
    except OSError as fault:
        raise KeyFileRefused(f"{path}: {fault.strerror or fault}") from None
    except ValueError:  # not ASCII, or a NUL in the name
        raise KeyFileRefused(f"{path}: not a key file") from None


def _key(path: str, text: str) -> bytes:
    key = text.strip()
    if not _KEY.fullmatch(key):  # not shown: it may be a secret in the wrong file
        raise KeyFileRefused(f"{path}: a key is one line of 40 characters of Z85")
    return key.encode("ascii")


def make_keys(name: str, folder: str) -> tuple[str, str]:
    """Make a key pair: FOLDER/NAME.key (0600) and FOLDER/NAME.pub. Overwrites nothing. Returns their paths.

    Raises: KeyFileRefused: invalid name, or the files cannot be made. ZmqMissing.
    """
    if not _NAME.fullmatch(name):
        raise KeyFileRefused(f"{name!r} is not a valid name (letters, digits, '.', '_', '-')")
    from offpath.bindings.zeromq.library import zmq

    public, secret = zmq.curve_keypair()
    paths = os.path.join(folder, f"{name}.key"), os.path.join(folder, f"{name}.pub")
    made: list[str] = []
    try:
        for path, key, mode in ((paths[0], secret, 0o600), (paths[1], public, 0o644)):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            made.append(path)
            with open(fd, "wb") as file:
                file.write(key + b"\n")
    except OSError as fault:
        for path in made:  # half a pair, or half a key, is useless
            os.unlink(path)
        raise KeyFileRefused(f"{fault.filename}: {fault.strerror}") from None
    return paths
