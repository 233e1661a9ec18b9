"""Compiles `COMPILED` with mypyc and the C compiler, in a folder outside the tree that keeps what has not changed.

    python -I build_fast/compiling.py ROOT CACHE

prints, as JSON, the path of each extension module below ``site-packages`` and the file that holds it.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as a script with -I it has no folder
from build_fast.modules import COMPILED, DERIVED, PORTIONS, source_of
from build_fast.records import expand

GROUP: Final = "offpath_fast"
"""One shared library holds all compiled modules: calls between them are calls of C functions."""
FLAGS: Final = ("-fPIC", "-fwrapv", "-fvisibility=hidden", "-DNDEBUG")
_SETTINGS: Final = """[mypy]
plugins = pydantic.mypy
explicit_package_bases = True
namespace_packages = True
follow_imports = silent
"""
_KEPT: Final = 8
"""Builds that the cache keeps."""
_KEPT_S: Final = 30 * 86_400
"""How long the cache keeps an object file that no build used."""


@dataclass(frozen=True, slots=True)
class Library:
    """An extension module to make: its dotted name, its C files, and the compiler's flags."""

    name: str
    sources: tuple[str, ...]
    flags: tuple[str, ...]

    @property
    def place(self) -> str:
        """Its path below ``site-packages``."""
        return f"{self.name.replace('.', '/')}{sysconfig.get_config_var('EXT_SUFFIX')}"


def compiler() -> list[str]:
    """The C compiler's command: ``CC``, or the first of cc, gcc and clang."""
    if named := shlex.split(os.environ.get("CC", "")):
        return named
    found = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    return [found] if found is not None else sys.exit("there is no C compiler")


# -- sources ------------------------------------------------------------------------------------------------------
def sources(root: Path) -> dict[str, Path]:
    """Every module of the namespace, by name."""
    found = {}
    for role, portion in PORTIONS.items():
        home = root / role
        for path in sorted((home / "offpath" / portion).rglob("*.py")):
            parts = path.relative_to(home).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def needed(modules: dict[str, Path]) -> list[str]:
    """The compiled modules and what they import, directly or not: all that their types and code depend on."""
    found: set[str] = set()
    left = list(COMPILED)
    while left:
        name = left.pop()
        if name in found or name not in modules:
            continue
        found.add(name)
        left.append(name.rpartition(".")[0])
        for node in ast.walk(ast.parse(modules[name].read_text("utf-8"))):
            if isinstance(node, ast.Import):
                left += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                left += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return sorted(found)


def stage(modules: dict[str, Path], into: Path) -> None:
    """Write the sources as mypyc compiles them."""
    for name, path in modules.items():
        text = path.read_text("utf-8")
        target = into / name.replace(".", "/") / "__init__.py" if path.stem == "__init__" else into / source_of(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(expand(text, name, DERIVED) if name in COMPILED else text, "utf-8")
    (into / "mypy.ini").write_text(_SETTINGS)


def digest_of(modules: dict[str, Path]) -> str:
    """Changes with everything that the extension modules depend on."""
    from mypy.version import __version__ as mypy_version

    version = subprocess.run([*compiler(), "--version"], check=True, capture_output=True, text=True).stdout
    parts = [sys.version, str(sysconfig.get_config_var("EXT_SUFFIX")), mypy_version, version, *FLAGS]
    digest = hashlib.sha256("\n".join(parts).encode())
    own = sorted(Path(__file__).parent.glob("*.py"))
    for path in (*own, *(modules[name] for name in needed(modules))):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:20]


# -- C ------------------------------------------------------------------------------------------------------------
def generate(staged: Path) -> list[Library]:
    """Generate C from the staged sources. Runs in their folder: tracebacks name files relative to it.

    A warning is an error: mypyc warns where compiled code would differ, such as a generator that becomes a list.
    """
    from mypyc.build import mypycify

    os.chdir(staged)
    os.environ["MYPYPATH"] = str(staged)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            made = mypycify(
                ["--config-file", "mypy.ini", *map(source_of, COMPILED)],
                opt_level="2", debug_level="0", multi_file=True, target_dir="c", group_name=GROUP,
            )  # fmt: skip
    finally:
        sys.stderr.write(said.getvalue())
    if said.getvalue():
        sys.exit("mypyc warns; the lines are above")
    return [Library(each.name, tuple(each.sources), _flags(each)) for each in made]


def _flags(extension: Any) -> tuple[str, ...]:
    """mypyc's own, but for ``-Werror``: another compiler may warn of what the C that it generates contains."""
    includes = (*extension.include_dirs, sysconfig.get_paths()["include"])
    chosen = [flag for flag in extension.extra_compile_args if flag != "-Werror"]
    return (*FLAGS, *chosen, *(f"-I{folder}" for folder in includes))


def compile_all(libraries: list[Library], into: Path, objects: Path) -> None:
    """Compile the C files, on all cores, and link each library."""
    jobs = [(source, each.flags) for each in libraries for source in each.sources]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        made = iter(list(pool.map(lambda job: _object(job[0], job[1], objects), jobs)))
    for each in libraries:
        target = into / each.place
        target.parent.mkdir(parents=True, exist_ok=True)
        _run([*compiler(), "-shared", *(str(next(made)) for _ in each.sources), "-o", str(target)])


def _object(source: str, flags: tuple[str, ...], objects: Path) -> Path:
    """The object file; one of the same preprocessed C and the same flags is taken from ``objects``."""
    seen = _run([*compiler(), *flags, "-E", "-P", source])
    target = objects / f"{hashlib.sha256(shlex.join(flags).encode() + seen).hexdigest()[:32]}.o"
    if target.exists():
        os.utime(target)
    else:
        half = target.with_suffix(f".{os.getpid()}.o")
        _run([*compiler(), *flags, "-c", source, "-o", str(half)])
        half.replace(target)
    return target


def _run(command: list[str]) -> bytes:
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}\n{done.stderr.decode(errors='replace')}")
    return done.stdout


# -- cache --------------------------------------------------------------------------------------------------------
def build(root: Path, cache: Path) -> dict[str, str]:
    """The extension modules of the tree ``root``: path below ``site-packages`` → file in ``cache``."""
    modules = sources(root)
    with _locked(cache):
        made = cache / digest_of(modules)
        if not made.exists():
            work, objects = cache / "work", cache / "objects"
            shutil.rmtree(work, ignore_errors=True)
            objects.mkdir(exist_ok=True)
            stage(modules, work / "stage")
            compile_all(generate(work / "stage"), work / "made", objects)
            (work / "made").rename(made)
            shutil.rmtree(work, ignore_errors=True)
        os.utime(made)
        _prune(cache)
    return {str(path.relative_to(made)): str(path) for path in sorted(made.rglob("*.so"))}


@contextlib.contextmanager
def _locked(cache: Path) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _prune(cache: Path) -> None:
    builds = [path for path in cache.iterdir() if len(path.name) == 20 and path.is_dir()]
    for old in sorted(builds, key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    for unused in (cache / "objects").glob("*.o"):
        if time.time() - unused.stat().st_mtime > _KEPT_S:
            unused.unlink(missing_ok=True)


if __name__ == "__main__":
    print(json.dumps(build(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())))
