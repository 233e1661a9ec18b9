"""The tutorials are followed to the letter: what they say to type is typed, and prints what they show.

`rdma-in-a-vm` is followed in the virtual machine, where a test of test_rxe_vm.py runs all tests marked rdma: there its
commands are run without the machine around them.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from .support import pages
from .support.optional import TORCH
from .support.sources import ROOT

FOLDER = ROOT / "docs" / "tutorials"
IN_A_VM = "rdma-in-a-vm"
FOLLOWED_HERE = ("first-deployment", "policy-in-ten-minutes", "training-job")
MOST_LINES = 160


def page(name: str) -> list[pages.Step]:
    return pages.steps((FOLDER / f"{name}.md").read_text("utf-8"))


@pytest.mark.parametrize("name", FOLLOWED_HERE)
def test_it_can_be_followed(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    if name == "training-job" and importlib.util.find_spec("torch") is None:
        pytest.skip(TORCH)
    home = tmp_path_factory.mktemp("home")
    done = pages.follow(page(name), home)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}"
    assert "\n".join(pages.differences(page(name), done.stdout)) == ""
    assert [path.name for path in home.iterdir() if path.name.startswith("offpath")] == [], "it cleans up"


@pytest.mark.rdma
def test_what_it_runs_in_the_machine_can_be_followed(tmp_path: Path) -> None:
    for step in page(IN_A_VM):
        lines = [in_the_machine(line) or line for line in step.command.splitlines()] if not step.file else []
        command = "\n".join(lines) or step.command
        if command.startswith("rm -r "):
            continue
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + "".join(log.read_text() for log in tmp_path.rglob("*.log"))
        assert step.output is None or pages.matches(step.output, done.stdout), done.stdout


def in_the_machine(line: str) -> str | None:
    """What ./scripts/rxe-vm is given to run, if the line calls it."""
    words = shlex.split(line)
    return shlex.join(words[words.index("--") + 1 :]) if words[0] == "./scripts/rxe-vm" else None


def test_what_it_runs_in_the_machine_is_in_the_folder_that_the_machine_gets() -> None:
    commands = [step.code.splitlines() for step in page(IN_A_VM) if not step.file]
    assert commands == [
        ["./scripts/rxe-vm -- rdma link"],
        ["mkdir rdma-hello"],
        ["./scripts/rxe-vm -- bash rdma-hello/hello.sh"],
        ["rm -r rdma-hello"],
    ]
    assert {step.file.split("/")[0] for step in page(IN_A_VM) if step.file} == {"rdma-hello"}


def test_the_torch_that_it_installs_is_the_one_that_the_extra_asks_for() -> None:
    (torch,) = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]["train"]
    assert f"pip install --quiet '{torch}'\n" in (FOLDER / "training-job.md").read_text("utf-8")


# -- form ------------------------------------------------------------------------------------------------------------
def test_every_tutorial_is_followed_by_a_test() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == {*FOLLOWED_HERE, IN_A_VM}


@pytest.mark.parametrize("name", [*FOLLOWED_HERE, IN_A_VM])
def test_it_is_short_and_says_what_you_get_need_and_do(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text("utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    wanted = ("At the end ", "**You need** ", "\n## 1. ", "rm -r ")
    assert [each for each in wanted if each not in text] == []
    assert re.search(r"^(## Where next|Next: )", text, re.M)
    assert f"tutorials/{name}.md" in (ROOT / "README.md").read_text("utf-8")


# -- the reader of pages ----------------------------------------------------------------------------------------------
PAGE = """
Save as `greet.sh`, or as `sub/other.py`, no: as `greet.sh`:

```bash
echo "hello $1"
```

```sh
bash greet.sh world
date
```

```text
hello world
...
```
"""


def test_a_page_is_read_as_files_commands_and_outputs() -> None:
    saved, typed = pages.steps(PAGE)
    assert (saved.file, saved.code, saved.output) == ("greet.sh", 'echo "hello $1"\n', None)
    assert (typed.file, typed.code, typed.output) == ("", "bash greet.sh world\ndate\n", "hello world\n...\n")


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("a\n", "a\n"), ("a ... c\n", "a b c\n"), ("...\nz\n", "z\n"), ("a\n...\nz\n", "a\nb\nc\nz\n"),
        ("a\n...\n", "a\n"), ("a [.*]\n", "a [.*]\n"), ("a\n", "a  \n"), ("a\n", "a"),
    ],
)  # fmt: skip
def test_output_that_is_shown_matches_what_is_printed(shown: str, printed: str) -> None:
    assert pages.matches(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [("a\n", "b\n"), ("a\n", "a\nb\n"), ("a ... c\n", "a b\nc\n"), ("a\n...\nz\n", "a\nb\n"), ("a\n", "")],
)
def test_output_that_differs_is_found(shown: str, printed: str) -> None:
    assert not pages.matches(shown, printed)


def test_a_command_that_prints_something_else_and_one_that_fails_are_found(tmp_path: Path) -> None:
    def run(text: str) -> tuple[int, list[str]]:
        page = pages.steps(text)
        done = subprocess.run(
            ["bash"], input=pages.script(page), cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return done.returncode, list(pages.differences(page, done.stdout))

    assert run(PAGE) == (0, [])
    code, (found,) = run(PAGE.replace("hello $1", "goodbye $1"))
    assert code == 0
    assert "hello world" in found
    assert "goodbye world" in found
    assert run(PAGE.replace("date", "false"))[0] == 1
