"""Errors of `offpath-migd` and of its clients, beside those of `offpath.bindings.errors`.

OffpathError
├── RequestRefused
│   └── MigdRefused          migd refuses the request; ``code`` gives the reason
├── OptionRefused
│   └── MigdConfigInvalid    migd's configuration has faults; the text lists them
├── DeviceError
│   └── MigdUnreachable      no migd answers
├── LayoutInvalid            a layout file breaks a rule of its format
└── LayoutImpossible         the layout does not fit the GPU, or the GPU is in use
"""

from __future__ import annotations

from offpath.bindings.errors import DeviceError, OffpathError, OptionRefused, RequestRefused


class MigdRefused(RequestRefused):
    """migd refused the request. ``code`` is one of `offpath.host_helper.migd.protocol.CODES`."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class MigdConfigInvalid(OptionRefused):
    """migd's file or flags cannot be used; the text lists what is wrong. Another start would find the same."""


class MigdUnreachable(DeviceError):
    """No migd listens on the socket, or it ended during the request. Not a `PeerGone`: the daemon is still there."""


class LayoutInvalid(OffpathError):
    """A layout file breaks a rule of its format. The text names the place in the file."""


class LayoutImpossible(OffpathError):
    """The layout cannot be applied: it does not fit the GPU, the MIG mode differs, or the GPU is in use."""
