"""Exit codes: 0, 1 (failure), 2 (usage), and the sysexits below. `code_of` maps an error to its code."""

from __future__ import annotations

from typing import Final

from offpath.bindings.errors import DaemonNotTrusted, OffpathError, PeerGone, PlaceUnusable, RequestRefused

EX_UNAVAILABLE: Final = 69
EX_CANTCREAT: Final = 73
EX_NOPERM: Final = 77
EX_CONFIG: Final = 78
TEXT: Final = {
    0: "done",
    1: "it failed: the line on standard error gives the reason",
    2: "the command line is wrong: see `--help`",
    EX_UNAVAILABLE: "the daemon cannot be reached: is it running, is this its runtime directory?",
    EX_CANTCREAT: "a socket, port or file that the daemon needs cannot be created or bound",
    EX_NOPERM: "this user, or this token, may not do that; or another user than expected runs the daemon",
    EX_CONFIG: "the configuration cannot be used: every fault is listed",
    130: "interrupted",
}


class DaemonUnreachable(OffpathError):
    """No daemon answers in the runtime directory."""


class NotPermitted(OffpathError):
    """The daemon refuses this user."""


def code_of(fault: OffpathError) -> int:
    """The exit code of an error."""
    kind = type(fault).__name__  # by name where importing its module would be slow
    if isinstance(fault, (DaemonUnreachable, PeerGone)) or kind in ("MigdUnreachable", "HelperUnreachable"):
        return EX_UNAVAILABLE
    if isinstance(fault, PlaceUnusable):
        return EX_CANTCREAT
    if isinstance(fault, (NotPermitted, DaemonNotTrusted)) or (
        isinstance(fault, RequestRefused) and getattr(fault, "code", "") == "denied"
    ):
        return EX_NOPERM
    if kind in ("ConfigError", "GatewayConfigInvalid", "MigdConfigInvalid"):
        return EX_CONFIG
    return 1
