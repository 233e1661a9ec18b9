"""Measured demands: a file with R of kernels by GPU model, for kernels that are registered with ``demand="auto"``.

`offpath kernel profile` writes the file. Nothing is right-sized unless both the kernel's author (``"auto"``) and the
operator (the file) say so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from offpath.bindings.errors import OptionRefused
from offpath.bindings.invalid import listed
from offpath.bindings.ports import Gpu
from offpath.host_helper.kernels import Kernel

_MOST_BYTES: Final = 1 << 20
_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/+-]{0,63}$")]
_Share = Annotated[int, Field(ge=1, le=100)]
Demands = Mapping[str, Mapping[str, int]]
"""R in percent of a GPU, by kernel and by GPU model as its driver reports it."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: Literal[1] = 1
    kernels: Annotated[dict[_Name, Annotated[dict[_Name, _Share], Field(max_length=64)]], Field(max_length=1024)] = {}


def read_demands(path: str) -> Demands:
    """Raises: OptionRefused: it cannot be read, or is no such file."""
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise OptionRefused(f"{path}: more than {_MOST_BYTES} bytes")
        return _File.model_validate_json(content).kernels
    except OSError as fault:
        raise OptionRefused(f"{path}: {fault.strerror or fault}") from None
    except ValidationError as fault:
        raise OptionRefused(f"{path} has no measured demands: " + "; ".join(listed(fault))) from None


def write_demands(path: str, kernel: str, measured: Mapping[str, int]) -> None:
    """Add or replace the kernel's R on these models; the file is replaced as a whole. Raises: OptionRefused."""
    kernels = {name: dict(models) for name, models in read_demands(path).items()} if os.path.exists(path) else {}
    kernels.setdefault(kernel, {}).update(measured)
    written = f"{path}.new"
    try:
        with open(written, "w", encoding="ascii") as file:
            file.write(_File(kernels=kernels).model_dump_json(indent=2) + "\n")
        os.replace(written, path)
    except OSError as fault:
        raise OptionRefused(f"{path}: {fault.strerror or fault}") from None


def right_sized(kernels: Mapping[str, Kernel], gpus: Sequence[Gpu], measured: Demands | None) -> dict[str, Kernel]:
    """The kernels, with the measured R on the models of these GPUs for those that are registered with "auto".

    Raises: OptionRefused: there is no file (``measured`` None), or it has no measurement of a kernel on any GPU here.
    """
    here = sorted({gpu.model.name for gpu in gpus})
    sized = {}
    for name, kernel in kernels.items():
        sized[name] = kernel
        if not kernel.is_auto:
            continue
        if measured is None:
            raise OptionRefused(
                f"kernel {name!r} has demand='auto', and no measured demands are given: measure it with"
                f" `offpath kernel profile FILE --kernel {name} --write DEMANDS`, then start the helper with"
                " --demands DEMANDS"
            )
        models = {model: share for model, share in measured.get(name, {}).items() if model in here}
        if not models:
            raise OptionRefused(f"kernel {name!r} has demand='auto', and was not measured on {', '.join(here)}")
        sized[name] = replace(kernel, demand=min(models.values()), models=models)
    return sized
