"""Where values come from, and which configurations are refused as a whole: every fault at once, each with its place."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offpath.dpu_daemon.config import ConfigError, LeaseTable, Sources, TenantTable, parse_config
from offpath.dpu_daemon.config.checks import warnings
from offpath.dpu_daemon.config.files import place_paths
from offpath.dpu_daemon.config.restart import NEEDS_RESTART
from offpath.dpu_daemon.config.sources import KEYS, PREFIX, values
from offpath.sched.jobs.settings import MS

from ..support.certificates import Authority

Write = Callable[..., str]
ADA = '[[tenant]]\nname = "ada"\n'
MIB = 1 << 20


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """``write(text)``: the path of a configuration with that text."""

    def make(text: str) -> str:
        path = tmp_path / "offpathd.toml"
        path.write_text(text)
        return str(path)

    return make


@pytest.fixture
def token(tmp_path: Path) -> Write:
    def make(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    return make


def places(fault: pytest.ExceptionInfo[ConfigError]) -> list[str]:
    """What the message names, in order."""
    return [line.strip().partition(": ")[0] for line in str(fault.value).splitlines()[1:]]


def semantic(raw: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as fault:
        parse_config(raw, "x")
    return sorted(places(fault))


# -- origins ------------------------------------------------------------------------------------------------------
def test_a_flag_goes_before_the_environment_that_before_the_file_that_before_the_default(write: Write) -> None:
    file = write("max_jobs = 5\n" + ADA + "[leasing]\nlanes = 3\nkeep_warm_ms = 4\ngrow_after_ms = 5\n")
    environment = {"OFFPATH_LEASING_KEEP_WARM_MS": "40", "OFFPATH_LEASING_GROW_AFTER_MS": "50", "HOME": "x"}
    loaded = Sources(file, environment, ("leasing.grow_after_ms=500",)).read()
    table = loaded.config.leasing
    assert (table.lanes, table.keep_warm_ms, table.grow_after_ms, table.min_hold_ms) == (3, 40, 500, 200)
    said = {path: (origin.kind, str(origin)) for path, origin in loaded.origins.items()}
    assert said["max_jobs"] == ("file", f"{file}:1")
    assert said["tenant.0.name"] == ("file", f"{file}:3")
    assert said["leasing.lanes"] == ("file", f"{file}:5")
    assert said["leasing.keep_warm_ms"] == ("environment", "OFFPATH_LEASING_KEEP_WARM_MS")
    assert said["leasing.grow_after_ms"] == ("flag", "--set leasing.grow_after_ms")
    assert said["leasing.min_hold_ms"] == ("default", "default")
    assert set(said) == {path for path, _ in values(loaded.config)}


def test_lines_are_known_also_where_a_string_goes_over_several(write: Write) -> None:
    file = write('max_jobs = 5\n[operation]\nlog = """\\\nmax_jobs = 9\\\n"""\n' + ADA)
    with pytest.raises(ConfigError, match=r"operation\.log"):
        Sources(file).read()
    assert str(Sources(write('x = """\n"""\n' + ADA), {}).file) == file
    loaded = Sources(write("max_jobs = 5\n" + ADA + 'profile = """1g.5gb"""\n')).read()
    assert (loaded.config.tenant[0].profile, str(loaded.origins["max_jobs"])) == ("1g.5gb", f"{file}:1")


@pytest.mark.parametrize("text", ["7,8", " 7 , 8 ", "[7, 8]"])
def test_a_list_in_the_environment_is_comma_separated_or_a_toml_array(write: Write, text: str) -> None:
    assert Sources(write(ADA), {"OFFPATH_HOST_UIDS": text}).read().config.host_uids == [7, 8]
    assert Sources(write(ADA), {"OFFPATH_HOST_UIDS": ""}).read().config.host_uids == []


def test_a_table_may_come_from_the_environment_alone(write: Write, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("daemon", is_server=True)
    tls = {"LISTEN": "127.0.0.1:0", "CA_FILE": authority.ca_file, "CERT_FILE": cert, "KEY_FILE": key}
    config = Sources(write(ADA), {f"OFFPATH_TLS_{key}": value for key, value in tls.items()}).read().config
    assert config.tls is not None
    assert config.tls.listen == "127.0.0.1:0"


def test_other_variables_of_offpath_are_left_alone(write: Write) -> None:
    others = {"OFFPATH_FAULTS": "", "OFFPATH_TEST_SIZE": "fast", "OFFPATH_PARENT": "1", "OFFPATH": "x"}
    assert Sources(write(ADA), others).read().config.max_jobs == 65_536


def test_everything_hostile_is_named_at_once_with_the_variable_or_flag_that_said_it(write: Write) -> None:
    environment = {
        "OFFPATH_LEASING_LANES": "many",
        "OFFPATH_LEASING_LANE": "3",
        "OFFPATH_LIMITS_KERNEL_MS": "-1",
        "OFFPATH_HOST_UIDS": "[1, ",
        "OFFPATH_TENANT_NAME": "eve",
        "OFFPATH_LEASE_0_GPU": "1",
        "OFFPATH_OPERATION_LOG": "xml\n",
        "OFFPATH_MAX_JOBS": "9" * 5000,
    }
    flags = ("leasing.landing_bytes=0x10", "tenant.0.weight=9", "leasing", "no.such=1", "limits.open_ms=")
    with pytest.raises(ConfigError) as fault:
        Sources(write(ADA + "weight = 0\n"), environment, flags).read()
    assert sorted(places(fault)) == sorted(
        [
            "OFFPATH_LEASING_LANES (leasing.lanes)", "OFFPATH_LEASING_LANE",
            "OFFPATH_LIMITS_KERNEL_MS (limits.kernel_ms)",
            "OFFPATH_HOST_UIDS (host_uids)", "OFFPATH_TENANT_NAME", "OFFPATH_LEASE_0_GPU",
            "OFFPATH_OPERATION_LOG (operation.log)", "OFFPATH_MAX_JOBS (max_jobs)",
            "--set leasing.landing_bytes (leasing.landing_bytes)", "--set tenant.0.weight", "--set leasing",
            "--set no.such", "--set limits.open_ms (limits.open_ms)", "tenant.0.weight",
        ]
    )  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(sorted(KEYS)), text=st.text(st.characters(exclude_characters="\0"), max_size=40))
def test_no_text_for_any_key_does_anything_but_pass_or_be_refused(write: Write, path: str, text: str) -> None:
    name = PREFIX + path.replace(".", "_").upper()
    said = ""
    try:
        assert Sources(write(ADA), {name: text}).read().origins[path].kind == "environment"
    except ConfigError as fault:
        said = str(fault)
    assert not said or name in said or "tls" in said


@pytest.mark.parametrize(
    "content",
    [b"\xff", b"x" * (5 << 20), b"a = " + b"[" * 5000, b"\0", b"[tenant]\nname = 1", b"tenant = 3", b"leasing = 3"],
)
def test_a_hostile_file_is_refused_and_does_no_more(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        Sources(str(path), {"OFFPATH_LEASING_LANES": "3"}).read()
    with pytest.raises(ConfigError):
        Sources("a\0b").read()


# -- what must go together ----------------------------------------------------------------------------------------
def test_values_that_no_gpu_model_could_take_are_all_named(write: Write) -> None:
    tenants = [
        {"name": "ada", "max_share": 14, "profile": "2g.10gb"},
        {"name": "bob", "profile": "1g.bob"},
        {"name": "bob"},
        {"name": "cyd", "max_share": 100},
    ]
    leases = [
        {"tenant": "ada", "profile": "2g.10gb", "start": 0},
        {"tenant": "bob", "profile": "9g.9gb", "start": 0},
        {"tenant": "eve", "profile": "1g.5gb", "start": 0},
        {"tenant": "bob", "profile": "3g.20gb", "start": 1},
        {"tenant": "cyd", "profile": "7g.40gb", "start": 0, "gpu": 1},
        {"tenant": "cyd", "profile": "1g.5gb", "start": 6, "gpu": 2},
    ]
    assert semantic({"tenant": tenants, "lease": leases}) == [
        "lease.0.profile", "lease.1.profile", "lease.2", "lease.2.tenant", "lease.3.start", "lease.5.profile",
        "tenant.0.profile", "tenant.1.profile", "tenant.2.name",
    ]  # fmt: skip


def test_a_tenant_may_not_have_more_sequences_than_the_daemon() -> None:
    tenants = [{"name": "ada", "max_sequences": 100}, {"name": "bob", "max_sequences": 101}, {"name": "cyd"}]
    assert semantic({"tenant": tenants, "max_sequences": 100}) == ["tenant.1.max_sequences"]
    assert semantic({"tenant": [{"name": "ada"}], "max_sequences": 63}) == ["tenant.0.max_sequences"], "the default"
    parse_config({"tenant": [{"name": "ada"}], "max_sequences": 64}, "x")


def test_tenants_that_may_have_more_sequences_together_than_the_daemon_are_a_warning() -> None:
    tenants = [{"name": "ada", "max_sequences": 60}, {"name": "bob", "max_sequences": 40}]
    for most, paths in ((100, []), (99, ["max_sequences"])):
        config = parse_config({"tenant": tenants, "max_sequences": most}, "x")
        assert [w.path for w in warnings(config) if not w.path.startswith("tenant")] == paths


@pytest.mark.parametrize(
    ("pins", "fault"),
    [
        ([("3g.20gb", 0), ("3g.20gb", 4), ("1g.5gb", 4)], "lease.2"),  # overlap
        ([("1g.5gb", 0), ("1g.6gb", 1)], "lease.1"),  # profiles of two models on one GPU
        ([("1g.5gb+me", 0), ("1g.5gb+me", 1)], "lease.1"),  # more than the profile allows
        ([("3g.20gb", 0), ("3g.20gb", 4)], ""),
        ([("4g.20gb", 0), ("2g.10gb", 4), ("1g.5gb", 6)], ""),
    ],
)
def test_pins_of_one_gpu_must_fit_some_model_together(pins: list[tuple[str, int]], fault: str) -> None:
    raw = {
        "tenant": [{"name": "ada"}],
        "lease": [{"tenant": "ada", "profile": profile, "start": start} for profile, start in pins],
    }
    if fault:
        assert semantic(raw) == [fault]
    else:
        assert len(parse_config(raw, "x").lease) == len(pins)


def test_gpus_of_two_helpers_are_not_one_gpu() -> None:
    lease = {"tenant": "ada", "profile": "1g.5gb", "start": 0, "gpu": 0}
    raw = {"tenant": [{"name": "ada"}], "lease": [{**lease, "helper": "a"}, {**lease, "helper": "b"}]}
    assert [each.helper for each in parse_config(raw, "x").lease] == ["a", "b"]
    raw["lease"][1]["helper"] = "a"
    assert semantic(raw) == ["lease.1"]


def test_lanes_must_fit_an_instance_that_exists() -> None:
    huge = {"lanes": 64, "landing_bytes": 8 << 30}
    assert semantic({"tenant": [{"name": "ada"}], "leasing": huge}) == ["leasing.landing_bytes"]
    large = {"lanes": 2, "landing_bytes": 4 << 30, "result_bytes": 4096}
    raw = {"tenant": [{"name": "ada", "profile": "1g.5gb"}], "leasing": large}
    assert semantic(raw) == ["tenant.0.profile"]


def test_addresses_are_possible_and_not_shared() -> None:
    files = {"ca_file": "a", "cert_file": "b", "key_file": "c"}
    one = {"tenant": [{"name": "ada"}], "tls": {"listen": "127.0.0.1:70000", **files}}
    assert semantic(one) == ["tls.listen"]
    both = {**one, "tls": {"listen": "127.0.0.1:900", **files}, "operation": {"metrics_listen": "127.0.0.1:900"}}
    assert semantic(both) == ["operation.metrics_listen"]


def test_two_tenants_that_one_token_and_uid_would_let_in_are_refused(write: Write, token: Write) -> None:
    one, same, other = token("one", "a" * 24), token("same", "a" * 24), token("other", "b" * 24)
    table = '[[tenant]]\nname = "{}"\ntoken_file = "{}"\nuids = [{}]\n'
    for second, uid, is_right in ((same, 5, False), (same, 6, True), (other, 5, True), (one, 5, False)):
        file = write(table.format("ada", one, 5) + table.format("bob", second, uid))
        if is_right:
            Sources(file).read()
        else:
            with pytest.raises(ConfigError) as fault:
                Sources(file).read()
            assert places(fault) == ["tenant.1.token_file"]
            assert "a" * 24 not in str(fault.value)


def test_files_that_cannot_be_used_are_all_named(write: Write, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    text = ADA + f'token_file = "{absent}"\n'
    text += f'[tls]\nlisten = "127.0.0.1:0"\nca_file = "{absent}"\ncert_file = "{absent}"\nkey_file = "{absent}"\n'
    with pytest.raises(ConfigError) as fault:
        Sources(write(text)).read()
    assert places(fault) == ["tenant.0.token_file", "tls"]


def test_what_probably_is_not_meant_is_a_warning() -> None:
    raw: dict[str, Any] = {
        "tenant": [{"name": "ada", "max_bytes": 6 * MIB}, {"name": "bob", "max_bytes": 5 * MIB}],
        "leasing": {"landing_bytes": MIB + 1},
    }
    config = parse_config(raw, "x")
    assert [w.path for w in warnings(config, 10 * MIB)] == ["leasing.landing_bytes", "tenant", "tenant.0", "tenant.1"]
    assert str(MIB + os.sysconf("SC_PAGE_SIZE")) in warnings(config)[0].text


def test_the_limits_reach_the_book_in_its_own_units() -> None:
    limits = {
        "kernel_ms": 1, "open_ms": 2, "scrub_ms": 3, "drain_ms": 4, "sequence_idle_ms": 5, "sequence_leave_ms": 6,
    }  # fmt: skip
    settings_ = parse_config({"tenant": [{"name": "ada"}], "limits": limits}, "x").book_settings()
    assert (settings_.kernel_ns, settings_.open_ns, settings_.scrub_ns) == (MS, 2 * MS, 3 * MS)
    assert (settings_.drain_ns, settings_.linger_ns) == (4 * MS, 2_000 * MS)
    assert (settings_.sequence_idle_ns, settings_.sequence_leave_ns) == (5 * MS, 6 * MS)
    for word, kills in (("kill", True), ("finish", False)):
        config = parse_config({"tenant": [{"name": "ada"}], "limits": {"on_expiry": word}}, "x")
        assert config.book_settings().kills_expired is kills


# -- the page -----------------------------------------------------------------------------------------------------
def test_the_page_names_every_key_with_its_default_and_what_a_reload_does() -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in page.splitlines() if line.startswith("| `")
    ]
    said = {row[0].strip("` "): row[1:3] for row in rows}

    def default(info: Any) -> str:
        return "" if info.is_required() else f"`{json.dumps(info.default)}`"

    wanted = {path: [default(info), "restart" if path in NEEDS_RESTART else "live"] for path, info in KEYS.items()}
    assert {path: row for path, row in said.items() if path in wanted} == wanted
    tables = {"tenant": TenantTable, "lease": LeaseTable}
    fields = {f"{name}.{key}": default(info) for name, t in tables.items() for key, info in t.model_fields.items()}
    assert {path: row[0] for path, row in said.items() if path not in wanted} == fields


def test_a_relative_path_is_relative_to_the_file_wherever_the_daemon_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one of a flag or the environment to the working directory."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere):
        folder.mkdir()
    (home / "keys").mkdir()
    (home / "keys" / "ada.token").write_text("a-token-of-ada-0123456789\n")
    (home / "keys" / "ada.token").chmod(0o600)
    text = '[[tenant]]\nname = "ada"\ntoken_file = "keys/ada.token"\n[doca]\npath = "doca"\n[zmq]\nkey_file = ""\n'
    (home / "offpathd.toml").write_text(text)
    starts = {home: "offpathd.toml", elsewhere: "../home/offpathd.toml", tmp_path: "home/offpathd.toml"}
    for folder, file in starts.items():
        monkeypatch.chdir(folder)
        config = Sources(file).read().config
        assert config.tenant[0].token_file == str(home / "keys" / "ada.token")
        assert (config.doca.path, config.zmq.key_file) == (str(home / "doca"), "")
        assert Sources(file, flags=["doca.path=other"]).read().config.doca.path == "other"


def test_a_credentials_path_and_a_value_of_another_type_stay_as_they_are(tmp_path: Path) -> None:
    raw = {"tenant": [{"token_file": "$CREDENTIALS_DIRECTORY/ada"}, {"token_file": 3}, 4], "tls": "x", "doca": None}
    before = copy.deepcopy(raw)
    place_paths(raw, str(tmp_path / "offpathd.toml"))
    assert raw == before
