"""The anonymous tenant: off unless it is named, and only for this machine or for named proxies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from offpath.host_helper.gateway.anonymous import Anonymous
from offpath.host_helper.gateway.config import load
from offpath.host_helper.gateway.errors import GatewayConfigInvalid

from ...support.toml import to_toml
from .conftest import Open
from .rig import ROWS, Answer, Client, Rig, in_json

TENANT = [{"name": "shop", "token_file": "t"}]


@pytest.mark.parametrize(
    ("peer", "host", "origin", "is_served"),
    [
        ("127.0.0.1", "127.0.0.1:8000", "", True),
        ("127.9.9.9", "LocalHost:8000", "", True),
        ("::1", "[::1]:8000", "", True),
        ("127.0.0.1", "rebound.example:8000", "", False),
        ("127.0.0.1", "", "", False),
        ("127.0.0.1", "localhost", "http://localhost:3000", False),
        ("10.0.0.5", "localhost", "", False),
        ("", "localhost", "", False),
    ],
)
def test_without_a_named_proxy_only_programs_of_the_machine_are_served(
    peer: str, host: str, origin: str, is_served: bool
) -> None:
    assert Anonymous("shop").serves(peer, host, origin) is is_served
    assert not Anonymous().serves(peer, host, origin)


@pytest.mark.parametrize("proxies", [[], ["127.0.0.1"]])
@pytest.mark.parametrize(
    ("site", "is_served"),
    [("", True), ("none", True), ("same-origin", True), ("same-site", False), ("cross-site", False), ("?", False)],
)
def test_a_script_or_image_of_another_sites_page_is_not_served(proxies: list[str], site: str, is_served: bool) -> None:
    """A browser sends no Origin with them, and the Host is the machine's."""
    assert Anonymous("shop", proxies).serves("127.0.0.1", "127.0.0.1:8000", "", site) is is_served


@pytest.mark.parametrize(
    ("host", "origin", "is_served"),
    [("localhost", "", True), ("rebound.example", "", False), ("localhost", "http://page.example", False)],
)
def test_a_named_loopback_address_is_no_exception(host: str, origin: str, is_served: bool) -> None:
    assert Anonymous("shop", ["127.0.0.1"]).serves("127.0.0.1", host, origin) is is_served


@pytest.mark.parametrize(("peer", "is_served"), [("10.0.0.5", True), ("10.0.0.6", False), ("127.0.0.1", False)])
def test_with_a_named_proxy_its_address_alone_counts(peer: str, is_served: bool) -> None:
    assert Anonymous("shop", ["10.0.0.5"]).serves(peer, "any.example", "http://any.example") is is_served


def loaded(folder: Path, **keys: Any) -> Any:
    file = folder / "gateway.toml"
    file.write_text(to_toml({"tenant": TENANT, **keys}))
    return load(str(file))


def test_a_configuration_without_it_has_none(tmp_path: Path) -> None:
    config = loaded(tmp_path, http="0.0.0.0:8000")
    assert (config.anonymous, config.anonymous_from) == ("", [])


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"http": "localhost:8000", "grpc": "[::1]:8001"},
        {"http": "0.0.0.0:8000", "anonymous_from": ["10.0.0.5", "::ffff:10.0.0.6"]},
    ],
)
def test_it_is_taken_where_few_can_reach_it(tmp_path: Path, keys: dict[str, Any]) -> None:
    config = loaded(tmp_path, anonymous="shop", **keys)
    assert config.anonymous_from == (["10.0.0.5", "10.0.0.6"] if "anonymous_from" in keys else [])


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (
            {"anonymous": "shop", "http": "0.0.0.0:8000", "grpc": "gpu1:8001"},
            "anonymous: other machines reach 0.0.0.0:8000 and gpu1:8001: listen on 127.0.0.1 only, or give "
            "anonymous_from, the addresses of the proxies that authenticate clients",
        ),
        ({"anonymous": "shop", "grpc": "[::]:8001"}, r"other machines reach \[::\]:8001: listen"),
        ({"anonymous": "shops"}, "anonymous: there is no tenant shops"),
        ({"anonymous_from": ["10.0.0.5"]}, "anonymous_from without anonymous: name the tenant"),
        ({"anonymous": "shop", "anonymous_from": ["10.0.0.0/8"]}, "must be an IP address, without a port"),
        ({"anonymous": "shop", "anonymous_from": ["10.0.0.5:80"]}, "must be an IP address, without a port"),
    ],
)
def test_it_is_refused_at_the_start_where_others_reach_it(tmp_path: Path, keys: dict[str, Any], why: str) -> None:
    with pytest.raises(GatewayConfigInvalid, match=why):
        loaded(tmp_path, **keys)


async def bare(gateway: Rig, path: str = "/v2", body: bytes | None = None, **headers: Any) -> Answer:
    """A request without a token."""
    return await gateway.ask(path, body, **{"Host": "127.0.0.1", "Authorization": None, **headers})


async def test_a_client_without_a_token_is_the_anonymous_tenants(open_gateway: Open) -> None:
    gateway = await open_gateway(anonymous="bob")
    answer = await bare(gateway, "/v2/models/scaling/infer", in_json(ROWS))
    assert (answer.status, answer.json["outputs"][0]["data"]) == (200, [0, 2, 4, 6, 8, 10])
    counts = [
        (await gateway.ask("/v2/models/scaling/stats", tenant=name)).json["model_stats"][0]["inference_count"]
        for name in ("ada", "bob")
    ]
    assert counts == [0, 1]
    assert (await bare(gateway, Authorization="Basic YWRhOng=")).status == 200
    assert (await bare(gateway, Authorization="Bearer wrong")).status == 401
    assert (await bare(gateway, Host="rebound.example")).status == 401
    assert (await bare(gateway, Origin="http://page.example")).status == 401
    assert (await bare(gateway, **{"Sec-Fetch-Site": "cross-site"})).status == 401
    assert (await bare(gateway, **{"Sec-Fetch-Site": "none"})).status == 200
    for tenant in gateway.gateway.config.tenant:
        assert tenant.bearer_files
    assert not gateway.gateway.tenants.reload(gateway.gateway.config.model_copy(update={"anonymous": ""}))
    assert (await bare(gateway)).status == 401


async def test_who_is_not_a_named_proxy_needs_a_token(open_gateway: Open) -> None:
    """127.0.0.2 is another address of this machine: a proxy's, and 127.0.0.1 is that of everybody else."""
    gateway = await open_gateway(anonymous="ada", anonymous_from=["127.0.0.2"])
    assert (await bare(gateway)).status == 401
    assert (await gateway.ask("/v2")).status == 200
    assert gateway.gateway.http is not None
    place = gateway.gateway.http.address
    client = Client(*await asyncio.open_connection(*place, local_addr=("127.0.0.2", 0)))
    try:
        await client.send(gateway.request("/v2", **{"Authorization": None, "Host": "localhost"}))
        assert (await client.answer()).status == 200
    finally:
        client.close()


async def test_without_the_key_nothing_is_anonymous(gateway: Rig) -> None:
    assert (await bare(gateway)).status == 401
