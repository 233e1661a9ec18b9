"""Every fenced block of README and docs is evaluated as its language (Sybil finds the blocks).

- ``python``: compiled, and run in a namespace of its own unless ``<!-- skip: next -->`` stands above it or a test
  follows the whole page (README's "Use it", the tutorials).
- ``sh``, ``bash``: bash parses it; the command line's parser takes each `offpath` command in it.
- ``toml``: parsed; unless it is to be skipped, the daemon's or the controller's model takes their configuration.
- ``json``: parsed. ``text``, ``mermaid``, ``yaml``, ``ini`` are left alone.
- No language, or indented: lines that begin with `offpath`, also behind a prompt (`host#`), are commands as above.
  Synopses (with brackets or an ellipsis) are not.

On every page `./scripts/NAME` is a script that is there, and a language is one of these.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import ValidationError
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser

from offpath.dpu_daemon.collab.config import CollabConfig
from offpath.dpu_daemon.config import ConfigError, parse_config
from offpath.dpu_daemon.controller.config import ControllerConfig
from offpath.dpu_daemon.manager.config import ManagerConfig

from .support.sources import ROOT
from .support.typed import invocations, rejection

PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SKIP: Final = "<!-- skip: next -->"
LEFT_ALONE: Final = {"", "text", "mermaid", "yaml", "ini"}
LEAST: Final = {"python": 10, "sh": 30, "bash": 1, "toml": 12}
"""Blocks that are there at least: a reader of pages that finds none proves nothing."""


def python(example: Example) -> None:
    code = compile(example.parsed, f"{example.path}:{example.line}", "exec")
    if not is_skipped(example) and not is_followed(example):
        exec(code, {"__name__": "__page__"})


def is_skipped(example: Example) -> bool:
    """It is parsed, no more."""
    return example.document.text[: example.region.start].rstrip().endswith(SKIP)


def is_followed(example: Example) -> bool:
    """test_readme.py or test_tutorials.py runs it."""
    path = Path(example.path)
    if path.name == "README.md":
        return example.document.text[: example.region.start].rpartition("\n## ")[2].startswith("Use it\n")
    return path.parent.name == "tutorials"


def bash(example: Example) -> None:
    checked = subprocess.run(["bash", "-n"], input=example.parsed, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    for words in invocations(example.parsed):
        assert rejection(words) is None, f"offpath {' '.join(words)}: {rejection(words)}"


def toml(example: Example) -> None:
    found = tomllib.loads(example.parsed)
    if is_skipped(example) or found.keys() <= {"build-system", "project"}:  # the latter: a pyproject.toml
        return
    if "engine" in found:
        ManagerConfig.model_validate(found)
        return
    if "devices" in found:
        CollabConfig.model_validate(found)
        return
    if {"topology", "agents"} & found.keys():
        ControllerConfig.model_validate(found)
        return
    if "tenant" not in found:  # an extract, which has none
        found = {"tenant": [{"name": "a"}], **found}
    parse_config(found, str(example.path))


def document(example: Example) -> None:
    json.loads(example.parsed)


EVALUATED: Final = {"python": python, "sh": bash, "bash": bash, "toml": toml, "json": document}
SYBIL: Final = Sybil([CodeBlockParser(language, evaluator) for language, evaluator in EVALUATED.items()])


def untagged(text: str) -> list[str]:
    """The `offpath` commands in blocks without a language and in indented ones."""
    found = re.findall(r"^```([a-z]*)\n(.*?)^```$|^((?: {4}.*\n)+)", text.replace("\\\n", " "), re.M | re.S)
    lines = [line for language, fenced, indented in found if not language for line in (fenced or indented).splitlines()]
    commands = [command[1] for line in lines if (command := re.match(r"\s*(?:\w+[#$]\s+)?(offpath [a-z].*)", line))]
    return [each for each in commands if not re.search(r"[\[\]…]|^offpath [a-z]+:", each)]


def blocks(*paths: Path) -> list[Any]:
    """Of these pages, each a parameter of a test with page and line as its name."""
    return [pytest.param(example, id=f"{path.name}:{example.line}") for path in paths for example in SYBIL.parse(path)]


def languages(text: str) -> list[str]:
    """Of each fenced block: what follows the fence that opens it."""
    return [line[3:].strip() for line in re.findall(r"^```.*$", text, re.M)[::2]]


@pytest.mark.parametrize("example", blocks(*PAGES))
def test_a_block_is_what_its_language_says(example: Example) -> None:
    example.evaluate()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_names_scripts_that_are_there_and_languages_that_are_known(path: Path) -> None:
    text = path.read_text("utf-8")
    assert [name for name in re.findall(r"\./(scripts/[a-z-]+)", text) if not (ROOT / name).is_file()] == []
    assert set(languages(text)) <= {*EVALUATED, *LEFT_ALONE}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_blocks_without_a_language_can_be_typed(path: Path) -> None:
    for line in untagged(path.read_text("utf-8")):
        for words in invocations(line):
            assert rejection(words) is None, f"{line}: {rejection(words)}"


def test_commands_in_blocks_without_a_language_are_found() -> None:
    fenced = "host# offpath top \\\n  --once  # look\noffpath helper: joined\noffpath job [NAME]\n"
    text = f"```\n{fenced}```\n\n    offpath errors 1\n"
    assert [invocations(line) for line in untagged(text)] == [[["top", "--once"]], [["errors", "1"]]]
    assert sum(len(untagged(path.read_text("utf-8"))) for path in PAGES) >= 15


def test_blocks_are_found() -> None:
    all_of_them = [each for path in PAGES for each in languages(path.read_text("utf-8"))]
    assert {language for language, least in LEAST.items() if all_of_them.count(language) < least} == set()
    assert len(blocks(*PAGES)) == sum(language in EVALUATED for language in all_of_them)


@pytest.mark.parametrize(
    ("language", "code", "fault"),
    [
        ("python", "if True\n    pass", SyntaxError),
        ("python", "import offpath.no_such_module", ModuleNotFoundError),
        ("sh", "for x in 1 2; do echo", AssertionError),
        ("sh", "offpath daemon run --confg offpathd.toml", AssertionError),
        ("sh", "if true; then X=1 offpath request frobnicate 1/1 > log 2>&1 & fi", AssertionError),
        ("bash", "./scripts/rxe-vm -- offpath doktor", AssertionError),
        ("toml", "lanes = ", tomllib.TOMLDecodeError),
        ("toml", "[leasing]\nlane = 2", ConfigError),
        ("toml", '[leasing]\nlanes = "two"', ConfigError),
        ("toml", 'topology = "t"\nswitches = []', ValidationError),
        ("json", '{"a": 1,}', json.JSONDecodeError),
    ],
)
def test_a_broken_block_is_found(language: str, code: str, fault: type[Exception], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n```{language}\n{code}\n```\n\n```text\nno code\n```\n", "utf-8")
    (example,) = SYBIL.parse(page)
    with pytest.raises(fault):
        example.evaluate()


def test_what_is_to_be_skipped_is_parsed_all_the_same(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    good, bad = ("python", "raise KeyError"), ("python", "raise raise")
    blocks = [good, ("toml", "lane = 1"), bad, ("toml", "lane = ")]
    page.write_text("\n".join(f"{SKIP}\n```{language}\n{code}\n```\n" for language, code in blocks), "utf-8")
    python_, toml_, *broken = sorted(SYBIL.parse(page), key=lambda example: example.line)
    python_.evaluate()
    toml_.evaluate()
    for example, fault in zip(broken, (SyntaxError, tomllib.TOMLDecodeError), strict=True):
        with pytest.raises(fault):
            example.evaluate()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("offpath daemon run --config a.toml > log 2>&1 &\noffpath top # look", ["daemon run --config a.toml", "top"]),
        ("until offpath lease list 2> /dev/null; do sleep 1; done", ["lease list"]),
        ("export $(offpath job submit a --hosts 2) B=1", ["job submit a --hosts 2"]),
        ("source <(offpath completion bash)", ["completion bash"]),
        ("offpath request submit a \\\n  --text 'x; y'", ["request submit a --text x; y"]),
        ("echo offpath top; rm -r offpath-a offpath", []),
        ("./scripts/rxe-vm -- offpath doctor | grep a", ["doctor"]),
    ],
)
def test_commands_are_found_in_bash(code: str, words: list[str]) -> None:
    assert [" ".join(each) for each in invocations(code)] == words
