"""Check 6: torch and cupy see a lane's bytes without a copy. `UUID LIBRARY` as a program ends with tensors alive."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from typing import Any, Final

import numpy as np
import orjson

from offpath.bindings.cuda.instance import CudaInstance
from offpath.bindings.cuda.lane import CudaLane
from offpath.cli.bench.gpu.setting import Setting
from offpath.cli.gpu_check.figures import Figures, NotPossible
from offpath.cli.local.child import command, environment
from offpath.host_helper.results import store
from offpath.host_helper.tensors import LaneTensor

_COUNT: Final = 4096
_LIMIT_S: Final = 80.0
_LIBRARIES: Final = ("torch", "cupy")


def tensors(setting: Setting, figures: Figures) -> None:
    """For each library that is installed, in a process that ends by itself."""
    if setting.is_emulated:
        raise NotPossible("the CUDA runtime, on which torch and cupy stand, does not run on the emulator")
    found = [name for name in _LIBRARIES if importlib.util.find_spec(name) is not None]
    figures.add("installed", found)
    if not found:
        raise NotPossible("neither torch nor cupy is installed")
    for name in found:
        try:
            done = subprocess.run(
                command("gpu_check.tensors", setting.uuid, name), env=environment(), capture_output=True, text=True,
                timeout=_LIMIT_S / len(found), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            figures.expect(name, False, late)
            continue
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                (what, value), *_ = orjson.loads(line).items()
                if isinstance(value, bool):
                    figures.expect(f"{name}: {what}", value)
                else:
                    figures.add(f"{name}: {what}", value)
        figures.expect(
            f"{name}: the process ends in order with tensors alive", done.returncode == 0, done.stderr[-500:]
        )


def main(uuid: str, name: str) -> None:
    """Print a line of JSON for each finding. The tensors are alive when the process ends."""
    library = importlib.import_module(name)
    _say("version", str(library.__version__))
    instance = CudaInstance(uuid)
    lane = instance.reserve(0, 1, _COUNT * 4, _COUNT * 4)
    content = np.random.default_rng(3).random(_COUNT, np.float32)
    lane.write(0, content.tobytes())
    tensor = LaneTensor(lane.pointer, "float32", (_COUNT,), lane, device=lane.device, stream=lane.stream)
    view = library.from_dlpack(tensor)
    _say("DLPack has the lane's pointer", _pointer(view) == lane.pointer)
    _say("DLPack sees the lane's bytes", bool(np.array_equal(_host(view), content)))
    other = library.as_tensor(tensor, device="cuda") if name == "torch" else library.asarray(tensor)
    _say("__cuda_array_interface__ has the lane's pointer", _pointer(other) == lane.pointer)
    with _stream(library, lane.stream):
        doubled = view * 2
    lane.synchronize()
    _result("a result of the lane's stream", lane, doubled, content * 2)
    _result("a result of the default stream", lane, view + 1, content + np.float32(1))
    lane.write(0, (content + np.float32(3)).tobytes())
    _say("a later write of the lane is seen", bool(np.array_equal(_host(view), content + np.float32(3))))
    if name == "torch":
        library.cuda.empty_cache()
        _say("the view survives empty_cache", bool(np.array_equal(_host(view), content + np.float32(3))))
    _KEPT.extend((instance, lane, view, other, doubled))


_KEPT: Final[list[Any]] = []


def _result(what: str, lane: CudaLane, value: Any, wanted: Any) -> None:
    """A tensor of the device becomes the lane's result half by a copy on the device."""
    lane.synchronize()
    stored = store(lane, value)
    found = np.frombuffer(lane.read(lane.landing_bytes, stored.nbytes), np.float32)
    _say(f"{what} is in the lane", bool(not stored.is_inline and np.array_equal(found, wanted)))


def _pointer(value: Any) -> int:
    return int(value.data_ptr()) if hasattr(value, "data_ptr") else int(value.data.ptr)


def _host(value: Any) -> Any:
    return value.cpu().numpy() if hasattr(value, "cpu") else value.get()


def _stream(library: Any, stream: int) -> Any:
    cuda = library.cuda
    return cuda.stream(cuda.ExternalStream(stream)) if library.__name__ == "torch" else cuda.ExternalStream(stream)


def _say(what: str, value: Any) -> None:
    print(orjson.dumps({what: value}).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
