"""`offpath doctor`: each fault planted on this machine is found, named by its code, and comes with a way out."""

from __future__ import annotations

import datetime
import json
import os
import pwd
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.faults import POINTS
from offpath.dpu_daemon.config import ConfigError, DaemonConfig, parse_config, read_token, secret_path
from offpath.dpu_daemon.doctor.findings import CODES, Finding, Severity
from offpath.dpu_daemon.doctor.keys import check_keys
from offpath.dpu_daemon.doctor.machine import check_machine
from offpath.dpu_daemon.doctor.place import check_directory, check_helper_user, check_limits, memlock_bytes, open_files

from ..support.certificates import Authority
from ..support.cluster import Cluster, free_port

TOKEN = "t" * 24


def config(**tables: Any) -> DaemonConfig:
    return parse_config({"tenant": [{"name": "alpha"}], **tables}, "test")


def found(findings: Any, code: str) -> list[tuple[str, Severity]]:
    """(what, severity) of each finding of the code; every finding must be fit to be shown."""
    listed: list[Finding] = list(findings)
    for finding in listed:
        assert finding.code in CODES
        assert (finding.fix == "") == (finding.severity is Severity.OK), finding
    return [(finding.what, finding.severity) for finding in listed if finding.code == code]


def doctor(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "offpath.cli.main", "doctor", *words]
    environment = {**os.environ, **(environment or {})}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)


# -- the command --------------------------------------------------------------------------------------------------
def test_a_sound_machine_gets_exit_code_0_and_one_json_document(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "c.toml").write_text(f'[[tenant]]\nname = "alpha"\ntoken_file = "{tmp_path}/token"\n')
    (tmp_path / "run").mkdir(mode=0o700)
    done = doctor("--config", str(tmp_path / "c.toml"), "--runtime-dir", str(tmp_path / "run"), "--json")
    assert done.returncode == 0, done.stdout
    findings = json.loads(done.stdout)
    assert {"page-size", "kernel", "clock", "runtime-directory", "token"} <= {finding["code"] for finding in findings}
    assert {tuple(finding) for finding in findings} == {("code", "severity", "what", "fix")}


def test_what_keeps_the_daemon_from_its_work_comes_first_and_makes_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    done = doctor("--runtime-dir", str(tmp_path / "run"), environment={"OFFPATH_FAULTS": "daemon.answer=kill@9"})
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    errors = {line.split()[1] for line in lines if line.startswith("error")}
    assert errors == {"runtime-directory", "fault-points"}
    assert lines[0].startswith("error")


def test_fault_points_and_codes_are_listed() -> None:
    assert json.loads(doctor("--fault-points", "--json").stdout) == POINTS
    listed = doctor("--codes").stdout
    assert [line.split()[0] for line in listed.splitlines()] == list(CODES)


# -- the machine --------------------------------------------------------------------------------------------------
def test_this_machine_can_run_the_daemon() -> None:
    findings = list(check_machine())
    assert [finding for finding in findings if finding.severity is Severity.ERROR] == []
    assert len(found(findings, "kernel")) == 3


def test_one_processor_is_too_few() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert found(check_machine(), "cpu")[0][1] is Severity.WARNING
    finally:
        os.sched_setaffinity(0, before)


# -- limits -------------------------------------------------------------------------------------------------------
def test_memlock_is_the_sum_of_the_tenants_bytes_and_a_tenth() -> None:
    tenants = [{"name": "alpha", "max_bytes": 10_000}, {"name": "beta", "max_bytes": 5_000}]
    assert memlock_bytes(config(tenant=tenants)) == 16_500


def test_limits_below_the_configuration_are_named_with_the_figure_to_set() -> None:
    tight = config(tenant=[{"name": "alpha", "max_bytes": 1 << 50, "max_sessions": 4096}])
    memlock, nofile = resource.getrlimit(resource.RLIMIT_MEMLOCK), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (min(65536, memlock[1]) if memlock[1] > 0 else 65536, memlock[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, nofile[1]))
    try:
        findings = list(check_limits(tight))
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, memlock)
        resource.setrlimit(resource.RLIMIT_NOFILE, nofile)
    assert [finding.severity for finding in findings] == [Severity.WARNING, Severity.WARNING]
    assert f"LimitMEMLOCK={memlock_bytes(tight)}" in findings[0].fix
    assert f"LimitNOFILE={open_files(tight)}" in findings[1].fix


