"""Requests and answers as tensors: ``POST /v2/models/MODEL/infer``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from penstock.server.body_decoder import BodyDecoder, Decoded
from penstock.server.errors import ApiError
from penstock.server.kserve import elements
from penstock.server.kserve.elements import Element
from penstock.server.kserve.field_table import rules_of
from penstock.server.kserve.input import TextDecoder
from penstock.server.kserve.paths import INFER
from penstock.server.kserve.protocol import (
    AskedOutput,
    BinarySize,
    GeneratedText,
    InferRequest,
    InferResponse,
    InputTensor,
    OutputTensor,
    TextRequest,
)
from penstock.server.kserve.signature import OUTPUTS

_BINARY_OUTPUT: Final = "binary_data_output"
_FIELDS: Final = frozenset(("id", "parameters"))
"""Fields of a request for a text that are no tensors."""
_LISTS: Final = frozenset(("stop_token_ids",))
_SEVERAL: Final = frozenset(("stop_words", "stop", "bad_words"))
"""Options that may be lists of texts or one text."""
_ALWAYS, *_ASKABLE = (each.name for each in OUTPUTS)


class Inference(msgspec.Struct, frozen=True):
    """A request that came as tensors."""

    text: TextRequest
    outputs: list[AskedOutput]
    binary: bool
    """Whether outputs are bytes where they do not say themselves."""


class InferDecoder:
    """Decodes one body: JSON, and after its first ``header`` bytes the bytes of tensors; without a
    ``header`` all of it is JSON."""

    def __init__(
        self, envelopes: BodyDecoder[InferRequest], texts: TextDecoder, header: int | None
    ) -> None:
        self._envelopes = envelopes
        self._texts = texts
        self._header = header

    @staticmethod
    def envelopes() -> BodyDecoder[InferRequest]:
        """The decoder of what all bodies share."""
        return BodyDecoder(InferRequest, rules_of(INFER))

    def decode(self, body: bytes) -> Decoded[Inference]:
        """Raises ApiError naming the field or the tensor at fault."""
        end = len(body) if self._header is None else self._header
        if end > len(body):
            raise ApiError(
                400,
                f"the header Inference-Header-Content-Length says {end} bytes, and the body has "
                f"{len(body)}",
            )
        envelope = self._envelopes.decode(body[:end])
        asked = envelope.request
        parameters = dict(asked.parameters)
        binary = parameters.pop(_BINARY_OUTPUT, False)
        if not isinstance(binary, bool):
            where = f"parameters.{_BINARY_OUTPUT}"
            raise ApiError(400, f"{where}: expected bool", param=where, code="invalid_type")
        given: dict[str, Any] = {**_values(asked.inputs, memoryview(body)[end:])}
        if parameters:
            given["parameters"] = parameters
        for name in _asked_names(asked.outputs):
            given[f"return_{name}"] = True
        if asked.id:
            given["id"] = asked.id
        text = self._texts.converted(given)
        return Decoded(
            Inference(text.request, asked.outputs, binary),
            tuple(dict.fromkeys((*envelope.ignored, *text.ignored))),
            tuple(dict.fromkeys((*envelope.named, *text.named))),
        )


def encoded(answer: GeneratedText, asked: Inference) -> tuple[bytes, int | None]:
    """The body of the answer, and how many bytes its JSON has if other bytes follow."""
    binary = {
        each.name: asked.binary if each.parameters.binary_data is None
        else each.parameters.binary_data
        for each in asked.outputs
    }  # fmt: skip
    outputs: list[OutputTensor] = []
    tail: list[bytes] = []
    for signature in OUTPUTS:
        value = getattr(answer, signature.name)
        if value is UNSET or (asked.outputs and signature.name not in binary):
            continue
        tensor = OutputTensor(
            name=signature.name, datatype=signature.datatype, shape=[1], data=[value]
        )
        if binary.get(signature.name, asked.binary):
            data = elements.to_bytes([value], signature.datatype)
            tail.append(data)
            tensor = msgspec.structs.replace(tensor, data=UNSET, parameters=BinarySize(len(data)))
        outputs.append(tensor)
    response = InferResponse(
        model_name=answer.model_name,
        model_version=answer.model_version,
        id=answer.id,
        outputs=outputs,
    )
    head = msgspec.json.encode(response)
    return b"".join((head, *tail)), len(head) if tail else None


def _asked_names(outputs: Sequence[AskedOutput]) -> list[str]:
    """The names of the outputs that are given where they are asked for. Raises ApiError for an
    output that there is not."""
    for i, each in enumerate(outputs):
        if each.name != _ALWAYS and each.name not in _ASKABLE:
            raise ApiError(
                400,
                f"outputs[{i}].name: there is no output {each.name!r}, but "
                f"{', '.join((_ALWAYS, *_ASKABLE))}",
                param=f"outputs[{i}].name",
            )
    return [each.name for each in outputs if each.name != _ALWAYS]


def _values(inputs: Sequence[InputTensor], binary: memoryview) -> dict[str, object]:
    """What the tensors hold, by their names. Raises ApiError naming the tensor at fault."""
    found: dict[str, object] = {}
    for tensor in inputs:
        name = tensor.name
        if name in found or name in _FIELDS:
            why = "comes twice" if name in found else "is no tensor's name, but a field's"
            raise ApiError(400, f"inputs: {name!r} {why}", param=name)
        values, binary = _elements(tensor, binary)
        found[name] = _value(name, values)
    if binary:
        raise ApiError(400, f"{len(binary)} bytes of the body belong to no tensor")
    return found


def _elements(tensor: InputTensor, binary: memoryview) -> tuple[list[Element], memoryview]:
    """The elements of a tensor, and what is left of ``binary``, which its bytes may begin."""
    name, size = tensor.name, tensor.parameters.binary_data_size
    count = elements.count(tensor.shape, name)
    if tensor.data is not None and size is None:
        return elements.of_json(tensor.data, tensor.datatype, count, name), binary
    if tensor.data is not None or size is None:
        why = "a tensor has either data or parameters.binary_data_size"
        raise ApiError(400, f"{name}: {why}", param=name)
    if not 0 <= size <= len(binary):
        raise ApiError(
            400,
            f"{name}: binary_data_size is {size}, and {len(binary)} bytes are left; the header "
            "Inference-Header-Content-Length says where they begin",
            param=name,
        )
    return elements.of_bytes(binary[:size], tensor.datatype, count, name), binary[size:]


def _value(name: str, values: list[Element]) -> object:
    if name in _LISTS or (name in _SEVERAL and len(values) != 1):
        return values
    if len(values) != 1:
        raise ApiError(
            400,
            f"{name}: it has one element, not {len(values)}; send a request for each",
            param=name,
        )
    return values[0]
