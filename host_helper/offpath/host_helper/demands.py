"""What kernels need of a GPU: R per model and memory, from the decorator to the messages for the daemon.

GPU models have names in offpath's table (``A100-40GB``) and names that drivers report (``NVIDIA-A100-SXM4-40GB``).
Kernels may use both. The daemon compares names as reported, so this module translates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from offpath.bindings.errors import OptionRefused
from offpath.bindings.mig import gpu_models, is_named
from offpath.bindings.plausible import LEAST_MEMORY
from offpath.bindings.ports import Gpu
from offpath.bindings.wire import control
from offpath.bindings.wire.fields import MAX_BATCH, MAX_GPUS, MAX_PREFERRED, MAX_QUEUE_DELAY_US

MAX_MODELS: Final = 16
"""GPU models that one kernel can name."""
MAX_MEMORY: Final = 1 << 50
_SHARES: Final = frozenset((*range(1, 101), *range(200, 100 * MAX_GPUS + 1, 100)))
_UNITS: Final = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE: Final = re.compile(r"([0-9]{1,16}(?:\.[0-9]{1,3})?) ?([KMGT]iB|B|)")
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]{0,63}")


@dataclass(frozen=True, slots=True)
class Batching:
    """How a kernel's requests share launches, see `offpath.host_helper.kernels.KernelTable.kernel`."""

    max_batch: int
    max_queue_delay_us: int
    preferred_batch_sizes: tuple[int, ...]


