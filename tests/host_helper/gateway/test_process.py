"""`offpath gateway run` as its users run it: reload, end, another daemon, faults of its file; TLS over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.host_helper.gateway import serve
from offpath.host_helper.gateway.config import GatewayFile, TenantTable, load
from offpath.host_helper.gateway.errors import GatewayConfigInvalid

from ...support.certificates import Authority
from ...support.cluster import Cluster, free_port, pids_of
from ...support.processes import until
from ...support.toml import to_toml
from .process import GatewayProcess
from .rig import ROWS, Rig, in_json

Make = Callable[..., GatewayProcess]


@pytest.fixture
def make(cluster: Cluster, tmp_path: Path) -> Iterator[Make]:
    made: list[GatewayProcess] = []

    def start(of: Cluster = cluster, **keys: Any) -> GatewayProcess:
        made.append(process := GatewayProcess(of, tmp_path, **keys))
        return process

    yield start
    for process in made:
        process.close()


def ask(
    gateway: GatewayProcess, path: str, body: bytes | None = None, token: str = Rig.token("ada")
) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://{gateway.addresses['http']}{path}", body)
    request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        text = error.read()
        return error.code, json.loads(text) if text else None


def test_a_reload_changes_tenants_and_tokens_and_keeps_sessions(make: Make, cluster: Cluster) -> None:
    gateway = make()
    assert ask(gateway, "/v2", token=Rig.token("bob"))[0] == 200
    (gateway.folder / "ada.second").write_text("another-token-of-ada")
    (gateway.folder / "ada.second").chmod(0o600)
    gateway.config["tenant"] = [gateway.tenant(cluster, "ada")]
    gateway.config["tenant"][0]["bearer_files"].append(str(gateway.folder / "ada.second"))
    gateway.reload()
    assert ask(gateway, "/v2", token="another-token-of-ada")[0] == 200
    assert ask(gateway, "/v2", token=Rig.token("bob"))[0] == 401
    assert ask(gateway, "/v2/models/scaling/infer", in_json(ROWS))[0] == 200
    assert gateway.log.count("tenant ada: session") == 1, "its session stays"
    gateway.config["tenant"][0]["slots"] = 3
    gateway.reload()
    until(lambda: gateway.log.count("tenant ada: session") == 2)
    until(lambda: ask(gateway, "/v2/models/scaling/infer", in_json(ROWS))[0] == 200)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"http": "127.0.0.1:1"}, "http changes with a restart only"),
        ({"grpc_ping_ms": 700}, "grpc_ping_ms changes with a restart only"),
        ({"tenant": []}, "tenant: List should have at least 1 item"),
        ({"surprise": 1}, "surprise: Extra inputs are not permitted"),
    ],
)
def test_a_faulty_reload_changes_nothing(make: Make, change: dict[str, Any], why: str) -> None:
    gateway = make()
    gateway.config |= change
    gateway.reload()
    assert f"the configuration stays as it was: {gateway.file}: {why}" in gateway.log
    assert ask(gateway, "/v2/models/scaling/infer", in_json(ROWS))[0] == 200


def test_a_token_that_cannot_be_read_changes_nothing(make: Make) -> None:
    gateway = make()
    (gateway.folder / "ada.bearer").chmod(0o644)
    gateway.reload()
    assert "may be read by others" in gateway.log
    assert ask(gateway, "/v2")[0] == 200
    assert Rig.token("ada") not in gateway.log


def test_another_daemon_is_served_once_it_is_there(tmp_path: Path, make: Make) -> None:
    first = Cluster({"ada": {}, "bob": {}})
    try:
        first.start_helper()
        gateway = make(first)
        assert ask(gateway, "/v2/models/scaling/infer", in_json(ROWS))[0] == 200
        first.daemon.signal(signal.SIGTERM)
        until(lambda: ask(gateway, "/v2/models/scaling/infer", in_json(ROWS))[0] == 503)
        until(lambda: ask(gateway, "/v2/health/ready")[0] == 503)  # the other tenant sees it too
        assert ask(gateway, "/v2/health/live")[0] == 200
    finally:
        first.kill()


def test_kernels_that_a_helper_offers_later_become_models(make: Make) -> None:
    cluster = Cluster({"ada": {}, "bob": {}})
    try:
        gateway = make(cluster)
        assert ask(gateway, "/v2/models/scaling")[0] == 404
        cluster.start_helper()
        until(lambda: ask(gateway, "/v2/models/scaling")[0] == 200)
    finally:
        cluster.kill()


def test_models_of_a_daemon_that_was_started_again_are_unavailable_until_their_helper_is_back(make: Make) -> None:
    cluster = Cluster({"ada": {}, "bob": {}}, keep={})
    try:
        helper = cluster.start_helper()
        gateway = make(cluster)
        assert ask(gateway, "/v2/models/scaling/infer", in_json(ROWS))[0] == 200
        with helper.stopped():
            os.kill(pids_of(cluster.daemon)[0], signal.SIGKILL)
            until(lambda: gateway.log.count("tenant ada, gateway: models none"))
            for path in ("/v2/models/scaling", "/v2/models/scaling/config", "/v2/models/scaling/versions/2"):
                status, answer = ask(gateway, path)
                text = "model 'scaling' is not served now: no helper has offered it again"
                assert (status, answer["error"]) == (503, text)
            status, answer = ask(gateway, "/v2/models/scaling/infer", in_json(ROWS))
            assert (status, answer["error"]) == (503, text)
            assert ask(gateway, "/v2/models/scaling/ready")[0] == 400
            assert ask(gateway, "/v2/models/nope")[0] == 404
        until(lambda: ask(gateway, "/v2/models/scaling/infer", in_json(ROWS))[0] != 503)
        assert ask(gateway, "/v2/models/scaling/infer", in_json(ROWS))[0] == 200
    finally:
        cluster.kill()


def run(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "offpath.cli.main", "gateway", "run", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_it_raises_its_limit_of_descriptors(make: Make) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        gateway = make(connections=100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE)[0] == 5 * 100 + 256 + 1024 + 256 + 64 + 512


def test_where_the_limit_cannot_be_raised_both_listeners_have_fewer_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "allow_files", lambda count: None)
    monkeypatch.setattr(serve.resource, "getrlimit", lambda which: (1024, 1024))
    config = serve.fitting(written(tmp_path))
    assert (config.connections, config.grpc_connections, config.unidentified) == (108, 108, 27)
    assert serve.files_of(config) <= 1024 + 512
    assert serve.files_of(config) - 512 <= 1024 - 256, "what is neither is 256 here"


async def test_where_descriptors_are_short_a_reload_is_compared_with_what_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serve, "allow_files", lambda count: None)
    monkeypatch.setattr(serve.resource, "getrlimit", lambda which: (1024, 1024))
    (tmp_path / "t").write_text("x" * 32)
    (tmp_path / "t").chmod(0o600)
    tenant = {"name": "ada", "token_file": str(tmp_path / "t")}
    gateway = serve.Gateway(written(tmp_path, tenant=[tenant], grpc=""), str(tmp_path / "f.toml"))
    try:
        assert gateway.config.unidentified == 27
        for connections in (512, 200):  # another part of the descriptors, and so of the keys that need a restart
            written(tmp_path, tenant=[tenant], grpc="", connections=connections)
            assert await gateway.reload()
        assert gateway.config.unidentified > 27
        written(tmp_path, tenant=[tenant], grpc="", grpc_connections=200)
        assert not await gateway.reload()
        assert "grpc_connections changes with a restart only" in caplog.text
    finally:
        await gateway.close()


def test_what_is_there_from_the_start_is_not_looked_at_by_the_collector_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full collection of all modules takes a tenth of a second, in which nobody is served."""
    froze: list[str] = []

    class Served:
        def __init__(self, *_: Any) -> None:
            pass

        async def start(self) -> None:
            froze.append("started")

        async def close(self) -> None:
            froze.append("closed")

        def addresses(self) -> dict[str, str]:
            return {}

    monkeypatch.setattr(serve, "Gateway", Served)
    monkeypatch.setattr(serve.gc, "freeze", lambda: froze.append("frozen"))

    def ready(addresses: dict[str, str]) -> None:
        froze.append("ready")
        os.kill(os.getpid(), signal.SIGTERM)

    asyncio.run(serve._serve(GatewayFile(tenant=[TenantTable(name="ada", token_file="t")]), "", ready))
    assert froze == ["started", "frozen", "ready", "closed"]


