"""`offpath`: the command line. Each command's module is imported when it is chosen."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Final

from offpath.bindings.errors import OffpathError

# words → (module, what it does); a module has add_arguments(parser) and main(arguments) -> exit code
COMMANDS: Final[dict[tuple[str, ...], tuple[str, str]]] = {
    ("daemon", "run"): ("daemon_run", "run the daemon on this machine (loopback ports)"),
    ("helper", "run"): ("helper_run", "serve kernels from a Python file to the daemon"),
    ("demo",): ("demo.command", "the main job, end to end, on this machine"),
    ("bench",): ("bench.command", "benchmarks; without a name, the list of them"),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="offpath", description="The control plane of shared ML clusters, off the path."
    )
    parser.add_argument("--version", action="version", version=metadata.version("offpath"))
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log more (twice: debug)")
    nouns = parser.add_subparsers(dest="noun", required=True, metavar="COMMAND")
    groups: dict[str, argparse._SubParsersAction[argparse.ArgumentParser]] = {}
    for words, (module, text) in COMMANDS.items():
        if len(words) == 1:
            leaf = nouns.add_parser(words[0], help=text, description=text)
        else:
            if words[0] not in groups:
                group = nouns.add_parser(words[0], help=f"{words[0]} …")
                groups[words[0]] = group.add_subparsers(dest="verb", required=True, metavar="VERB")
            leaf = groups[words[0]].add_parser(words[1], help=text, description=text)
        leaf.set_defaults(module=module)
        _Lazy.attach(leaf, module)
    return parser


class _Lazy:
    """Fills a sub-parser from its module only when that command was chosen, so that ``offpath --help`` stays quick."""

    @staticmethod
    def attach(parser: argparse.ArgumentParser, module: str) -> None:
        original = parser.parse_known_args

        def parse(args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None):  # type: ignore[no-untyped-def]
            importlib.import_module(f"offpath.cli.{module}").add_arguments(parser)
            return original(args, namespace)

        parser.parse_known_args = parse  # type: ignore[method-assign, assignment]


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and run; exit codes 0, 1 (it did not succeed), 2 (usage), sysexits otherwise."""
    arguments = _parser().parse_args(argv)
    level = {0: logging.WARNING, 1: logging.INFO}.get(arguments.verbose, logging.DEBUG)
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    try:
        return int(importlib.import_module(f"offpath.cli.{arguments.module}").main(arguments))
    except OffpathError as fault:
        print(f"offpath: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
