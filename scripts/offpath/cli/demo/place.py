"""The demo's temporary directory: configuration, token files, the model, and the parameters of its processes."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from offpath.bindings.errors import NoRdmaDevice
from offpath.bindings.ports import HostConnector
from offpath.bindings.runtime import HOST_SOCKET, NEGOTIATE_SOCKET
from offpath.bindings.verbs.devices import ports
from offpath.bindings.zeromq.keys import make_keys
from offpath.cli.demo.doca import find
from offpath.cli.demo.gpus import Gpus
from offpath.cli.demo.samples import MAX_IMAGES, PIXELS
from offpath.host_helper.channels import host_channel

LANES: Final = 2
PAYLOAD_BYTES: Final = MAX_IMAGES * PIXELS * 4 + 64
LANDING_BYTES: Final = 1 << 20
RESULT_BYTES: Final = 64 << 10
SLOTS: Final = 16
KEEP_WARM_MS: Final = 300
_LONGEST_PATH: Final = 80
"""Leaves room for the sockets' names in the 107 bytes of a Unix socket's address."""

_LEASING: Final = f"""
[leasing]  # short, so that leases open and close within seconds, not hours
lanes = {LANES}
landing_bytes = {LANDING_BYTES}
result_bytes = {RESULT_BYTES}
keep_warm_ms = {KEEP_WARM_MS}
grow_after_ms = 10
reclaim_after_ms = 50
min_hold_ms = 100
"""


_DATAPATH: Final = """
[datapath]
fabric = "{fabric}"
copy_engine = "{copy_engine}"
host_channel = "{host_channel}"

[rdma]
device = "{dpu_device}"

[doca]
path = "{doca_path}"
"""


@dataclass(frozen=True, slots=True)
class Datapath:
    """The carrier and the copy engine. For `verbs`: the RDMA devices of the DPU's side and of the others', and the
    network namespace of requesters, if it is another one. For `doca`: the folder of DOCA's libraries (empty: the
    default one), its release, and whether it is the emulator.
    """

    fabric: str = "loopback"
    copy_engine: str = "loopback"
    dpu_device: str = ""
    host_device: str = ""
    netns: str = ""
    doca_path: str = ""
    doca_version: str = ""
    is_emulated: bool = False
    host_channel: str = "unix"

    @classmethod
    def chosen(cls, fabric: str, copy_engine: str, netns: str, channel: str) -> Datapath:
        """With two ports, the DPU's is the first by name; with one port, both are the same.

        Raises: NoRdmaDevice. DocaMissing: DOCA is not installed, and its emulator cannot be built.
        """
        made = cls(fabric, copy_engine, netns=netns, host_channel=channel)
        if copy_engine == "doca" or channel == "comch":
            doca = find()
            made = replace(made, doca_path=doca.folder, doca_version=doca.version, is_emulated=doca.is_emulated)
        if "verbs" in (fabric, copy_engine):
            usable = [port for port in ports() if port.is_active and port.usable_gids]
            if not usable:
                raise NoRdmaDevice("no active port with a GID of RoCEv2 over IPv4; see `offpath doctor`")
            made = replace(made, dpu_device=usable[0].device, host_device=usable[-1].device)
        return made


@dataclass(frozen=True, slots=True)
class Place:
    """``tenants`` maps names to token files; ``seconds`` and ``jobs`` are those of `samples.load_plan`."""

    directory: str
    tenants: dict[str, str]
    seed: int
    seconds: float
    jobs: int | None
    break_scrub: bool
    datapath: Datapath
    gpus: Gpus

    @property
    def path(self) -> str:
        """The file that describes this place."""
        return os.path.join(self.directory, "place.json")

    @property
    def config(self) -> str:
        """The daemon's configuration."""
        return os.path.join(self.directory, "offpathd.toml")

    @property
    def model(self) -> str:
        """The trained networks."""
        return os.path.join(self.directory, "model.npz")

    @property
    def runtime(self) -> str:
        """The daemon's runtime directory."""
        return os.path.join(self.directory, "run")

    def connector(self) -> HostConnector:
        """How the helper connects."""
        if self.datapath.host_channel == "unix":
            return host_channel("unix", path=os.path.join(self.runtime, HOST_SOCKET))
        if self.datapath.host_channel == "comch":
            return host_channel("comch", doca_path=self.datapath.doca_path)
        return host_channel(
            "zmq", daemon=_zmq_address(self.directory), key=os.path.join(self.directory, "hosts", "demo.key"),
            server_key=os.path.join(self.directory, "daemon.pub"),
        )  # fmt: skip

    def environment(self, side: str) -> dict[str, str]:
        """The environment of the processes of a side, ``dpu`` or ``host``, for the emulators that are used."""
        gpus = self.gpus.environment(self.directory) if side == "host" else {}
        if not self.datapath.is_emulated:
            return gpus
        return gpus | {"DOCA_EMULATOR_SIDE": side, "DOCA_EMULATOR_DIR": os.path.join(self.directory, "doca")}

    @property
    def address(self) -> str:
        """The address at which requesters negotiate."""
        return "unix:" + os.path.join(self.runtime, NEGOTIATE_SOCKET)

    @classmethod
    def read(cls, path: str) -> Place:
        """Read what `making` wrote."""
        data = json.loads(Path(path).read_text("utf-8"))
        return cls(**{**data, "datapath": Datapath(**data["datapath"]), "gpus": Gpus(**data["gpus"])})


def _zmq_address(directory: str) -> str:
    return f"ipc://{directory}/host.zmq"


def _zmq_table(directory: str) -> str:
    """The table, with a key pair for each side. Raises: ZmqMissing."""
    hosts = os.path.join(directory, "hosts")
    os.mkdir(hosts, mode=0o700)
    make_keys("demo", hosts)
    key_file, _ = make_keys("daemon", directory)
    table = {"bind": _zmq_address(directory), "key_file": key_file, "allowed": hosts}
    return "\n[zmq]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


@contextmanager
def making(
    tenants: list[str],
    *,
    seed: int,
    seconds: float,
    jobs: int | None,
    break_scrub: bool,
    datapath: Datapath,
    gpus: Gpus,
) -> Iterator[Place]:
    """A new place, removed when the block ends."""
    parent = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(
        prefix="offpath-demo-", dir=parent if len(parent) <= _LONGEST_PATH else "/tmp", ignore_cleanup_errors=True
    ) as directory:
        os.mkdir(os.path.join(directory, "doca"), mode=0o700)
        gpus.prepare(directory)
        files = {name: os.path.join(directory, f"{name}.token") for name in tenants}
        place = Place(directory, files, seed, seconds, jobs, break_scrub, datapath, gpus)
        config = _LEASING + _DATAPATH.format(**asdict(datapath))
        if datapath.host_channel == "zmq":
            config += _zmq_table(directory)
        for name, file in files.items():
            with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as token:
                token.write(secrets.token_hex(24))
            config += f"\n[[tenant]]\nname = {json.dumps(name)}\ntoken_file = {json.dumps(file)}\n"
        Path(place.config).write_text(config, "utf-8")
        Path(place.path).write_text(json.dumps(asdict(place)), "utf-8")
        yield place
