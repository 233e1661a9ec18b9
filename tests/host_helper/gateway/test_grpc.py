"""The tests of `grpc_cases`, in a process of their own: gRPC's threads stay in a process, do not outlive a fork, and
abort it when no descriptor is left."""

from __future__ import annotations

from pathlib import Path

from ...support.own_process import run_tests

CASES = Path(__file__).with_name("grpc_cases.py")


def test_the_cases_of_grpc_pass() -> None:
    assert run_tests(CASES) >= 25
