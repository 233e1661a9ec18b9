"""A launch's tensors as the kernel's arguments: numpy arrays, tensors of torch or cupy, or `LaneTensor`s.

Arguments are views of the lane's memory without a copy, made anew for each launch: what a kernel changes of the objects
themselves, their shape, or torch's ``requires_grad``, ends with it. The next launch overwrites their memory, so a
kernel that declares that it keeps arguments, or takes sequences, gets copies, and one that keeps them nevertheless is
told. numpy cannot see a GPU's memory, so such a kernel gets copies too. Strings are numpy arrays of objects for each
library, and are copies; an optional input that is absent is None.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from offpath.bindings.errors import HeaderError
from offpath.bindings.ports import DEVICE_CPU, Lane
from offpath.bindings.wire import host
from offpath.bindings.wire.fields import MAX_BATCH
from offpath.bindings.wire.header import (
    ABSENT,
    DTYPE_CODES,
    DTYPES,
    FLAG_PARAMETERS,
    STRINGS,
    Tensor,
    unpack_tensors,
)
from offpath.host_helper.dtypes import NO_NUMPY_TYPE, numpy_dtype
from offpath.host_helper.kernels import NOTHING_ASKED, Asked, Kernel, call_kernel
from offpath.host_helper.parameters import Value, unpacked
from offpath.host_helper.sequences import SequenceContext
from offpath.host_helper.strings import array_of
from offpath.host_helper.tensors import LaneTensor

_KEPT: Final = 64
_NOT_LENT: Final = frozenset((STRINGS, ABSENT))
_ROWS_ALONE: Final = 1
"""Of a request that shares a launch with none and has no rows."""


class _Recipe(NamedTuple):
    """How an argument is made. ``dtype``: of the kernel's library, where its arrays are made of a buffer."""

    tensor: Tensor
    dims: tuple[int, ...]
    dtype: Any
    begin: int
    end: int


class _Recipes(NamedTuple):
    """How a launch's arguments are made: those that lie in the lane's memory, and ``others``, each with its place among
    all: strings, and None for what is absent. ``parameters``: the tensor that has the request's."""

    lent: tuple[_Recipe, ...]
    others: tuple[tuple[int, Tensor | None], ...]
    parameters: Tensor | None
    rows: int


