"""The cases of `triton_cases`, in a process of their own, as those of gRPC."""

from __future__ import annotations

from pathlib import Path

from ...support.own_process import run_tests

CASES = Path(__file__).with_name("triton_cases.py")


def test_streams_and_sequences_are_as_tritons() -> None:
    assert run_tests(CASES) >= 25
