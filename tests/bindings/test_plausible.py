"""Numbers that cannot be meant are refused wherever they are taken: ports and amounts of memory without their unit."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from offpath.bindings.errors import FabricAddressError, HostChannelError, OptionRefused
from offpath.bindings.ina.address import parse_address
from offpath.bindings.plausible import port_fault
from offpath.cli.manager_client import nbytes
from offpath.cli.web.command import _address
from offpath.dpu_daemon.collab.config import GatewaysTable
from offpath.dpu_daemon.config import ConfigError
from offpath.dpu_daemon.config.tables import TenantTable
from offpath.dpu_daemon.controller.config import AgentsTable
from offpath.dpu_daemon.manager.config import EngineTable, load
from offpath.host_helper.channels import host_channel
from offpath.host_helper.collab.settings import Settings
from offpath.host_helper.negotiate import Tls, connect_to

TOO_HIGH = "a port must be at most 65535"
KEYS = {"key_file": "a", "allowed": "b"}


@pytest.mark.parametrize("address", ["h:0", "h:65535", "[::1]:80", "tcp://h:7700", "", "h", "h:port", "h:٣"])
def test_a_port_that_exists_has_no_fault(address: str) -> None:
    assert port_fault(address) == ""


@pytest.mark.parametrize("address", ["h:65536", "h:99999", "[::1]:70000", "tcp://h:123456", "h:" + "9" * 5_000])
def test_a_port_above_the_highest_is_a_fault(address: str) -> None:
    assert port_fault(address) == TOO_HIGH


@pytest.mark.parametrize(
    ("table", "keys", "address"),
    [
        (GatewaysTable, {"bind": "tcp://*:{}", **KEYS}, "bind"),
        (AgentsTable, {"bind": "tcp://*:{}", **KEYS}, "bind"),
        (EngineTable, {"kind": "ray", "address": "head:{}"}, "address"),
        (Settings, {"gateway": "tcp://c:{}", "server_key": "/a", "key_file": "/b", "token_key": "/c"}, "gateway"),
    ],
)
def test_every_configured_address_has_a_port_that_exists(table: Any, keys: dict[str, str], address: str) -> None:
    table.model_validate({**keys, address: keys[address].format(65_535)})
    with pytest.raises(ValidationError, match=TOO_HIGH):
        table.model_validate({**keys, address: keys[address].format(65_536)})


def test_an_ipc_path_that_ends_like_a_port_is_no_port() -> None:
    AgentsTable.model_validate({"bind": "ipc:///run/a:99999", **KEYS})


def test_the_fault_names_its_key(tmp_path: Path) -> None:
    path = tmp_path / "manager.toml"
    path.write_text('[engine]\nkind = "ray"\naddress = "head:77000"\n[operation]\nstate = "a"\n')
    with pytest.raises(ConfigError, match=rf"engine\.address.*{TOO_HIGH}"):
        load(str(path))


def test_addresses_on_the_command_line_and_in_calls_too() -> None:
    with pytest.raises(HostChannelError, match=f"--daemon tcp://dpu:77000: {TOO_HIGH}"):
        host_channel("zmq", daemon="tcp://dpu:77000", key="a", server_key="b")
    with pytest.raises(OptionRefused, match=TOO_HIGH):
        connect_to("tls:dpu:77000", Tls("a", "b", "c"), 1.0)
    with pytest.raises(argparse.ArgumentTypeError, match=TOO_HIGH):
        _address("0.0.0.0:77000")
    with pytest.raises(FabricAddressError):
        parse_address("tcp://switch:" + "9" * 5_000)


def test_a_tenants_limit_of_memory_is_a_page_at_least() -> None:
    assert TenantTable(name="a", max_bytes=4096).max_bytes == 4096
    with pytest.raises(ValidationError, match="greater than or equal to 4096"):
        TenantTable(name="a", max_bytes=16)


@pytest.mark.parametrize(("text", "found"), [("528MB", 528_000_000), ("1GiB", 1 << 30), ("240000", 240_000), ("0", 0)])
def test_gradients_have_a_size(text: str, found: int) -> None:
    assert nbytes(text) == found


@pytest.mark.parametrize("text", ["528", "1.5", "16B", "3KB"])
def test_gradients_of_a_few_bytes_lack_their_unit(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write a unit, as 528MB or 1GiB"):
        nbytes(text)
