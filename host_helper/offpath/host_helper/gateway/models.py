"""Models: kernels with a declared signature, by name and version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offpath.bindings.wire.negotiating import Described
from offpath.bindings.wire.signatures import ANY, TensorSpec
from offpath.host_helper.gateway.datatypes import BYTES, NAMES
from offpath.host_helper.gateway.errors import Refused, invalid, not_found, unavailable

PLATFORM = "offpath"


@dataclass(frozen=True, slots=True)
class Spec:
    """A declared tensor: ``datatype`` is the protocol's name; -1 in ``shape`` is any length. ``is_optional``: an input
    that a request may lack."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    is_optional: bool = False

    def describe(self) -> dict[str, Any]:
        """As the model's metadata has it."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


@dataclass(frozen=True, slots=True)
class Batching:
    """How requests of a model share launches: rows of a launch, how long a request waits for others, and the numbers of
    rows at which it waits no longer."""

    max_batch: int
    delay_us: int = 0
    preferred: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """One version of a model. ``inputs`` and ``outputs`` in the order of the kernel's arguments and results.
    ``sequences``: each request is of a sequence. ``streams``: a request gets several answers; Triton calls such a model
    decoupled. ``batching``: each tensor's first dimension is the batch, as Triton has it; None: it has no such one.
    ``sequence_idle_us``: how long a sequence lasts without a request. ``parameters``: the kernel asks for those of its
    requests."""

    name: str
    version: int
    kernel: str
    labels: tuple[str, ...]
    inputs: Mapping[str, Spec]
    outputs: Mapping[str, Spec]
    sequences: bool = False
    streams: bool = False
    batching: Batching | None = None
    sequence_idle_us: int = 0
    parameters: bool = False

    @property
    def max_batch(self) -> int:
        """The most rows of a request; 0: no dimension is the batch."""
        return self.batching.max_batch if self.batching is not None else 0


def model_of(described: Described) -> Model | None:
    """None: the kernel declares no tensors, or a dtype that the protocol does not know."""
    signature = described.signature
    if signature is None:
        return None
    inputs, outputs = _specs(signature.inputs), _specs(signature.outputs)
    if inputs is None or outputs is None:
        return None
    labels = tuple(signature.labels)
    return Model(
        signature.model, signature.model_version, signature.name, labels, inputs, outputs, signature.sequences,
        signature.streams, _batching(described), 1_000 * described.sequence_idle_ms, signature.parameters,
    )  # fmt: skip


def _batching(described: Described) -> Batching | None:
    """None: the kernel does not batch, or a tensor's number of rows is fixed: such requests share launches, but no
    configuration of Triton's can say so."""
    batches, signature = described.batches, described.signature
    if batches is None or signature is None or not signature.inputs:
        return None
    if any(not tensor.shape or tensor.shape[0] != ANY for tensor in (*signature.inputs, *signature.outputs)):
        return None
    return Batching(batches.max_batch, batches.max_queue_delay_us, tuple(batches.preferred_batch_sizes))


def _specs(tensors: Sequence[TensorSpec]) -> dict[str, Spec] | None:
    if any(tensor.dtype not in NAMES for tensor in tensors):
        return None
    return {
        tensor.name: Spec(tensor.name, NAMES[tensor.dtype], tuple(tensor.shape), tensor.optional) for tensor in tensors
    }


class Models:
    """All versions of all models that the daemon has. Without a version a request gets the highest. ``away``: those
    that it had before it was started again, and may have again."""

    def __init__(self, models: Iterable[Model] = (), away: Iterable[Model] = ()) -> None:
        self._versions: dict[str, dict[int, Model]] = {}
        self.twice: list[Model] = []
        """Those left out: another kernel is the same version of the model, and came before."""
        for model in models:
            versions = self._versions.setdefault(model.name, {})
            if versions.setdefault(model.version, model) is not model:
                self.twice.append(model)
        self.away = [model for model in away if model.version not in self._versions.get(model.name, {})]

    def find(self, name: str, version: str = "") -> Model:
        """``version``: a number, a label, or empty. Raises: Refused: there is no such model or version, or not now."""
        try:
            return self._found(name, version)
        except Refused:
            if self.away and Models(self.away).is_ready(name, version):
                raise unavailable(f"model '{name}' is not served now: no helper has offered it again") from None
            raise

    def _found(self, name: str, version: str) -> Model:
        """Raises: Refused."""
        versions = self._versions.get(name)
        if versions is None:
            raise not_found(f"Request for unknown model: '{name}' is not found")
        if not version:
            return versions[max(versions)]
        is_number = version.isascii() and version.isdigit() and len(version) < 20
        found = versions.get(int(version)) if is_number else None
        if found is None:
            found = next((model for model in versions.values() if version in model.labels), None)
        if found is not None:
            return found
        if not is_number:
            raise invalid(f"failed to get model version from specified version string '{version}'")
        raise not_found(f"Request for unknown model: '{name}' version {version} is not found")

    def is_ready(self, name: str, version: str) -> bool:
        """Whether it is there."""
        try:
            self.find(name, version)
        except Refused:
            return False
        return True

    def versions(self, name: str) -> list[str]:
        """In rising order."""
        return [str(number) for number in sorted(self._versions.get(name, ()))]

    def all(self) -> list[Model]:
        """By name and version."""
        return [
            self._versions[name][number] for name in sorted(self._versions) for number in sorted(self._versions[name])
        ]

    def metadata(self, model: Model) -> dict[str, Any]:
        """``GET /v2/models/NAME``."""
        return {
            "name": model.name, "versions": self.versions(model.name), "platform": PLATFORM,
            "inputs": [spec.describe() for spec in model.inputs.values()],
            "outputs": [spec.describe() for spec in model.outputs.values()],
        }  # fmt: skip

    def index(self) -> list[dict[str, str]]:
        """``POST /v2/repository/index``."""
        return [{"name": model.name, "version": str(model.version), "state": "READY"} for model in self.all()]


def config(model: Model) -> dict[str, Any]:
    """``GET /v2/models/NAME/config``: what clients read of Triton's model configuration. With ``max_batch_size`` dims
    leave out the first dimension, which is the batch."""
    batching = model.batching
    shown: dict[str, Any] = {
        "name": model.name, "platform": PLATFORM, "backend": PLATFORM,
        "version_policy": {"specific": {"versions": [model.version]}},
        "max_batch_size": model.max_batch,
        "input": [
            {**_tensor(spec, has_batch=batching is not None), "optional": spec.is_optional}
            for spec in model.inputs.values()
        ],
        "output": [_tensor(spec, has_batch=batching is not None) for spec in model.outputs.values()],
        "parameters": {"labels": {"string_value": ",".join(model.labels)}} if model.labels else {},
    }  # fmt: skip
    if batching is not None:
        shown["dynamic_batching"] = {
            "preferred_batch_size": list(batching.preferred or (batching.max_batch,)),  # without any, Triton shows that
            "max_queue_delay_microseconds": batching.delay_us,
        }
    if model.sequences:
        shown["sequence_batching"] = {"max_sequence_idle_microseconds": model.sequence_idle_us, "direct": {}}
    if model.streams:
        shown["model_transaction_policy"] = {"decoupled": True}
    return shown


def _tensor(spec: Spec, *, has_batch: bool) -> dict[str, Any]:
    dims = spec.shape[1:] if has_batch else spec.shape
    datatype = "STRING" if spec.datatype == BYTES else spec.datatype
    return {"name": spec.name, "data_type": f"TYPE_{datatype}", "dims": list(dims)}
