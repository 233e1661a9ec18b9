"""Reads a tenant's token from a file, by one rule for daemon and requesters. No error shows the file's content."""

from __future__ import annotations

import os
import re
import stat
from typing import Final

from offpath.bindings.errors import TokenRefused

LEAST, MOST = 16, 256
_MOST_BYTES: Final = 4096
_TOKEN: Final = re.compile(rf"[\x20-\x7e]{{{LEAST},{MOST}}}")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_-]+\.(?:token|tok|txt|key|secret)")
"""Names that are shown although they are as long as a token. Any other extension could be the end of a token."""
RULE: Final = f"a token is one line of {LEAST} to {MOST} printable ASCII characters (`openssl rand -hex 24` makes one)"


def read_token_file(path: str, *, others: int = 0o077) -> str:
    """The token: the file's only line, stripped of white space. Never waits for a writer.

    Args:
        others: mode bits that must not be set.
    Raises: TokenRefused: unreadable, accessible to others, not a regular file, or no token.
    """
    fd, why = -1, ""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as fault:
        why = f"{_named(path)}: {fault.strerror or 'cannot be read'}"
    except ValueError:  # NUL
        why = "the path of a token file contains NUL"
    if why:  # raised here: as context, the OSError would expose the whole path
        raise TokenRefused(why)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise TokenRefused(f"{path} is not a regular file")
        if found.st_mode & others:
            raise TokenRefused(f"{path} may be read by others; chmod 600 it")
        data = os.read(fd, _MOST_BYTES + 1)
    except OSError as fault:
        raise TokenRefused(f"{path}: {fault.strerror or 'cannot be read'}") from None
    finally:
        os.close(fd)
    token = data.decode("ascii", "replace").strip(" \t\r\n")
    if len(data) > _MOST_BYTES or not _TOKEN.fullmatch(token):
        raise TokenRefused(f"{path}: {RULE}")
    return token


def _named(path: str) -> str:
    """A path that cannot be opened, for an error text; withheld if it could be a token given by mistake."""
    folder, name = os.path.split(path)
    is_a_name = len(name) < LEAST or _FILE_NAME.fullmatch(name) is not None
    if os.path.lexists(path) or (is_a_name and (not folder or os.path.isdir(folder))):
        return path
    within = f" in {folder}" if folder and os.path.isdir(folder) else ""
    return f"the value given as token_file names no file{within} (not shown: it could be a token)"
