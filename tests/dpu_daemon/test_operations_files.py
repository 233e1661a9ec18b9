"""Alert rules and dashboards speak of metrics, labels and values that exist; the services' pages of every alert."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric

from offpath.bindings.wire.codes import Reason, Status
from offpath.dpu_daemon.collab import metrics as collab_metrics
from offpath.dpu_daemon.operation import metrics
from offpath.dpu_daemon.requests.request_stats import STAGES
from offpath.sched.collab.records import RoundEnd
from offpath.sched.jobs.states import LeaseState

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SUFFIXES = {
    "counter": ("_total",), "gauge": ("",), "info": ("_info",), "histogram": ("_bucket", "_count", "_sum"),
}  # fmt: skip
PROMETHEUS_OWN = {"up"}
WORDS = {"by", "unless", "and", "or", "on", "ignoring", "without", "bool", "offset", "group_left"}


@dataclass(frozen=True)
class Service:
    """One service's metrics, and the files that speak of them. ``labels``: those that queries may use; ``values``: of
    a label whose values the program bounds."""

    name: str
    page: str
    alerts: str
    dashboard: str
    metrics: tuple[Metric, ...]
    labels: set[str]
    values: dict[str, set[str]]
    least_alerts: int

    @property
    def exported(self) -> dict[str, tuple[str, ...]]:
        """The names under which each metric's samples are scraped."""
        return {metric.name: tuple(metric.name + end for end in SUFFIXES[metric.type]) for metric in self.metrics}

    @property
    def samples(self) -> set[str]:
        return {sample for samples in self.exported.values() for sample in samples}

    @property
    def text(self) -> str:
        return (DOCS / self.page).read_text("utf-8")

    def rules(self) -> list[dict[str, str]]:
        """The rules' single-line fields, one mapping per alert: the file keeps to one line per field."""
        text = (DOCS / self.alerts).read_text("utf-8")
        return [
            dict(re.findall(r"^ *([a-z]+): (.+)$", block, re.M)) for block in re.split(r"^ {6}- ", text, flags=re.M)[1:]
        ]

    def panels(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((DOCS / self.dashboard).read_text("utf-8"))["panels"]
        return found

    def queries(self) -> list[str]:
        return [*(rule["expr"] for rule in self.rules()), *panel_queries(self.panels())]


def panel_queries(panels: list[dict[str, Any]]) -> Iterator[str]:
    for panel in panels:
        yield from (target["expr"] for target in panel.get("targets", ()))
        yield from panel_queries(panel.get("panels", []))


DAEMON = Service(
    "daemon", "operations.md", "operations/alerts.yml", "operations/dashboard.json",
    tuple(metrics.families(metrics.Snapshot())),
    {"tenant", "status", "reason", "state", "stage", "gpu", "le", "instance", "job"},
    {
        "status": {status.name.lower() for status in Status},
        "reason": {reason.name.lower() for reason in Reason},
        "state": {state.value for state in LeaseState},
        "stage": set(STAGES),
        "job": {"offpath"},
    },
    least_alerts=19,
)  # fmt: skip
COLLAB = Service(
    "collab", "collab.md", "operations/collab-alerts.yml", "operations/collab-dashboard.json",
    tuple(collab_metrics.families(collab_metrics.Snapshot())),
    {"tenant", "outcome", "code", "state", "end", "le", "instance", "job"},
    {
        "end": {end.value for end in RoundEnd},
        "outcome": {"assigned", "held", "idle", "spent", "answered", "unanswered"},
        "job": {"offpath-collab"},
    },
    least_alerts=10,
)  # fmt: skip
SERVICES = (DAEMON, COLLAB)
service = pytest.mark.parametrize("service", SERVICES, ids=lambda each: each.name)


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


@pytest.mark.parametrize(
    ("service", "query"),
    [pytest.param(each, query, id=f"{each.name}-{query}") for each in SERVICES for query in each.queries()],
)
def test_a_query_reads_metrics_that_are_exported_with_labels_and_values_that_exist(
    service: Service, query: str
) -> None:
    assert metric_names(query)
    assert metric_names(query) <= service.samples | PROMETHEUS_OWN
    grouped = re.findall(r"\b(?:by|on|without) *\(([^)]*)\)", query)
    used = {name for names in grouped for name in re.split(r"[ ,]+", names)}
    for selector in re.findall(r"\{([^}]*)\}", query):
        for name, value in re.findall(r'([a-z_]+) *(?:=~|!~|!=|=) *"([^"]*)"', selector):
            used.add(name)
            assert set(value.split("|")) <= service.values.get(name, {value}), f"{name}={value}"
    assert used <= service.labels


@service
def test_every_exported_metric_is_on_the_dashboard(service: Service) -> None:
    shown = {name for query in panel_queries(service.panels()) for name in metric_names(query)}
    assert {name for name, samples in service.exported.items() if not shown & set(samples)} == set()


@service
def test_every_alert_has_a_severity_a_summary_and_a_paragraph_that_says_what_to_do(service: Service) -> None:
    rules = service.rules()
    assert len(rules) >= service.least_alerts
    for rule in rules:
        assert re.fullmatch(r"\{severity: (page|ticket)\}", rule["labels"])
        assert rule["summary"]
        assert rule["runbook"] == f"docs/{service.page}#{rule['alert'].lower()}"
        assert f"\n### {rule['alert']}\n" in service.text
    assert {rule["alert"] for rule in rules} == set(re.findall(r"^### (Offpath[A-Za-z]+)$", service.text, re.M))


@service
def test_panels_have_places_of_their_own(service: Service) -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in service.panels()]
    assert len(ids) == len(set(ids))
    for panel in service.panels():
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


@service
def test_names_follow_the_conventions(service: Service) -> None:
    for metric in service.metrics:
        assert re.fullmatch(r"(offpath|process)_[a-z_]+", metric.name)
        assert metric.documentation.endswith(".")
        if metric.type == "histogram":
            assert metric.name.endswith("_seconds")
        assert not re.search(r"_(ms|ns|kib|mib|percent)(_|$)", metric.name)


@service
def test_the_page_lists_every_metric(service: Service) -> None:
    listed = set(re.findall(r"^\| `((?:offpath|process)_[a-z_]+)`", service.text, re.M))
    main = {sample for sample in service.samples if not sample.endswith(("_count", "_sum"))}
    assert listed == {sample.removesuffix("_bucket") for sample in main}
