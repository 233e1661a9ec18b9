"""A recorded script of calls of libcuda and libnvidia-ml with their codes, and its replay on another library.

``data/gpu_calls.json`` has sections, each for a process of its own, since an error may end a context. A call is
``[function, arguments, code]``, made through its exported C symbol. An argument is a number, or text:

- ``&NAME``: the address of a place of 4096 bytes, where the call leaves what it returns;
- ``$NAME``, ``$NAME+N``: the 8 bytes of that place as a number, ``$NAME:4``: its first 4;
- ``#N``: the address of N bytes of host memory; ``'TEXT``: the address of a text; ``PTX``: of the checks' kernels.

A place that no call has filled yet is zero. ``python -m offpath.cli.gpu_check.call_script`` records: it replays on the
emulator that OFFPATH_GPU_PATH names, and writes the file with the codes found.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import orjson

from offpath.bindings.errors import DeviceError, OffpathError
from offpath.bindings.gpu_folder import gpu_folder
from offpath.cli.bench.gpu.kernels import PTX
from offpath.cli.bench.gpu.setting import in_child

MISSING: Final = "missing"
"""In the place of a code: the library has no such function."""
_LIBRARIES: Final = {"cu": "libcuda.so.1", "nvml": "libnvidia-ml.so.1"}
_PLACE_BYTES: Final = 4096
_MOST_HOST_BYTES: Final = 1 << 24
_SECTION_S: Final = 30.0
_FILE: Final = "gpu_calls.json"


@dataclass(frozen=True, slots=True)
class Section:
    """Calls of one process, in order."""

    name: str
    calls: list[tuple[str, list[int | str], int | str]]


def read() -> list[Section]:
    """The recorded script."""
    found = orjson.loads(resources.files("offpath.cli").joinpath("data", _FILE).read_bytes())
    return [Section(each["name"], [tuple(call) for call in each["calls"]]) for each in found["sections"]]


def replay(section: Section) -> list[int | str]:
    """The codes of its calls in a process of its own. Fewer than there are calls: the next one ended the process."""
    reading, writing = os.pipe()
    try:
        try:
            in_child(section.name, lambda: _run(section, writing), _SECTION_S)
        except DeviceError:  # the codes before the end say where it was
            pass
        finally:
            os.close(writing)
        text = b""
        while part := os.read(reading, 1 << 16):
            text += part
    finally:
        os.close(reading)
    return [word if word == MISSING else int(word) for word in text.decode().split()]


def _run(section: Section, writing: int) -> None:
    player = _Player()
    for name, arguments, _ in section.calls:
        os.write(writing, f"{player.call(name, arguments)}\n".encode())


class _Player:
    """The libraries, and the places and buffers of one section."""

    def __init__(self) -> None:
        self._libraries: dict[str, ctypes.CDLL] = {}
        self._places: dict[str, Any] = {}
        self._buffers: dict[str, Any] = {"PTX": ctypes.create_string_buffer(PTX)}

    def call(self, name: str, arguments: list[int | str]) -> int | str:
        """The call's code."""
        try:
            function = getattr(self._library(name), name)
        except AttributeError:
            return MISSING
        function.restype = ctypes.c_int
        # Every argument takes a register or eight bytes of the stack: functions read as many bits as they declare.
        return int(function(*(ctypes.c_uint64(self._value(each)) for each in arguments)))

    def _library(self, name: str) -> ctypes.CDLL:
        file = next(file for prefix, file in _LIBRARIES.items() if name.startswith(prefix))
        if file not in self._libraries:
            path = os.path.join(gpu_folder(), file)
            try:
                self._libraries[file] = ctypes.CDLL(path, os.RTLD_NOW | os.RTLD_GLOBAL)
            except OSError as fault:
                raise OffpathError(f"{path}: {fault}") from fault
        return self._libraries[file]

    def _value(self, argument: int | str) -> int:
        if isinstance(argument, int):
            return argument
        kind, rest = argument[0], argument[1:]
        if kind == "&":
            return self._address(rest)
        if kind == "$":
            return self._read(rest)
        if argument not in self._buffers:
            size = min(int(rest), _MOST_HOST_BYTES) if kind == "#" else 0
            self._buffers[argument] = ctypes.create_string_buffer(size or rest.encode())
        return ctypes.addressof(self._buffers[argument])

    def _address(self, place: str) -> int:
        if place not in self._places:
            self._places[place] = (ctypes.c_char * _PLACE_BYTES)()
        return ctypes.addressof(self._places[place])

    def _read(self, text: str) -> int:
        name, _, offset = text.partition("+")
        name, _, width = name.partition(":")
        kind = ctypes.c_uint32 if width == "4" else ctypes.c_uint64
        return int(kind.from_address(self._address(name)).value) + int(offset or 0)


def record(path: str) -> None:
    """Replace the codes of the file by those of the emulator."""
    with open(path, "rb") as file:
        found = orjson.loads(file.read())
    for each in found["sections"]:
        section = Section(each["name"], [(call[0], call[1], 0) for call in each["calls"]])
        codes = replay(section)
        if len(codes) != len(section.calls):
            raise OffpathError(f"{section.name}: the emulator ended at {section.calls[len(codes)]}")
        each["calls"] = [
            [name, arguments, code] for (name, arguments, _), code in zip(section.calls, codes, strict=True)
        ]
    with open(path, "w", encoding="utf-8") as file:
        file.write(_text(found))


def _text(found: dict[str, Any]) -> str:
    """A call per line, so that a change of one is a change of one line."""
    sections = []
    for each in found["sections"]:
        calls = ",\n".join(f"    {orjson.dumps(call).decode()}" for call in each["calls"])
        sections.append(f'  {{"name": {orjson.dumps(each["name"]).decode()}, "calls": [\n{calls}\n  ]}}')
    head = orjson.dumps(found["_provenance"], option=orjson.OPT_INDENT_2).decode().replace("\n", "\n ")
    return f'{{\n "_provenance": {head},\n "sections": [\n' + ",\n".join(sections) + "\n ]\n}\n"


if __name__ == "__main__":
    record(str(resources.files("offpath.cli").joinpath("data", _FILE)))
