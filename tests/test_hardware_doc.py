"""docs/hardware.md says of every promise where each adapter was exercised: as the conformance suites' rigs have it."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from offpath.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
SUITES = ROOT / "tests" / "bindings" / "conformance"
DOC = (ROOT / "docs" / "hardware.md").read_text("utf-8")
RIGS = {"copy_engine": "copy_rig", "fabric": "fabric_rig", "host_channel": "channel_rig", "gpu": "gpu_rig"}
REAL = {("host_channel", "loopback"), ("host_channel", "zmq")}
"""What is the thing itself, and not its emulation."""
NEVER = "never on hardware"


def tables() -> dict[str, tuple[list[str], list[list[str]]]]:
    """Of each port: its adapters, and the rows of its table."""
    found = {}
    for port, text in re.findall(r"<!-- check: conformance (\w+) -->\n((?:\|.*\n)+)", DOC):
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
        assert (head[0], head[-1]) == (port.replace("_", " "), "tests")
        found[port] = head[1:-1], rows
    return found


@cache
def rigs() -> dict[str, dict[str, bool]]:
    """Of each port: its adapters, and whether they need RDMA devices; variants (verbs-to-lane) are one adapter."""
    tree = ast.parse((SUITES / "conftest.py").read_text("utf-8"))
    fixtures = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    found: dict[str, dict[str, bool]] = {}
    for port, name in RIGS.items():
        said = ast.unparse(fixtures[name].decorator_list[0])
        params = re.findall(r"pytest\.param\((.*?)id='([\w-]+)'(.*?)(?=pytest\.param|\]\)$|$)", said, re.DOTALL)
        ids = [(each, "rdma" in marks) for _, each, marks in params] or [
            (each, False) for each in re.findall(r"'(\w+)'", said)
        ]
        found[port] = {each.split("-")[0]: rdma for each, rdma in ids}
    return found


def promises(port: str) -> dict[str, str]:
    """The tests of a suite by name, with their source."""
    text = (SUITES / f"test_{port}.py").read_text("utf-8")
    return {
        node.name.removeprefix("test_"): ast.unparse(node)
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@pytest.mark.parametrize("port", RIGS)
def test_every_adapter_of_the_suite_has_a_column_and_no_other_has(port: str) -> None:
    adapters, _ = tables()[port]
    assert adapters == list(rigs()[port])
    assert rigs()[port], "the fixture was read"


@pytest.mark.parametrize("port", RIGS)
def test_every_promise_is_in_one_row_and_exists(port: str) -> None:
    _, rows = tables()[port]
    named = [test for row in rows for test in re.findall(r"`(\w+)`", row[-1])]
    assert sorted(named) == sorted(promises(port))


@pytest.mark.parametrize("port", RIGS)
def test_where_it_was_exercised_is_where_its_rig_runs(port: str) -> None:
    adapters, rows = tables()[port]
    *guarantees, card = rows
    for guarantee, *cells, tests in guarantees:
        skips = any("pytest.skip" in promises(port)[test] for test in re.findall(r"`(\w+)`", tests))
        for adapter, cell in zip(adapters, cells, strict=True):
            where = "rxe" if rigs()[port][adapter] else "real" if (port, adapter) in REAL else "emulated"
            assert cell == where or (cell == "–" and skips), f"{guarantee}: {adapter} was exercised {where}"
    assert card[0] == "all of it, on a card"
    assert [cell for cell in card[1:-1] if cell not in (NEVER, "–")] == []
    for adapter, cell in zip(adapters, card[1:-1], strict=True):
        assert (cell == NEVER) is (adapter in ("doca", "comch", "verbs", "nvidia", "cuda")), adapter


def test_the_commands_of_the_bring_up_are_commands_of_ours() -> None:
    text = DOC[DOC.index("## Bring-up") : DOC.index("## DOCA emulator")]
    ours = [shlex.split(line, comments=True)[1:] for line in re.findall(r"^(?:dpu|host)# +(offpath .*)$", text, re.M)]
    assert len(ours) >= 5
    for words in ours:
        assert any(tuple(words[: len(command)]) == command for command in COMMANDS), words
    assert [word for word in ("BlueField-3", "A100", "H100", "never", "MIG", "ACS") if word not in DOC] == []