@pytest.mark.parametrize(("listed", "severity"), [([], Severity.WARNING), ([4711], Severity.OK)])
def test_the_helpers_user_must_be_listed(
    monkeypatch: pytest.MonkeyPatch, listed: list[int], severity: Severity
) -> None:
    """What README's way with the packages asks for; where no package made the user, nothing is said."""
    of = config(host_uids=listed, tenant=[{"name": "alpha"}])
    assert list(check_helper_user(of)) == [] or "offpath-helper" in {user.pw_name for user in pwd.getpwall()}
    user = pwd.struct_passwd(("offpath-helper", "x", 4711, 4711, "", "/", "/bin/false"))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: user)
    (finding,) = check_helper_user(of)
    assert (finding.code, finding.severity) == ("helper-user", severity)
    assert ("host_uids = [4711]" in finding.fix) == (listed == [])


# -- the runtime directory ----------------------------------------------------------------------------------------
def test_a_directory_that_is_open_to_others_or_none_at_all_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o770)
    assert found(check_directory(str(tmp_path / "open"), None), "runtime-directory")[0][1] is Severity.ERROR
    (tmp_path / "file").write_text("")
    assert found(check_directory(str(tmp_path / "file"), None), "runtime-directory")[0][1] is Severity.ERROR
    assert found(check_directory(str(tmp_path / "no"), None), "runtime-directory")[0][1] is Severity.NOTE


def test_another_users_directory_is_an_error(tmp_path: Path) -> None:
    theirs = tmp_path if os.geteuid() == 0 else Path("/")
    if os.geteuid() == 0:
        os.chown(theirs, 65534, 65534)
    assert found(check_directory(str(theirs), None), "runtime-directory")[0][1] is Severity.ERROR


