"""Kernel registration: serving code imports `Helper`.

helper = Helper()

@helper.kernel("classify", demand=14)
def classify(images):          # a numpy array over the lane's memory: no copy
    return model(images)

helper.run(emulate=["A100-40GB"])
"""

from __future__ import annotations

import contextvars
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

from offpath.bindings.ports import Lane
from offpath.bindings.wire.fields import MAX_OFFERED, MAX_OFFERED_MODELS
from offpath.bindings.wire.signatures import MAX_DECLARED, KernelSignature
from offpath.host_helper.demands import Batching, parse_batching, parse_demand, parse_memory
from offpath.host_helper.signatures import Declared, check_batched, signature

KernelFunction = Callable[..., Any]
Asked = Mapping[str, Any]
"""What a kernel asks for besides its tensors, by the name of its argument: ``sequence``, ``parameters``."""
NOTHING_ASKED: Final[Asked] = MappingProxyType({})
_F = TypeVar("_F", bound=KernelFunction)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]{0,63}")
TENSORS: Final = ("numpy", "torch", "cupy", "pointer")
"""What a kernel may get as its arguments, see `KernelTable.kernel`."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A registered kernel. ``demand`` R in percent of a GPU (100 for each GPU of a gang), the least of ``models``,
    which has R by GPU model if R depends on it or not every model is accepted. ``is_auto``: its R is to be taken from
    measurements (`offpath.host_helper.rightsizing`), and ``demand`` is 100 until then. ``memory_bytes``: device memory
    that its worker needs besides the lane, 0 if not stated. ``pre`` and ``post`` are the CPU-side work around it
    (Conspirator's third helper task). ``pre`` gets the input tensors and returns the kernel's arguments; ``post`` gets
    the kernel's result and returns the request's result. ``tensors``: one of `TENSORS`. ``batching``: how requests
    share its launches; None: they do not. ``signature``: what it declared of its tensors; None: nothing.
    ``sequences``: each request is of a sequence, which the function gets as its argument ``sequence``. ``streams``:
    the function is a generator, and each value that it yields is one answer; ``post`` gets each value. ``keeps``: the
    function gets copies. ``parameters``: it gets the request's as its argument ``parameters``.
    """

    name: str
    function: KernelFunction
    demand: int
    pre: KernelFunction | None
    post: KernelFunction | None
    tensors: str
    models: Mapping[str, int] = field(default_factory=dict)
    memory_bytes: int = 0
    is_auto: bool = False
    batching: Batching | None = None
    signature: KernelSignature | None = None
    sequences: bool = False
    streams: bool = False
    keeps: bool = False
    parameters: bool = False

    def needs_text(self) -> str:
        """What it needs, in a few words."""
        shares = ", ".join(f"{share} % of {model}" for model, share in self.models.items()) or f"{self.demand} %"
        return f"{shares}, {self.memory_bytes >> 20} MiB" if self.memory_bytes else shares


class LaneMemory:
    """The lane's landing buffer and result half, one behind the other, as its kernels see them. On a GPU each call
    copies between host and device."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    @property
    def landing_bytes(self) -> int:
        """Length of the landing buffer, which starts at 0."""
        return self._lane.landing_bytes

    @property
    def result_bytes(self) -> int:
        """Length of the result half, which starts at ``landing_bytes``."""
        return self._lane.result_bytes

    @property
    def pointer(self) -> int:
        """Address of the landing buffer on the device."""
        return self._lane.pointer

    @property
    def device(self) -> tuple[int, int]:
        """DLPack's device type and number: (1, 0) host memory, (2, n) CUDA device n."""
        return self._lane.device

    @property
    def stream(self) -> int:
        """Handle of the CUDA stream whose work is awaited before a kernel's result is taken; 0 in host memory."""
        return self._lane.stream

    def read(self, at: int, nbytes: int) -> bytes:
        """A copy of ``nbytes`` from ``at``. Raises: DeviceError: out of bounds, or the device failed."""
        return self._lane.read(at, nbytes)

    def write(self, at: int, content: bytes | memoryview) -> None:
        """Write flat bytes at ``at``. Raises: DeviceError: out of bounds, or the device failed."""
        self._lane.write(at, content)


@dataclass(frozen=True, slots=True)
class LaneContext:
    """Where a kernel runs: the lease's tenant and identity, and the lane's memory."""

    tenant: str
    gpu: str
    profile: str
    start: int
    lease: int
    generation: int
    lane: int
    pid: int
    memory: LaneMemory
    others: tuple[str, ...] = ()
    """The further GPUs of a gang. CUDA's device 0 is ``gpu``, which has the lane; these follow in order."""


