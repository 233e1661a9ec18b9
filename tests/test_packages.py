"""The Debian packages: what they contain, what their scripts do, and lintian's judgement.

The packages here are made as ./scripts/build-deb makes them, from environments with the project's modules alone, which
takes seconds; ./scripts/build-deb has lintian judge the whole ones. What they do on a machine with systemd:
tests/test_node_vm.py and tests/node/acceptance.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
UNITS = ROOT / "systemd"
SCHEMA = "0123456789abcdef"
PACKAGES = ("offpathd", "offpath-host")
ROLES = {"offpathd": ("dpu_daemon", "bindings", "sched", "scripts"), "offpath-host": ("host_helper", "bindings")}
needs_debhelper = pytest.mark.skipif(
    shutil.which("dh") is None, reason="needs debhelper: the package debhelper of Debian and Ubuntu"
)
needs_lintian = pytest.mark.skipif(
    shutil.which("lintian") is None, reason="needs lintian: the package lintian of Debian and Ubuntu"
)


def made(build: Path) -> dict[str, Path]:
    """The packages of environments with the project's modules alone."""
    for package, roles in ROLES.items():
        home = build / "environments" / package
        for role in roles:
            shutil.copytree(
                ROOT / role / "offpath", home / "lib/python3.11/site-packages/offpath", dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("__pycache__", "*.so"),
            )  # fmt: skip
        (home / "bin").mkdir()
        (home / "bin/python").symlink_to("/usr/bin/python3.11")
        (home / "bin/offpath").write_text(f"#!/usr/lib/{package}/bin/python -sP\n")
        (home / "bin/offpath").chmod(0o755)
    (build / "environments/offpathd/journal-schema").write_text(f"{SCHEMA}\n")
    (build / "completion").write_text("complete offpath\n")
    script = [ROOT / "scripts/deb/pack", build, "amd64", "3.11", "1.2.3"]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return {package: build.parent / f"{package}_1.2.3_amd64.deb" for package in PACKAGES}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    build = tmp_path_factory.mktemp("packages") / "build"
    build.mkdir()
    return made(build)


