"""A refused reload and then a crash: the daemon goes on with the last good configuration, and says so loudly."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.bindings.errors import NegotiationRefused
from offpath.bindings.runtime import JOURNAL, LAST_GOOD
from offpath.bindings.wire import admin
from offpath.cli.admin_client import AdminClient
from offpath.dpu_daemon.config import ConfigError, Sources
from offpath.dpu_daemon.config.lastgood import kept, read_or_last_good

from ..support.cluster import TIMEOUT, Cluster, free_port, pids_of
from ..support.clusters import NARROW, seconds
from ..support.command import offpath
from ..support.processes import until
from ..support.toml import to_toml
from .test_metrics import scraped

IN_FORCE = "configuration refused, using the last good one"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Under a service manager. An error in its log is expected here, so it is not judged at the end."""
    made = Cluster(
        {"ada": NARROW, "bob": NARROW}, keep={"starts": 0}, durability={"resume_ttl_s": 60},
        operation={"metrics_listen": f"127.0.0.1:{free_port()}"},
    )  # fmt: skip
    yield made
    made.kill()


def crash(cluster: Cluster) -> None:
    """kill -9 of the daemon; returns when its successor answers."""
    (before,) = pids_of(cluster.daemon)
    os.kill(before, signal.SIGKILL)
    until(lambda: before not in pids_of(cluster.daemon))
    until(lambda: not cluster.daemon.is_alive or status(cluster) is not None)
    assert cluster.daemon.is_alive, cluster.daemon.errors


def status(cluster: Cluster) -> admin.Status:
    with AdminClient(str(cluster.run_folder)) as client:
        return client.query(admin.StatusRequest(), admin.Status)


def test_queued_work_is_answered_after_a_refused_reload_and_a_crash(cluster: Cluster) -> None:
    helper = cluster.start_helper()
    with cluster.connect("ada") as ada:
        running = ada.begin("sleep", seconds(1.0))
        queued = [ada.begin("echo", seconds(number)) for number in range(4)]
        assert not cluster.reload("this is not TOML")
        assert not status(cluster).is_last_good
        crash(cluster)
        assert IN_FORCE in cluster.daemon.errors
        assert "not TOML" in cluster.daemon.errors.rpartition(IN_FORCE)[2]
        assert status(cluster).is_last_good
        port = int(cluster.config["operation"]["metrics_listen"].rpartition(":")[2])
        assert scraped(port)["offpath_config_last_good", ()] == 1
        done = offpath("top", "--once", "--interval", "0.1", "--runtime-dir", str(cluster.run_folder))
        assert "LAST GOOD CONFIGURATION" in done.out
        assert [float(each.result(TIMEOUT).array[0]) for each in queued] == [0.0, 1.0, 2.0, 3.0]
        assert running.result(TIMEOUT).array == 1.0
    crash(cluster)  # and again, as often as it takes
    assert status(cluster).is_last_good
    cluster.config["tenant"][0]["weight"] = 3
    assert cluster.reload()
    assert not status(cluster).is_last_good
    cluster.config_file.write_text("broken = ")
    crash(cluster)
    record = kept(str(cluster.run_folder))
    assert record is not None
    assert record[1].tenant[0].weight == 3
    assert helper.is_alive


def test_a_token_that_cannot_be_used_locks_its_tenant_alone(cluster: Cluster) -> None:
    """Of secrets the present files count: a token that was taken away lets nobody in."""
    ada, bob = (Path(table["token_file"]) for table in cluster.config["tenant"])
    copy = cluster.folder / "copy.token"
    copy.write_text(ada.read_text())
    copy.chmod(0o600)
    ada.chmod(0o644)
    assert not cluster.reload()
    crash(cluster)
    assert "token authentication is disabled" in cluster.daemon.errors
    copy.rename(ada)
    with pytest.raises(NegotiationRefused, match="denied"):
        cluster.connect("ada")
    with cluster.connect("bob"):
        pass
    assert cluster.reload()
    with cluster.connect("ada"):
        pass
    bob.write_text(ada.read_text())  # now each could pass for both
    assert not cluster.reload()
    crash(cluster)
    for name in ("ada", "bob"):
        with pytest.raises(NegotiationRefused, match="denied"):
            cluster.connect(name)


def test_what_is_kept_is_private_and_has_no_token(cluster: Cluster) -> None:
    path = cluster.run_folder / LAST_GOOD
    found = path.stat()
    assert (found.st_mode & 0o777, found.st_uid) == (0o600, os.getuid())
    assert not any(Cluster.token(name) in path.read_text() for name in ("ada", "bob"))
    assert sorted(each.name for each in cluster.run_folder.iterdir() if LAST_GOOD in each.name) == [LAST_GOOD]


def test_without_a_journal_of_its_lineage_a_broken_file_is_the_end(cluster: Cluster) -> None:
    """A first start has nothing to lose; neither has one whose journal is another's, or of which nothing was kept."""
    sources, run = Sources(str(cluster.config_file)), cluster.run_folder
    cluster.config_file.write_text("broken = ")
    assert read_or_last_good(sources, str(run)).refused
    record = json.loads((run / LAST_GOOD).read_text())
    for lineage, config in (("0" * 16, record["config"]), (record["lineage"], {"tenant": []}), (7, 7)):
        (run / LAST_GOOD).write_text(json.dumps({"lineage": lineage, "config": config}))
        with pytest.raises(ConfigError, match="not TOML"):
            read_or_last_good(sources, str(run))
    (run / LAST_GOOD).write_text(json.dumps(record))
    assert read_or_last_good(sources, str(run)).refused
    (run / LAST_GOOD).chmod(0o644)
    with pytest.raises(ConfigError):
        read_or_last_good(sources, str(run))
    (run / LAST_GOOD).chmod(0o600)
    (run / JOURNAL).rename(run / "elsewhere")
    with pytest.raises(ConfigError):
        read_or_last_good(sources, str(run))


def test_an_orderly_end_without_a_service_manager_leaves_nothing_to_go_on_with() -> None:
    alone = Cluster({"ada": {}})
    try:
        until(lambda: (alone.run_folder / LAST_GOOD).exists())
        alone.close()
        assert not (alone.run_folder / LAST_GOOD).exists() or not alone.run_folder.exists()
    finally:
        alone.kill()


def test_a_start_that_was_refused_is_refused_again_at_the_end_of_an_orderly_life(cluster: Cluster) -> None:
    """The first start of all, with a broken file, ends with exit code 78 as ever."""
    folder = cluster.folder / "first"
    folder.mkdir()
    (folder / "offpathd.toml").write_text(to_toml(cluster.config) + "nonsense = 1\n")
    config, run = str(folder / "offpathd.toml"), str(folder / "run")
    for _ in range(2):
        assert offpath("daemon", "run", "--config", config, "--runtime-dir", run).code == 78
