"""The demo's result, as data and as text."""

from __future__ import annotations

from typing import Any, Final

from offpath.bindings.wire.inc_admin import Shown
from offpath.cli import admin_client
from offpath.cli.demo.hire.clients import Client
from offpath.cli.demo.hire.story import VICTIM, Told


def build(told: Told) -> dict[str, Any]:
    """``ok``, ``faults``, ``tasks`` before and after the kill, ``service`` by client and phase, ``scarce``."""
    services = [_service(client) for client in told.clients]
    faults = [fault for client in told.clients for fault in _faults(client)]
    before, after = _tasks(told.before), _tasks(told.after)
    if not any(task["where"] == VICTIM for task in before):
        faults.append(f"no task ran on {VICTIM}")
    if any(task["where"] == VICTIM for task in after):
        faults.append(f"a task is said to run on {VICTIM}, which is dead")
    for each in services:
        last = each["phases"][-1]
        if each["composite"] == "cache" and (last["flavors"] != ["server"] or not last["hits"]):
            faults.append(f"after the fallback no cache on servers answered: {last}")
    if not any("lack sram_kib" in why for why in told.scarce):
        faults.append("explain does not say that SRAM is scarce")
    return {
        "ok": not faults, "faults": faults, "tasks": after, "tasks_before": before, "killed": VICTIM,
        "fallback_s": round(told.fallback_s, 2), "service": services, "scarce": told.scarce,
        "history": {name: shown.history for name, shown in told.after.items()},
    }  # fmt: skip


def _tasks(shown: dict[str, Shown]) -> list[dict[str, Any]]:
    found = []
    for name, each in shown.items():
        for task in each.tasks:
            if task.state != "stopping":
                found.append({
                    "request": name, "tenant": each.request.tenant, "composite": task.composite, "group": task.group,
                    "where": task.where, "on": "switch" if task.is_inc else "server", "flavor": task.flavor,
                    "state": task.state, "reason": task.reason,
                })  # fmt: skip
        for group, why in each.waits.items():
            found.append({
                "request": name, "tenant": each.request.tenant, "composite": group.split(".")[0], "group": group,
                "where": "", "on": "", "flavor": group.split(".")[1], "state": "waiting", "reason": why,
            })  # fmt: skip
    return found


def _service(client: Client) -> dict[str, Any]:
    return {
        "request": client.request, "composite": client.composite, "wrong": len(client.wrong),
        "phases": [
            {"phase": each.name, "reads": each.reads, "writes": each.writes, "due": each.due, "hits": each.hits,
             "longest_ms": round(each.longest_ms, 1), "flavors": sorted(each.flavors)}
            for each in client.phases
        ],
    }  # fmt: skip


def _faults(client: Client) -> list[str]:
    found = client.wrong[:3]
    if client.fault:
        found.append(f"client of {client.request}: {client.fault}")
    for each in client.phases:
        if not each.reads or not each.writes:
            found.append(f"{client.request}/{client.composite}: no answers, {each.name}")
    return found


_TASK_HEAD: Final = ("tenant", "request", "composite", "flavor", "where", "reason")
_PHASE_HEAD: Final = ("request", "composite", "phase", "reads", "writes", "hits", "longest ms", "answered by")


def render(made: dict[str, Any]) -> str:
    """For people."""
    parts = []
    for key, title in (("tasks_before", "before"), ("tasks", f"after {made['killed']} was killed")):
        tasks = [[*(task[name] or "-" for name in _TASK_HEAD[:-1]), task["reason"][:70]] for task in made[key]]
        parts.append(f"{title}:\n{admin_client.table(tasks, _TASK_HEAD)}")
    phases = [
        (each["request"], each["composite"], phase["phase"], phase["reads"], phase["writes"], phase["hits"],
         phase["longest_ms"], ",".join(filter(None, phase["flavors"])) or "-")
        for each in made["service"] for phase in each["phases"]
    ]  # fmt: skip
    wrong = sum(each["wrong"] for each in made["service"])
    parts.append("answers:\n" + admin_client.table(phases, _PHASE_HEAD))
    parts.append(f"engine {made['engine']}; fallback after {made['fallback_s']} s; wrong reads: {wrong}")
    parts.append("scarce: " + "; ".join(made["scarce"]))
    return "\n\n".join(parts)
