"""The build hook of both wheels: compiles the C module of the request path, `offpath.bindings._path`.

It is optional. Without a C compiler or Python's headers, or with ``OFFPATH_PURE=1``, a wheel is pure Python, tagged
``py3-none-any``; with the module it is tagged ``cp311-abi3-PLATFORM`` and serves Python 3.11 and later. An editable
install always gets the module where it can be built; there ``OFFPATH_PURE=1`` is read when a process starts.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT: Final = Path(__file__).resolve().parent
C_SOURCES: Final = ROOT / "bindings/csrc/path"
PACKAGE: Final = ROOT / "bindings/offpath/bindings"
NAME: Final = "_path.abi3.so"
NOT_FOR_HOSTS: Final = (
    "device_tokens.py", "wire/collab.py", "wire/collab_admin.py", "wire/inc_admin.py", "wire/work_admin.py",
    "zeromq/batches.py", "zeromq/gateway.py",
)  # fmt: skip
"""Beside the engines."""
TAG: Final = "cp311-abi3"
FLAGS: Final = ("-std=c11", "-O2", "-g0", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")


class NotBuilt(Exception):
    """The C module cannot be built here; the text gives the reason."""


def _loaded(name: str, path: Path) -> Any:
    """A module of this tree, by its file: there is no package yet."""
    spec = importlib.util.spec_from_file_location(f"offpath_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def checksum(folder: Path) -> str:
    """As `offpath.bindings.sources.checksum`."""
    found: str = _loaded("sources", PACKAGE / "sources.py").checksum(folder)
    return found


def compiler() -> list[str]:
    """The C compiler's command: ``CC``, or the first of cc, gcc and clang. Raises: NotBuilt."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise NotBuilt("this Python has no stable ABI")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise NotBuilt("Python's headers are not installed (Debian, Ubuntu: python3-dev)")
    if named := shlex.split(os.environ.get("CC", "")):
        return named
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    raise NotBuilt("there is no C compiler (Debian, Ubuntu: apt-get install gcc libc6-dev)")


def compile_module(into: Path, sources: Path = C_SOURCES, flags: tuple[str, ...] = ()) -> None:
    """Compile ``sources`` to the module ``into``, which appears whole or not at all. Raises: NotBuilt."""
    new = into.with_name(f".{into.name}.{os.getpid()}")
    includes = {sysconfig.get_path("include"), sysconfig.get_path("platinclude")}
    command = [
        *compiler(), *FLAGS, *shlex.split(os.environ.get("CFLAGS", "")), *flags, *(f"-I{path}" for path in includes),
        f'-DPATH_SOURCES="{checksum(sources)}"', *map(str, sorted(sources.glob("*.c"))), "-o", str(new),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotBuilt(f"the C compiler failed: {done.stderr.strip()}")
        os.replace(new, into)
    except OSError as fault:
        raise NotBuilt(f"the C compiler cannot be run: {fault}") from None
    finally:
        new.unlink(missing_ok=True)


def is_current(module: Path) -> bool:
    """Whether the file was built from the sources that there are."""
    return module.exists() and b"offpath path sources " + checksum(C_SOURCES).encode() in module.read_bytes()


class PathHook(BuildHookInterface):  # type: ignore[type-arg]
    """What hatchling calls, for the whole wheel and for the hosts' thin one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """``version``: "standard", or "editable" for a development install."""
        self._folder = tempfile.mkdtemp(prefix="offpath-build-")
        try:
            if version == "editable":
                self._in_place()
            else:
                self._for_wheel(build_data)
        except NotBuilt as why:
            self.app.display_warning(f"offpath: the request path runs in Python: {why}")
        if version != "editable" and Path(self.root) != ROOT:
            self._leave_out()
        if version != "editable" and self._wants_fast():
            self._fast.add_compiled(ROOT, build_data)

    def dependencies(self) -> list[str]:
        """What this build needs beyond hatchling."""
        return list(self._fast.REQUIRES) if self._wants_fast() else []

    @functools.cached_property
    def _fast(self) -> Any:
        return _loaded("fast_hook", ROOT / "build_fast" / "hook.py")

    def _wants_fast(self) -> bool:
        """The hosts' wheel has none of the compiled modules."""
        return Path(self.root) == ROOT and bool(self._fast.is_wanted())

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built for the wheel."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _leave_out(self) -> None:
        """Hosts use neither a job manager nor a collaboration controller."""
        for path in [*(PACKAGE / "engines").rglob("*"), *(PACKAGE / each for each in NOT_FOR_HOSTS)]:
            self.build_config.build_reserved_paths.add(f"offpath/bindings/{path.relative_to(PACKAGE)}")

    def _in_place(self) -> None:
        module = PACKAGE / NAME
        if is_current(module):
            return
        module.unlink(missing_ok=True)  # a stale one is not used anyway
        compile_module(module)

    def _for_wheel(self, build_data: dict[str, Any]) -> None:
        place = f"offpath/bindings/{NAME}"
        self.build_config.build_reserved_paths.add(place)  # never the one of the checkout
        if os.environ.get("OFFPATH_PURE") == "1":
            raise NotBuilt("OFFPATH_PURE=1")
        made = Path(self._folder) / NAME
        compile_module(made)
        build_data["force_include"][str(made)] = place
        build_data["pure_python"] = False
        build_data["tag"] = f"{TAG}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