def test_a_faulty_file_ends_it_with_78(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("tenant = 5")
    done = run(file)
    assert (done.returncode, done.stdout) == (78, "")
    assert "tenant: Input should be a valid list" in done.stderr


def test_an_address_in_use_ends_it_with_73(make: Make, cluster: Cluster, tmp_path: Path) -> None:
    gateway = make()
    for protocol, other in (("http", "grpc"), ("grpc", "http")):
        file = tmp_path / f"{protocol}.toml"
        keys = {protocol: gateway.addresses[protocol], other: f"127.0.0.1:{free_port()}"}
        file.write_text(to_toml({**gateway.config, **keys}))
        done = run(file)
        assert done.returncode == 73, done.stderr
        assert f"{protocol}: {gateway.addresses[protocol]}" in done.stderr


# -- the file -----------------------------------------------------------------------------------------------------
def written(tmp_path: Path, **keys: Any) -> GatewayFile:
    tenant = {"name": "ada", "token_file": "/t"}
    (tmp_path / "f.toml").write_text(to_toml({"tenant": [tenant]} | keys))
    return load(str(tmp_path / "f.toml"))


def test_the_least_file_listens_on_loopback_only(tmp_path: Path) -> None:
    config = written(tmp_path)
    assert (config.http, config.grpc, config.tls) == ("127.0.0.1:8000", "127.0.0.1:8001", None)
    assert config.tenant[0].uids == [], "no shared memory unless it is said whose"


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"tenant": []}, "at least 1 item"),
        ({"tenant": [{"name": "a", "token_file": "/t"}, {"name": "a", "token_file": "/u"}]}, "two tenants of one name"),
        ({"tenant": [{"name": "a"}]}, "give either token_file or tls"),
        ({"tenant": [{"name": "a", "token_file": "/t", "uids": ["no-such-user"]}]}, "no such user: 'no-such-user'"),
        ({"http": "", "grpc": ""}, "it listens nowhere"),
        ({"http": "8000"}, "http: Value error, must be HOST:PORT"),
        ({"http": ":8000"}, "0.0.0.0:PORT is every interface"),
        ({"grpc": "127.0.0.1:65536"}, "a port must be at most 65535"),
        ({"connections": 0}, "greater than or equal to 1"),
        ({"memory_bytes": 1}, "greater than or equal to"),
        ({"grpc_ping_ms": 0}, "greater than or equal to 100"),
        ({"grpc_keepalive_s": 9}, "greater than or equal to 10"),
        ({"tls": {"cert_file": "x"}}, "key_file: Field required"),
    ],
)
def test_a_fault_of_the_file_is_named(tmp_path: Path, keys: dict[str, Any], why: str) -> None:
    with pytest.raises(GatewayConfigInvalid, match=why):
        written(tmp_path, **keys)


