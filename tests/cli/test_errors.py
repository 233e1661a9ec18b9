"""The error registry: every code that the source can show a user is in it, nothing else is, and the page is current."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from offpath.bindings.wire.codes import Reason, Status
from offpath.cli.errors import command
from offpath.cli.errors.registry import families, look_up, registered
from offpath.cli.exits import TEXT
from offpath.dpu_daemon.collab.devices import UNREADABLE
from offpath.dpu_daemon.manager.inc.answers import CODES as INC_CODES
from offpath.host_helper.migd.protocol import CODES

from ..support.command import offpath
from ..support.sources import ROOT, product

FOLDERS = ("bindings", "dpu_daemon", "host_helper", "sched", "scripts")
ROOTS = {"OffpathError", "SchedError"}
OTHER_FAMILIES = {
    "NegotiationRefused": "session", "BadArguments": "admin", "JobRefused": "admin", "WorkRefused": "admin",
    "MigdRefused": "migd", "CollabRefused": "collab", "DeviceRefused": "collab", "refusal": "collab", "_end": "collab",
}  # fmt: skip
SCANNED = {"reason", "status", "exception", "exit", "admin", "session", "migd"}
BY_KEYWORD = {"Closing": "session", "Refused": "session", "Fault": "admin"}


def nodes_of_all() -> Iterator[ast.AST]:
    for _, nodes in product(*FOLDERS):
        yield from nodes


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def text_of(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@cache
def exceptions() -> frozenset[str]:
    """Classes below our roots, by the names of their bases."""
    bases = {
        node.name: {name_of(base) for base in node.bases} for node in nodes_of_all() if isinstance(node, ast.ClassDef)
    }
    found = set(ROOTS)
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return frozenset(found - {"OffpathError"})


@cache
def raised() -> frozenset[tuple[str, str]]:
    """(family, code) of every call that names a code."""
    return frozenset(code for node in nodes_of_all() if isinstance(node, ast.Call) for code in codes_of(node))


def codes_of(node: ast.Call) -> Iterator[tuple[str, str]]:
    name = name_of(node.func)
    first = text_of(node.args[0]) if node.args else ""
    if name in OTHER_FAMILIES and first:
        yield OTHER_FAMILIES[name], first
    elif name.endswith("Error") and name in families() and first:
        yield name, first
    elif name in ("session_ended", "ended") and len(node.args) > 1 and text_of(node.args[1]):
        yield "session", text_of(node.args[1])
    elif name in BY_KEYWORD:
        code = next((text_of(each.value) for each in node.keywords if each.arg == "code"), "")
        if code:
            yield BY_KEYWORD[name], code


def expected() -> set[tuple[str, str]]:
    known = set(raised())
    known |= {("reason", reason.name.lower()) for reason in Reason}
    known |= {("status", status.name.lower()) for status in Status}
    known |= {("exception", name) for name in exceptions()}
    known |= {("exit", str(code)) for code in TEXT}
    known |= {("migd", code) for code in CODES}
    known |= {("admin", code) for code in INC_CODES}
    known |= {("collab", code) for code in UNREADABLE}
    return known


def test_the_scan_finds_codes_of_every_kind() -> None:
    found = raised()
    for sample in (
        ("session", "denied"), ("session", "ticket_expired"), ("session", "peer_gone"), ("admin", "no_id"),
        ("HeaderError", "crc"), ("DoorbellError", "slot_in_use"), ("FrameError", "frame_length"),
    ):  # fmt: skip
        assert sample in found
    assert {"PeerGone", "DeviceGone", "IllegalPlacement", "ConfigError"} <= exceptions()


def test_every_code_of_the_source_is_registered_and_every_registered_code_is_of_the_source() -> None:
    scanned = {
        "reason",
        "status",
        "exception",
        "exit",
        "admin",
        "session",
        "migd",
        "collab",
        *(n for n in families() if n.endswith("Error")),
    }
    ours = {key for key in registered() if key[0] in scanned}
    assert ours - expected() == set(), "registered, but nothing raises it"
    assert expected() - ours == set(), "raised, but not registered"


def test_every_error_class_with_codes_is_a_family() -> None:
    """One that raises with a literal code and is no family would be missed by the scan."""
    with_codes = {
        name_of(node.func)
        for node in nodes_of_all()
        if isinstance(node, ast.Call)
        and name_of(node.func) in exceptions()
        and len(node.args) >= 1
        and text_of(node.args[0]).replace("_", "").isalpha()
        and text_of(node.args[0]).islower()
        and " " not in text_of(node.args[0])
    }
    assert with_codes <= set(families()) | set(OTHER_FAMILIES) | {"ResourceClosed"}


def test_every_entry_says_a_cause_and_what_to_do() -> None:
    for entry in registered().values():
        assert entry.cause
        assert entry.fix
        assert entry.family in families()


def test_the_page_is_what_the_command_makes() -> None:
    assert (ROOT / "docs" / "errors.md").read_text("utf-8") == command.markdown(), (
        "make it again: ./scripts/run offpath errors --markdown > docs/errors.md"
    )


@pytest.mark.parametrize("code", ["tenant_queue_full", "TENANT_QUEUE_FULL", "reason.tenant_queue_full"])
def test_a_code_is_found_as_a_user_meets_it(code: str) -> None:
    assert [(entry.family, entry.code) for entry in look_up(code)] == [("reason", "tenant_queue_full")]


def test_the_command_explains_a_code_and_knows_when_it_does_not() -> None:
    done = offpath("errors", "draining", "--json")
    assert {entry["family"] for entry in done.document} == {"session", "reason"}
    assert offpath("errors", "no_such_code").code == 1
