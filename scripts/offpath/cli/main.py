"""`offpath`: the command line. A command's module is imported only when the command is chosen."""

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
from offpath.cli.examples import GROUPS, epilog
from offpath.cli.exits import code_of
from offpath.cli.journald import log_handler

# words → (module, purpose); a module has add_arguments(parser) and main(arguments) -> exit code
COMMANDS: Final[dict[tuple[str, ...], tuple[str, str]]] = {
    ("daemon", "run"): ("commands.daemon_run", "run the daemon on this machine"),
    ("doctor",): ("commands.doctor", "check this machine and print fixes"),
    ("config", "check"): ("commands.config_check", "report all faults of a configuration (exit code 78 if any)"),
    ("config", "show"): ("commands.config_show", "print the configuration in force, value by value"),
    ("helper", "run"): ("commands.helper_run", "serve kernels from a Python file to the daemon"),
    ("helper", "reload"): ("commands.helper_reload", "load a running helper's Python file anew, and keep its leases"),
    ("kernel", "profile"): (
        "commands.kernel_profile",
        "measure a kernel on all sizes of instances, and offer its demand",
    ),
    ("gateway", "run"): ("commands.gateway_run", "serve kernels as models to Triton's clients, over HTTP and gRPC"),
    ("migd", "run"): ("commands.migd_run", "serve MIG instances of this host to helpers (privileged)"),
    ("mig", "show"): ("mig.show", "list GPUs, MIG instances and their owners"),
    ("mig", "plan"): ("mig.plan", "show what a MIG layout file would change (changes nothing)"),
    ("mig", "assert"): ("mig.check", "check that a MIG layout file is applied (exit code 0 or 1)"),
    ("mig", "apply"): ("mig.apply", "apply a MIG layout file, never to leased instances"),
    ("gpu", "check"): ("gpu_check.command", "check this machine's NVIDIA GPU, its libraries and offpath on them"),
    ("keys",): ("commands.keys", "make a key pair for the host channel over ZeroMQ"),
    ("daemon", "drain"): ("commands.daemon_drain", "finish accepted requests, accept no new ones"),
    ("request", "submit"): ("commands.request_submit", "submit one request and print its answer"),
    ("request", "list"): ("commands.request_list", "list requests with an unread answer; with --state, ended ones too"),
    ("request", "show"): ("commands.request_show", "print one request, also for a while after its end"),
    ("request", "explain"): ("commands.request_explain", "explain why a request waits, or how it ended"),
    ("request", "cancel"): ("commands.request_cancel", "cancel a request as an operator"),
    ("lease", "list"): ("commands.lease_list", "list which tenant holds which instance"),
    ("lease", "plan"): ("commands.lease_plan", "propose moves that would free GPUs (moves nothing)"),
    ("controller", "run"): ("commands.controller_run", "run the controller of INA sharing"),
    ("controller", "status"): ("commands.controller_status", "print the controller's term and connections"),
    ("manager", "run"): (
        "commands.manager_run",
        "run the job manager: place jobs, have Slurm, Ray or this machine run them",
    ),
    ("manager", "status"): ("commands.manager_status", "print the job manager's engine, nodes and numbers of jobs"),
    ("job", "submit"): ("commands.job_submit", "submit a job on GPUs, or place a training job's ranks on hosts"),
    ("job", "list"): ("commands.job_list", "list jobs of job manager and controller"),
    ("job", "show"): ("commands.job_show", "print one training job with its ranks"),
    ("job", "explain"): ("commands.job_explain", "explain why a job waits, or has its places or its tree"),
    ("job", "cancel"): ("commands.job_cancel", "end a job on GPUs, or remove a training job's tree"),
    ("job", "whatif"): ("commands.job_whatif", "show where a job on GPUs would go now, at what rate (submits nothing)"),
    ("ina", "groups"): ("commands.ina_groups", "list which jobs share which root, and who may use it now"),
    ("ina", "trees"): ("commands.ina_trees", "list each job's tree and its age, or why it has none"),
    ("ina", "leases"): ("commands.ina_leases", "list which job occupies which switch, since when and why"),
    ("ina", "mode"): ("commands.ina_mode", "print or change how jobs share a root"),
    ("ina", "hosts"): ("commands.ina_hosts", "list connected and quarantined hosts; quarantine or release one"),
    ("replay",): ("commands.replay", "replay a journal and compare every decision with what was written"),
    ("whatif",): ("commands.whatif", "run recorded jobs under another policy, or on other GPUs"),
    ("place",): ("commands.place", "choose hosts for a job on a topology, with reasons (dry run)"),
    ("trees",): ("commands.trees", "choose aggregation trees for jobs on a topology (needs no daemon)"),
    ("switch", "run"): ("commands.switch_run", "run an emulated switch that aggregates all-reduces along trees"),
    ("switch", "statistical"): ("commands.switch_statistical", "run an emulated rack whose switch all jobs share"),
    ("switch", "inc"): ("commands.switch_inc", "run an emulated switch that takes in-network services (HIRE)"),
    ("inc", "submit"): ("commands.inc_submit", "submit a request for servers and switches to the job manager"),
    ("inc", "list"): ("commands.inc_list", "list requests for servers and switches"),
    ("inc", "show"): ("commands.inc_show", "print a request with its tasks and their addresses"),
    ("inc", "explain"): ("commands.inc_explain", "explain why a request's tasks are where they are, or wait"),
    ("inc", "cancel"): ("commands.inc_cancel", "end a request and its tasks"),
    ("inc", "templates"): ("commands.inc_templates", "list what can be requested, and what the switches have left"),
    ("inc", "serve"): ("commands.inc_serve", "run a key-value service; the job manager starts it on servers"),
    ("collab", "run"): ("commands.collab_run", "run the collaboration controller: give devices to federated jobs"),
    ("collab", "token"): ("commands.collab_token", "print the token with which a device checks in"),
    ("collab", "open"): ("commands.collab_open", "open a federated job, with what it requires of its devices"),
    ("collab", "request"): ("commands.collab_request", "ask for the devices of a federated job's round"),
    ("collab", "close"): ("commands.collab_close", "close a federated job"),
    ("collab", "jobs"): ("commands.collab_jobs", "list federated jobs and their rounds"),
    ("collab", "devices"): ("commands.collab_devices", "print how many devices check in, work and are refused"),
    ("collab", "plan"): ("commands.collab_plan", "show which group of federated jobs gets which devices now"),
    ("collab", "explain"): ("commands.collab_explain", "explain why a federated job waits, and who gets its devices"),
    ("collab", "whatif"): ("commands.collab_whatif", "estimate how long a round would wait for its devices"),
    ("top",): ("commands.top", "show tenants and leases, live"),
    ("web", "run"): ("web.command", "serve a web page, read-only: leases over time, queues, trees, jobs"),
    ("errors",): ("errors.command", "explain an error code"),
    ("completion",): ("completion", "print a completion script for a shell"),
    ("demo", "ina"): ("demo.ina.command", "run two training jobs that share an emulated switch, mode by mode"),
    ("demo", "netpack"): ("demo.netpack.command", "place and run training jobs on a rack with a statistical switch"),
    ("demo", "venn"): ("demo.venn.command", "run federated jobs of Flower on shared nodes, at random and by Venn"),
    ("demo", "hire"): ("demo.hire.command", "run requests for servers and switches, and kill a switch meanwhile"),
    ("demo",): ("demo.command", "run the main job on this machine, end to end (demo ina: training jobs)"),
    ("simulate",): ("simulate.command", "repeat a paper's evaluation; without a name, list them"),
    ("bench",): ("bench.command", "run a benchmark; without a name, list them"),
}