@pytest.fixture(scope="module")
def trees(packages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What each package would put on a machine, with its scripts in DEBIAN."""
    folder = tmp_path_factory.mktemp("trees")
    for package, file in packages.items():
        subprocess.run(["dpkg-deb", "--raw-extract", file, folder / package], check=True, timeout=120)
    return {package: folder / package for package in packages}


# -- contents -----------------------------------------------------------------------------------------------------
@needs_debhelper
def test_each_unit_is_in_one_package_and_starts_that_packages_program(trees: dict[str, Path]) -> None:
    found = {}
    for package, tree in trees.items():
        for unit in (tree / "lib/systemd/system").iterdir():
            found[unit.name] = package
            programs = re.findall(r"^Exec(?:Start|Reload)=(\S+/offpath) ", unit.read_text(), re.MULTILINE)
            assert set(programs) <= {f"/usr/lib/{package}/bin/offpath"}, unit.name
            assert (unit.suffix == ".socket") == (programs == []), unit.name
    assert set(found) == {path.name for path in UNITS.iterdir() if path.suffix in (".service", ".socket")}
    hosts = {unit for unit, package in found.items() if package == "offpath-host"}
    assert hosts == {"offpath-helper.service", "offpath-migd.service", "offpath-gateway@.service"}


@needs_debhelper
def test_users_and_folders_are_those_of_the_tree(trees: dict[str, Path]) -> None:
    for package, tree in trees.items():
        users = re.findall(r"^u (\S+)", (tree / f"usr/lib/sysusers.d/{package}.conf").read_text(), re.MULTILINE)
        assert users == {"offpathd": ["offpath", "offpath-helper"], "offpath-host": ["offpath-helper"]}[package]
        rules = (UNITS / f"{package}.tmpfiles").read_text()
        assert (tree / f"usr/lib/tmpfiles.d/{package}.conf").read_text() == rules


@needs_debhelper
def test_configurations_are_conffiles_so_that_an_upgrade_keeps_an_operators_edit(trees: dict[str, Path]) -> None:
    listed = {package: (tree / "DEBIAN/conffiles").read_text().split() for package, tree in trees.items()}
    assert listed == {
        "offpathd": ["/etc/offpath/collab.toml", "/etc/offpath/controller.toml", "/etc/offpath/offpathd.toml"],
        "offpath-host": ["/etc/offpath/migd.toml"],
    }
    for package, names in listed.items():
        etc = {f"/{path.relative_to(trees[package])}" for path in (trees[package] / "etc").rglob("*") if path.is_file()}
        assert etc == set(names)


@needs_debhelper
def test_two_packages_share_no_file(trees: dict[str, Path]) -> None:
    files = [
        {path.relative_to(tree) for path in tree.rglob("*") if not path.is_dir() and "DEBIAN" not in path.parts}
        for tree in trees.values()
    ]
    assert files[0] & files[1] == set()


@needs_debhelper
def test_the_web_page_is_with_the_daemon_whole(trees: dict[str, Path]) -> None:
    static = "cli/web/static"
    shipped = {path.name for path in trees["offpathd"].glob(f"**/offpath/{static}/*")}
    assert shipped == {path.name for path in (ROOT / "scripts/offpath" / static).iterdir()}
    assert not list(trees["offpath-host"].glob(f"**/{static}"))


# -- scripts ------------------------------------------------------------------------------------------------------
class Machine:
    """The commands that maintainer scripts call, as programs that write down each call. ``state``: of the daemon's
    unit. ``failing``: the end of a call of systemctl that fails."""

    def __init__(self, folder: Path, state: str = "inactive", failing: str = "nothing") -> None:
        self.folder, self._log = folder, folder / "calls"
        folder.mkdir()
        for name in ("deb-systemd-invoke", "systemd-sysusers", "systemd-tmpfiles"):
            self._program(name, "")
        self._program("update-alternatives", "")
        self._program("deb-systemd-helper", 'case "$*" in *debian-installed*) exit 1 ;; esac')  # for the first time
        self._program("systemctl", f'case "$*" in *ActiveState*) echo {state} ;; *{failing}) exit 1 ;; esac')

    def _program(self, name: str, rest: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self._log}\n{rest}\n')
        path.chmod(0o755)

    def run(self, script: str, *words: str) -> subprocess.CompletedProcess[str]:
        """``script`` as dpkg starts it, on a machine with systemd."""
        (self.folder / "script").write_text(script.replace("/run/systemd/system", str(self.folder)))
        environment: Mapping[str, str] = {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        command = ["sh", self.folder / "script", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)

    @property
    def calls(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []


def invoked(machine: Machine) -> list[str]:
    """What was asked of systemd that changes what runs."""
    asked = r"(deb-systemd-invoke|systemctl) .*\b(start|restart|stop|try-restart|reload|enable)\b"
    return [call for call in machine.calls if re.match(asked, call) and "daemon-reload" not in call]


def enabled(machine: Machine) -> list[str]:
    return [call for call in machine.calls if re.match(r"deb-systemd-helper enable|systemctl enable", call)]


@needs_debhelper
@pytest.mark.parametrize("package", PACKAGES)
def test_an_installation_starts_and_enables_nothing(trees: dict[str, Path], tmp_path: Path, package: str) -> None:
    machine = Machine(tmp_path / "machine")
    script = (trees[package] / "DEBIAN/postinst").read_text()
    assert machine.run(script, "configure", "").returncode == 0
    assert (invoked(machine), enabled(machine)) == ([], [])
    spoilt = script.replace('[ -n "$2" ] && ', "")
    assert spoilt != script
    assert machine.run(spoilt, "configure", "").returncode == 0
    assert invoked(machine) != [], "a planted start is found"


@needs_debhelper
@pytest.mark.parametrize("package", PACKAGES)
def test_an_upgrade_restarts_each_service_that_runs_and_one_that_fails_does_not_stop_it(
    trees: dict[str, Path], tmp_path: Path, package: str
) -> None:
    """systemd leaves a unit alone that does not run: try-restart. The units are read anew before."""
    services = {unit.name for unit in (trees[package] / "lib/systemd/system").iterdir() if unit.suffix == ".service"}
    names = {name.replace("@", "@*") for name in services}
    for failing in ("nothing", *sorted(names)):
        machine = Machine(tmp_path / failing.replace("*", ""), failing=failing.replace("*", "?"))
        done = machine.run((trees[package] / "DEBIAN/postinst").read_text(), "configure", "1.2.2")
        assert done.returncode == 0
        assert (f"{failing} did not restart" in done.stderr) == (failing != "nothing")
        assert set(invoked(machine)) == {f"systemctl try-restart {name}" for name in names}
        reload = machine.calls.index("systemctl --system daemon-reload")
        assert reload < min(map(machine.calls.index, invoked(machine)))


@needs_debhelper
@pytest.mark.parametrize(("package", "script"), [(each, name) for each in PACKAGES for name in ("prerm", "postrm")])
def test_an_upgrade_stops_nothing(trees: dict[str, Path], tmp_path: Path, package: str, script: str) -> None:
    machine = Machine(tmp_path / "machine", state="active")
    assert machine.run((trees[package] / "DEBIAN" / script).read_text(), "upgrade", "1.2.4").returncode == 0
    assert invoked(machine) == []


@needs_debhelper
def test_a_removal_stops_every_unit_of_the_package(trees: dict[str, Path], tmp_path: Path) -> None:
    for package, tree in trees.items():
        machine = Machine(tmp_path / package)
        assert machine.run((tree / "DEBIAN/prerm").read_text(), "remove").returncode == 0
        (stop,) = invoked(machine)
        stopped = {each.strip("'").replace("@*", "@") for each in stop.split()[2:]}
        assert stopped == {unit.name for unit in (tree / "lib/systemd/system").iterdir()}


@needs_debhelper
@pytest.mark.parametrize(
    ("installed", "state", "code"),
    [
        (SCHEMA, "active", 0), ("another", "active", 1), ("", "active", 1), ("another", "activating", 1),
        ("another", "deactivating", 1), ("another", "inactive", 0), ("another", "failed", 0),
    ],
)  # fmt: skip
def test_an_upgrade_that_would_lose_a_running_daemons_journal_is_refused(
    trees: dict[str, Path], tmp_path: Path, installed: str, state: str, code: int
) -> None:
    machine = Machine(tmp_path / "machine", state=state)
    script = (trees["offpathd"] / "DEBIAN/preinst").read_text()
    assert "@SCHEMA@" not in script
    (tmp_path / "schema").write_text(installed)
    done = machine.run(script.replace("/usr/lib/offpathd/journal-schema", str(tmp_path / "schema")), "upgrade", "1.2.2")
    assert done.returncode == code, done.stderr
    assert ("offpath daemon drain" in done.stderr) == (code == 1), "and says what to do"


@needs_debhelper
@needs_lintian
def test_lintian_finds_nothing_but_that_an_override_is_of_wheels_which_are_not_here(packages: dict[str, Path]) -> None:
    command = ["lintian", "--allow-root", "--tag-display-limit", "0", *map(str, packages.values())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    found = [line for line in done.stdout.splitlines() if line[:2] in ("E:", "W:")]
    assert [line.split()[:4] for line in found] == [
        ["W:", f"{package}:", "mismatched-override", "unusual-interpreter"] for package in sorted(PACKAGES)
    ], done.stdout
