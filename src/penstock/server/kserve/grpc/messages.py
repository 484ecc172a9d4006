"""The protocol's messages, as far as they are used here: their descriptors are made from a table.

Names, numbers and types are those of KServe's and Triton's ``inference`` package, so that both
sides read the same bytes; fields that are left out are skipped when they come.
"""

from __future__ import annotations

import re
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE: Final = "inference"
SERVICE: Final = f"{PACKAGE}.GRPCInferenceService"

_PARAMETERS = "parameters:InferParameter{}=4"
_TENSOR = "name:string=1 datatype:string=2 shape:int64*=3"
_NAMED = "name:string=1 version:string=2"
_LOADED = "repository_name:string=1 model_name:string=2 parameters:ModelRepositoryParameter{}=3"
_TABLE: Final = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live:bool=1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready:bool=1",
    "ModelReadyRequest": _NAMED,
    "ModelReadyResponse": "ready:bool=1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": f"{_NAMED} extensions:string*=3",
    "ModelMetadataRequest": _NAMED,
    "TensorMetadata": _TENSOR,
    "ModelMetadataResponse": "name:string=1 versions:string*=2 platform:string=3 "
    "inputs:TensorMetadata*=4 outputs:TensorMetadata*=5",
    "InferParameter": "bool_param:bool|1 int64_param:int64|2 string_param:string|3 "
    "double_param:double|4 uint64_param:uint64|5",
    "InferTensorContents": "bool_contents:bool*=1 int_contents:int32*=2 int64_contents:int64*=3 "
    "uint_contents:uint32*=4 uint64_contents:uint64*=5 fp32_contents:float*=6 "
    "fp64_contents:double*=7 bytes_contents:bytes*=8",
    "InferInputTensor": f"{_TENSOR} {_PARAMETERS} contents:InferTensorContents=5",
    "InferRequestedOutputTensor": "name:string=1 parameters:InferParameter{}=2",
    "ModelInferRequest": "model_name:string=1 model_version:string=2 id:string=3 "
    f"{_PARAMETERS} inputs:InferInputTensor*=5 outputs:InferRequestedOutputTensor*=6 "
    "raw_input_contents:bytes*=7",
    "InferOutputTensor": f"{_TENSOR} {_PARAMETERS} contents:InferTensorContents=5",
    "ModelInferResponse": "model_name:string=1 model_version:string=2 id:string=3 "
    f"{_PARAMETERS} outputs:InferOutputTensor*=5 raw_output_contents:bytes*=6",
    "ModelStreamInferResponse": "error_message:string=1 infer_response:ModelInferResponse=2",
    "ModelConfigRequest": _NAMED,
    "ModelInput": "name:string=1 data_type:DataType=2 dims:int64*=4 optional:bool=8",
    "ModelOutput": "name:string=1 data_type:DataType=2 dims:int64*=3",
    "ModelTransactionPolicy": "decoupled:bool=1",
    "ModelParameter": "string_value:string=1",
    "ModelConfig": "name:string=1 platform:string=2 backend:string=17 max_batch_size:int32=4 "
    "input:ModelInput*=5 output:ModelOutput*=6 parameters:ModelParameter{}=14 "
    "model_transaction_policy:ModelTransactionPolicy=19",
    "ModelConfigResponse": "config:ModelConfig=1",
    "ModelStatisticsRequest": _NAMED,
    "StatisticDuration": "count:uint64=1 ns:uint64=2",
    "InferStatistics": " ".join(
        f"{name}:StatisticDuration={number}"
        for number, name in enumerate(
            ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output",
             "cache_hit", "cache_miss"), 1)
    ),
    "ModelStatistics": f"{_NAMED} last_inference:uint64=3 inference_count:uint64=4 "
    "execution_count:uint64=5 inference_stats:InferStatistics=6",
    "ModelStatisticsResponse": "model_stats:ModelStatistics*=1",
    "ModelRepositoryParameter": "bool_param:bool|1 int64_param:int64|2 string_param:string|3 "
    "bytes_param:bytes|4",
    "RepositoryIndexRequest": "repository_name:string=1 ready:bool=2",
    "ModelIndex": f"{_NAMED} state:string=3 reason:string=4",
    "RepositoryIndexResponse": "models:ModelIndex*=1",
    "RepositoryModelLoadRequest": _LOADED,
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": _LOADED,
    "RepositoryModelUnloadResponse": "",
}  # fmt: skip
"""Each message's fields, as ``name:type=number``: ``*`` after the type is for a list, ``{}`` for a
map from texts, and ``|`` in place of ``=`` for one of several of which there is one."""
_DATATYPES: Final = (
    "INVALID BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16"
)
_FIELD: Final = re.compile(r"(\w+):(\w+)(\*|\{\})?([=|])(\d+)")
_Field = descriptor_pb2.FieldDescriptorProto
_ONE_OF: Final = "parameter_choice"


def _classes() -> dict[str, Any]:
    """The classes of the messages, by their names without the package."""
    file = descriptor_pb2.FileDescriptorProto(
        name="penstock/inference.proto", package=PACKAGE, syntax="proto3"
    )
    enum = file.enum_type.add(name="DataType")
    for number, name in enumerate(_DATATYPES.split()):
        enum.value.add(name=f"TYPE_{name}", number=number)
    for name, fields in _TABLE.items():
        message = file.message_type.add(name=name)
        for found in _FIELD.finditer(fields):
            _add(message, *found.groups())
    # A pool of their own: a client in the same process has messages of the same names.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in _TABLE
    }


def _add(
    message: descriptor_pb2.DescriptorProto,
    name: str,
    kind: str,
    form: str | None,
    mark: str,
    number: str,
) -> None:
    field = message.field.add(name=name, number=int(number))
    field.label = _Field.LABEL_REPEATED if form else _Field.LABEL_OPTIONAL
    if form == "{}":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add(entry, "key", "string", None, "=", "1")
        _add(entry, "value", kind, None, "=", "2")
        _set_type(field, f"{message.name}.{entry.name}")
        return
    if mark == "|":
        if not message.oneof_decl:
            message.oneof_decl.add(name=_ONE_OF)
        field.oneof_index = 0
    _set_type(field, kind)


def _set_type(field: descriptor_pb2.FieldDescriptorProto, kind: str) -> None:
    if kind[0].islower():
        field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
        return
    field.type = _Field.TYPE_ENUM if kind == "DataType" else _Field.TYPE_MESSAGE
    field.type_name = f".{PACKAGE}.{kind}"


MESSAGES: Final = _classes()