class Arguments:
    """Makes the arguments of one lane's launches. Callers repeat their shapes, so recipes are cached."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._recipes: dict[tuple[str, str, bytes, int, int], _Recipes] = {}
        self._is_on_host = lane.device[0] == DEVICE_CPU
        self._memory: Any = _memory_of(lane) if self._is_on_host else b""
        self._bytes = memoryview(self._memory).cast("B")
        self._lent: list[Any] = []
        """Of the last launch: what refers to the lane's memory and nothing else."""
        self._keeps: dict[str, list[Any]] = {}
        """By kernel, what it still has of a launch after its return."""
        self._is_cyclic: set[str] = set()
        """Kernels whose arguments stay in cycles of objects until the garbage collector comes: they get copies."""

    def of(self, kernel: Kernel, launch: host.Launch) -> Sequence[Any]:
        """One argument per tensor of the launch, but for the one of its parameters; a payload without descriptors is
        one vector of uint8, also an empty one unless the kernel declares its inputs. Optional inputs at the end that
        the launch lacks are None.

        Raises: HeaderError: a descriptor breaks a rule, or there are no strings as it says. TypeError: the kernel's
        library has no such dtype.
        """
        self._lent = []
        found = self._found(kernel, launch)
        made = self._lend(kernel, found.lent)
        for place, tensor in found.others:
            made.insert(place, None if tensor is None else array_of(self._read(tensor), tensor.dims))
        return made

    def asked(self, kernel: Kernel, launch: host.Launch, sequence: SequenceContext | None) -> Asked:
        """What the kernel asks for besides its tensors. ``sequence``: the launch's; None: the kernel takes none.
        Raises: HeaderError: as `parameters`."""
        asked: dict[str, Any] = {}
        if sequence is not None:
            asked["sequence"] = sequence
        if kernel.parameters:
            asked["parameters"] = self.parameters(kernel, launch)
        return asked

    def parameters(self, kernel: Kernel, launch: host.Launch) -> Any:
        """The request's, by name. For a kernel that batches a list of them, one for each row of the launch.

        Raises: HeaderError: they are no parameters, or not those of the batch's requests; or for a kernel that batches,
        more rows than `MAX_BATCH`: a tensor without bytes may have any number, and the list has an entry for each.
        """
        found = self._found(kernel, launch)
        rows = host.unpack_rows(launch.rows) or (found.rows,)
        if kernel.batching is not None and sum(rows) > MAX_BATCH:
            raise HeaderError(
                "parameters", f"{sum(rows)} rows; a launch with parameters by row has at most {MAX_BATCH}"
            )
        if found.parameters is None:
            given: list[dict[str, Value]] = [{}] * len(rows)
        else:
            if found.parameters.dtype != STRINGS or found.parameters.dims != (len(rows),):
                raise HeaderError("parameters", f"a tensor of dims {found.parameters.dims} for {len(rows)} requests")
            given = unpacked(self._read(found.parameters), len(rows))
        if kernel.batching is None:
            return given[0]
        return [each for each, count in zip(given, rows, strict=True) for _ in range(count)]

    def _found(self, kernel: Kernel, launch: host.Launch) -> _Recipes:
        """How the arguments are made. Raises: HeaderError."""
        key = (kernel.name, kernel.tensors, launch.tensors, launch.payload_bytes, launch.flags & FLAG_PARAMETERS)
        recipes = self._recipes.get(key)
        if recipes is None:
            recipes = _recipes_of(kernel, launch)
            if len(self._recipes) >= _KEPT:
                self._recipes.clear()
            self._recipes[key] = recipes
        return recipes

    def _read(self, tensor: Tensor) -> bytes:
        return self._lane.read(tensor.offset, tensor.nbytes) if tensor.nbytes else b""

    def _lend(self, kernel: Kernel, recipes: Sequence[_Recipe]) -> list[Any]:
        """The arguments that are views of the lane's memory, or copies if the kernel keeps them."""
        lent: list[Any]
        if kernel.tensors == "numpy":
            if not self._is_on_host:
                return [self._copied(each) for each in recipes]
            made = [np.ndarray(dims, dtype, self._memory, begin) for _, dims, dtype, begin, _ in recipes]
            lent = [*made]
        elif kernel.tensors == "torch" and self._is_on_host:
            lent = [self._bytes[begin:end] for _, _, _, begin, end in recipes]
            made = [_torch_on_host(each, recipe) for each, recipe in zip(lent, recipes, strict=True)]
        else:
            lent = [self._tensor(each.tensor) for each in recipes]
            make = _MAKERS[kernel.tensors]
            made = [make(tensor) for tensor in lent]
        if kernel.keeps or kernel.name in self._is_cyclic:
            copy = _COPIES[kernel.tensors]
            return [copy(each) for each in made]
        self._lent = lent
        return made

    def kept(self, kernel: Kernel) -> bool:
        """Whether the kernel still has an argument of the last launch, or a view of one, after its return. The caller
        has dropped the arguments and the result."""
        lent, self._lent = self._lent, []
        if not _is_held(lent):
            return False
        gc.collect()  # a cycle of objects that nobody has any more holds it, perhaps
        if _is_held(lent):
            self._keeps[kernel.name] = lent
            return True
        self._is_cyclic.add(kernel.name)
        return False

    def still_keeps(self, kernel: Kernel) -> bool:
        """Whether the kernel has what it kept of a former launch: it would find the present one's bytes there."""
        lent = self._keeps.get(kernel.name)
        if lent is not None and not _is_held(lent):
            lent = None
            del self._keeps[kernel.name]
        return lent is not None

    def _tensor(self, t: Tensor) -> LaneTensor:
        lane = self._lane
        return LaneTensor(
            lane.pointer + t.offset, DTYPES[t.dtype][0], t.dims, lane, device=lane.device, stream=lane.stream
        )

    def _copied(self, recipe: _Recipe) -> Any:
        t = recipe.tensor
        return np.ndarray(recipe.dims, recipe.dtype, bytearray(self._lane.read(t.offset, t.nbytes)))


def _recipes_of(kernel: Kernel, launch: host.Launch) -> _Recipes:
    described = unpack_tensors(launch.tensors, launch.payload_bytes)
    parameters = None
    if launch.flags & FLAG_PARAMETERS and described:
        *rest, parameters = described
        described = tuple(rest)
    wanted = len(kernel.signature.inputs) if kernel.signature is not None else 0
    if not described and parameters is None and (launch.payload_bytes or kernel.signature is None):
        described = (Tensor(DTYPE_CODES["uint8"], (launch.payload_bytes,), 0, launch.payload_bytes),)
    lent = [each for each in described if each.dtype not in _NOT_LENT]
    others = [(place, each) for place, each in enumerate(described) if each.dtype == STRINGS]
    absent = [place for place, each in enumerate(described) if each.dtype == ABSENT]
    absent += range(len(described), wanted)
    places = sorted([*others, *((place, None) for place in absent)], key=itemgetter(0))
    rows = next((each.dims[0] for each in described if each.dims), _ROWS_ALONE)
    return _Recipes(_lent_recipes(kernel.tensors, lent), tuple(places), parameters, rows)


