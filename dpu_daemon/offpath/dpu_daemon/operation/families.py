"""Metric families that the metrics of every process need."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from offpath.dpu_daemon.requests.histogram import BOUNDS_NS

_BOUNDS: Final = tuple(f"{ns / 1e9:g}" for ns in BOUNDS_NS)
Buckets = tuple[tuple[int, ...], int]
"""`Histogram.counts`, and the sum in ns."""


def build(text: str) -> Metric:
    """``offpath_build``, with the release."""
    info = InfoMetricFamily("offpath_build", text)
    info.add_metric([], {"version": metadata.version("offpath")})
    return info


def gauge(name: str, text: str, value: float) -> Metric:
    """A gauge without labels."""
    return GaugeMetricFamily(name, text, value=float(value))


def histogram(name: str, text: str, label: str, series: Mapping[str, Buckets]) -> Metric:
    """``series``: by the label's value; without a label one, by "". Buckets are those of `BOUNDS_NS`."""
    family = HistogramMetricFamily(name, text, labels=[label] if label else [])
    for value, (counts, sum_ns) in series.items():
        total = 0
        buckets = []
        for bound, count in zip((*_BOUNDS, "+Inf"), counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family.add_metric([value] if label else [], buckets, sum_value=sum_ns / 1e9)
    return family


def process() -> Iterator[Metric]:
    """Process metrics under the names that all Prometheus clients use."""
    with open("/proc/self/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    cpu_s = (int(fields[11]) + int(fields[12])) / ticks
    yield CounterMetricFamily("process_cpu_seconds", "User and system CPU time.", value=cpu_s)
    yield gauge("process_resident_memory_bytes", "Resident memory.", int(fields[21]) * page)
    yield gauge("process_open_fds", "Open file descriptors.", len(os.listdir("/proc/self/fd")))
    yield gauge("process_max_fds", "Limit of open file descriptors.", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