_lane: contextvars.ContextVar[LaneContext] = contextvars.ContextVar("offpath_lane")


def current_lane() -> LaneContext:
    """The lane of the calling kernel. Raises: LookupError: not called from a kernel or lane hook."""
    return _lane.get()


def enter_lane(context: LaneContext) -> None:
    """Set by the worker, once, before any kernel runs."""
    _lane.set(context)


class KernelTable:
    """The kernels of one helper by name."""

    def __init__(self) -> None:
        self.kernels: dict[str, Kernel] = {}
        self.on_lane_open: list[Callable[[LaneContext], None]] = []

    def kernel(
        self,
        name: str,
        *,
        demand: int | Mapping[str, int] | Literal["auto"] = 100,
        memory: str | int | None = None,
        pre: KernelFunction | None = None,
        post: KernelFunction | None = None,
        tensors: str = "numpy",
        max_batch: int = 0,
        max_queue_delay_us: int = 0,
        preferred_batch_sizes: Sequence[int] = (),
        sequences: bool = False,
        inputs: Declared | None = None,
        outputs: Declared | None = None,
        model: str | None = None,
        version: int = 1,
        labels: Sequence[str] = (),
        streams: bool = False,
        keeps: bool = False,
        parameters: bool = False,
    ) -> Callable[[_F], _F]:
        """Register the decorated function under ``name``.

        Args:
            demand: R, percent of a GPU that the kernel needs, 1..100; or 100 for each GPU of a gang, 200..1600: whole
                GPUs of one model, which are CUDA's devices 0, 1 …; or R by GPU model, for a kernel that runs on these
                models only: ``{"A100-40GB": 14, "H100-80GB": 10}``. Names are those of offpath's table, or those that
                `Helper.run` prints for its GPUs. "auto": as measured, from the file given to `Helper.run`.
            memory: device memory that a worker needs to run the kernel, besides the lane's buffers: weights, workspace,
                CUDA's context. ``"6GiB"``, ``"512MiB"`` or bytes; 1 MiB or more. No worker runs it with less. None: not
                known, any instance is taken.
            pre, post: CPU-side work before and after the kernel, see `Kernel`.
            tensors: what the function gets. "numpy": numpy arrays over the lane's memory; where that is a GPU's, copies
                of it. "torch", "cupy": tensors of that library over the lane's memory, on the lane's device and stream.
                "pointer": `LaneTensor`s, for code that creates its own tensors (``torch.from_dlpack``).
            max_batch: rows, the first dimension of the tensors, of one launch; 0 or 1: each request has its own launch.
                Requests of one tenant whose tensors agree in dtype and further dimensions share a launch. Every tensor
                that the function returns must have as many rows as its arguments.
            max_queue_delay_us: how long a request waits for others, if fewer rows are there. 0: only while no lane is
                free.
            preferred_batch_sizes: exact numbers of rows at which a batch does not wait longer.
            sequences: each request is of a sequence (`offpath.host_helper.slots.Options`). All requests of one sequence
                run in this process, one at a time and in order. The function gets a further argument, ``sequence``, a
                `offpath.host_helper.sequences.SequenceContext`, whose ``state`` it may fill. Not with ``max_batch``.
            inputs, outputs: the tensors that it takes and returns: dtype and dims by name, -1 for a dimension of any
                length. ``{"image": ("fp32", [-1, 3, 224, 224])}``. A kernel that declares them is also a model, which
                clients of the Open Inference Protocol reach by the gateway. An input with None behind its dims,
                ``("fp32", [-1], None)``, is optional: the function gets None where a request lacks it. Strings are
                ``"bytes"``, in numpy an array of objects.
            model, version, labels: of that model. None: the kernel's name.
            streams: the function is a generator. Each value that it yields is one answer of the request's stream, in
                the same forms as a returned result. When nobody wants further answers, GeneratorExit is raised at its
                ``yield``.
            keeps: the function keeps arguments, or views of them, beyond its return: it gets copies. Implied by
                ``sequences``. Without it, a request whose kernel keeps an argument fails, because the next request
                overwrites its memory. With "pointer" the function makes the copies itself.
            parameters: the function gets a further argument, ``parameters``: those that the client gave beside the
                tensors, by name. With ``max_batch`` it is a list of them, one for each row.

        Raises: ValueError: a demand, a memory or a batch size out of range, a duplicate or invalid name, an unknown
        ``tensors`` or one whose library is not installed, an invalid signature, a second kernel of one model and
        version, more kernels than a helper may offer, ``streams`` with ``max_batch``, ``streams`` for a function that
        is no generator, or a generator without it.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"kernel name {name!r}: 1 to 64 letters, digits and ._:/+-, starting with a letter or digit"
            )
        if len(self.kernels) >= MAX_OFFERED:
            raise ValueError(f"kernel {name!r}: a helper offers {MAX_OFFERED} kernels at most")
        try:
            share, models = parse_demand(demand) if demand != "auto" else (100, {})
            if sum(len(each.models) for each in self.kernels.values()) + len(models) > MAX_OFFERED_MODELS // 2:
                raise ValueError(f"the kernels of a helper name {MAX_OFFERED_MODELS // 2} GPU models at most")
            memory_bytes = parse_memory(memory)
            batching = parse_batching(max_batch, max_queue_delay_us, preferred_batch_sizes)
            if batching is not None and sequences:
                raise ValueError("requests of sequences share no launch: sequences=True excludes max_batch")
            if streams and batching is not None:
                raise ValueError("streams and max_batch exclude each other: a stream is of one request")
            declared = signature(
                name, inputs, outputs, model, version, labels, sequences=sequences, streams=streams,
                parameters=parameters,
            )  # fmt: skip
            if batching is not None and declared is not None:
                check_batched(declared)
        except ValueError as fault:
            raise ValueError(f"kernel {name!r}: {fault}") from None
        if name in self.kernels:
            raise ValueError(f"kernel {name!r} is registered already")
        if declared is not None and self._declared + declared.tensor_count > MAX_DECLARED:
            raise ValueError(f"kernel {name!r}: the kernels of a helper declare {MAX_DECLARED} tensors at most")
        if declared is not None and (other := self._same_version(declared)):
            raise ValueError(f"kernel {name!r}: {other!r} is version {version} of model {declared.model!r} already")
        if tensors not in TENSORS:
            raise ValueError(f"kernel {name!r}: tensors={tensors!r} is none of {', '.join(TENSORS)}")
        if tensors != "pointer" and find_spec(tensors) is None:
            raise ValueError(f"kernel {name!r}: tensors={tensors!r}, but {tensors} is not installed here")

        def register(function: _F) -> _F:
            _check_generator(name, function, streams)
            self.kernels[name] = Kernel(
                name, function, share, pre, post, tensors, models, memory_bytes, demand == "auto", batching, declared,
                sequences, streams, keeps or sequences, parameters,
            )  # fmt: skip
            return function

        return register

    @property
    def _declared(self) -> int:
        """Tensors that its kernels declare."""
        return sum(each.signature.tensor_count for each in self.kernels.values() if each.signature is not None)

    def _same_version(self, declared: KernelSignature) -> str:
        """Name of the kernel that is this version of this model; empty: none."""
        for kernel in self.kernels.values():
            other = kernel.signature
            if other is not None and (other.model, other.model_version) == (declared.model, declared.model_version):
                return kernel.name
        return ""

    def lane_opened(self, function: Callable[[LaneContext], None]) -> Callable[[LaneContext], None]:
        """Decorator: call the function in each worker when its lane is reserved, before its first job (to load a
        model, or to audit memory). The daemon's ``limits.load_ms`` bounds its time.
        """
        self.on_lane_open.append(function)
        return function


def _check_generator(name: str, function: KernelFunction, streams: bool) -> None:
    if inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function):
        raise ValueError(f"kernel {name!r}: kernels are not async; one that streams is a plain generator")
    if streams != inspect.isgeneratorfunction(function):
        which = "streams=True, but the function yields nothing" if streams else "a generator needs streams=True"
        raise ValueError(f"kernel {name!r}: {which}")


def arguments_of(kernel: Kernel, tensors: Sequence[Any]) -> Sequence[Any]:
    """The function's arguments, after ``pre``."""
    if kernel.pre is None:
        return tensors
    arguments = kernel.pre(*tensors)
    return arguments if isinstance(arguments, (tuple, list)) else (arguments,)


def begin_kernel(kernel: Kernel, tensors: Sequence[Any], asked: Asked = NOTHING_ASKED) -> Any:
    """pre → kernel: its result, or the generator of one that streams. ``asked``: what it asks for besides tensors."""
    arguments = arguments_of(kernel, tensors)
    return kernel.function(*arguments, **asked) if asked else kernel.function(*arguments)


def call_kernel(kernel: Kernel, tensors: Sequence[Any], asked: Asked = NOTHING_ASKED) -> Any:
    """pre → kernel → post."""
    result = begin_kernel(kernel, tensors, asked)
    return kernel.post(result) if kernel.post is not None else result