class Needy(Protocol):
    """A kernel, as far as this module is concerned: see `offpath.host_helper.kernels.Kernel`."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def demand(self) -> int:
        """R in percent of a GPU, the least of ``models``."""

    @property
    def models(self) -> Mapping[str, int]:
        """R by GPU model; empty: ``demand`` on all models."""

    @property
    def memory_bytes(self) -> int:
        """Device memory of its worker; 0: not stated."""

    @property
    def batching(self) -> Batching | None:
        """How its requests share launches; None: they do not."""

    @property
    def sequences(self) -> bool:
        """Whether each of its requests is of a sequence."""

    @property
    def streams(self) -> bool:
        """Whether it gives streams of answers."""


def parse_batching(max_batch: int, max_queue_delay_us: int, preferred: Sequence[int]) -> Batching | None:
    """None: no batching. Raises: ValueError: a number is out of range, or sizes without batches."""
    sizes = sorted(set(preferred))
    if max_batch in (0, 1) and not max_queue_delay_us and not sizes:
        return None
    if not 2 <= max_batch <= MAX_BATCH:
        raise ValueError(f"max_batch {max_batch} is not 2 to {MAX_BATCH} rows, or 0 for no batches")
    if not 0 <= max_queue_delay_us <= MAX_QUEUE_DELAY_US:
        raise ValueError(f"max_queue_delay_us {max_queue_delay_us} is not 0 to {MAX_QUEUE_DELAY_US}")
    if len(sizes) > MAX_PREFERRED or not all(1 <= size <= max_batch for size in sizes):
        raise ValueError(f"preferred_batch_sizes {sizes} are not up to {MAX_PREFERRED} sizes from 1 to {max_batch}")
    return Batching(max_batch, max_queue_delay_us, tuple(sizes))


def parse_memory(memory: str | int | None) -> int:
    """Bytes of ``6GiB``, ``512 MiB``, ``1.5GiB`` or a number of bytes; 0 for None. Raises: ValueError: no size, or one
    that cannot be meant: 16 is 16 bytes, and not 16 GiB."""
    if memory is None:
        return 0
    matched = _SIZE.fullmatch(str(memory)) if not isinstance(memory, bool) else None
    if matched is None:
        raise ValueError(f"memory {str(memory)[:32]!r} is not a size: use bytes, or a number with KiB, MiB, GiB or TiB")
    nbytes = int(float(matched[1]) * _UNITS[matched[2]])
    if nbytes < LEAST_MEMORY:
        unit = f"; write a unit, such as '{matched[1]}GiB'" if not matched[2] else ""
        raise ValueError(f"memory {str(memory)[:32]!r} is {nbytes} bytes; the least is 1 MiB{unit}")
    if nbytes > MAX_MEMORY:
        raise ValueError(f"memory {str(memory)[:32]!r} is more than 1024 TiB")
    return nbytes


def parse_demand(demand: int | Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """R, the least if it depends on the model, and R by model. Raises: ValueError: a share is out of range, or the
    kernel needs a gang of GPUs of one model and no gang of another."""
    if not isinstance(demand, Mapping):
        _check_share(demand)
        return demand, {}
    models = dict(demand)
    if not 1 <= len(models) <= MAX_MODELS:
        raise ValueError(f"demand names {len(models)} GPU models; 1 to {MAX_MODELS} are possible")
    for model, share in models.items():
        if not isinstance(model, str) or not _MODEL.fullmatch(model):
            raise ValueError(f"demand: {str(model)[:64]!r} is no name of a GPU model")
        _check_share(share)
    least, most = min(models.values()), max(models.values())
    if least <= 100 < most:
        raise ValueError(f"demand: R {most} is of a gang and R {least} is not; use one kind for all models")
    return least, models


def _check_share(share: object) -> None:
    if not isinstance(share, int) or isinstance(share, bool) or share not in _SHARES:
        most = 100 * MAX_GPUS
        raise ValueError(
            f"demand {str(share)[:32]} is no percentage of a GPU (1..100), and not 100 for each of several (to {most})"
        )


def check_models(kernels: Iterable[Needy], gpus: Sequence[Gpu]) -> None:
    """Raises: OptionRefused: a kernel names a model that neither the table nor one of the GPUs has."""
    known = {*gpu_models(), *(gpu.model.name for gpu in gpus)}
    for kernel in kernels:
        if unknown := sorted(set(kernel.models) - known):
            raise OptionRefused(
                f"kernel {kernel.name!r}: demand names {', '.join(unknown)}, which is no known GPU model; "
                f"known: {', '.join(sorted(known))}"
            )


def share_on(kernel: Needy, gpu: Gpu) -> int:
    """R of the kernel on this GPU; 0: it does not run there."""
    if not kernel.models:
        return kernel.demand
    nbytes = max(profile.memory_bytes for profile in gpu.model.profiles)
    exact = kernel.models.get(gpu.model.name)
    shares = [share for model, share in kernel.models.items() if is_named(gpu.model.name, model, nbytes)]
    return exact or max(shares, default=0)


def needs(kernels: Iterable[Needy], gpus: Sequence[Gpu]) -> list[control.KernelNeeds]:
    """The messages about kernels that need more than R, batch, stream, or take sequences. Models that none of these
    GPUs is stay under their own names, so that the daemon can say what is lacking."""
    messages = []
    for kernel in kernels:
        has_needs = kernel.models or kernel.memory_bytes or kernel.batching is not None
        if not (has_needs or kernel.sequences or kernel.streams):
            continue
        models = {gpu.model.name: share for gpu in gpus if kernel.models and (share := share_on(kernel, gpu))}
        if kernel.models:
            models = {**kernel.models, **models}
        demands = [control.ModelDemand(model=model, demand=share) for model, share in models.items()]
        message = control.KernelNeeds(
            name=kernel.name,
            memory_bytes=kernel.memory_bytes,
            models=demands,
            sequences=kernel.sequences,
            streams=kernel.streams,
        )
        if (batching := kernel.batching) is not None:
            more = {"max_batch": batching.max_batch, "max_queue_delay_us": batching.max_queue_delay_us}
            sizes = list(batching.preferred_batch_sizes)
            message = message.model_copy(update={**more, "preferred_batch_sizes": sizes})
        messages.append(message)
    return messages
