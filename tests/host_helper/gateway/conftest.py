"""A real node with a gateway in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.host_helper.gateway.config import GatewayFile, TenantTable
from offpath.host_helper.gateway.serve import Gateway

from ...support.cluster import Cluster
from ...support.clusters import NARROW
from .rig import TENANTS, Rig, until

Open = Callable[..., Awaitable[Rig]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two tenants, and a helper with the kernels of ``helper_main``. Of a module: its tests share nothing but it."""
    cluster = Cluster(dict.fromkeys(TENANTS, NARROW), leasing={"keep_warm_ms": 60_000})
    try:
        cluster.start_helper()
        yield cluster
        cluster.close()
    finally:
        cluster.kill()


@pytest.fixture
async def open_gateway(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Open]:
    """``await open_gateway(**keys of the file)``: ready when every tenant has its models."""
    opened: list[Rig] = []

    async def make(tenant: dict[str, Any] | None = None, **keys: Any) -> Rig:
        tables = []
        for name in TENANTS:
            (bearer := tmp_path / f"{name}.bearer").write_text(Rig.token(name))
            bearer.chmod(0o600)
            tables.append(
                TenantTable.model_validate(
                    {
                        "name": name,
                        "token_file": str(cluster.folder / f"{name}.token"),
                        "bearer_files": [str(bearer)],
                        "slots": 8,
                        "payload_bytes": 1 << 20,
                        "result_bytes": 1 << 20,
                        **(tenant or {}),
                    }
                )
            )
        config = GatewayFile.model_validate(
            {"daemon": cluster.address, "http": "127.0.0.1:0", "grpc": "", "tenant": tables, **keys}
        )
        gateway = Gateway(config, str(tmp_path / "gateway.toml"))
        await gateway.start()
        rig = Rig(gateway)
        opened.append(rig)
        await until(lambda: all(each.is_ready and each.models.all() for each in gateway.tenants.by_name.values()))
        return rig

    yield make
    for rig in opened:
        await rig.close()
    await asyncio.sleep(0)


@pytest.fixture
async def gateway(open_gateway: Open) -> Rig:
    """With the defaults of `open_gateway`."""
    return await open_gateway()
