"""`offpath demo`: tenants replay a stretch of a real trace on two emulated GPUs, with continuous isolation checks."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import sys
from typing import Any, Final

from offpath.bindings.errors import OffpathError, OptionRefused
from offpath.host_helper.channels import KINDS

_SECONDS: Final = 20.0
_SEED: Final = 1998
_SLACK_S: Final = 150.0
GPU_KINDS: Final = ("emulated", "emulated-nvml", "cuda")
GPU_MODES: Final = ("mig", "whole")
_PICTURES: Final = (".svg", ".png", ".pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, and nothing else, to stdout")
    parser.add_argument(
        "--seconds", type=_positive, default=_SECONDS, help="replay the trace within this time (%(default)s)"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="only the first N jobs of the trace (all: 382)")
    parser.add_argument("--seed", type=int, default=_SEED, help="seed of training and digits (%(default)s)")
    parser.add_argument("--picture", default=os.path.join("out", "demo.svg"), metavar="PATH", help="file of the "
                        "timeline of leases (%(default)s); empty: none")  # fmt: skip
    verbs = "verbs needs an RDMA device: ./scripts/rxe-vm"
    parser.add_argument("--fabric", choices=["loopback", "verbs"], default="loopback", help="carrier of requests; "
                        f"{verbs} (%(default)s)")  # fmt: skip
    parser.add_argument("--copy-engine", choices=["loopback", "verbs", "doca", "cuda"], default="loopback",
                        help=f"engine of copies to and from instances; {verbs}; doca is emulated where DOCA is not "
                        "installed; cuda: workers copy from the slots to their GPU (%(default)s)")  # fmt: skip
    parser.add_argument("--gpu", choices=GPU_KINDS, default="emulated", help="emulated: two GPUs in host memory; "
                        "emulated-nvml: two GPUs behind emulated NVML and CUDA, cut by offpath-migd; "
                        "cuda: this machine's NVIDIA GPUs, whole, with a torch model (%(default)s)")  # fmt: skip
    parser.add_argument("--mode", choices=GPU_MODES, default="mig", help="of GPUs: mig cuts instances, whole gives a "
                        "lease the GPU (%(default)s)")  # fmt: skip
    parser.add_argument("--mps", action="store_true", help="share a lease's GPU by MPS: needs --gpu emulated-nvml or "
                        "cuda")  # fmt: skip
    parser.add_argument("--host-channel", choices=KINDS, default="unix", help="between helper and daemon; zmq and "
                        "comch carry no descriptors, so that loopback copies become doca's (%(default)s)")  # fmt: skip
    parser.add_argument("--netns", metavar="NAME", default="", help="run requesters in this network namespace, made "
                        "with `ip netns`")  # fmt: skip
    parser.add_argument("--break", dest="planted", choices=["scrub"], help="plant a fault that the demo must detect: "
                        "lanes are not scrubbed although their workers confirm it")  # fmt: skip


def main(arguments: argparse.Namespace) -> int:
    """Run the demo. 0: all checks passed; 1: one failed, and stderr has the reason."""
    if arguments.jobs is not None and arguments.jobs < 1:
        raise OffpathError("--jobs: at least one")
    if arguments.copy_engine == "cuda" and (arguments.host_channel, arguments.fabric) != ("unix", "loopback"):
        raise OptionRefused("--copy-engine cuda needs the host channel unix and the fabric loopback")
    if arguments.host_channel != "unix" and arguments.copy_engine == "loopback":
        arguments.copy_engine = "doca"
        _echo(f"copy engine doca: the loopback engine needs descriptors, which {arguments.host_channel} does not carry")
    if arguments.picture:
        _check_picture(arguments.picture)
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # two cores and a small network: more threads would only wait for each other
    try:
        report = asyncio.run(_run(arguments))
    except BaseExceptionGroup as faults:  # of the driver's task group: the first is the cause
        raise _first(faults) from None
    except asyncio.CancelledError:
        print("demo: interrupted; all processes were ended", file=sys.stderr)
        return 130
    complaints: list[str] = report.pop("complaints")
    if arguments.json:
        print(json.dumps(report))
    else:
        from offpath.cli.demo.table import render

        print(render(report))
    for line in complaints if report["faults"] else ():
        print(f"demo: {line}", file=sys.stderr)
    for fault in report["faults"]:
        print(f"demo: FAILED: {fault}", file=sys.stderr)
    return 0 if report["ok"] else 1


async def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    from offpath.cli.demo import gpus, model, place, report, samples
    from offpath.cli.demo.drive import DemoFailed, Drive
    from offpath.cli.demo.table import Progress

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    broken = arguments.planted == "scrub"
    plan = samples.load_plan(arguments.seconds, arguments.jobs)
    limit_s = arguments.seconds + _SLACK_S * max(1.0, arguments.seconds / _SECONDS)
    datapath = place.Datapath.chosen(
        arguments.fabric, arguments.copy_engine, arguments.netns, arguments.host_channel
    )  # fmt: skip
    if datapath.is_emulated:
        _echo(f"doca: an emulator of DOCA ({datapath.doca_version}), because DOCA is not installed")
    chosen = gpus.Gpus.chosen(arguments.gpu, arguments.mode, has_mps=arguments.mps)
    with place.making(
        sorted(plan.tenants), seed=arguments.seed, seconds=arguments.seconds, jobs=arguments.jobs, break_scrub=broken,
        datapath=datapath, gpus=chosen,
    ) as made:  # fmt: skip
        _echo(f"training {len(samples.DEMANDS)} networks on {samples.TRAINED_ON} digits")
        digits = samples.load_digits()
        networks = {
            demand: model.train(digits.train_images, digits.train_labels, hidden, arguments.seed)
            for demand, hidden in model.HIDDEN.items()
        }
        model.save(networks, made.model)
        on = "this machine's GPUs" if chosen.kind == "cuda" else "two EMULATED GPUs"
        _echo(f"starting a daemon, a helper with {on}, {len(plan.tenants)} requesters")
        try:
            async with asyncio.timeout(limit_s):
                outcome = await Drive(made, Progress(plan)).run()
        except TimeoutError:
            raise DemoFailed(f"not done within {limit_s:g} s") from None
    result = report.build(plan, outcome, seed=arguments.seed, break_scrub=broken, is_whole=chosen.mode == "whole")
    result["trace"] = {
        "jobs": len(plan.jobs),
        "span_s": plan.span_s,
        "replayed_in_s": arguments.seconds,
        "tenants": plan.tenants,
    }
    result["complaints"] = outcome.complaints
    result["provenance"] = samples.provenance()
    result["datapath"] = dataclasses.asdict(datapath)
    result["gpu"] = {
        "kind": chosen.kind, "mode": chosen.mode, "is_emulated": chosen.kind != "cuda", "has_mps": chosen.has_mps
    }  # fmt: skip
    result["started_in_s"] = outcome.started_in_s
    if arguments.picture and importlib.util.find_spec("matplotlib") is None:
        _echo("no picture: matplotlib is not installed here (extra `plot`)")
    elif arguments.picture:
        from offpath.cli.demo import timeline

        try:
            timeline.draw(plan, outcome, result, chosen, arguments.picture)
        except OSError as fault:
            raise DemoFailed(f"no picture at {arguments.picture}: {fault}") from None
        result["picture"] = arguments.picture
    return result


def _check_picture(path: str) -> None:
    """Before the run, so that a bad path does not lose its result."""
    if os.path.splitext(path)[1] not in _PICTURES:
        raise OffpathError(f"--picture {path}: a name that ends in {', '.join(_PICTURES)}")
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    except OSError as fault:
        raise OffpathError(f"--picture {path}: {fault.strerror}") from None


def _first(faults: BaseExceptionGroup[BaseException]) -> BaseException:
    found = faults.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


def _echo(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(f"demo: {text}", file=sys.stderr, flush=True)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 3600:
        raise argparse.ArgumentTypeError("more than 0, less than 3600 seconds")
    return value
