"""The tests of `grpc_cases`, `grpc_bounds` and `grpc_reflection_cases`, in processes of their own: gRPC's threads stay
in a process, do not outlive a fork, and abort it when no descriptor is left."""

from __future__ import annotations

from pathlib import Path

from ...support.own_process import run_tests

CASES = Path(__file__).with_name("grpc_cases.py")
BOUNDS = Path(__file__).with_name("grpc_bounds.py")
REFLECTION = Path(__file__).with_name("grpc_reflection_cases.py")


def test_the_cases_of_grpc_pass() -> None:
    assert run_tests(CASES) >= 25


def test_the_bounds_of_grpc_hold() -> None:
    assert run_tests(BOUNDS) >= 13


def test_the_cases_of_reflection_pass() -> None:
    assert run_tests(REFLECTION) >= 8
