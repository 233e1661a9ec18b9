"""The table of gRPC messages beside the client's own: names, numbers and types."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from offpath.bindings.errors import EngineMissing
from offpath.cli.local.environments import fetched
from offpath.host_helper.gateway.messages import DATA_TYPES, classes

THEIRS = """
import json
from tritonclient.grpc import model_config_pb2, service_pb2
found = {}
def walk(message):
    found[message.full_name.removeprefix("inference.")] = [
        [field.number, field.name, field.type, field.label == 3, bool(field.containing_oneof)]
        for field in message.fields]
    for each in message.nested_types:
        walk(each)
for file in (service_pb2.DESCRIPTOR, model_config_pb2.DESCRIPTOR):
    for message in file.message_types_by_name.values():
        walk(message)
types = model_config_pb2.DESCRIPTOR.enum_types_by_name["DataType"].values_by_name
methods = [each.name for each in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods]
print(json.dumps([found, {name: value.number for name, value in types.items()}, methods]))
"""
ENUM, INT32 = 14, 5


@pytest.fixture(scope="module")
def theirs() -> Any:
    try:
        clients = fetched("triton-clients-env", "Triton's clients cannot be installed", 240.0)
    except EngineMissing as missing:
        pytest.skip(str(missing))
    done = subprocess.run([Path(clients) / "bin/python", "-c", THEIRS], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_each_field_is_the_clients(theirs: Any) -> None:
    messages, types, _ = theirs
    nested = {name.rpartition(".")[2]: fields for name, fields in messages.items() if not name.endswith("Entry")}
    nested["RegionStatus"] = messages["SystemSharedMemoryStatusResponse.RegionStatus"]
    for name, made in vars(classes()).items():
        known = {field[1]: field for field in nested[name]}
        proto = descriptor_pb2.DescriptorProto()
        made.DESCRIPTOR.CopyToProto(proto)
        for field in proto.field:
            number, _, kind, is_repeated, is_choice = known[field.name]
            assert (field.number, field.label == 3) == (number, is_repeated)
            assert is_choice or not field.HasField("oneof_index")
            assert field.type == (INT32 if kind == ENUM else kind), f"{name}.{field.name}"
    assert {f"TYPE_{name}": number for name, number in DATA_TYPES.items()} == {
        name: number for name, number in types.items() if number
    }


def test_each_method_of_the_client_is_served_or_known_not_to_be(theirs: Any) -> None:
    from offpath.host_helper.gateway.grpc_methods import METHODS

    assert set(theirs[2]) - METHODS.keys() == {"TraceSetting", "LogSettings"}
    assert METHODS.keys() <= set(theirs[2])