def test_files_that_are_none(tmp_path: Path) -> None:
    for text in (b"a = ", b"\xff", b"[" * 5000, b"memory_bytes = " + b"9" * 5000, b"a = [" * 5000):
        (tmp_path / "f.toml").write_bytes(text)
        with pytest.raises(GatewayConfigInvalid, match=r"f\.toml: "):
            load(str(tmp_path / "f.toml"))
    with pytest.raises(GatewayConfigInvalid, match="No such file"):
        load(str(tmp_path / "none"))


# -- TLS ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def over_tls(
    gateway: GatewayProcess, authority: Authority, certificate: tuple[str, str] | None, token: str = ""
) -> int:
    context = ssl.create_default_context(cafile=authority.ca_file)
    if certificate is not None:
        context.load_cert_chain(*certificate)
    request = urllib.request.Request(f"https://{gateway.addresses['http']}/v2/models/scaling/infer", in_json(ROWS))
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            assert json.load(answer)["outputs"][0]["data"] == [0, 2, 4, 6, 8, 10]
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_certificate_or_a_token_or_both_that_agree(make: Make, authority: Authority, tmp_path: Path) -> None:
    server, key = authority.issue("localhost", is_server=True)
    gateway = make(tls={"cert_file": server, "key_file": key, "client_ca_file": authority.ca_file})
    ada = authority.issue("ada", "offpath://tenant/ada")
    assert over_tls(gateway, authority, ada) == 200
    assert over_tls(gateway, authority, None, Rig.token("ada")) == 200
    assert over_tls(gateway, authority, ada, Rig.token("ada")) == 200
    assert over_tls(gateway, authority, ada, Rig.token("bob")) == 401
    assert over_tls(gateway, authority, ada, "wrong") == 401
    assert over_tls(gateway, authority, None) == 401
    assert over_tls(gateway, authority, authority.issue("eve", "offpath://tenant/eve")) == 401
    assert over_tls(gateway, authority, authority.issue("two", "offpath://tenant/ada", "offpath://tenant/bob")) == 401
    os.makedirs(tmp_path / "other")
    unknown = Authority(tmp_path / "other", "another").issue("ada", "offpath://tenant/ada")
    with pytest.raises((OSError, ssl.SSLError)):
        over_tls(gateway, authority, unknown)