def _lent_recipes(library: str, described: Sequence[Tensor]) -> tuple[_Recipe, ...]:
    dtypes: list[Any] = [None] * len(described)
    if library == "numpy":
        dtypes = [numpy_dtype(each.dtype) for each in described]
    elif library == "torch":
        torch = importlib.import_module("torch")
        dtypes = [getattr(torch, DTYPES[each.dtype][0], torch.uint8) for each in described]
    return tuple(
        _Recipe(each, each.dims, dtype, each.offset, each.offset + each.nbytes)
        for each, dtype in zip(described, dtypes, strict=True)
    )


def _memory_of(lane: Lane) -> Any:
    """The landing buffer as a buffer that is no array: numpy then makes a view of an array refer to that array."""

    class _Memory(ctypes.c_ubyte * lane.landing_bytes):  # type: ignore[misc]
        owner: Lane

    memory = _Memory.from_address(lane.pointer)
    memory.owner = lane
    return memory


def _is_held(lent: list[Any]) -> bool:
    """Whether anybody else has one of these, or memory of it."""
    for each in lent:  # noqa: SIM110 - the number of references is that of this loop
        if sys.getrefcount(each) > _OURS or (isinstance(each, LaneTensor) and each.is_lent):
            return True
    return False


def _ours() -> int:
    """What `sys.getrefcount` says in `_is_held` of an object that nobody else has."""
    counted = 0
    for each in [object()]:
        counted = sys.getrefcount(each)
    return counted


_OURS: Final = _ours()


def on_stream(kernel: Kernel, stream: int) -> AbstractContextManager[Any]:
    """Makes ``stream`` the current one of the kernel's library, if it has such a notion. 0: nothing."""
    if stream and kernel.tensors == "torch":
        cuda = importlib.import_module("torch.cuda")
        current: AbstractContextManager[Any] = cuda.stream(cuda.ExternalStream(stream))
        return current
    if stream and kernel.tensors == "cupy":
        external: AbstractContextManager[Any] = importlib.import_module("cupy").cuda.ExternalStream(stream)
        return external
    return nullcontext()


def call_on_stream(kernel: Kernel, arguments: Sequence[Any], stream: int, asked: Asked = NOTHING_ASKED) -> Any:
    """`call_kernel` with ``stream`` as the current one of the kernel's library."""
    with on_stream(kernel, stream):
        return call_kernel(kernel, arguments, asked)


def _torch_on_host(memory: memoryview, recipe: _Recipe) -> Any:
    """A tensor that refers to ``memory`` for as long as its storage lives. Several times faster than DLPack."""
    torch = importlib.import_module("torch")
    if not memory.nbytes:
        return torch.empty(recipe.dims, dtype=recipe.dtype)
    return torch.frombuffer(memory, dtype=recipe.dtype).view(recipe.dims)


def _torch(tensor: LaneTensor) -> Any:
    torch = importlib.import_module("torch")
    if tensor.dtype not in NO_NUMPY_TYPE:
        return torch.from_dlpack(tensor)
    flat = torch.from_dlpack(tensor.as_bytes())  # any release of torch has these dtypes, but not for DLPack
    return flat.view(getattr(torch, tensor.dtype, torch.uint8)).reshape(tensor.shape)


def _cupy(tensor: LaneTensor) -> Any:
    cupy = importlib.import_module("cupy")
    if tensor.dtype not in NO_NUMPY_TYPE:
        return cupy.from_dlpack(tensor)
    if tensor.dtype == "int4x2":
        return cupy.from_dlpack(tensor.as_bytes()).reshape(tensor.shape)
    raise TypeError(f"cupy has no dtype {tensor.dtype}; use tensors='torch' or 'pointer'")


def _pointer(tensor: LaneTensor) -> Any:
    return tensor


_MAKERS: Final[dict[str, Callable[[LaneTensor], Any]]] = {"torch": _torch, "cupy": _cupy, "pointer": _pointer}
_COPIES: Final[dict[str, Callable[[Any], Any]]] = {
    "numpy": lambda array: array.copy(),
    "torch": lambda tensor: tensor.clone(),
    "cupy": lambda array: array.copy(),
    "pointer": lambda tensor: tensor,  # an address: what is made of it is the kernel's affair
}
