"""The protocol's gRPC messages: their fields and numbers, from which protobuf makes the classes.

The numbers are those of KServe v2 and of Triton's extensions. A nested type of theirs is a type of its own here, which
changes nothing on the wire. tests/host_helper/gateway/test_messages.py compares them with the client's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

from offpath.host_helper.gateway.errors import GatewayMissing

PACKAGE: Final = "inference"
SERVICE: Final = "inference.GRPCInferenceService"
_NAME_VERSION: Final = "1 name string, 2 version string"
_DURATIONS: Final = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit",
                     "cache_miss")  # fmt: skip
FIELDS: Final[dict[str, str]] = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "1 live bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "1 ready bool",
    "ModelReadyRequest": _NAME_VERSION,
    "ModelReadyResponse": "1 ready bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "1 name string, 2 version string, 3 extensions string*",
    "ModelMetadataRequest": _NAME_VERSION,
    "TensorMetadata": "1 name string, 2 datatype string, 3 shape int64*",
    "ModelMetadataResponse": "1 name string, 2 versions string*, 3 platform string, 4 inputs TensorMetadata*, "
                             "5 outputs TensorMetadata*",
    "InferParameter": "1 bool_param bool|, 2 int64_param int64|, 3 string_param string|, 4 double_param double|, "
                      "5 uint64_param uint64|",
    "InferTensorContents": "1 bool_contents bool*, 2 int_contents int32*, 3 int64_contents int64*, "
                           "4 uint_contents uint32*, 5 uint64_contents uint64*, 6 fp32_contents float*, "
                           "7 fp64_contents double*, 8 bytes_contents bytes*",
    "InferInputTensor": "1 name string, 2 datatype string, 3 shape int64*, 4 parameters {InferParameter}, "
                        "5 contents InferTensorContents",
    "InferRequestedOutputTensor": "1 name string, 2 parameters {InferParameter}",
    "ModelInferRequest": "1 model_name string, 2 model_version string, 3 id string, 4 parameters {InferParameter}, "
                         "5 inputs InferInputTensor*, 6 outputs InferRequestedOutputTensor*, "
                         "7 raw_input_contents bytes*",
    "InferOutputTensor": "1 name string, 2 datatype string, 3 shape int64*, 4 parameters {InferParameter}, "
                         "5 contents InferTensorContents",
    "ModelInferResponse": "1 model_name string, 2 model_version string, 3 id string, 4 parameters {InferParameter}, "
                          "5 outputs InferOutputTensor*, 6 raw_output_contents bytes*",
    "ModelStreamInferResponse": "1 error_message string, 2 infer_response ModelInferResponse",
    "ModelInput": "1 name string, 2 data_type int32, 4 dims int64*, 8 optional bool",
    "ModelOutput": "1 name string, 2 data_type int32, 3 dims int64*",
    "Specific": "1 versions int64*",
    "ModelVersionPolicy": "3 specific Specific",
    "ModelParameter": "1 string_value string",
    "ModelTransactionPolicy": "1 decoupled bool",
    "StrategyDirect": "",
    "ModelSequenceBatching": "1 max_sequence_idle_microseconds uint64, 3 direct StrategyDirect",
    "ModelDynamicBatching": "1 preferred_batch_size int32*, 2 max_queue_delay_microseconds uint64",
    "ModelConfig": "1 name string, 2 platform string, 3 version_policy ModelVersionPolicy, 4 max_batch_size int32, "
                   "5 input ModelInput*, 6 output ModelOutput*, 11 dynamic_batching ModelDynamicBatching, "
                   "13 sequence_batching ModelSequenceBatching, "
                   "14 parameters {ModelParameter}, 17 backend string, "
                   "19 model_transaction_policy ModelTransactionPolicy",
    "ModelConfigRequest": _NAME_VERSION,
    "ModelConfigResponse": "1 config ModelConfig",
    "ModelStatisticsRequest": _NAME_VERSION,
    "StatisticDuration": "1 count uint64, 2 ns uint64",
    "InferStatistics": ", ".join(f"{n} {name} StatisticDuration" for n, name in enumerate(_DURATIONS, 1)),
    "InferBatchStatistics": "1 batch_size uint64, 2 compute_input StatisticDuration, "
                            "3 compute_infer StatisticDuration, 4 compute_output StatisticDuration",
    "ModelStatistics": "1 name string, 2 version string, 3 last_inference uint64, 4 inference_count uint64, "
                       "5 execution_count uint64, 6 inference_stats InferStatistics, "
                       "7 batch_stats InferBatchStatistics*",
    "ModelStatisticsResponse": "1 model_stats ModelStatistics*",
    "RepositoryIndexRequest": "1 repository_name string, 2 ready bool",
    "ModelIndex": "1 name string, 2 version string, 3 state string, 4 reason string",
    "RepositoryIndexResponse": "1 models ModelIndex*",
    "RepositoryModelLoadRequest": "1 repository_name string, 2 model_name string",
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": "1 repository_name string, 2 model_name string",
    "RepositoryModelUnloadResponse": "",
    "SystemSharedMemoryStatusRequest": "1 name string",
    "RegionStatus": "1 name string, 2 key string, 3 offset uint64, 4 byte_size uint64",
    "SystemSharedMemoryStatusResponse": "1 regions {RegionStatus}",
    "SystemSharedMemoryRegisterRequest": "1 name string, 2 key string, 3 offset uint64, 4 byte_size uint64",
    "SystemSharedMemoryRegisterResponse": "",
    "SystemSharedMemoryUnregisterRequest": "1 name string",
    "SystemSharedMemoryUnregisterResponse": "",
    "CudaSharedMemoryStatusRequest": "1 name string",
    "CudaSharedMemoryStatusResponse": "",
    "CudaSharedMemoryRegisterRequest": "1 name string, 2 raw_handle bytes, 3 device_id int64, 4 byte_size uint64",
    "CudaSharedMemoryRegisterResponse": "",
    "CudaSharedMemoryUnregisterRequest": "1 name string",
    "CudaSharedMemoryUnregisterResponse": "",
}  # fmt: skip
"""Number, name and type of each field. ``*``: repeated. ``|``: of the one choice. ``{T}``: a map from strings to T."""
HEALTH_PACKAGE: Final = "grpc.health.v1"
HEALTH_FIELDS: Final = {"HealthCheckRequest": "1 service string", "HealthCheckResponse": "1 status int32"}
"""Its messages, in the same form. An enumeration travels as an int32."""
DATA_TYPES: Final = {
    name: number
    for number, name in enumerate(
        ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
         "STRING", "BF16"), 1
    )
}  # fmt: skip
"""Numbers of the enumeration of model configurations."""


@cache
def classes() -> SimpleNamespace:
    """The class of each message, by its name. Raises: GatewayMissing: protobuf is not installed."""
    return made(file_of(PACKAGE, FIELDS))


@cache
def health_classes() -> tuple[Any, Any]:
    """Those of a request and of an answer of grpc.health.v1. Raises: GatewayMissing: protobuf is not installed."""
    health = made(file_of(HEALTH_PACKAGE, HEALTH_FIELDS))
    return health.HealthCheckRequest, health.HealthCheckResponse


def file_of(package: str, messages: Mapping[str, str]) -> Any:
    """A FileDescriptorProto of these messages, in the form of `FIELDS`. Raises: GatewayMissing: protobuf is not
    installed."""
    try:
        from google.protobuf import descriptor_pb2
    except ImportError:
        raise GatewayMissing('the gateway\'s gRPC needs protobuf: pip install "offpath[gateway]"') from None
    file = descriptor_pb2.FileDescriptorProto(name=f"offpath/{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for text in filter(None, fields.split(", ")):
            _add(package, message, name, text)
    return file


def made(file: Any) -> SimpleNamespace:
    """The class of each message of the file, by its name."""
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()  # its own: a process may import the client too
    pool.Add(file)
    names = [message.name for message in file.message_type]
    found = {name: pool.FindMessageTypeByName(f"{file.package}.{name}") for name in names}
    return SimpleNamespace(**{name: message_factory.GetMessageClass(found[name]) for name in names})


def _add(package: str, message: Any, owner: str, text: str) -> None:
    number, name, kind = text.split(" ")
    field = message.field.add(name=name, number=int(number), label=1)
    if kind.endswith("|"):
        kind = kind[:-1]
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    elif kind.startswith("{"):
        entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _add(package, entry, owner, "1 key string")
        _add(package, entry, owner, f"2 value {kind[1:-1]}")
        field.label, field.type = 3, 11
        field.type_name = f".{package}.{owner}.{entry.name}"
        return
    elif kind.endswith("*"):
        kind, field.label = kind[:-1], 3
    field.type = _TYPES.get(kind, 11)
    if field.type == 11:
        field.type_name = f".{package}.{kind}"


_TYPES: Final = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "uint32": 13,
}  # fmt: skip
"""protobuf's numbers of types; 11 is a message."""