def test_stale_sockets_are_named(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(str(tmp_path / "fabric.sock"))
    tmp_path.chmod(0o700)
    findings = list(check_directory(str(tmp_path), None))
    assert found(findings, "stale-socket") == [(f"no process listens at {tmp_path}/fabric.sock", Severity.NOTE)]


def test_a_journal_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    """Twice the journal must be free: checkpoints need room as well."""
    tmp_path.chmod(0o700)
    space = os.statvfs(tmp_path)
    fits = space.f_bavail * space.f_frsize >= 2 * 4096 << 20
    findings = check_directory(str(tmp_path), config(durability={"journal_mib": 4096}))
    assert found(findings, "journal-space")[0][1] is (Severity.OK if fits else Severity.ERROR)
    assert found(check_directory(str(tmp_path), config(durability={"journal_mib": 0})), "journal-space") == []


def test_a_daemon_that_answers_is_told_from_one_that_hangs(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster({"alpha": {}})
    directory = str(cluster.run_folder)
    assert found(check_directory(directory, None), "daemon")[0][1] is Severity.OK
    with cluster.daemon.stopped():
        hanging = found(check_directory(directory, None), "daemon")
    assert [severity for _, severity in hanging] == [Severity.ERROR]
    assert "no answer for 2 s" in hanging[0][0]
    cluster.daemon.signal(signal.SIGTERM)
    cluster.daemon.ended()
    assert found(check_directory(directory, None), "daemon")[0][1] is Severity.NOTE


def test_a_tcp_carrier_that_nobody_serves_is_an_error(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """The daemon was started without it, so the configuration on disk is not the one that runs."""
    cluster = make_cluster({"alpha": {}})
    tls = {"ca_file": "ca", "cert_file": "cert", "key_file": "key", "listen": f"127.0.0.1:{free_port()}"}
    judged = found(check_directory(str(cluster.run_folder), config(tls=tls)), "daemon")
    assert [severity for _, severity in judged] == [Severity.OK, Severity.ERROR]
    with socket.create_server(("127.0.0.1", 0)) as server:
        tls["listen"] = f"0.0.0.0:{server.getsockname()[1]}"
        judged = found(check_directory(str(cluster.run_folder), config(tls=tls)), "daemon")
    assert [severity for _, severity in judged] == [Severity.OK, Severity.OK]


# -- keys ---------------------------------------------------------------------------------------------------------
def test_tokens_must_be_private_and_long_enough(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("good", "open", "short", "missing")}
    for name, text, mode in (("good", TOKEN, 0o600), ("open", TOKEN, 0o644), ("short", "abc", 0o600)):
        files[name].write_text(text)
        files[name].chmod(mode)
    tenants = [{"name": name, "token_file": str(path)} for name, path in files.items()] + [{"name": "nobody"}]
    judged = [severity for _, severity in found(check_keys(config(tenant=tenants)), "token")]
    assert judged == [Severity.OK, Severity.ERROR, Severity.ERROR, Severity.ERROR, Severity.WARNING]


def with_tls(ca: str, cert: str, key: str) -> DaemonConfig:
    return config(tls={"listen": "127.0.0.1:0", "ca_file": ca, "cert_file": cert, "key_file": key})


def test_certificates_are_read_without_asking_anybody(tmp_path: Path) -> None:
    """An hour is left of the test's own: soon to end, and no error."""
    authority = Authority(tmp_path)
    cert, key = authority.issue("localhost", is_server=True)
    Path(key).chmod(0o600)
    findings = list(check_keys(with_tls(authority.ca_file, cert, key)))
    assert [severity for _, severity in found(findings, "tls-files")] == [Severity.OK]
    assert [severity for _, severity in found(findings, "tls-expiry")] == [Severity.WARNING, Severity.WARNING]


def test_a_certificate_that_has_ended_is_an_error(tmp_path: Path) -> None:
    authority = Authority(tmp_path, life=datetime.timedelta(minutes=-1))
    cert, key = authority.issue("localhost", is_server=True)
    Path(key).chmod(0o600)
    judged = found(check_keys(with_tls(authority.ca_file, cert, key)), "tls-expiry")
    assert [severity for _, severity in judged] == [Severity.ERROR, Severity.ERROR]
    assert judged[1][0] == f"{cert}: certificate has expired"


def test_files_that_do_not_fit_together_are_errors(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (cert, key), (_, other) = authority.issue("a", is_server=True), authority.issue("b", is_server=True)
    for file in (key, other):
        Path(file).chmod(0o600)

    def judged(*files: str) -> list[Severity]:
        return [severity for _, severity in found(check_keys(with_tls(*files)), "tls-files")]

    assert judged(authority.ca_file, cert, other) == [Severity.ERROR]
    assert judged(authority.ca_file, cert, str(tmp_path / "no")) == [Severity.ERROR]
    assert judged(authority.ca_file, key, key) == [Severity.ERROR]
    assert judged(str(tmp_path / "no"), cert, key) == [Severity.OK, Severity.ERROR]
    Path(key).chmod(0o640)
    assert judged(authority.ca_file, cert, key) == [Severity.ERROR, Severity.OK]


# -- credentials of a service manager -----------------------------------------------------------------------------
@pytest.mark.parametrize("prefix", ["$CREDENTIALS_DIRECTORY", "${CREDENTIALS_DIRECTORY}"])
def test_a_credential_is_found_where_the_manager_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """Its group bit is the mask of the access list by which it is ours to read; others' is still refused."""
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (tmp_path / "tokens_alpha").write_text(TOKEN)
    (tmp_path / "tokens_alpha").chmod(0o440)
    assert read_token(f"{prefix}/tokens_alpha") == TOKEN
    with pytest.raises(ConfigError, match="read by others"):
        read_token(str(tmp_path / "tokens_alpha"))
    (tmp_path / "tokens_alpha").chmod(0o444)
    with pytest.raises(ConfigError, match="read by others"):
        read_token(f"{prefix}/tokens_alpha")


def test_a_credential_is_a_name_in_that_folder_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    for name in ("../secret", "a/b", "", "..", "."):
        with pytest.raises(ConfigError, match="not a credential's name"):
            secret_path(f"$CREDENTIALS_DIRECTORY/{name}")
    for plain in ("/etc/token", "$HOME/token", "$CREDENTIALS_DIRECTORYX/a", "x/$CREDENTIALS_DIRECTORY/a"):
        assert secret_path(plain) == plain
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    with pytest.raises(ConfigError, match="LoadCredential"):
        secret_path("$CREDENTIALS_DIRECTORY/a")
