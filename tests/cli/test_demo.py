"""The demo: its data are what they claim to be, and it holds, and notices when isolation is broken."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpath.bindings.build import compiled
from offpath.cli.demo import model, samples
from offpath.cli.demo.isolation import LaneReport
from offpath.cli.demo.report import lane_changes, lane_openings
from offpath.cli.demo.tenant import same_bytes

from ..support import doca, gpu_emulator

MAX_SAMPLE_BYTES = 60 * 1024
QUIET_LANE = LaneReport(*([0] * len(dataclasses.fields(LaneReport))))


def lane(**values: int) -> LaneReport:
    return dataclasses.replace(QUIET_LANE, **values)


@pytest.mark.parametrize("name", sorted(samples.provenance()))
def test_a_sample_is_small_and_the_one_its_provenance_speaks_of(name: str) -> None:
    held = (samples.DATA / name).read_bytes()
    told = samples.provenance()[name]
    assert len(held) <= MAX_SAMPLE_BYTES
    assert hashlib.sha256(held).hexdigest() == told["sha256"]
    known = ("CC BY 4.0", "asks for citation", "MIT", "facts only", "made for this project")
    assert any(licence in told["licence"] for licence in known)


def test_every_sample_has_a_provenance() -> None:
    held = {path.name for path in samples.DATA.iterdir()} - {"README.md", "provenance.json"}
    assert held == set(samples.provenance())


def test_the_digits_are_whole_numbers_up_to_16_with_labels() -> None:
    digits = samples.load_digits()
    assert digits.train_images.shape == (1000, 64)
    assert digits.held_images.shape == (797, 64)
    assert digits.held_images.max() == 16
    assert set(digits.held_labels.tolist()) == set(range(10))


def test_the_plan_is_the_trace_compressed_with_its_tenants_by_activity() -> None:
    plan = samples.load_plan(20.0)
    jobs = Counter(job.tenant for job in plan.jobs)
    assert [jobs[f"tenant-{n}"] for n in range(1, 7)] == [145, 96, 41, 36, 32, 32]
    assert plan.tenants["tenant-1"] == "11cb48"
    assert Counter(job.demand for job in plan.jobs) == {14: 334, 28: 35, 42: 13}
    assert (plan.jobs[0].at_s, plan.jobs[-1].at_s) == (0.0, 20.0)
    assert [job.at_s for job in plan.jobs] == sorted(job.at_s for job in plan.jobs)
    assert max(job.images for job in plan.jobs) == samples.MAX_IMAGES
    assert min(job.images for job in plan.jobs) >= 1


def test_the_largest_payload_is_614_400_bytes() -> None:
    assert samples.payload(samples.draw(0, 0, samples.MAX_IMAGES)).nbytes == 614_400


def test_the_model_classifies_held_out_digits_and_its_arithmetic_is_exact() -> None:
    """Wherever the images lie in memory, and however they are split, each gets the same score."""
    digits = samples.load_digits()
    network = model.train(digits.train_images, digits.train_labels, 32, seed=1)
    images = digits.held_images.astype(np.float32)
    found, scores = network.classify(images)
    assert (found == digits.held_labels).mean() > 0.9
    room = np.zeros(images.size + 16, np.float32)
    for shift in (1, 3, 7):
        moved = room[shift : shift + images.size].reshape(images.shape)
        moved[...] = images
        assert same_bytes(network.classify(moved), (found, scores))
    parts = [network.classify(images[i : i + 61]) for i in range(0, len(images), 61)]
    assert same_bytes((np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])), (found, scores))
    assert (scores == scores.astype(np.int64)).all()


def test_a_saved_model_is_loaded_as_it_was(tmp_path: Path) -> None:
    digits = samples.load_digits()
    networks = {d: model.train(digits.train_images[:50], digits.train_labels[:50], 8, seed=d) for d in samples.DEMANDS}
    model.save(networks, str(tmp_path / "model.npz"))
    images = samples.payload(samples.draw(1, 2, 10))
    for demand, network in model.load(str(tmp_path / "model.npz")).items():
        assert same_bytes(network.classify(images), networks[demand].classify(images))


def test_a_lane_changes_tenant_where_the_next_opening_of_its_memory_is_anothers() -> None:
    openings = [
        lane(gpu=0, start=0, lane=0, tenant=1),
        lane(gpu=0, start=0, lane=1, tenant=2),  # other memory
        lane(gpu=1, start=0, lane=0, tenant=2),  # other memory
        lane(gpu=0, start=0, lane=0, tenant=1),  # the same tenant again
        lane(gpu=0, start=0, lane=0, tenant=2),  # a change
        lane(gpu=0, start=0, lane=0, tenant=1),  # and another
    ]
    assert lane_changes(openings) == 2


def test_of_a_lane_opening_only_the_last_report_counts() -> None:
    class Said:
        def __init__(self, report: LaneReport) -> None:
            self.lane = report

    said: list[Any] = [
        Said(lane(pid=7, lease=1, opened_ns=20, stamps=2, scans=5)),
        Said(lane(pid=7, lease=1, opened_ns=20, stamps=3, scans=5)),
        Said(lane(pid=7, lease=1, opened_ns=20, stamps=1, scans=5)),
        Said(lane(pid=8, lease=1, lane=1, opened_ns=10, stamps=1, scans=5)),
    ]
    assert [(o.pid, o.stamps) for o in lane_openings(said)] == [(8, 1), (7, 3)]


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "offpath.cli.main", "demo", "--json", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


def test_a_short_demo_answers_all_rightly_and_finds_no_violation(tmp_path: Path) -> None:
    picture = tmp_path / "made" / "demo.svg"
    done = demo("--jobs", "100", "--seconds", "5", "--picture", str(picture))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["jobs"], report["answered"], report["correct_fraction"]) == (100, 100, 1.0)
    assert report["isolation_violations"] == 0
    assert report["isolation"]["launches_checked"] == 100
    assert report["isolation"]["canary_scans"] == 5 * report["lane_openings"] > 0
    assert report["lane_changes"] >= 1
    assert [t["name"] for t in report["tenants"]] == [f"tenant-{n}" for n in range(1, 7)]
    assert sum(t["jobs"] for t in report["tenants"]) == 100
    assert report["accuracy"] > 0.9
    assert set(report["stages_us"]["total"]) == {"p50", "p99"}
    assert report["bytes_per_request"]["daemon_cpu"] < report["bytes_per_request"]["dma"] / 10
    assert report["picture"] == str(picture)
    assert ET.parse(picture).getroot().tag.endswith("svg")


@pytest.mark.not_fast("an installed offpath does not build the emulator of DOCA")
@pytest.mark.parametrize(
    "arguments",
    [("--copy-engine", "doca", "--host-channel", "comch"), ("--host-channel", "zmq")],
    ids=["doca over comch", "zmq alone, which takes doca"],
)
def test_the_demo_holds_with_copies_by_doca_and_other_host_channels(arguments: tuple[str, ...]) -> None:
    doca.emulator()
    done = demo("--jobs", "100", "--seconds", "5", "--picture", "", *arguments)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["jobs"], report["answered"], report["correct_fraction"]) == (100, 100, 1.0)
    assert report["isolation_violations"] == 0
    assert (report["datapath"]["copy_engine"], report["datapath"]["host_channel"]) == ("doca", arguments[-1])
    assert report["datapath"]["is_emulated"], "no test of ours ran on a card"
    assert "an emulator of DOCA" in done.stderr
    assert ("which zmq does not carry" in done.stderr) is (arguments[-1] == "zmq")


@pytest.mark.not_fast("an installed offpath does not build the GPU emulator")
@pytest.mark.parametrize(
    "arguments",
    [(), ("--mode", "whole", "--mps"), ("--copy-engine", "doca"), ("--copy-engine", "cuda")],
    ids=["mig", "whole", "doca", "cuda"],
)
def test_the_demo_holds_on_nvidias_stack(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """NVML and CUDA are emulated; offpath-migd cuts, and workers use CUDA."""
    gpu_emulator.emulator()
    if "doca" in arguments:
        doca.emulator()
    picture = tmp_path / "demo.svg"
    done = demo("--gpu", "emulated-nvml", "--jobs", "100", "--seconds", "5", "--picture", str(picture), *arguments)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["jobs"], report["answered"], report["correct_fraction"]) == (100, 100, 1.0)
    assert report["isolation_violations"] == 0
    assert report["gpu"] == {
        "kind": "emulated-nvml", "mode": "whole" if "whole" in arguments else "mig", "is_emulated": True,
        "has_mps": "--mps" in arguments,
    }  # fmt: skip
    assert ("whole" in report["profiles"]) is ("whole" in arguments)
    assert "two EMULATED GPUs" in done.stderr
    assert "emulated NVML and CUDA" in picture.read_text()


@pytest.mark.parametrize("gpu", ["emulated", "emulated-nvml"])
def test_the_demo_notices_lanes_that_were_not_scrubbed(gpu: str) -> None:
    if gpu != "emulated" and compiled():
        pytest.skip("an installed offpath does not build the GPU emulator")
    if gpu != "emulated":
        gpu_emulator.emulator()
    done = demo("--gpu", gpu, "--jobs", "100", "--seconds", "5", "--break", "scrub", "--picture", "")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["correct_fraction"] == 1.0
    assert report["isolation"]["canaries_found"] > 0
    assert report["isolation_violations"] > 0
    assert "isolation violations" in done.stderr


def test_an_interrupted_demo_takes_everything_down(short_path: Path) -> None:
    command = [sys.executable, "-m", "offpath.cli.main", "demo", "--picture", ""]
    environment = {**os.environ, "TMPDIR": str(short_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stderr is not None
        while "jobs" not in run.stderr.readline():
            assert run.poll() is None
        group = _descendants(run.pid)
        assert len(group) >= 8, "daemon, helper, six requesters"
        run.terminate()
        run.communicate(timeout=30)
    assert run.returncode == 130
    assert [pid for pid in group if os.path.exists(f"/proc/{pid}")] == []
    assert list(short_path.glob("offpath-demo-*")) == []


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A socket's path has at most 107 bytes; ``tmp_path`` takes most of them."""
    with tempfile.TemporaryDirectory(prefix="offpath-") as folder:
        yield Path(folder)


def _descendants(pid: int) -> list[int]:
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return children + [below for child in children for below in _descendants(child)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--jobs", "0"), "at least one"),
        (("--picture", "timeline.txt"), ".svg"),
        (("--picture", "/proc/no/a.svg"), "/proc/no"),
        (("--mode", "whole"), "--gpu emulated-nvml"),
        (("--mps",), "--mps needs"),
        (("--gpu", "cuda"), "no GPU to serve kernels on"),
        (("--copy-engine", "cuda", "--host-channel", "zmq"), "the host channel unix"),
    ],
)
def test_what_cannot_work_is_said_before_the_run(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFPATH_GPU_PATH", "/nowhere")  # also where this machine has a GPU
    done = demo(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert "training" not in done.stderr
