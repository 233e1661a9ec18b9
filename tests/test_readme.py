"""README's section "Use it" is followed to the letter: by bash, from a fresh home and an empty environment."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from .support import pages
from .support.sources import ROOT

TEXT = (ROOT / "README.md").read_text("utf-8")
PAGE = pages.steps(TEXT.split("## Use it\n")[1].split("\n## ")[0])


def test_the_steps_are_all_of_the_section() -> None:
    assert [step.file for step in PAGE if step.file] == ["serve.py", "offpathd.toml", "ask.py"]
    assert len([step for step in PAGE if not step.file]) == 4
    text = pages.script(PAGE)
    assert all(line in text for line in ("source .venv/bin/activate", "python ask.py", "offpath daemon drain --stop"))


def test_readme_can_be_followed_by_a_newcomer(tmp_path: Path) -> None:
    done = pages.follow(PAGE, tmp_path)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}"
    assert "offpathd.toml: ok" in done.stdout
    assert "[64. 64. 64. 64.]" in done.stdout
    assert str([64.0 * n for n in range(8)]) in done.stdout
    assert "Traceback" not in done.stdout, done.stdout
    assert (tmp_path / "offpath-hello" / "vision.token").stat().st_mode & 0o777 == 0o600


@pytest.mark.full
def test_readme_can_be_followed_in_a_bare_root(tmp_path: Path) -> None:
    """Nothing there but Debian's base system with python3 and python3-venv: .venv is made as well."""
    if os.getuid():
        pytest.skip("a bare root can only be made and entered as root")
    command = [str(ROOT / "scripts" / "bare-root"), "--", "bash", "-c", pages.script(PAGE)]
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
