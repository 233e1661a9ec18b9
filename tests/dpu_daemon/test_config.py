"""The configuration: one gate, every fault at once with its place, secrets that only their owner may read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offpath.dpu_daemon.config import ConfigError, load_config, parse_config, read_token
from offpath.sched.jobs.settings import PinnedLease, TenantSpec

Write = Callable[..., str]
TOKEN = "a-token_of-24-characters"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """``write(text, mode)``: a file's path."""

    def make(text: str, mode: int = 0o600) -> str:
        path = tmp_path / "file"
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    return make


def faults(raw: dict[str, Any]) -> list[str]:
    """The places that the gate names, in order."""
    with pytest.raises(ConfigError) as fault:
        parse_config(raw, "offpathd.toml")
    first, *lines = str(fault.value).splitlines()
    assert first == "offpathd.toml:"
    return [line.strip().partition(": ")[0] for line in lines]


def test_the_smallest_configuration_is_one_tenant() -> None:
    config = parse_config({"tenant": [{"name": "ada"}]}, "x")
    assert config.tenant_specs() == (TenantSpec("ada"),)
    assert (config.pins(), config.tls, config.allowed_host_uids()) == ((), None, {os.getuid()})


def test_the_tables_reach_the_book_in_its_own_units(write: Write) -> None:
    path = write(
        """
        host_uids = [7]
        max_jobs = 99
        [leasing]
        lanes = 3
        landing_bytes = 8192
        result_bytes = 4096
        keep_warm_ms = 1
        grow_after_ms = 2
        reclaim_after_ms = 3
        min_hold_ms = 4
        [[tenant]]
        name = "ada"
        weight = 5
        max_jobs = 6
        max_share = 250
        max_demand = 50
        profile = "2g.10gb"
        [[lease]]
        tenant = "ada"
        profile = "1g.5gb"
        start = 6
        """
    )
    config = load_config(path)
    assert config.tenant_specs() == (TenantSpec("ada", 5, 6, 250, 50, "2g.10gb"),)
    assert config.pins() == (PinnedLease("ada", 0, "1g.5gb", 6, "helper"),)
    assert config.allowed_host_uids() == {7, os.getuid()}
    settings = config.book_settings()
    assert (settings.lanes, settings.landing_bytes, settings.result_bytes, settings.max_jobs) == (3, 8192, 4096, 99)
    assert (settings.keep_warm_ns, settings.grow_after_ns) == (1_000_000, 2_000_000)
    assert (settings.reclaim_after_ns, settings.min_hold_ns) == (3_000_000, 4_000_000)


def test_all_faults_are_named_at_once_with_their_places() -> None:
    raw = {
        "tenant": [{"name": "Ada!", "weight": 0}, {"name": "bob", "max_slots": 5000, "colour": "red"}, {}],
        "lease": [{"tenant": "bob", "gpu": 99}],
        "leasing": {"lanes": 0, "landing_bytes": "big"},
        "tls": {"listen": "localhost"},
        "host_uids": ["me"],
        "max_job": 1,
    }
    assert sorted(faults(raw)) == [
        "host_uids.0",
        "lease.0.gpu",
        "lease.0.profile",
        "leasing.landing_bytes",
        "leasing.lanes",
        "max_job",
        "tenant.0.name",
        "tenant.0.weight",
        "tenant.1.colour",
        "tenant.1.max_slots",
        "tenant.2.name",
        "tls.ca_file",
        "tls.cert_file",
        "tls.key_file",
        "tls.listen",
    ]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({}, "tenant: is missing"),
        ({"tenant": []}, "tenant: must have at least 1 entry"),
        ({"tenant": [{"name": "ada"}, {"name": "bob"}, {"name": "ada"}]}, "tenant named twice: ada"),
        (
            {"tenant": [{"name": "ada"}], "lease": [{"tenant": "bob", "profile": "1g.5gb"}]},
            "lease of an unknown tenant: bob",
        ),
    ],
)
def test_tables_that_do_not_go_together_are_refused(raw: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_config(raw, "x")


@pytest.mark.parametrize("name", ["", "-ada", ".", "ada/bob", "Ada", "a" * 64, "ada bob", "ä", "ada\n"])
def test_a_tenants_name_is_one_that_certificates_and_files_can_carry(name: str) -> None:
    assert faults({"tenant": [{"name": name}]}) == ["tenant.0.name"]


@pytest.mark.parametrize("listen", ["localhost", "127.0.0.1:", ":443", "127.0.0.1:http", "127.0.0.1:123456", ""])
def test_an_address_to_listen_on_has_a_host_and_a_port(listen: str) -> None:
    tls = {"listen": listen, "ca_file": "a", "cert_file": "b", "key_file": "c"}
    assert faults({"tenant": [{"name": "ada"}], "tls": tls}) == ["tls.listen"]


def test_a_file_that_is_not_toml_is_named_with_its_fault(write: Write, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"file: .*line 1"):
        load_config(write("tenant = ]"))
    with pytest.raises(ConfigError, match="No such file"):
        load_config(str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="directory"):
        load_config(str(tmp_path))


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_token_is_read_from_a_file_of_its_owners_alone(write: Write, mode: int) -> None:
    assert read_token(write(TOKEN + "\n", mode)) == TOKEN


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644, 0o666])
def test_a_token_that_others_may_read_or_write_is_refused(write: Write, mode: int) -> None:
    with pytest.raises(ConfigError, match="may be read by others; chmod 600 it"):
        read_token(write(TOKEN, mode))


@pytest.mark.parametrize(
    "token", ["", "short", "x" * 15, "x" * 257, "two lines of\n24 characters", "x" * 20 + "ä", "\0" * 20]
)
def test_a_token_that_no_requester_could_send_is_refused(write: Write, token: str) -> None:
    with pytest.raises(ConfigError, match="file"):
        read_token(write(token))


def test_an_absent_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        read_token(str(tmp_path / "absent"))


@pytest.mark.parametrize(
    "text",
    [b"\xff\xfe", b"a = " + b"[" * 20_000, b"a = " + b"1" * 5_000, b"a = 1979-05-27T07:32:00+99:99", b"a.a = 1\na = 2"],
    ids=["no UTF-8", "endless nesting", "endless number", "no such time zone", "one key twice"],
)
def test_a_file_that_is_no_toml_is_said_to_be_none(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "offpathd.toml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match="offpathd"):
        load_config(str(path))
