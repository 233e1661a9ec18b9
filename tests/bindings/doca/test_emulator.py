"""The DOCA emulator is an ABI and no habit of ours: the symbols are the notes', a C program written from them runs."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ...support.compiler import built, compiler
from .table import NOTES, ROOT, Row, enumerators_of, kept, rows_of

SOURCES = ROOT / "bindings" / "csrc" / "doca_emulator"
SCRIPT = ROOT / "scripts" / "doca-emulator"
LIBRARIES = ("common", "dma", "comch", "gpunetio")
ROWS, ENUMERATORS = kept()
NOT_CLAIMED = re.compile(r"DOCA_(RDMA|MTU)_|DOCA_ERROR_DEVICE_FATAL_ERROR$")
"""RDMA is not emulated, and error 31 came after 3.0."""


def folder_of(*arguments: str) -> Path:
    (line,) = built(SCRIPT, *arguments).splitlines()
    return Path(line)


@pytest.fixture(scope="module")
def libraries() -> Path:
    return folder_of()


def symbols(library: Path) -> dict[str, str]:
    """What it defines for others: name to version node."""
    said = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--with-symbol-versions", library],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = dict(line.split()[-1].split("@@") for line in said.splitlines() if "@@" in line)
    return {name: node for name, node in found.items() if name != node}


def dynamic(library: Path) -> dict[str, list[str]]:
    said = subprocess.run(["objdump", "-p", library], capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^\s+(SONAME|NEEDED|RPATH|RUNPATH)\s+(\S+)$", said, re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


# -- the notes, the kept table, the header ---------------------------------------------------------------------------


def test_the_kept_table_is_the_notes() -> None:
    if not NOTES.is_file():
        pytest.skip("no notes beside this tree")
    notes = NOTES.read_text("utf-8")
    assert rows_of(notes) == ROWS
    assert enumerators_of(notes) == ENUMERATORS


def test_the_table_holds_what_it_should() -> None:
    """A reader of the notes that lost rows would leave the tests below with nothing to compare."""
    assert len(ROWS) == 156
    assert len({row.name for row in ROWS}) == 155  # one stands in 2.4 and in 2.8
    assert sum(row.node is None for row in ROWS) == 2
    assert len(ENUMERATORS) == 83


def preprocessed(release: int) -> str:
    return subprocess.run(
        [*compiler(), "-E", "-P", f"-DDOCA_EMULATOR_RELEASE={release}", SOURCES / "prototypes.h"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


def declared(release: int) -> dict[str, str]:
    """Every declaration of prototypes.h in this release: name to text, inline functions with their `static inline`."""
    text = preprocessed(release)
    text = text[text.index("const char *doca_error_get_name") :]
    text = re.sub(r"\{.*?\}", ";", text, flags=re.DOTALL)
    texts = [" ".join(each.split()) for each in text.split(";") if each.strip()]
    return {Row("", "", "", each).name: each for each in texts}


@pytest.mark.parametrize("release", [30, 25])
def test_the_header_declares_the_rows_and_nothing_else(release: int) -> None:
    claimed = [row for row in ROWS if release == 30 or row.is_in_25]
    wanted = {row.name: ("static inline " if row.node is None else "") + row.prototype for row in claimed}
    assert declared(release) == wanted


def test_the_headers_enumerators_have_the_notes_values() -> None:
    wanted = {name: value for name, value in ENUMERATORS.items() if not NOT_CLAIMED.match(name)}
    found = {name: int(value) for name, value in re.findall(r"\b(DOCA_\w+) = (\d+)", preprocessed(30))}
    assert {name: value for name, value in found.items() if not name.endswith("_SIZE")} == wanted


def test_every_call_of_the_notes_is_called_by_the_c_program() -> None:
    """A call that no test calls could do anything."""
    program = "".join(path.read_text("utf-8") for path in (SOURCES / "test").glob("*.c"))
    assert [row.name for row in ROWS if not re.search(rf"\b{row.name}\(", program)] == []


# -- the libraries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_exports_its_rows_under_their_nodes(libraries: Path, library: str) -> None:
    found = symbols(libraries / f"libdoca_{library}.so.2")
    wanted = {row.name: row.node for row in ROWS if row.library == library and row.node is not None}
    assert {name: node for name, node in found.items() if node in {"DOCA_2", "EXPERIMENTAL"}} == wanted
    rest = {name: node for name, node in found.items() if name not in wanted}
    assert rest.pop("doca_emulator_acquire", None) == ("DOCA_EMULATOR" if library == "common" else None)
    assert all(name.startswith("priv_doca_") and node == "INTERNAL" for name, node in rest.items()), rest
    assert bool(rest) == (library == "common")


@pytest.mark.parametrize("library", ["common", "dma"])
def test_the_older_release_has_only_what_2_5_had(libraries: Path, library: str) -> None:
    older = folder_of("--release", "2.5")
    assert older == libraries / "2.5"
    assert sorted(path.name for path in older.iterdir()) == ["libdoca_common.so.2", "libdoca_dma.so.2"]
    found = symbols(older / f"libdoca_{library}.so.2")
    wanted = {row.name: row.node for row in ROWS if row.library == library and row.is_in_25 and row.node is not None}
    assert {name: node for name, node in found.items() if node in {"DOCA_2", "EXPERIMENTAL"}} == wanted


def test_inline_functions_are_no_symbols(libraries: Path) -> None:
    inline = [row.name for row in ROWS if row.node is None]
    assert len(inline) == 2
    exported = {name for library in LIBRARIES for name in symbols(libraries / f"libdoca_{library}.so.2")}
    assert exported.isdisjoint(inline)
    assert exported.isdisjoint({"doca_version", "doca_buf_inventory_buf_reuse_by_addr"})


@pytest.mark.parametrize("library", LIBRARIES)
def test_names_and_needs_are_the_real_ones(libraries: Path, library: str) -> None:
    """No path to its neighbour is built in: who loads libdoca_dma has to find libdoca_common first."""
    found = dynamic(libraries / f"libdoca_{library}.so.2")
    assert found["SONAME"] == [f"libdoca_{library}.so.2"]
    ours = [name for name in found["NEEDED"] if name.startswith("libdoca_")]
    assert ours == ([] if library == "common" else ["libdoca_common.so.2"])
    system = [name for name in found["NEEDED"] if name not in ours]
    assert [name for name in system if not re.match(r"(libc\.so|libpthread\.so|ld-linux)", name)] == []
    assert "RPATH" not in found
    assert "RUNPATH" not in found


@pytest.mark.parametrize(("release", "said"), [("3.0", b"3.0.0-emulated"), ("2.5", b"2.5.0-emulated")])
def test_each_release_says_which_it_is(release: str, said: bytes) -> None:
    version = ctypes.CDLL(str(folder_of("--release", release) / "libdoca_common.so.2")).doca_version_runtime
    version.restype = ctypes.c_char_p
    assert version() == said


# -- the C program ------------------------------------------------------------------------------------------------


def program(into: Path, libraries: Path, *flags: str) -> Path:
    """The test program, compiled against one build of the libraries."""
    made = into / "doca-test"
    warnings = ["-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes", "-Werror"]
    subprocess.run(
        [
            *compiler(), "-std=c11", "-O1", "-g", "-pthread",
            *warnings, *flags, *sorted((SOURCES / "test").glob("*.c")),
            "-o", made, f"-L{libraries}", *(f"-l:libdoca_{library}.so.2" for library in LIBRARIES), "-ldl",
        ],
        check=True,
    )  # fmt: skip
    return made


def run(program: Path, libraries: Path, folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DOCA_EMULATOR_")}
    environment = {**kept, "LD_LIBRARY_PATH": str(libraries), "DOCA_EMULATOR_DIR": str(folder)}
    return subprocess.run(
        [program, *names], env=environment, capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip


def all_passed(program: Path, libraries: Path, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    names = run(program, libraries, folder, "--list").stdout.split()
    assert len(names) >= 40
    done = run(program, libraries, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"ok {name}" for name in names]
    left = [path.name for path in folder.iterdir() if path.suffix not in {".lock", ".sock"}]
    assert left == []  # also what a killed process had exported is gone with the next export


def test_the_c_program_passes(libraries: Path, tmp_path: Path) -> None:
    all_passed(program(tmp_path, libraries), libraries, tmp_path / "met")


def test_the_c_program_passes_under_the_sanitizers(tmp_path: Path) -> None:
    sanitized = folder_of("--sanitize")
    made = program(tmp_path, sanitized, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    all_passed(made, sanitized, tmp_path / "met")


def test_a_folder_that_others_can_enter_is_refused(libraries: Path, tmp_path: Path) -> None:
    made = program(tmp_path, libraries)
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path)
    for folder, why in (("open", "has to be ours, with mode 0700"), ("link", "link")):
        done = run(made, libraries, tmp_path / folder, "a_blob_is_refused_unless_it_is_whole_and_of_this_card")
        assert done.returncode == 1
        assert "DOCA_ERROR_DRIVER instead of DOCA_SUCCESS" in done.stderr
        assert why in done.stderr


# -- the build ----------------------------------------------------------------------------------------------------


def test_what_is_built_is_not_built_again(libraries: Path) -> None:
    again = subprocess.run(
        [SCRIPT], env={**os.environ, "CC": "/bin/false"}, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert again.stdout == f"{libraries}\n"
    assert ROOT not in libraries.parents


def test_two_builds_at_once_end_with_one(tmp_path: Path) -> None:
    compiler()
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    both = [subprocess.Popen([SCRIPT], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {one.communicate(timeout=120)[0] for one in both}
    assert [one.returncode for one in both] == [0, 0]
    (line,) = said
    assert sorted(path.name for path in Path(line.strip()).parent.iterdir()) == [Path(line.strip()).name, "lock"]


def test_the_options_are_checked() -> None:
    for arguments in (["--release", "1.5"], ["--release"], ["--anything"]):
        done = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert done.stdout == ""


def test_a_hole_in_the_callers_order_ends_the_caller(libraries: Path) -> None:
    """The strictness reaches through ctypes too: a NULL handle where the header names no error."""
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).doca_pe_progress(None)"
    done = subprocess.run(
        [sys.executable, "-c", code, libraries / "libdoca_common.so.2"], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == -6
    assert done.stderr.startswith("doca-emulator: doca_pe_progress: NULL where a pe is needed")
