"""README's section "Use it" is followed to the letter: by bash, from a fresh home and an empty environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text("utf-8")
_BLOCK = re.compile(r"(?P<before>[^\n]*(?:\n[^\n]+)*)\n\n```(?P<language>sh|python|toml)\n(?P<code>.*?)```", re.S)
_FILE = re.compile(r"`([a-z]+\.(?:py|toml))`")


def script() -> str:
    """What a newcomer does: blocks of sh are typed, a block under a text that names a file is saved as that file."""
    section = TEXT.split("## Use it\n")[1].split("\n## ")[0]
    steps = ["set -eu"]
    for block in _BLOCK.finditer(section):
        code, names = block["code"], _FILE.findall(block["before"])
        if block["language"] == "sh":
            steps.append(code)
        elif names:
            steps.append(f"cat > {names[-1]} <<'END OF FILE'\n{code}END OF FILE\n")
    return "\n".join(steps)


def test_the_script_is_all_of_the_section() -> None:
    text = script()
    assert re.findall(r"^cat > (\S+)", text, re.M) == ["serve.py", "offpathd.toml", "ask.py"]
    section = TEXT.split("## Use it\n")[1].split("\n## ")[0]
    assert section.count("```sh\n") == 4
    assert all(line in text for line in ("source .venv/bin/activate", "python ask.py", "offpath daemon drain --stop"))


def alone() -> list[str]:
    """For root the default directory is the machine's, /run/offpath: the test gets a /run of its own."""
    if os.getuid():
        return []
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    words += ['mount -t tmpfs tmpfs /run && exec "$@"', "sh"]
    try:
        done = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare here (package util-linux), and /run/offpath may be a real daemon's")
    if done.returncode:
        pytest.skip(f"no mount namespace here, and /run/offpath may be a real daemon's: {done.stderr.strip()}")
    return words


@pytest.mark.slow
def test_readme_can_be_followed_by_a_newcomer(tmp_path: Path) -> None:
    if Path(sys.prefix) != ROOT / ".venv":
        pytest.skip("these tests run in an environment that is not the scripts' own .venv")
    environment = {"HOME": str(tmp_path), "PATH": "/usr/local/bin:/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "1"}
    if chosen := os.environ.get("OFFPATH_PYTHON"):  # else the scripts would make .venv anew
        environment["OFFPATH_PYTHON"] = chosen
    done = subprocess.run(
        [*alone(), "timeout", "--kill-after=5", "240", "bash"], input=script(), cwd=ROOT, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "offpathd.toml: ok" in done.stdout
    assert "[64. 64. 64. 64.]" in done.stdout
    assert str([64.0 * n for n in range(8)]) in done.stdout
    assert "Traceback" not in done.stderr, done.stderr
    assert (tmp_path / "offpath-hello" / "vision.token").stat().st_mode & 0o777 == 0o600


@pytest.mark.full
def test_readme_can_be_followed_in_a_bare_root(tmp_path: Path) -> None:
    """Nothing there but Debian's base system with python3 and python3-venv: .venv is made as well."""
    if os.getuid():
        pytest.skip("a bare root can only be made and entered as root")
    command = [str(ROOT / "scripts" / "bare-root"), "--", "bash", "-c", script()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    if done.returncode == 125:
        pytest.skip(f"no bare root here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "offpath: set up in" in done.stderr
    assert "[64. 64. 64. 64.]" in done.stdout
    assert str([64.0 * n for n in range(8)]) in done.stdout


def test_the_folders_and_documents_that_readme_names_exist() -> None:
    """A map with dead ends is worse than none."""
    for link in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / link).exists(), link
    for folder in re.findall(r"^\| `([a-z_]+)/`", TEXT, re.M):
        assert (ROOT / folder).is_dir(), folder
