"""The controller's configuration: defaults, every fault at once, and no secret in what is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpath.dpu_daemon.collab.config import load, token_key
from offpath.dpu_daemon.config import ConfigError

from ...support.collab import KEY, configuration


def test_the_least_configuration_has_the_defaults(tmp_path: Path) -> None:
    found = load(str(configuration(tmp_path)))
    assert (found.config.policy.name, found.config.policy.lease_s) == ("venn", 3_600)
    assert (found.config.devices.skew_s, found.config.devices.per_minute) == (60, 30)
    assert (found.tls, found.gateways) == (None, {})


def test_no_key_is_in_what_is_printed(tmp_path: Path) -> None:
    found = load(str(configuration(tmp_path, gateways=True)))
    assert found.token_keys == (KEY.encode(),)
    assert token_key(str(tmp_path / "collab.toml")) == KEY.encode()
    assert KEY not in repr(found)
    assert found.gateway_key.decode() not in repr(found)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('listen = "127.0.0.1:0"', 'listen = "0.0.0.0:0"', "loopback"),
        ('listen = "127.0.0.1:0"', 'listen = "devices.example:0"', "loopback"),
        ('listen = "127.0.0.1:0"', 'listen = "127.0.0.1:0"\ncert_file = "a"', "come together"),
        ("[operation]", '[policy]\nname = "venom"\n[operation]', "must be one of"),
        ("[operation]", "[policy]\nlease_s = 0\n[operation]", "policy.lease_s"),
        ("[operation]", '[policy]\nname = "srsf"\nepsilon = 1.0\n[operation]', "not for srsf"),
        ("[operation]", '[policy]\nname = "venn-paper"\nepsilon = 16.5\n[operation]', "policy.epsilon"),
        ("[operation]", '[policy]\nname = "venn-paper"\nepsilon = inf\n[operation]', "policy.epsilon"),
        ('listen = "127.0.0.1:0"', 'listen = "127.0.0.1:65536"', "http.listen.*a port must be at most 65535"),
        ("state = ", 'metrics_listen = "127.0.0.1:99999"\nstate = ', "operation.metrics_listen.*at most 65535"),
        ("state = ", 'metrics_listen = "nowhere"\nstate = ', "operation.metrics_listen"),
        ("[devices]", "[devices]\nunknown = 1", "devices.unknown"),
        ("[devices]", "[devices]\nskew_s = nan", "devices.skew_s"),
        ("state =", "stat =", "operation.state"),
    ],
)
def test_a_fault_names_its_key(tmp_path: Path, old: str, new: str, text: str) -> None:
    path = configuration(tmp_path)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=text):
        load(str(path))


def test_a_proxy_with_tls_may_stand_before_any_address(tmp_path: Path) -> None:
    path = configuration(tmp_path, http="plain = true")
    path.write_text(path.read_text().replace("127.0.0.1:0", "0.0.0.0:0"))
    assert load(str(path)).config.http is not None


def test_a_controller_that_no_device_can_reach_is_refused(tmp_path: Path) -> None:
    path = configuration(tmp_path)
    path.write_text(path.read_text().replace('[http]\nlisten = "127.0.0.1:0"', ""))
    with pytest.raises(ConfigError, match="devices need"):
        load(str(path))


def test_all_files_that_cannot_be_used_are_named_at_once(tmp_path: Path) -> None:
    path = configuration(tmp_path, gateways=True)
    (tmp_path / "device.key").chmod(0o644)
    (tmp_path / "controller.key").unlink()
    for each in (tmp_path / "allowed").iterdir():
        each.unlink()
    with pytest.raises(ConfigError) as fault:
        load(str(path))
    assert [each.path for each in fault.value.faults] == [
        "devices.token_keys.0", "gateways.key_file", "gateways.allowed",
    ]  # fmt: skip
