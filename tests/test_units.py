"""The shipped units, judged by systemd's own tools on a staged copy, and by what the code says."""

from __future__ import annotations

import ctypes.util
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel

from offpath.bindings.runtime import INA_DIRECTORY
from offpath.cli.main import parsed
from offpath.dpu_daemon.collab.config import CollabConfig
from offpath.dpu_daemon.config import (
    DaemonConfig,
    DatapathTable,
    DurabilityTable,
    LeaseTable,
    LeasingTable,
    LimitsTable,
    OperationTable,
    TenantTable,
    TlsTable,
    load_config,
    parse_config,
)
from offpath.dpu_daemon.controller.config import ControllerConfig
from offpath.dpu_daemon.doctor.place import memlock_bytes, open_files
from offpath.dpu_daemon.durability.inherited import LISTENING
from offpath.dpu_daemon.durability.service_manager import ServiceManagerSettings
from offpath.host_helper.migd.config import DEFAULT_DESTROY_WAIT_MS, DEFAULT_HOLD_MS, MigdFile
from offpath.host_helper.migd.serve import SYSTEM_DIRECTORY

from .dpu_daemon.conftest import make_cluster  # noqa: F401  (a fixture)
from .support.cluster import MIB, Cluster

ROOT = Path(__file__).resolve().parent.parent
SERVICES = (
    "offpathd.service", "offpath-helper.service", "offpath-migd.service", "offpath-controller.service",
    "offpath-collab.service", "offpath-switch@.service", "offpath-gateway@.service",
)  # fmt: skip
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze: the package systemd of Debian and Ubuntu"
)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `./scripts/install-units` makes."""
    target = tmp_path_factory.mktemp("units")
    script = [str(ROOT / "scripts" / "install-units"), str(target)]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def units(staged: Path) -> Path:
    return staged / "usr/lib/systemd/system"


def systemd(*command: str, folder: Path | None = None) -> tuple[int, str]:
    """Exit code and everything it said."""
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:", "SYSTEMD_COLORS": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    return done.returncode, done.stdout + done.stderr


def read(path: Path) -> dict[str, list[str]]:
    """Every value of each key, sections left aside: no two sections of a unit share a key."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


