"""Reads the TOML files of the host's services, by one rule: bounded, all faults named, no value shown."""

from __future__ import annotations

import pwd
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from offpath.bindings.errors import OffpathError
from offpath.bindings.invalid import listed

_MOST_BYTES: Final = 1 << 20
_MOST_LISTED: Final = 16
_M = TypeVar("_M", bound=BaseModel)
Refusal = Callable[[str], OffpathError]
"""Makes the service's error of a text."""


def read_model(model: type[_M], path: str | None, refusal: Refusal, overrides: Mapping[str, Any] | None = None) -> _M:
    """The file ``path``, if any, as ``model``; ``overrides`` replace its keys. Raises: what ``refusal`` makes."""
    raw: dict[str, Any] = {}
    if path is not None:
        try:
            with open(path, "rb") as file:
                raw = tomllib.loads(file.read(_MOST_BYTES).decode())
        except OSError as fault:
            raise refusal(f"{path}: {fault.strerror or fault}") from None
        except (ValueError, RecursionError) as fault:  # no TOML, no UTF-8, or a number of thousands of digits
            raise refusal(f"{path}: {fault}") from None
    try:
        return model.model_validate({**raw, **(overrides or {})})
    except ValidationError as fault:
        wrong = listed(fault, _MOST_LISTED, whole="the file")
        raise refusal(f"{path or 'the command line'}: " + "; ".join(wrong)) from None


def user_numbers(users: Sequence[str | int], where: str, refusal: Refusal) -> frozenset[int]:
    """Numbers of users, given as numbers or names. Raises: what ``refusal`` makes: there is no such user."""
    found = set()
    for user in users:
        try:
            found.add(user if isinstance(user, int) else pwd.getpwnam(user).pw_uid)
        except (KeyError, ValueError):
            raise refusal(f"{where}: no such user: {user!r}") from None
    return frozenset(found)
