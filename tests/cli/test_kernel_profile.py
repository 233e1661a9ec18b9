"""`offpath kernel profile FILE` offers a demand, and a helper uses it where its operator says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..support.command import Done, offpath

SERVE = """
from offpath.host_helper import Helper
helper = Helper()
@helper.kernel("double", demand="auto", memory="6GiB")
def double(array):
    return 2 * array
"""
EMULATED = ("--emulate", "A100-40GB", "A100-40GB", "--slice-bytes", "1048576")


@pytest.fixture
def serve(tmp_path: Path) -> str:
    (tmp_path / "serve.py").write_text(SERVE)
    return str(tmp_path / "serve.py")


def profile(serve: str, *words: str) -> Done:
    return offpath("kernel", "profile", serve, "--seconds", "0.01", *words, *EMULATED)


def test_every_size_that_has_the_memory_is_measured_and_the_offer_is_one_of_them(serve: str, tmp_path: Path) -> None:
    demands = tmp_path / "demands.json"
    done = profile(serve, "--input", "float32:2,3", "--json", "--write", str(demands))
    assert done.code == 0, done.err
    (found,) = done.document["gpus"]
    sizes = {size["profile"]: size["share"] for size in found["sizes"]}
    assert sizes == {"1g.10gb": 14, "2g.10gb": 28, "3g.20gb": 42, "4g.20gb": 57, "7g.40gb": 100}, "1g.5gb has 5 GB"
    assert all(size["runs_per_s"] > 0 for size in found["sizes"])
    assert (found["gpu"], found["model"], found["is_emulated"]) == ("GPU-0", "A100-40GB", True)
    assert found["demand"] == sizes[found["knee"]]
    assert done.document["demand"] == {"A100-40GB": found["demand"]}
    assert json.loads(demands.read_text())["kernels"] == {"double": done.document["demand"]}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--input", "float33:2"], "with a dtype of uint8"),
        (["--input", "float32:-1"], "negative"),
        (["--input", "float32:99999,99999"], "more than"),
        (["--input", "none.npy"], "none.npy"),
        (["--input", "uint8:4", "--kernel", "other"], "--kernel: one of double"),
        (["--input", "uint8:4", "--result-bytes", "0"], "--result-bytes"),
        (["--input", "uint8:4", "--gain", "nan"], "--gain"),
        (["--input", "uint8:4", "--seconds", "0"], "--seconds"),
    ],
)
def test_what_cannot_be_measured_is_refused(serve: str, words: list[str], text: str) -> None:
    done = profile(serve, *words)
    assert (done.code, done.out) == (1, "")
    assert text in done.err
