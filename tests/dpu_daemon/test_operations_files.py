"""Alert rules and dashboard speak of metrics, labels and values that exist; docs/operations.md of every alert."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.wire.codes import Reason, Status
from offpath.dpu_daemon.operation.metrics import Snapshot, families
from offpath.dpu_daemon.requests.request_stats import STAGES
from offpath.sched.jobs.states import LeaseState

ROOT = Path(__file__).resolve().parents[2]
ALERTS = (ROOT / "docs" / "operations" / "alerts.yml").read_text("utf-8")
DASHBOARD = json.loads((ROOT / "docs" / "operations" / "dashboard.json").read_text("utf-8"))
PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")
SUFFIXES = {
    "counter": ("_total",), "gauge": ("",), "info": ("_info",), "histogram": ("_bucket", "_count", "_sum"),
}  # fmt: skip
EXPORTED = {metric.name: tuple(metric.name + end for end in SUFFIXES[metric.type]) for metric in families(Snapshot())}
SAMPLES = {sample for samples in EXPORTED.values() for sample in samples}
PROMETHEUS_OWN = {"up"}
LABELS = {"tenant", "status", "reason", "state", "stage", "gpu", "le", "instance", "job"}
VALUES = {
    "status": {status.name.lower() for status in Status},
    "reason": {reason.name.lower() for reason in Reason},
    "state": {state.value for state in LeaseState},
    "stage": set(STAGES),
    "job": {"offpath"},
}
WORDS = {"by", "unless", "and", "or", "on", "ignoring", "without", "bool", "offset"}
NOT_SHOWN: set[str] = set()
"""Metrics that are exported and on no panel."""


def alerts() -> list[dict[str, str]]:
    """The rules' single-line fields, one mapping per alert: the file keeps to one line per field."""
    rules = []
    for block in re.split(r"^ {6}- ", ALERTS, flags=re.M)[1:]:
        rules.append(dict(re.findall(r"^ *([a-z]+): (.+)$", block, re.M)))
    return rules


def panel_queries(panels: list[dict[str, Any]]) -> Iterator[str]:
    for panel in panels:
        yield from (target["expr"] for target in panel.get("targets", ()))
        yield from panel_queries(panel.get("panels", []))


QUERIES = [*(rule["expr"] for rule in alerts()), *panel_queries(DASHBOARD["panels"])]


def metric_names(query: str) -> set[str]:
    """What is read: every name that is no function, word, label or value."""
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\b(by|on|ignoring|without) *\([^)]*\)", " ", query)
    return {
        name for name, after in re.findall(r"\b([a-z_][a-z0-9_]*)\b *(\(?)", bare) if not after and name not in WORDS
    }


def test_the_reader_of_queries_finds_names_and_only_names() -> None:
    query = (
        'histogram_quantile(0.99, sum by (tenant, le) (rate(a_b_bucket{x="y"}[5m]))) > 0.05 * c_total unless d > 1e3'
    )
    assert metric_names(query) == {"a_b_bucket", "c_total", "d"}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_reads_metrics_that_are_exported_with_labels_and_values_that_exist(query: str) -> None:
    assert metric_names(query)
    assert metric_names(query) <= SAMPLES | PROMETHEUS_OWN
    grouped = re.findall(r"\b(?:by|on|without) *\(([^)]*)\)", query)
    used = {name for names in grouped for name in re.split(r"[ ,]+", names)}
    for selector in re.findall(r"\{([^}]*)\}", query):
        for name, value in re.findall(r'([a-z_]+) *(?:=~|!~|!=|=) *"([^"]*)"', selector):
            used.add(name)
            assert set(value.split("|")) <= VALUES.get(name, {value}), f"{name}={value}"
    assert used <= LABELS


def test_every_exported_metric_is_on_the_dashboard_or_known_not_to_be() -> None:
    shown = {name for query in panel_queries(DASHBOARD["panels"]) for name in metric_names(query)}
    missing = {name for name, samples in EXPORTED.items() if not shown & set(samples)}
    assert missing == NOT_SHOWN


def test_every_alert_has_a_severity_a_summary_and_a_paragraph_that_says_what_to_do() -> None:
    assert len(alerts()) >= 10
    for rule in alerts():
        assert re.fullmatch(r"\{severity: (page|ticket)\}", rule["labels"])
        assert rule["summary"]
        assert rule["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
        assert f"\n### {rule['alert']}\n" in PAGE
    assert {rule["alert"] for rule in alerts()} == set(re.findall(r"^### (Offpath[A-Za-z]+)$", PAGE, re.M))


def test_panels_have_places_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_names_follow_the_conventions() -> None:
    for metric in families(Snapshot()):
        assert re.fullmatch(r"(offpath|process)_[a-z_]+", metric.name)
        assert metric.documentation.endswith(".")
        if metric.type == "histogram":
            assert metric.name.endswith("_seconds")
        assert not re.search(r"_(ms|ns|kib|mib|percent)(_|$)", metric.name)


def test_the_page_lists_every_metric() -> None:
    listed = set(re.findall(r"^\| `((?:offpath|process)_[a-z_]+)`", PAGE, re.M))
    main = {sample for sample in SAMPLES if not sample.endswith(("_count", "_sum"))}
    assert listed == {sample.removesuffix("_bucket") for sample in main}
