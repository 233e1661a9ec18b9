"""Each declaration is what the notes' table of prototypes says, and nothing is declared that it does not have."""

from __future__ import annotations

import ctypes
import re
import subprocess

import pytest

from offpath.bindings.doca._abi_errors import Status
from offpath.bindings.doca._abi_types import Function
from offpath.bindings.doca.load import FUNCTIONS, load

from ...support.doca import emulator
from .ctypes_of import types_of
from .table import kept

ROWS = {row.name: row for row in reversed(kept()[0])}  # the first of those that say a function twice


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_declaration_has_the_types_of_its_prototype(name: str) -> None:
    function = FUNCTIONS[name]
    restype, argtypes = types_of(ROWS[name].prototype)
    assert (function.restype, list(function.argtypes)) == (restype, argtypes), ROWS[name].prototype


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_declaration_says_how_stable_it_is_and_since_when(name: str) -> None:
    function, row = FUNCTIONS[name], ROWS[name]
    assert function.stability == {"S": "stable", "E": "experimental", "-": "experimental"}[row.in_30]
    assert (function.since == "2.5") is row.is_in_25


def test_a_prototype_that_differs_is_found() -> None:
    """Of each function, with one type more, one less, or another in any place."""
    for name, function in FUNCTIONS.items():
        restype, argtypes = types_of(ROWS[name].prototype)
        for at in range(len(argtypes)):
            other = ctypes.c_uint16 if argtypes[at] is not ctypes.c_uint16 else ctypes.c_uint8
            assert [*argtypes[:at], other, *argtypes[at + 1 :]] != list(function.argtypes)
            assert [*argtypes[:at], *argtypes[at + 1 :]] != list(function.argtypes)
        assert [*argtypes, ctypes.c_int] != list(function.argtypes)
        assert Function(name, ctypes.c_uint16, (), "stable", "2.5").restype is not restype


def test_what_is_inline_in_the_header_is_not_declared() -> None:
    inline = {name for name, row in ROWS.items() if row.in_30 == "inline"}
    assert inline == {"doca_buf_inventory_buf_get_by_addr", "doca_buf_inventory_buf_get_by_data"}
    assert not inline & set(FUNCTIONS)


def test_statuses_have_doca_s_own_names() -> None:
    doca = load(emulator())
    for status in Status:
        name = "DOCA_SUCCESS" if status is Status.SUCCESS else f"DOCA_ERROR_{status.name}"
        assert doca.describe(status)[0] == name


@pytest.mark.parametrize("release", ["3.0", "2.5"])
def test_the_libraries_have_what_is_declared_for_their_release_and_no_more(release: str) -> None:
    """By the dynamic symbols of the emulator's libraries."""
    folder = emulator(release)
    listed = subprocess.run(
        f"nm -D --defined-only {folder}/libdoca_*.so.2", shell=True, capture_output=True, text=True, check=True
    ).stdout
    exported = set(re.findall(r" [TW] (doca_\w+)", listed))
    wanted = {name for name, function in FUNCTIONS.items() if release == "3.0" or function.since == "2.5"}
    assert wanted - exported == set()
    if release == "2.5":
        assert exported & (set(FUNCTIONS) - wanted) == set()
