"""Which functions of the daemon belong to which stage of a request: the one table that `--profile` wraps.

A function's own time counts, without that of wrapped functions that it calls. So a stage also contains what its
functions call and this table does not name. A function that a module imports by name is listed under that module.
"""

from __future__ import annotations

from typing import Final

STAGES: Final[dict[str, tuple[str, ...]]] = {
    "job book": (
        "offpath.sched.jobs.book.JobBook.handle",
        "offpath.sched.jobs.book.JobBook.next_deadline_ns",
    ),
    "journal": (
        "offpath.dpu_daemon.durability.journal.log.Journal.record",
        "offpath.dpu_daemon.durability.journal.log.Journal.checkpoint",
    ),
    "receives": (
        "offpath.bindings.loopback.fabric.LoopbackFabricSession.poll",
        "offpath.bindings.loopback.channel.LoopbackConnection.receive_message",
    ),
    "header": ("offpath.bindings.loopback.fabric.LoopbackFabricSession.take_request",),
    "copy": ("offpath.dpu_daemon.hosts.payloads.Payloads._copy",),
    "launch and send": ("offpath.dpu_daemon.hosts.payloads.Payloads._launch",),
    "answer and bell": ("offpath.dpu_daemon.requests.answers.Answers.write",),
    "result": (
        "offpath.dpu_daemon.hosts.lanes.Lanes._from_worker",
        "offpath.dpu_daemon.requests.answers.Answers.arrived",
    ),
    "dispatch": (
        "offpath.dpu_daemon.requests.sessions.Session._readable",
        "offpath.dpu_daemon.requests.book_loop.BookLoop.dispatch",
    ),
}
