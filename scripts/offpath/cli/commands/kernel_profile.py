"""`offpath kernel profile FILE`: measures a kernel's throughput on the sizes of instances, and offers R."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from offpath.bindings.errors import OptionRefused
from offpath.bindings.loopback.gpu import DEFAULT_SLICE_BYTES
from offpath.bindings.mig import MigProfile
from offpath.bindings.ports import Gpu
from offpath.sched.gpu.rightsizing import GAIN, Rate, ThroughputProfile

if TYPE_CHECKING:
    from offpath.host_helper.helper import Helper
    from offpath.host_helper.profiling import Sample

_MOST_BYTES: Final = 1 << 34
_MOST_SECONDS: Final = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("file", help="a Python file with a module-level `helper = Helper()`")
    parser.add_argument("--kernel", metavar="NAME", help="the kernel to measure (default: the only one)")
    parser.add_argument("--input", nargs="+", required=True, metavar="INPUT", help="each of the kernel's tensors: "
                        "DTYPE:N,N,… for random numbers (float32:8,3,224,224), or a file .npy")  # fmt: skip
    parser.add_argument("--result-bytes", type=int, default=1 << 20, help="room for its result (default: 1 MiB)")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each size (default: 2)")
    parser.add_argument("--gain", type=float, default=GAIN, help="what a larger instance must add to count: 0.1 is "
                        "10 %% (default: %(default)s)")  # fmt: skip
    parser.add_argument("--write", metavar="DEMANDS", help="add the result to this file, for `helper run --demands`")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--gpus", choices=("auto", "migd", "cuda"), default="auto", help="where to find NVIDIA GPUs")
    parser.add_argument("--migd", metavar="PATH", default="", help="socket of offpath-migd")
    parser.add_argument("--emulate", nargs="+", default=[], metavar="MODEL", help="models of GPUs to emulate instead")
    parser.add_argument("--slice-bytes", type=int, default=DEFAULT_SLICE_BYTES, help="emulated bytes per memory slice")


def main(arguments: argparse.Namespace) -> int:
    """One GPU of each model is measured. Raises: OffpathError."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before BLAS is loaded: no threads before a fork
    from offpath.host_helper.gpus import emulated_gpus, find_gpus  # after the line above: they import numpy
    from offpath.host_helper.rightsizing import write_demands

    if not 0 < arguments.seconds <= _MOST_SECONDS or not 0 <= arguments.gain <= 10:
        raise OptionRefused("--seconds is a time up to 3600, --gain a number from 0 to 10")
    from offpath.host_helper.helper_file import load_helper  # late, because it imports numpy

    sys.argv = [arguments.file]  # the file's own, if it reads arguments
    helper = load_helper(arguments.file)
    name = _kernel(helper, arguments.kernel)
    sample = _sample(arguments.input, arguments.result_bytes)
    found = []
    with ExitStack() as stack:
        gpus = (
            emulated_gpus(arguments.emulate, slice_bytes=arguments.slice_bytes, delayed_visibility=False)
            if arguments.emulate
            else find_gpus(arguments.gpus, arguments.migd)
        )
        for gpu in gpus:
            stack.callback(gpu.close)
        first = {gpu.model.name: gpu for gpu in reversed(gpus)}
        for gpu in [gpu for gpu in gpus if first[gpu.model.name] is gpu]:
            found.append(_measured(helper, name, gpu, sample, arguments.seconds, arguments.gain))
    demand = {each["model"]: each["demand"] for each in found}
    if arguments.write:
        write_demands(arguments.write, name, demand)
    if arguments.json:
        print(json.dumps({"kernel": name, "gain": arguments.gain, "gpus": found, "demand": demand}))
        return 0
    for each in found:
        print(_text(name, each))
    print(f"demand={json.dumps(demand)}")
    print(f"No larger instance gives {arguments.gain:.0%} more. It is offered, not applied"
          + (f": {arguments.write} is used for kernels with demand=\"auto\"." if arguments.write else "."))  # fmt: skip
    return 0


def _kernel(helper: Helper, name: str | None) -> str:
    known = list(helper.kernels)
    if name is None and len(known) == 1:
        return known[0]
    if name not in known:
        raise OptionRefused(f"--kernel: one of {', '.join(known)}")
    return str(name)


