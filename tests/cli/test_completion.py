"""`offpath completion SHELL`: real shells load the script and complete with it, where they are installed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from offpath.cli.completion import SHELLS, nodes
from offpath.cli.host import COMMANDS as HOST_COMMANDS
from offpath.cli.main import COMMANDS

from ..support.command import offpath


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts, and a folder with two files and a folder in it."""
    made = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        done = offpath("completion", shell)
        assert (done.code, done.err) == (0, "")
        (made / f"offpath.{shell}").write_text(done.out)
    (made / "here").mkdir()
    (made / "here" / "my config.toml").touch()
    (made / "here" / "serve.py").touch()
    (made / "here" / "units").mkdir()
    return made


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here")
    return found


def ran(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def by_bash(folder: Path, *typed: str) -> list[str]:
    """What bash offers for the last word; the others are typed before it."""
    program = f"""
        source {shlex.quote(str(folder / "offpath.bash"))}
        COMP_WORDS=({" ".join(shlex.quote(word) for word in ("offpath", *typed))})
        COMP_CWORD={len(typed)}
        _offpath
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    out = ran(shell("bash"), "--norc", "--noprofile", "-c", program, cwd=folder / "here")
    return [line for line in out.splitlines() if line]


WANTED: list[tuple[tuple[str, ...], set[str]]] = [
    (("",), {words[0] for words in COMMANDS}),
    (("con",), {"config", "controller"}),
    (("daemon", ""), {"run", "drain"}),
    (("-v", "daemon", "r"), {"run"}),
    (("daemon", "run", "--k"), {"--keep"}),
    (("daemon", "run", "--config", "my"), {"my config.toml"}),
    (("daemon", "run", "--runtime-dir", ""), {"units"}),
    (("daemon", "run", "--config", "x", "--cpu", ""), set()),
    (("helper", "run", "--host-channel", ""), {"unix", "zmq", "comch"}),
    (("helper", "run", "s"), {"serve.py"}),
    (("helper", "run", "--key", "daemon", "--realt"), {"--realtime"}),
    (("replay", "--from", "o"), {"oldest"}),
    (("bench", "requ"), {"request-path"}),
    (("completion", ""), set(SHELLS)),
    (("demo", "i"), {"ina"}),
    (("demo", "--break", ""), {"scrub"}),
    (("demo", "ina", "--blo"), {"--blocks"}),
    (("nonsense", "daem"), {"daemon"}),
]


@pytest.mark.parametrize(("typed", "offered"), WANTED, ids=[" ".join(typed) for typed, _ in WANTED])
def test_bash_offers_what_can_follow(folder: Path, typed: tuple[str, ...], offered: set[str]) -> None:
    assert set(by_bash(folder, *typed)) == offered


def test_bash_offers_every_flag_of_every_command(folder: Path) -> None:
    """Compared with the tree; the tree is argparse's."""
    tree = nodes(COMMANDS)
    for words in [("daemon", "run"), ("request", "submit"), ("simulate",), ("demo", "ina")]:
        flags = {name for flag in tree[words].flags for name in flag.names}
        assert len(flags) >= 5
        assert set(by_bash(folder, *words, "-")) == flags
    assert set(tree) >= set(COMMANDS)
    assert all(node.flags for node in tree.values())


def test_bash_has_registered_the_function(folder: Path) -> None:
    program = f"source {shlex.quote(str(folder / 'offpath.bash'))}; complete -p offpath"
    out = ran(shell("bash"), "--norc", "--noprofile", "-c", program, cwd=folder)
    assert out == "complete -F _offpath offpath\n"


def test_bash_takes_a_value_after_an_equals_sign(folder: Path) -> None:
    """Bash splits at it."""
    assert by_bash(folder, "helper", "run", "--host-channel", "=", "z") == ["zmq"]
    assert set(by_bash(folder, "helper", "run", "--host-channel", "=")) == {"unix", "zmq", "comch"}


def test_hosts_complete_their_own_commands_only() -> None:
    assert nodes(HOST_COMMANDS).keys() == {
        (),
        ("helper",),
        ("kernel",),
        ("gateway",),
        ("migd",),
        ("mig",),
        *HOST_COMMANDS,
    }


def test_zsh_loads_it(folder: Path) -> None:
    """Its words come from the same tree; the syntax is what may be wrong."""
    ran(shell("zsh"), "-f", "-n", str(folder / "offpath.zsh"), cwd=folder)
    program = f"""
        autoload -U compinit; compinit -u -D
        source {shlex.quote(str(folder / "offpath.zsh"))}
        print $_comps[offpath]
        _describe() {{ eval "print -l -- \\$${{@[-1]}}" }}
        words=(offpath con); CURRENT=2; _offpath
        words=(offpath daemon run --k); CURRENT=4; _offpath
    """
    out = ran(shell("zsh"), "-f", "-c", program, cwd=folder / "here").splitlines()
    assert out[0] == "_offpath"
    assert {"config:check a configuration, or print it", "top:show tenants and leases, live"} <= set(out)
    assert any(line.startswith("--keep:") for line in out)


FISH = [
    ("offpath con", {"config", "controller"}),
    ("offpath daemon ", {"run", "drain"}),
    ("offpath helper run --host-channel ", {"unix", "zmq", "comch"}),
    ("offpath daemon run --ke", {"--keep"}),
    ("offpath daemon run --config my", {"my config.toml"}),
    ("offpath bench requ", {"request-path"}),
]


@pytest.mark.parametrize(("line", "offered"), FISH)
def test_fish_offers_what_can_follow(folder: Path, line: str, offered: set[str]) -> None:
    program = f"source {shlex.quote(str(folder / 'offpath.fish'))}; complete -C {shlex.quote(line)}"
    out = ran(shell("fish"), "--no-config", "-c", program, cwd=folder / "here")
    assert {each.split("\t")[0].replace("\\ ", " ") for each in out.splitlines()} == offered  # some versions escape
