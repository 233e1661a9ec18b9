"""`offpath top`: tenants and leases of a running daemon, redrawn; plain text if stdout is not a terminal."""

from __future__ import annotations

import argparse
import sys
import time

from offpath.bindings.wire import admin
from offpath.cli import admin_client
from offpath.cli.commands import lease_list

_HOME_AND_CLEAR = "\x1b[H\x1b[J"
_TENANTS = (
    "tenant",
    "jobs/s",
    "running",
    "placed",
    "queued",
    "sessions",
    "leases",
    "share",
    "p50 ms",
    "p99 ms",
    "failed",
)
_EMULATED = {True: ", EMULATED", False: "", None: ", not known whether emulated"}
_FAILED = ("failed", "expired", "rejected", "retry_safe", "outcome_unknown")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    admin_client.add_arguments(parser)
    parser.add_argument("--once", action="store_true", help="print once and end (measures rates over one interval)")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between updates")


def main(arguments: argparse.Namespace) -> int:
    """Draw until interrupted, or once."""
    interval = min(3600.0, max(0.1, arguments.interval))
    is_terminal = sys.stdout.isatty() and not arguments.json
    before: Seen | None = None
    while True:
        # A new connection each time: the daemon closes idle ones.
        with admin_client.AdminClient(arguments.runtime_dir) as client:
            now = admin_client.all_tenants(client)
            leases = list(admin_client.all_leases(client))
            status = client.query(admin.StatusRequest(), admin.Status)
        if before is not None:
            rates = rates_of(before, now)
            if arguments.json:
                admin_client.print_json(document(status, now, leases, rates))
            else:
                text = picture(status, now, leases, rates)
                print(_HOME_AND_CLEAR + text if is_terminal else text, flush=True)
            if arguments.once:
                return 0
        before = now
        time.sleep(interval)


Seen = tuple[admin.Statistics, list[admin.TenantLine]]


def rates_of(before: Seen, now: Seen) -> dict[str, float]:
    """Completed jobs per second by tenant between the two; since its start if the daemon restarted in between."""
    is_another = now[0].uptime_ms < before[0].uptime_ms
    passed_s = max(1, now[0].uptime_ms - (0 if is_another else before[0].uptime_ms)) / 1e3
    earlier = {} if is_another else {each.tenant: each.ended.get("completed", 0) for each in before[1]}
    return {each.tenant: (each.ended.get("completed", 0) - earlier.get(each.tenant, 0)) / passed_s for each in now[1]}


def document(
    status: admin.Status, now: Seen, leases: list[admin.LeaseLine], rates: dict[str, float]
) -> dict[str, object]:
    """One snapshot as JSON."""
    tenants = [{**each.model_dump(mode="json"), "jobs_per_s": rates[each.tenant]} for each in now[1]]
    return {
        "status": status.model_dump(mode="json", exclude={"kind"}),
        "tenants": tenants,
        "leases": [each.model_dump(mode="json") for each in leases],
    }


def picture(status: admin.Status, now: Seen, leases: list[admin.LeaseLine], rates: dict[str, float]) -> str:
    """One snapshot as text."""
    helper = f"{len(status.helpers)} helper(s) joined" if status.has_helper else "NO HELPER"
    head = (
        f"offpathd {status.release} pid {status.pid}, up {status.uptime_ms / 1e3:.0f} s, {helper}, "
        f"{status.sessions} sessions, {status.unanswered} unanswered, {status.queued} queued"
        + (", DRAINING" if status.is_draining else "")
        + (", LAST GOOD CONFIGURATION (the file is refused; see `offpath config check`)" if status.is_last_good else "")
    )
    rows = [
        (
            each.tenant, f"{rates[each.tenant]:.1f}", each.running, each.jobs - each.queued - each.running,
            each.queued, each.sessions, each.leases,
            each.held_share, f"{each.p50_ms:.2f}", f"{each.p99_ms:.2f}", sum(each.ended.get(end, 0) for end in _FAILED),
        )
        for each in now[1]
    ]  # fmt: skip
    gpus = "".join(
        f"\n{gpu.gpu} ({gpu.model}{_EMULATED[gpu.is_emulated]}): {gpu.held_share} % held" for gpu in status.gpus
    )
    helpers = "".join(
        f"\nhelper {each.name} (generation {each.generation}): {each.gpus} GPU(s)"
        + (f", {each.lost_gpus} LOST" if each.lost_gpus else "")
        + f", {each.leases} lease(s), "
        f"kernels {', '.join(each.kernels)}"
        + (f" and {each.kernel_count - len(each.kernels)} more" if each.kernel_count > len(each.kernels) else "")
        for each in status.helpers
    )
    parts = [head + helpers + gpus, admin_client.table(rows, _TENANTS)]
    if leases:
        parts.append(admin_client.table([lease_list.row(each) for each in leases], lease_list.HEAD))
    return "\n\n".join(parts)
