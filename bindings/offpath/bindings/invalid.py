"""What is wrong with a value, in words: pydantic shows the regular expression that it does not match."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

PCI_ADDRESS: Final = r"^(|([0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])$"
_NAME: Final = "letters, digits"
_FIRST: Final = ", the first a letter or digit"
FORMS: Final[Mapping[str, str]] = {
    PCI_ADDRESS: "a PCI address such as 0000:5c:00.0, or empty",
    r"^(|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])$": "a PCI address such as 0000:5c:00.0, or empty",
    r"^(/[^\x00]*)?$": "an absolute path without NUL, or empty",
    r"^/[^\x00]*$": "an absolute path without NUL",
    r"^[^\x00]+$": "a path without NUL",
    r"^[^\x00]*$": "text without NUL",
    r"^.+:[0-9]{1,5}$": "HOST:PORT",
    r"^(|.+:[0-9]{1,5})$": "HOST:PORT, or empty",
    r"^([A-Za-z0-9._-]+:[0-9]{1,5})?$": "HOST:PORT, or empty",
    r"^tcp://.+:[0-9]{1,5}$": "tcp://HOST:PORT",
    r"^(tcp://.+:[0-9]{1,5}|ipc:///.{1,100})$": "tcp://HOST:PORT or ipc:///PATH",
    r"^(|tcp://.+:[0-9]{1,5}|ipc:///.{1,100})$": "tcp://HOST:PORT or ipc:///PATH, or empty",
    r"^0[xX][0-9A-Fa-f]{1,8}$": "a hexadecimal number such as 0x20B0",
    r"^[ -~]*$": "printable ASCII characters",
    r"^[\x20-\x7e]+$": "printable ASCII characters",
    r"^[\x21-\x7e]*$": "printable ASCII characters without blanks",
    r"^[\x21-\x7e]{1,64}$": "1 to 64 printable ASCII characters without blanks",
    r"^[0-9a-f]*$": "hexadecimal digits",
    r"^[0-9a-f]{32}$": "32 hexadecimal digits",
    r"^([0-9a-f]{32})?$": "32 hexadecimal digits, or empty",
    r"^([0-9a-f]{2}){0,128}$": "up to 128 pairs of hexadecimal digits",
    r"^(mina|plugin:[A-Za-z0-9._-]{1,64})$": "mina or plugin:NAME",
    r"^(none|all|exclusive|alternate|trylock|shared|plugin:[A-Za-z0-9._-]{1,64})$": (
        "none, all, exclusive, alternate, trylock, shared or plugin:NAME"
    ),
    r"^[A-Za-z0-9._-]{0,255}$": f"up to 255 {_NAME}, '.', '_' and '-'",
    r"^[A-Za-z0-9._-]{0,64}$": f"up to 64 {_NAME}, '.', '_' and '-'",
    r"^[A-Za-z0-9._-]{1,64}$": f"1 to 64 {_NAME}, '.', '_' and '-'",
    r"^[A-Za-z0-9/_-]+$": f"{_NAME}, '/', '_' and '-'",
    r"^[A-Za-z0-9_-]+$": f"{_NAME}, '_' and '-'",
    r"^[A-Za-z0-9][A-Za-z0-9._+-]*$": f"{_NAME}, '.', '_', '+' and '-'{_FIRST}",
    r"^[A-Za-z0-9][A-Za-z0-9._-]*$": f"{_NAME}, '.', '_' and '-'{_FIRST}",
    r"^[A-Za-z0-9][A-Za-z0-9_.-]*$": f"{_NAME}, '.', '_' and '-'{_FIRST}",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$": f"1 to 64 {_NAME}, '.', '_' and '-'{_FIRST}",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$": f"1 to 255 {_NAME}, '.', '_' and '-'{_FIRST}",
    r"^(|[A-Za-z0-9][A-Za-z0-9._-]{0,62})$": f"1 to 63 {_NAME}, '.', '_' and '-'{_FIRST}, or empty",
    r"^[A-Za-z0-9][A-Za-z0-9._:/+-]*$": f"{_NAME} and . _ : / + -{_FIRST}",
    r"^[A-Za-z0-9][A-Za-z0-9._:/+-]{0,63}$": f"1 to 64 {_NAME} and . _ : / + -{_FIRST}",
    r"^[a-z0-9][a-z0-9._-]{0,62}$": f"1 to 63 lower case {_NAME}, '.', '_' and '-'{_FIRST}",
}
"""Of each pattern in a model of this project."""


def said(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors (``type``, ``ctx``, ``msg``), without the value."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "string_pattern_mismatch":
        return "must be " + FORMS.get(context["pattern"], "of another form")
    if kind == "string_too_short" and context["min_length"] == 1:
        return "is empty"
    return str(error["msg"])


def listed(fault: ValidationError, most: int = 8, *, where: tuple[str, ...] = (), whole: str = "") -> list[str]:
    """The first errors, each behind its place. ``where``: what stands before it; ``whole``: the place of them all."""
    errors = fault.errors(include_input=False, include_url=False)[:most]
    return [f"{'.'.join(str(each)[:80] for each in (*where, *one['loc'])) or whole}: {said(one)}" for one in errors]
