"""The GPU emulator as libraries: names, what they need, the C program that calls everything, and the build."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ...support.compiler import built, compiler
from ...support.gpu_emulator import PREFIX, ROOT, emulator, machine

SOURCES = ROOT / "bindings" / "csrc" / "gpu_emulator"
SCRIPT = ROOT / "scripts" / "gpu-emulator"
LIBRARIES = {"libnvidia-ml.so.1": "nvml", "libcuda.so.1": "cuda"}
OURS = {
    "libnvidia-ml.so.1": {"gpu_emulator_xid"},
    "libcuda.so.1": {"cuda_emulator_host_address", "cuda_emulator_calls", "cuda_emulator_queued"},
}
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes", "-Werror"]
LONGEST_FILE = 400


def declared(header: str) -> set[str]:
    """Functions that a header declares."""
    text = (SOURCES / f"{header}.h").read_text("utf-8")
    return set(
        re.findall(r"^(?:nvmlReturn_t|CUresult|const char \*|void \*|uint64_t )\s?\*?(\w+)\(", text, re.MULTILINE)
    )


def needs(tool: str) -> pytest.MarkDecorator:
    """It comes with the compiler; a machine that has only offpath's packages, and the libraries, may lack it."""
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"needs {tool}")


def listed(*arguments: str | Path) -> str:
    return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout


@needs("nm")
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_exports_what_its_header_declares(library: str) -> None:
    output = listed("nm", "--dynamic", "--defined-only", emulator() / library)
    found = {line.split()[-1] for line in output.splitlines()}
    assert found == declared(LIBRARIES[library]) | OURS[library]


def test_there_are_as_many_functions_as_the_documentation_says() -> None:
    text = (ROOT / "docs" / "hardware.md").read_text("utf-8")
    nvml, cuda = len(declared("nvml")), len(declared("cuda") - OURS["libcuda.so.1"])
    assert f"{nvml} functions of NVML" in text
    assert f"{cuda} of the CUDA driver" in text


@needs("objdump")
@pytest.mark.parametrize("library", LIBRARIES)
def test_names_and_needs_are_the_real_ones(library: str) -> None:
    output = listed("objdump", "-p", emulator() / library)
    assert re.findall(r"^\s+SONAME\s+(\S+)$", output, re.MULTILINE) == [library]
    needed = re.findall(r"^\s+NEEDED\s+(\S+)$", output, re.MULTILINE)
    assert [name for name in needed if not re.match(r"(libc\.so|libpthread\.so|ld-linux)", name)] == []
    assert "RPATH" not in output
    assert "RUNPATH" not in output


def test_every_call_of_the_headers_is_called_by_the_c_program() -> None:
    """A call that no test calls could do anything."""
    program = "".join(path.read_text("utf-8") for path in (SOURCES / "test").glob("*.c"))
    every = declared("nvml") | declared("cuda")
    assert sorted(name for name in every if not re.search(rf"\b{name}\(", program)) == []


def test_no_file_is_longer_than_it_should_be() -> None:
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in SOURCES.rglob("*.[ch]")}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


BOTH = """
import pynvml
from cuda.bindings import driver
pynvml.nvmlInit()
name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
assert driver.cuInit(0)[0] == 0
assert driver.cuDeviceGetName(len(name) + 1, 0)[1].decode().rstrip(chr(0)) == name
print(name)
"""


def test_nvidias_packages_find_the_libraries_by_the_environment() -> None:
    """Processes outside offpath do not open the libraries before the packages do."""
    with machine(mig="off"):
        done = subprocess.run(
            [sys.executable, "-c", BOTH], env={**os.environ, "LD_LIBRARY_PATH": str(emulator())}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
    assert done.stdout == "NVIDIA A100-SXM4-40GB (emulated)\n", done.stderr


# -- the C program ----------------------------------------------------------------------------------------------------


def all_passed(into: Path, libraries: Path, *flags: str) -> None:
    """Compiles the program against one build of the libraries, and runs all of it."""
    program, folder = into / "gpu-test", into / "machines"
    folder.mkdir(mode=0o700)
    subprocess.run(
        [
            *compiler(), "-std=c11", "-O1", "-g", "-pthread",
            *WARNINGS, *flags, *sorted((SOURCES / "test").glob("*.c")),
            "-o", program, f"-L{libraries}", *(f"-l:{library}" for library in LIBRARIES),
        ],
        check=True,
    )  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if not name.startswith((PREFIX, "CUDA_"))}
    environment = {**kept, "LD_LIBRARY_PATH": str(libraries), "CUDA_MPS_PIPE_DIRECTORY": str(folder)}

    def run(*names: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, folder, *names], env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    names = run("--list").stdout.split()
    assert len(names) >= 20
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"ok {name}" for name in names]


def test_the_c_program_passes(tmp_path: Path) -> None:
    all_passed(tmp_path, emulator())


def test_the_c_program_passes_under_the_sanitizers(tmp_path: Path) -> None:
    all_passed(tmp_path, Path(built(SCRIPT, "--sanitize")), "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


# -- the build --------------------------------------------------------------------------------------------------------


def test_what_is_built_is_not_built_again() -> None:
    made = emulator()
    again = subprocess.run(
        [SCRIPT], env={**os.environ, "CC": "/bin/false"}, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert again.stdout == f"{made}\n"
    assert ROOT not in made.parents
    assert sorted(path.name for path in made.iterdir()) == sorted([*LIBRARIES, "nvidia-cuda-mps-control"])


def test_an_unknown_option_is_refused() -> None:
    done = subprocess.run([SCRIPT, "--anything"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (64, "")


def test_every_model_of_the_table_is_built_in() -> None:
    """A model that the table has and the build does not know would fail the build: of which SMs and ids are known?"""
    table = json.loads((ROOT / "bindings/offpath/bindings/data/mig_profiles.json").read_text("utf-8"))
    output = listed(SOURCES / "models", ROOT / "bindings/offpath/bindings/data/mig_profiles.json")
    assert [name for name in table["gpus"] if f'{{"{name}", ' not in output] == []