_WITH_COMMAND: Final = frozenset({("job", "submit")})
"""Commands after whose ``--`` another program's command follows, as ``arguments.command``."""
Commands = Mapping[tuple[str, ...], tuple[str, str]]


def release() -> str:
    """The version of the installed wheel: the full one or the hosts' thin one."""
    try:
        return metadata.version("offpath")
    except metadata.PackageNotFoundError:
        return metadata.version("offpath-host")


class _ShowVersion(argparse.Action):
    """Prints version and build. The build is looked up only then: `offpath --help` stays quick."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print and exit."""
        from offpath.bindings.build import describe

        print(f"{release()} ({describe()})")
        parser.exit()


def _chosen(argv: Sequence[str], commands: Commands = COMMANDS) -> tuple[str, ...] | None:
    """The command that the words of ``argv`` name, if any."""
    words = [word for word in argv if not word.startswith("-")]
    return next((command for command in commands if tuple(words[: len(command)]) == command), None)


def _is_shadowed(words: tuple[str, ...], chosen: tuple[str, ...] | None, commands: Commands) -> bool:
    """A word that is both a command and a group (`demo`, `demo ina`) can be only one of them in a parser: the
    chosen one.
    """
    if words[:1] not in commands:
        return False
    return words != (chosen if chosen and chosen[0] == words[0] else words[:1])


