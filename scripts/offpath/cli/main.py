"""`offpath`: the command line. Each command's module is imported when it is chosen."""

from __future__ import annotations

import argparse
import errno
import importlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Final

from offpath.bindings.errors import OffpathError
from offpath.cli.exits import code_of

# words → (module, what it does); a module has add_arguments(parser) and main(arguments) -> exit code
COMMANDS: Final[dict[tuple[str, ...], tuple[str, str]]] = {
    ("daemon", "run"): ("daemon_run", "run the daemon on this machine (loopback ports)"),
    ("doctor",): ("doctor", "what is wrong with this machine, and what to do"),
    ("config", "check"): ("config_check", "check a configuration: every fault at once, exit code 78 if there is one"),
    ("config", "show"): ("config_show", "the configuration in force, value by value"),
    ("helper", "run"): ("helper_run", "serve kernels from a Python file to the daemon"),
    ("keys",): ("keys", "a pair of keys for the host channel over ZeroMQ"),
    ("daemon", "drain"): ("daemon_drain", "finish what is there, take in nothing new"),
    ("request", "submit"): ("request_submit", "one request, and its answer"),
    ("request", "list"): ("request_list", "requests without an answer taken; with --state, ended ones too"),
    ("request", "show"): ("request_show", "one job, also a while after its end"),
    ("request", "explain"): ("request_explain", "why a job stands where it stands"),
    ("request", "cancel"): ("request_cancel", "cancel a job as an operator; its requester is told so"),
    ("lease", "list"): ("lease_list", "who holds which instance"),
    ("lease", "plan"): ("lease_plan", "what could move so that GPUs come free (nothing is moved)"),
    ("controller", "run"): ("controller_run", "run the controller of INA sharing"),
    ("controller", "status"): ("controller_status", "its term, and whom it can speak to"),
    ("job", "submit"): ("job_submit", "place a training job, and print what its code needs to be told"),
    ("job", "list"): ("job_list", "training jobs that a controller knows"),
    ("job", "show"): ("job_show", "one training job, with its ranks"),
    ("job", "explain"): ("job_explain", "why a training job has the tree that it has, or none"),
    ("job", "cancel"): ("job_cancel", "give a training job no tree any more, and its hosts to others"),
    ("ina", "groups"): ("ina_groups", "which jobs share which root, and who may use it now"),
    ("ina", "trees"): ("ina_trees", "which tree each job has, since when, or why none"),
    ("ina", "leases"): ("ina_leases", "who takes a place at which switch, since when, why"),
    ("ina", "mode"): ("ina_mode", "how jobs share a root"),
    ("ina", "hosts"): ("ina_hosts", "whose agents are connected, and which hosts are quarantined"),
    ("replay",): ("replay", "handle a journal's events again, and hold every decision against what was written"),
    ("whatif",): ("whatif", "the same jobs under another policy, or on other GPUs"),
    ("place",): ("place", "which hosts a job would get on a topology, and why (nothing is taken)"),
    ("trees",): ("trees", "on which trees jobs would aggregate, and who shares (nothing is asked of a daemon)"),
    ("switch", "run"): ("switch_run", "an emulated switch that aggregates all-reduces along trees"),
    ("top",): ("top", "tenants and leases, live"),
    ("errors",): ("errors.command", "what an error code means, and what to do"),
    ("demo", "ina"): ("demo.ina.command", "two training jobs share an emulated switch, mode by mode"),
    ("demo",): ("demo.command", "the main job, end to end, on this machine (demo ina: training jobs share a switch)"),
    ("simulate",): ("simulate.command", "the papers' evaluations; without a name, the list of them"),
    ("bench",): ("bench.command", "benchmarks; without a name, the list of them"),
}


Commands = Mapping[tuple[str, ...], tuple[str, str]]


def release() -> str:
    """Of the wheel that is installed, the whole one or the hosts' thin one."""
    try:
        return metadata.version("offpath")
    except metadata.PackageNotFoundError:
        return metadata.version("offpath-host")


def _chosen(argv: Sequence[str], commands: Commands = COMMANDS) -> tuple[str, ...] | None:
    """The command that the words of ``argv`` name, if any."""
    words = [word for word in argv if not word.startswith("-")]
    return next((command for command in commands if tuple(words[: len(command)]) == command), None)


def _is_shadowed(words: tuple[str, ...], chosen: tuple[str, ...] | None, commands: Commands) -> bool:
    """A word that is a command and a noun (`demo`, `demo ina`) can be only one of both to a parser: the one chosen."""
    if words[:1] not in commands:
        return False
    return words != (chosen if chosen and chosen[0] == words[0] else words[:1])


def _parser(chosen: tuple[str, ...] | None, commands: Commands = COMMANDS) -> argparse.ArgumentParser:
    """All commands by name; only the chosen one's module is imported for its flags, so ``offpath --help`` is quick."""
    parser = argparse.ArgumentParser(
        prog="offpath", description="The control plane of shared ML clusters, off the path."
    )
    parser.add_argument("--version", action="version", version=release())
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log more (twice: debug)")
    nouns = parser.add_subparsers(dest="noun", required=True, metavar="COMMAND")
    groups: dict[str, argparse._SubParsersAction[argparse.ArgumentParser]] = {}
    for words, (module, text) in commands.items():
        if _is_shadowed(words, chosen, commands):
            continue
        if len(words) == 1:
            leaf = nouns.add_parser(words[0], help=text, description=text)
        else:
            if words[0] not in groups:
                group = nouns.add_parser(words[0], help=f"{words[0]} …")
                groups[words[0]] = group.add_subparsers(dest="verb", required=True, metavar="VERB")
            leaf = groups[words[0]].add_parser(words[1], help=text, description=text)
        leaf.set_defaults(module=module)
        if words == chosen:
            importlib.import_module(f"offpath.cli.{module}").add_arguments(leaf)
    return parser


def main(argv: Sequence[str] | None = None, commands: Commands = COMMANDS) -> int:
    """Parse and run one of ``commands``; exit codes 0, 1 (it did not succeed), 2 (usage), sysexits otherwise."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = _parser(_chosen(argv, commands), commands).parse_args(argv)
    level = {0: logging.WARNING, 1: logging.INFO}.get(arguments.verbose, logging.DEBUG)
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    try:
        code = int(importlib.import_module(f"offpath.cli.{arguments.module}").main(arguments))
        sys.stdout.flush()  # here, where a reader that has left is no traceback
        return code
    except OffpathError as fault:
        print(f"offpath: {fault}", file=sys.stderr)
        return code_of(fault)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_output()
        return 1
    except OSError as fault:
        if fault.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        _drop_output()
        print(f"offpath: standard output or a file cannot be written: {fault.strerror}", file=sys.stderr)
        return 1


def _drop_output() -> None:
    """What is buffered can reach nobody; without this the interpreter tries once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
