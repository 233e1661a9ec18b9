"""`offpath web run`: serves a read-only page about a daemon, a controller and a job manager."""

from __future__ import annotations

import argparse
import importlib.util
import re
from typing import Final

from offpath.bindings.errors import OptionRefused
from offpath.bindings.plausible import port_fault

_PACKAGES: Final = ("starlette", "uvicorn", "h11")
_LISTEN: Final = "127.0.0.1:7788"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument(
        "--runtime-dir", metavar="DIR", help="where the sockets of daemon, controller and job manager are"
    )
    parser.add_argument("--listen", metavar="HOST:PORT", default=_LISTEN, type=_address, help="where browsers connect "
                        "(%(default)s); port 0: any free one")  # fmt: skip
    parser.add_argument("--name", metavar="NAME", action="append", default=[], help="a host name that browsers use for "
                        "the page; may be repeated")  # fmt: skip
    parser.add_argument("--token-file", metavar="FILE", help="a token that opens the page instead of one-time links "
                        "(mode 0600)")  # fmt: skip
    parser.add_argument("--certificate", metavar="FILE", help="serve HTTPS with this certificate chain (PEM)")
    parser.add_argument("--key", metavar="FILE", help="the certificate's private key (PEM)")
    parser.add_argument("--plain-http", action="store_true", help="serve other machines without HTTPS: behind a proxy "
                        "that has it")  # fmt: skip
    parser.add_argument("--interval", type=_seconds, default=1.0, metavar="S", help="shortest time between two polls "
                        "(%(default)s)")  # fmt: skip
    parser.add_argument("--topology", metavar="TOPOLOGY", help="the controller's topology, to draw trees on: a "
                        "topology.conf, or fat-tree:K")  # fmt: skip
    parser.add_argument("--no-daemon", action="store_true", help="show controller and job manager only")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object with the address on stdout, when ready"
    )


def main(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionRefused(f"the web page needs {', '.join(missing)}: pip install 'offpath[web]'")
    from offpath.cli.web.serving import serve

    return serve(arguments)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]").lower()
    if not colon or not host or not re.fullmatch("[0-9]+", port):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not HOST:PORT")
    if fault := port_fault(text):
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: {fault}")
    return host, int(port)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: 1 to 3600 seconds")
    return value