def parser_of(chosen: tuple[str, ...] | None, commands: Commands = COMMANDS) -> argparse.ArgumentParser:
    """All commands by name; only the chosen one's module is imported for its flags, so ``offpath --help`` is quick."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="offpath", description="The control plane of shared ML clusters, off the path.", formatter_class=raw,
        epilog="`offpath COMMAND --help` shows flags and examples; `offpath errors CODE` explains an error.",
    )  # fmt: skip
    parser.set_defaults(commands=commands)
    parser.add_argument("--version", action=_ShowVersion, help="show version and build, and exit")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log more (twice: debug)")
    nouns = parser.add_subparsers(dest="noun", required=True, metavar="COMMAND")
    groups: dict[str, argparse._SubParsersAction[argparse.ArgumentParser]] = {}
    for words, (module, text) in commands.items():
        if _is_shadowed(words, chosen, commands):
            continue
        if len(words) == 1:
            place = nouns
        else:
            if words[0] not in groups:
                purpose = GROUPS.get(words[0]) or commands[words[:1]][1]
                group = nouns.add_parser(
                    words[0], help=purpose, description=purpose, epilog=epilog(words[:1]), formatter_class=raw
                )
                groups[words[0]] = group.add_subparsers(dest="verb", required=True, metavar="VERB")
            place = groups[words[0]]
        leaf = place.add_parser(words[-1], help=text, description=text, epilog=epilog(words), formatter_class=raw)
        leaf.set_defaults(module=module)
        if words == chosen:
            importlib.import_module(f"offpath.cli.{module}").add_arguments(leaf)
    return parser


def parsed(argv: Sequence[str], commands: Commands = COMMANDS) -> argparse.Namespace:
    """The arguments of one of ``commands``. Raises: SystemExit: ``--help``, or words that it does not take."""
    chosen, command = _chosen(argv, commands), list[str]()
    if chosen in _WITH_COMMAND and "--" in argv:  # argparse would take the first words for arguments of its own
        at = list(argv).index("--")
        argv, command = argv[:at], [*argv[at + 1 :]]
    arguments = parser_of(chosen, commands).parse_args(argv)
    arguments.command = command
    return arguments


def main(argv: Sequence[str] | None = None, commands: Commands = COMMANDS) -> int:
    """Parse and run one of ``commands``; exit codes 0, 1 (failure), 2 (usage), sysexits otherwise."""
    arguments = parsed(sys.argv[1:] if argv is None else argv, commands)
    level = {0: logging.WARNING, 1: logging.INFO}.get(arguments.verbose, logging.DEBUG)
    logging.basicConfig(level=level, handlers=[log_handler()], format="%(levelname)s %(name)s: %(message)s")
    try:
        code = int(importlib.import_module(f"offpath.cli.{arguments.module}").main(arguments))
        sys.stdout.flush()  # here, so that a closed pipe gives no traceback
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
    """Discard buffered output, which the interpreter would otherwise try to write again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