# -- systemd's judgement ------------------------------------------------------------------------------------------
def verify(folder: Path) -> tuple[int, str]:
    files = sorted(str(path) for path in folder.iterdir())
    return systemd("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *files, folder=folder)


@needs_systemd
def test_systemd_finds_nothing_to_say_about_the_staged_units(units: Path) -> None:
    assert verify(units) == (0, "")


@needs_systemd
@pytest.mark.parametrize(
    ("unit", "was", "becomes"),
    [
        ("offpathd.service", "WatchdogSec=10s", "WatchdogSecs=10s"),
        ("offpathd.service", "ExecStart=/", "ExecStart=/nowhere/"),
        ("offpathd-fabric.socket", "ListenSequentialPacket=/", "ListenSequentialPacket=:"),
    ],
)
def test_a_planted_mistake_is_found(units: Path, tmp_path: Path, unit: str, was: str, becomes: str) -> None:
    spoilt = Path(shutil.copytree(units, tmp_path / "spoilt"))
    text = (spoilt / unit).read_text()
    assert was in text
    (spoilt / unit).write_text(text.replace(was, becomes))
    assert unit in verify(spoilt)[1]


@needs_systemd
@pytest.mark.parametrize("service", SERVICES)
def test_the_services_are_exposed_by_no_more_than_2_0(units: Path, tmp_path: Path, service: str) -> None:
    """systemd's own measure, 0 (best) to 10. Without its sandbox the same unit misses the bar."""

    def judged(folder: Path) -> int:
        command = ("systemd-analyze", "security", "--offline=yes", "--threshold=20", str(folder / service))
        return systemd(*command, folder=folder)[0]

    assert judged(units) == 0
    bare = Path(shutil.copytree(units, tmp_path / "bare"))
    (bare / service).write_text((bare / service).read_text().replace("\nProtect", "\n#").replace("\nSystemCall", "\n#"))
    assert judged(bare) != 0


@needs_systemd
def test_users_and_folders_are_made_as_declared(staged: Path, tmp_path: Path) -> None:
    """In a root of its own: nothing of this machine is touched."""
    (tmp_path / "etc").mkdir()
    code, said = systemd("systemd-sysusers", f"--root={tmp_path}", str(staged / "usr/lib/sysusers.d/offpath.conf"))
    assert code == 0, said
    users = {line.split(":")[0]: line.split(":") for line in (tmp_path / "etc/passwd").read_text().splitlines()}
    assert set(users) == {"offpath", "offpath-helper"}
    if os.geteuid() != 0:
        return  # only root can give folders away
    rules = [str(staged / "usr/lib/tmpfiles.d" / name) for name in ("offpath.conf", "offpath-host.conf")]
    code, said = systemd("systemd-tmpfiles", f"--root={tmp_path}", "--create", *rules)
    assert code == 0, said
    daemon, helper = (int(users[name][2]) for name in ("offpath", "offpath-helper"))
    expected = {"run/offpath": (daemon, 0o755), "run/offpath-ina": (helper, 0o700), "etc/offpath/tokens": (0, 0o700)}
    for name, of in expected.items():
        made = (tmp_path / name).stat()
        assert (made.st_uid, made.st_mode & 0o777) == of


# -- against the code ---------------------------------------------------------------------------------------------
def test_the_service_starts_what_is_installed_with_the_limits_of_the_configuration(staged: Path, units: Path) -> None:
    service = read(units / "offpathd.service")
    command, *words = service["ExecStart"][0].split()
    assert os.access(command, os.X_OK)
    assert words == ["-v", "daemon", "run", "--config", "/etc/offpath/offpathd.toml"]
    config = load_config(str(staged / "etc/offpath/offpathd.toml"))
    assert service["LimitMEMLOCK"] == [str(memlock_bytes(config))]
    assert int(service["LimitNOFILE"][0]) >= open_files(config)
    assert service["LimitCORE"] == ["0"]


def test_another_configuration_gets_another_limit(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        '[[tenant]]\nname = "a"\nmax_bytes = 10000\n[[tenant]]\nname = "b"\nmax_bytes = 5000\n'
    )
    script = [str(ROOT / "scripts" / "install-units"), str(tmp_path / "to"), str(tmp_path / "c.toml")]
    subprocess.run(script, capture_output=True, check=True, timeout=300)
    assert read(tmp_path / "to/usr/lib/systemd/system/offpathd.service")["LimitMEMLOCK"] == ["16500"]
    (tmp_path / "c.toml").write_text("tenant = 3")
    assert subprocess.run(script, capture_output=True, check=False, timeout=300).returncode == 1


def test_the_socket_units_are_the_sockets_that_the_daemon_takes(units: Path) -> None:
    kinds = {"ListenStream": "SOCK_STREAM", "ListenSequentialPacket": "SOCK_SEQPACKET"}
    found = {}
    for path in units.glob("*.socket"):
        unit = read(path)
        (listen,) = kinds.keys() & unit.keys()
        (name,) = unit["FileDescriptorName"]
        assert path.name == f"offpathd-{name}.socket"
        assert unit["Service"] == ["offpathd.service"]
        found[name] = (unit[listen][0].removeprefix("/run/offpath/"), kinds[listen])
    assert found == {name: (file, kind.name) for name, (file, kind) in LISTENING.items()}
    service = read(units / "offpathd.service")
    assert set(service["Requires"][0].split()) <= set(service["After"][0].split())
    assert set(service["Requires"][0].split()) == {path.name for path in units.glob("*.socket")}


def test_the_daemon_may_connect_to_each_socket_that_its_check_of_itself_connects_to(units: Path) -> None:
    """As its own user: the check before each WATCHDOG=1 asks every listener but the administrator's."""
    service = read(units / "offpathd.service")
    groups = {*service["Group"], *service["SupplementaryGroups"]}
    for name in LISTENING.keys() - {"admin"}:
        unit = read(units / f"offpathd-{name}.socket")
        mode = int(unit["SocketMode"][0], 8)
        assert unit["SocketUser"] != service["User"]
        assert mode & 0o6 == 0o6 or (mode & 0o60 == 0o60 and unit["SocketGroup"][0] in groups), name


def test_the_unit_and_the_service_manager_agree_on_how_a_daemon_is_kept(units: Path) -> None:
    service, manager = read(units / "offpathd.service"), ServiceManagerSettings()
    assert service["WatchdogSec"] == [f"{manager.watchdog_s:g}s"]
    assert service["TimeoutStartSec"] == [f"{manager.start_s:g}s"]
    assert service["TimeoutAbortSec"] == [f"{manager.abort_s:g}s"]
    assert (service["StartLimitBurst"], service["StartLimitIntervalSec"]) == (["5"], ["10s"])
    assert (manager.starts, manager.starts_within_s) == (5, 10.0)
    assert int(service["TimeoutStopSec"][0].removesuffix("s")) * 1000 > LimitsTable().drain_ms


def test_migds_unit_has_two_capabilities_no_network_and_the_devices_that_it_needs(staged: Path, units: Path) -> None:
    service = read(units / "offpath-migd.service")
    command, *words = service["ExecStart"][0].split()
    assert os.access(command, os.X_OK)
    assert words == ["-v", "migd", "run", "--config", "/etc/offpath/migd.toml"]
    assert service["CapabilityBoundingSet"] == ["CAP_MKNOD CAP_CHOWN"]
    assert (service["PrivateNetwork"], service["RestrictAddressFamilies"]) == (["yes"], ["AF_UNIX"])
    assert service["DeviceAllow"][-1] == "char-nvidia-caps rwm"
    assert f"/run/{service['RuntimeDirectory'][0]}" == SYSTEM_DIRECTORY
    assert (staged / "etc/offpath/migd.toml").exists()
    calls = allowed_calls("offpath-migd.service")
    assert {"mknodat", "fchownat", "recvmsg", "ioctl", "mmap"} <= calls
    assert not calls & {"ptrace", "mount", "setuid", "setresuid", "init_module", "reboot", "bpf"}


def test_migds_example_is_taken_with_and_without_its_comments() -> None:
    text = (ROOT / "systemd" / "migd.example.toml").read_text()
    whole = re.sub(r"^# (?=[a-z_]+ = |\")", "", text, flags=re.MULTILINE)
    for each in (text, whole):
        MigdFile.model_validate(tomllib.loads(each))
    assert set(tomllib.loads(whole)) == set(MigdFile.model_fields)
    shown = tomllib.loads(whole)
    assert (shown["hold_ms"], shown["destroy_wait_ms"]) == (DEFAULT_HOLD_MS, DEFAULT_DESTROY_WAIT_MS)


@pytest.mark.parametrize(
    ("name", "model", "shown"), [("controller", ControllerConfig, "switch"), ("collab", CollabConfig, "gateways")]
)
def test_a_controllers_example_is_taken_with_and_without_its_comments(
    name: str, model: type[BaseModel], shown: str
) -> None:
    """``shown``: a table that is commented out. Its secrets are credentials, its state is where the unit may write."""
    text = (ROOT / "systemd" / f"{name}.example.toml").read_text()
    whole = re.sub(r"^# (?=[a-z_]+ = |\[)", "", text, flags=re.MULTILINE)
    for each in (text, whole):
        model.model_validate(tomllib.loads(each))
    assert tomllib.loads(whole)[shown]
    service = read(ROOT / "systemd" / f"offpath-{name}.service")
    assert service["LoadCredential"] == [f"{name}:/etc/offpath/{name}"]
    assert set(re.findall(r"\$\{CREDENTIALS_DIRECTORY\}/([a-z]+)_", whole)) == {name}
    assert set(re.findall(r"^[a-z_]*(?:key|cert)[a-z_]* = \[?\"(.)", whole, re.MULTILINE)) == {"$"}
    assert tomllib.loads(whole)["operation"]["state"].startswith(f"/var/lib/{service['StateDirectory'][0]}/")


@pytest.mark.parametrize("service", ["offpathd.service", "offpath-controller.service", "offpath-collab.service"])
def test_a_service_that_listens_with_zeromq_may_ask_for_the_machines_interfaces(service: str) -> None:
    """libzmq 4.3 calls getifaddrs for the address of a bind, and aborts the process where that fails."""
    assert "AF_NETLINK" in read(ROOT / "systemd" / service)["RestrictAddressFamilies"][0].split()


def test_a_switchs_unit_passes_its_name_and_its_addresses() -> None:
    service = read(ROOT / "systemd" / "offpath-switch@.service")
    words = service["ExecStart"][0].split()
    assert words[2:4] == ["switch", "run"]
    assert parsed(words[2:]).name == "%i"
    made = (ROOT / "systemd/offpathd.tmpfiles").read_text()
    assert service["EnvironmentFile"][0].rpartition("/")[0] in made


def test_the_helpers_unit_may_write_where_the_ranks_of_training_jobs_keep_their_state_files() -> None:
    service = read(ROOT / "systemd" / "offpath-helper.service")
    folder = dict(each.split("=", 1) for each in service["Environment"])[INA_DIRECTORY]
    assert service["ReadWritePaths"] == [f"-{folder}"]
    made = (ROOT / "systemd/offpath-host.tmpfiles").read_text()
    assert re.search(rf"^d {folder} +0700 {service['User'][0]} ", made, re.MULTILINE)


# -- the example --------------------------------------------------------------------------------------------------
EXAMPLE = (ROOT / "systemd" / "offpath.example.toml").read_text()


def test_the_example_says_what_holds_when_nothing_is_said() -> None:
    """But for ``datapath.spin_us``: the example is a DPU's, and the default suits a host."""
    config = parse_config(tomllib.loads(EXAMPLE), "example")
    assert config.leasing == LeasingTable()
    assert config.durability == DurabilityTable()
    assert config.limits == LimitsTable()
    assert config.operation == OperationTable()
    (tenant,) = config.tenant
    bare = TenantTable(name=tenant.name, token_file=tenant.token_file, weight=tenant.weight)
    assert tenant == bare
    assert config.datapath.spin_us == 150
    assert config == DaemonConfig(tenant=[tenant], datapath=DatapathTable(spin_us=150))


def test_the_example_with_everything_switched_on_is_accepted_and_leaves_nothing_out() -> None:
    """Every key of every table is shown, commented out or not."""
    whole = re.sub(r"^# (?=[a-z_]+ = |\[)", "", EXAMPLE, flags=re.MULTILINE)
    raw = tomllib.loads(whole)
    parse_config(raw, "example")
    tables: list[tuple[dict[str, object], type[BaseModel]]] = [
        (raw, DaemonConfig), (raw["tenant"][0], TenantTable), (raw["lease"][0], LeaseTable),
        (raw["leasing"], LeasingTable), (raw["tls"], TlsTable), (raw["durability"], DurabilityTable),
        (raw["limits"], LimitsTable), (raw["operation"], OperationTable),
    ]  # fmt: skip
    for shown, table in tables:
        assert set(shown) == set(table.model_fields), table.__name__


def test_every_credential_that_the_example_names_is_passed_by_the_unit_from_a_folder_that_is_made() -> None:
    named = set(re.findall(r"\$\{CREDENTIALS_DIRECTORY\}/([a-z]+)_", EXAMPLE))
    assert {"tokens", "tls", "zmq", "ina"} <= named
    passed = dict(each.split(":") for each in read(ROOT / "systemd" / "offpathd.service")["LoadCredential"])
    assert passed == {name: f"/etc/offpath/{name}" for name in named}
    made = {
        line.split()[1]: line.split()[2]
        for line in (ROOT / "systemd/offpathd.tmpfiles").read_text().splitlines()
        if line[0] == "d"
    }
    assert [made.get(folder) for folder in passed.values()] == ["0700"] * len(passed)


@needs_systemd
def test_the_drop_in_of_docs_hosts_gives_a_helper_a_network_where_no_socket_unit_is(
    staged: Path, tmp_path: Path
) -> None:
    text = (ROOT / "docs" / "hosts.md").read_text()
    drop_in = re.search(r"```ini\n(.*?)```", text, re.DOTALL)
    assert drop_in is not None
    shutil.copy(staged / "usr/lib/systemd/system/offpath-helper.service", tmp_path)
    folder = tmp_path / "offpath-helper.service.d"
    folder.mkdir()
    (folder / "zmq.conf").write_text(drop_in[1])
    unit = str(tmp_path / "offpath-helper.service")
    assert systemd("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit, folder=tmp_path) == (0, "")
    shipped, changed = read(Path(unit)), read(folder / "zmq.conf")
    assert "Requires" not in shipped, "the unit starts without the socket"
    for key in ("PrivateNetwork", "IPAddressDeny", "RestrictAddressFamilies"):
        assert shipped[key], "and each restriction that keeps it from the network is lifted"
        assert changed[key] != shipped[key]
    keys = ("HOST_CHANNEL", "DAEMON", "KEY", "SERVER_KEY")
    assert [line.partition("=")[0] for line in changed["Environment"]] == [f"OFFPATH_HELPER_{key}" for key in keys]


# -- under the sandbox --------------------------------------------------------------------------------------------
def allowed_calls(service: str = "offpathd.service") -> set[str]:
    """A unit's SystemCallFilter= lines as systemd reads them: a list, then what is taken from it."""

    def members(group: str) -> set[str]:
        lines = systemd("systemd-analyze", "syscall-filter", "--no-pager", group)[1].splitlines()[1:]
        names = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
        return set().union(*(members(name) if name.startswith("@") else {name} for name in names))

    given, taken = read(ROOT / "systemd" / service)["SystemCallFilter"]
    allowed = set().union(*(members(group) for group in given.split()))
    return allowed - set().union(*(members(group) for group in taken.removeprefix("~").split()))


@needs_systemd
@pytest.mark.skipif(ctypes.util.find_library("seccomp") is None, reason="needs libseccomp")
def test_the_daemon_serves_under_its_units_system_calls_and_without_executable_memory(
    make_cluster: Callable[..., Cluster],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A session, small and large payloads (the copy thread), the watchdog's check, an orderly end."""
    calls = allowed_calls()
    assert {"read", "memfd_create", "pidfd_open", "sendmsg"} < calls
    assert not calls & {"ptrace", "mount", "setuid", "kexec_load"}
    (tmp_path / "calls").write_text(" ".join(sorted(calls)))
    monkeypatch.setenv("OFFPATH_TEST_CALLS", str(tmp_path / "calls"))
    cluster = make_cluster({"alpha": {}}, keep={"watchdog_s": 5})
    cluster.start_helper()
    with cluster.connect("alpha", payload_bytes=3 * MIB, result_bytes=3 * MIB) as requester:
        for count in (10, 300_000):
            array = np.arange(count, dtype=np.float64)
            assert np.array_equal(requester.submit("echo", [array], timeout=30.0).arrays[0], array)
    status = Path(f"/proc/{_daemon_of(cluster)}/status").read_text()
    assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE)


def _daemon_of(cluster: Cluster) -> int:
    children = Path(f"/proc/{cluster.daemon.pid}/task/{cluster.daemon.pid}/children").read_text().split()
    return int(children[0])
