"""Requests and answers as gRPC's messages have them."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET

from penstock.server.errors import ApiError
from penstock.server.kserve import elements
from penstock.server.kserve.grpc.messages import MESSAGES
from penstock.server.kserve.input import TextDecoder
from penstock.server.kserve.protocol import GeneratedText
from penstock.server.kserve.signature import OUTPUTS
from penstock.server.kserve.tensors import InferDecoder, Inference

_CONTENTS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_FINAL: Final = "triton_final_response"
_EMPTY_FINAL: Final = "triton_enable_empty_final_response"


class MessageDecoder:
    """Reads requests: as those of HTTP whose tensors are bytes after the JSON."""

    def __init__(self) -> None:
        self._envelopes = InferDecoder.envelopes()
        self._texts = TextDecoder()

    def decode(self, request: Any) -> Inference:
        """Read a ``ModelInferRequest``. Raises ApiError naming the field or tensor at fault."""
        parameters = _parameters(request.parameters)
        parameters.pop(_EMPTY_FINAL, None)  # no final response is empty here
        raw = list(request.raw_input_contents)
        if raw and len(raw) != len(request.inputs):
            raise ApiError(
                400, f"there are {len(request.inputs)} inputs, and {len(raw)} raw_input_contents"
            )
        inputs, tail = [], []
        for i, tensor in enumerate(request.inputs):
            given: dict[str, Any] = {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": list(tensor.shape),
                "parameters": _parameters(tensor.parameters),
            }
            if raw:
                given["parameters"]["binary_data_size"] = len(raw[i])
                tail.append(raw[i])
            else:
                given["data"] = _contents(tensor)
            inputs.append(given)
        outputs = [
            {"name": each.name, "parameters": _parameters(each.parameters)}
            for each in request.outputs
        ]
        envelope = {
            "id": request.id,
            "parameters": parameters,
            "inputs": inputs,
            "outputs": outputs,
        }
        head = msgspec.json.encode(envelope)
        decoder = InferDecoder(self._envelopes, self._texts, len(head))
        return decoder.decode(b"".join((head, *tail))).request


def response(answer: GeneratedText, asked: Inference, final: bool | None = None) -> Any:
    """A ``ModelInferResponse``; ``final`` says of one of a stream whether it is the last."""
    made = MESSAGES["ModelInferResponse"](
        model_name=answer.model_name,
        model_version=answer.model_version,
        id="" if answer.id is UNSET else answer.id,
    )
    if final is not None:
        made.parameters[_FINAL].bool_param = final
    names = [each.name for each in asked.outputs]
    for signature in OUTPUTS:
        value = getattr(answer, signature.name)
        if value is UNSET or (names and signature.name not in names):
            continue
        made.outputs.add(name=signature.name, datatype=signature.datatype, shape=[1])
        made.raw_output_contents.append(elements.to_bytes([value], signature.datatype))
    return made


def _parameters(given: Any) -> dict[str, Any]:
    found = {}
    for name, value in given.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is not None:
            found[name] = getattr(value, kind)
    return found


def _contents(tensor: Any) -> list[Any]:
    """The elements of a tensor that has them as numbers or texts."""
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        why = f"{tensor.name}: send {tensor.datatype!r} as raw_input_contents"
        raise ApiError(400, why, param=tensor.name)
    values = list(getattr(tensor.contents, field))
    if field != "bytes_contents":
        return values
    try:
        return [value.decode() for value in values]
    except UnicodeDecodeError:
        why = f"{tensor.name}: its data has a text that is no UTF-8"
        raise ApiError(400, why, param=tensor.name) from None