def _sample(inputs: list[str], result_bytes: int) -> Sample:
    """Raises: OptionRefused: an input that is none."""
    import numpy as np

    from offpath.bindings.wire.header import DTYPE_CODES
    from offpath.host_helper.dtypes import numpy_dtype
    from offpath.host_helper.profiling import sample_of

    if not 0 < result_bytes <= _MOST_BYTES:
        raise OptionRefused(f"--result-bytes is a size up to {_MOST_BYTES}")
    random, arrays = np.random.default_rng(0), []
    for text in inputs:
        if text.endswith(".npy"):
            try:
                arrays.append(np.load(text, allow_pickle=False))
            except (OSError, ValueError) as fault:
                raise OptionRefused(f"{text}: {fault}") from None
            continue
        dtype, _, dims = text.partition(":")
        try:
            shape = tuple(int(each) for each in dims.split(",")) if dims else ()
            made = numpy_dtype(DTYPE_CODES[dtype])
        except (ValueError, KeyError):
            raise OptionRefused(
                f"--input {text[:64]!r}: DTYPE:N,N,… with a dtype of {', '.join(DTYPE_CODES)}"
            ) from None
        if any(each < 0 for each in shape) or math.prod(shape) * made.itemsize > _MOST_BYTES:
            raise OptionRefused(f"--input {text[:64]!r}: its shape is negative or has more than {_MOST_BYTES} bytes")
        drawn = random.random(shape, np.float32)  # whole numbers become 0, which any index may be
        arrays.append(drawn.astype(made) if made.fields is None else np.zeros(shape, made))
    return sample_of(arrays, result_bytes)


def _measured(helper: Helper, name: str, gpu: Gpu, sample: Sample, seconds: float, gain: float) -> dict[str, Any]:
    """Raises: DeviceError: a size cannot be measured. OptionRefused: the kernel does not fit the whole GPU."""
    from offpath.host_helper.profiling import measure

    kernel, model = helper.kernels[name], gpu.model
    rates = []
    for profile in _sizes(gpu, kernel.memory_bytes):
        print(f"offpath: {name} on {profile.name} of {gpu.uuid} ...", file=sys.stderr, flush=True)
        rates.append(Rate(profile.name, profile.compute_slices, measure(helper, kernel, gpu, profile, sample, seconds)))
    if not rates or rates[-1].compute_slices != model.compute_slices:
        raise OptionRefused(
            f"kernel {name!r} needs {kernel.memory_bytes} bytes, more than {gpu.uuid} ({model.name}) has"
        )
    throughput = ThroughputProfile(model.name, 1, tuple(rates))
    knee = throughput.knee(gain)
    return {
        "gpu": gpu.uuid, "model": model.name, "is_emulated": gpu.is_emulated,
        "sizes": [
            {"profile": rate.profile, "share": throughput.share(rate), "runs_per_s": round(rate.throughput, 3),
             "of_whole": round(part, 4)}
            for rate, part in zip(rates, throughput.normalised(), strict=True)
        ],
        "knee": knee.profile, "demand": throughput.share(knee),
    }  # fmt: skip


def _sizes(gpu: Gpu, memory_bytes: int) -> list[MigProfile]:
    """Of each number of compute slices the smallest profile that has the kernel's memory, by rising size."""
    sizes: dict[int, MigProfile] = {}
    for profile in sorted(gpu.model.profiles, key=lambda each: (each.compute_slices, each.memory_slices)):
        if "+" not in profile.name and profile.memory_bytes >= memory_bytes:
            sizes.setdefault(profile.compute_slices, profile)
    return list(sizes.values())


def _text(name: str, each: dict[str, Any]) -> str:
    emulated = ", EMULATED: this host's CPU computed" if each["is_emulated"] else ""
    lines = [f"{name} on {each['gpu']} ({each['model']}{emulated})"]
    lines += [
        f"  {size['profile']:>10} {size['share']:>4} % {size['runs_per_s']:>12.3f} runs/s, "
        f"{size['of_whole']:.1%} of the whole"
        for size in each["sizes"]
    ]
    return "\n".join([*lines, f"  suggested: R = {each['demand']} % ({each['knee']})"])
