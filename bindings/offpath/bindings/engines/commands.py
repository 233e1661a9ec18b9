"""Runs an engine's commands: bounded in time and output, with typed errors. The output is untrusted."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from offpath.bindings.errors import EngineAnswerInvalid, EngineMissing, EngineUnavailable

MOST_BYTES: Final = 256 << 20
"""Limit of a command's stdout."""
_MOST_ERROR_BYTES: Final = 64 << 10
_STEERING: Final = ("SLURM_", "SBATCH_", "SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_", "SALLOC_", "SRUN_")
"""Variables that would change what Slurm's commands do or print."""


@dataclass(frozen=True, slots=True)
class Done:
    """A command that ended: exit code, stdout, stderr."""

    code: int
    out: bytes
    err: str


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without what steers Slurm's commands, in the C locale, with ``more``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_STEERING)}
    if "SLURM_CONF" in os.environ:
        kept["SLURM_CONF"] = os.environ["SLURM_CONF"]
    return {**kept, "LC_ALL": "C", **more}


async def run(words: Sequence[str], env: Mapping[str, str], timeout_s: float, stdin: bytes = b"") -> Done:
    """Run a command to its end. Cancelled or late, it is killed.

    Raises: EngineMissing: no such program. EngineUnavailable: it took longer than ``timeout_s``.
    EngineAnswerInvalid: more output than `MOST_BYTES`.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env,
        )
    except (FileNotFoundError, PermissionError) as fault:
        raise EngineMissing(f"{words[0]}: {fault.strerror}") from fault
    except OSError as fault:
        raise EngineUnavailable(f"{words[0]}: {fault}") from fault
    try:
        async with asyncio.timeout(timeout_s):
            out, err, _ = await asyncio.gather(
                _read(process.stdout, MOST_BYTES), _read(process.stderr, _MOST_ERROR_BYTES), _feed(process.stdin, stdin)
            )
            code = await process.wait()
    except TimeoutError:
        raise EngineUnavailable(f"{_shown(words)}: no answer within {timeout_s:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if len(out) > MOST_BYTES:
        raise EngineAnswerInvalid(f"{_shown(words)}: more than {MOST_BYTES} bytes")
    return Done(code, out, err.decode("utf-8", "replace"))


async def _read(stream: asyncio.StreamReader | None, most: int) -> bytes:
    """To the end; of more than ``most`` bytes the first ``most + 1``."""
    assert stream is not None
    found = bytearray()
    while piece := await stream.read(1 << 16):
        if len(found) <= most:
            found += piece[: most + 1 - len(found)]
    return bytes(found)


async def _feed(stream: asyncio.StreamWriter | None, data: bytes) -> None:
    if stream is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        if not stream.is_closing():  # the command ended already
            stream.write(data)
            await stream.drain()
    stream.close()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        await stream.wait_closed()


def _shown(words: Sequence[str]) -> str:
    return " ".join(words[:3])[:100]
