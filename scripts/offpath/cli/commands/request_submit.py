"""`offpath request submit KERNEL`: submits one request and prints its answer."""

from __future__ import annotations

import argparse
import math
import time
from typing import TYPE_CHECKING, Any

from offpath.bindings.errors import OffpathError
from offpath.bindings.runtime import NEGOTIATE_SOCKET, local_socket
from offpath.bindings.wire import admin
from offpath.cli import admin_client
from offpath.cli.commands.request_show import STAGES

if TYPE_CHECKING:
    from offpath.host_helper import Requester

_VALUES_SHOWN = 16
_LOOKS, _LOOK_S = 20, 0.01
_LONGEST_S = 1e9
_REQUEST_ID = 1  # of the first request of a session


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("kernel", metavar="KERNEL")
    admin_client.add_arguments(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--array", metavar="FILE.npy", help="the array of a numpy file")
    what.add_argument("--bytes", metavar="FILE", help="a file's bytes as an array of uint8")
    what.add_argument("--text", metavar="S", help="a text's UTF-8 as an array of uint8")
    parser.add_argument("--tenant", required=True, metavar="NAME", help="tenant of the request")
    parser.add_argument("--token-file", required=True, metavar="FILE", help="the tenant's token, mode 0600")
    parser.add_argument("--budget-ms", type=int, default=0, metavar="MS", help="deadline from acceptance (0: none)")
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="0 to 255, higher is sooner")
    parser.add_argument("--demand", type=int, default=0, metavar="R", help="percent of a GPU (0: the kernel's own)")
    parser.add_argument("--timeout", type=_seconds, default=None, metavar="S", help="give up after S seconds")
    parser.add_argument("--output", metavar="FILE.npy", help="write the result's only array there")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a number of seconds above 0, up to {_LONGEST_S:g}")
    return seconds


def main(arguments: argparse.Namespace) -> int:
    """Submit and wait."""
    import numpy as np

    from offpath.host_helper import Options, Requester, RequestFailed

    arrays = _arrays(arguments)
    nbytes = sum(array.nbytes for array in arrays)
    try:
        options = Options(demand=arguments.demand, priority=arguments.priority, budget_ms=arguments.budget_ms)
    except ValueError as fault:
        raise OffpathError(str(fault)) from None
    requester = Requester(
        f"unix:{local_socket(NEGOTIATE_SOCKET, arguments.runtime_dir)}", tenant=arguments.tenant,
        token_file=arguments.token_file, slots=1, payload_bytes=max(4096, nbytes),
    )  # fmt: skip
    with requester:
        try:
            pending = requester.begin(arguments.kernel, arrays, options=options)
        except TypeError as fault:  # a dtype that the wire does not support
            raise OffpathError(str(fault)) from None
        document: dict[str, Any] = {"session": requester.welcome.session, "request_id": _REQUEST_ID}
        document["job"] = _job_number(arguments.runtime_dir, requester)
        name = f"{requester.welcome.session}/{_REQUEST_ID}"
        admin_client.echo(f"job {document['job']} ({name})" if document["job"] is not None else f"request {name}")
        try:
            result = pending.result(arguments.timeout)
        except RequestFailed as failed:
            document |= {
                "status": failed.status.name, "reason": failed.reason.name, "detail": failed.detail,
                "retry_after_ms": failed.retry_after_ms,
            }  # fmt: skip
            if arguments.json:
                admin_client.print_json(document)
            admin_client.echo(f"offpath: {failed}")
            return 1
        is_emulated = requester.is_emulated(arguments.kernel)
    if is_emulated:
        admin_client.echo(f"{arguments.kernel}: computed on an EMULATED GPU")
    if arguments.json:
        shown = [{"dtype": a.dtype.name, "shape": list(a.shape), "values": _values(a)} for a in result.arrays]
        stages_ms = {stage: ns / 1e6 for stage, ns in zip(STAGES, result.stages, strict=True)}
        ended = {
            "status": "COMPLETED",
            "lease": result.lease,
            "is_emulated": is_emulated,
            "stages_ms": stages_ms,
            "arrays": shown,
        }
        admin_client.print_json({**document, **ended})
    else:
        for array in result.arrays:
            print(f"{array.dtype.name}{list(array.shape)}: {np.array2string(array, threshold=_VALUES_SHOWN)}")
    if arguments.output:
        try:
            np.save(arguments.output, result.array, allow_pickle=False)
        except (OSError, ValueError) as fault:
            raise OffpathError(f"--output {arguments.output}: {fault}") from None
    return 0


def _arrays(arguments: argparse.Namespace) -> list[Any]:
    import numpy as np

    try:
        if arguments.array is not None:
            return [np.load(arguments.array, allow_pickle=False)]
        if arguments.bytes is not None:
            with open(arguments.bytes, "rb") as file:
                return [np.frombuffer(file.read(), np.uint8)]
    except (OSError, ValueError, EOFError) as fault:
        raise OffpathError(f"{arguments.array or arguments.bytes}: {fault}") from None
    return (
        [np.frombuffer(arguments.text.encode("utf-8", "surrogateescape"), np.uint8)]
        if arguments.text is not None
        else []
    )


def _values(array: Any) -> Any:
    """The values of a small array, else None: `--output` is for large ones. An empty one may still have 2**32 rows."""
    return array.tolist() if math.prod(dim or 1 for dim in array.shape) <= 1024 else None


def _job_number(runtime_dir: str | None, requester: Requester) -> int | None:
    """The request's job number; None if this user is not an operator or the daemon does not report it."""
    wanted = admin.JobRequest(session=requester.welcome.session, request_id=_REQUEST_ID)
    try:
        with admin_client.AdminClient(runtime_dir) as client:
            for _ in range(_LOOKS):
                try:
                    return client.query(wanted, admin.Job).job.job
                except admin_client.Refused:
                    time.sleep(_LOOK_S)  # the daemon may not have read the doorbell yet
    except OffpathError:
        pass
    return None
