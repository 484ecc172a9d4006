"""The structs of the endpoints that ask the model for text."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from penstock.server.openai.protocol import StructuredOutputs


class TextParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a text is asked for with, under the names of Triton's backends for vLLM and for
    TensorRT-LLM."""

    stream: bool | None = None
    exclude_input_in_output: bool | None = None
    """Whether ``text_output`` is the answer alone; if it is false, the prompt stands before it. The
    default is false, but true in a stream."""
    return_finish_reason: bool | None = None
    return_cumulative_logprob: bool | None = None
    return_num_input_tokens: bool | None = None
    return_num_output_tokens: bool | None = None
    max_tokens: int | None = None
    """The default is 16, as for completions."""
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop_words: str | list[str] | None = None
    """An empty text stands for no words, here and in ``bad_words``."""
    bad_words: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    cache_salt: str | None = None


class TextRequest(TextParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v2/models/MODEL/generate``. An option may stand in any of three places:
    in the body, in ``parameters`` and in ``sampling_parameters``."""

    text_input: str
    id: str = ""
    parameters: TextParameters = TextParameters()
    sampling_parameters: TextParameters | str | None = None
    """An object, or one as text, where numbers and truth values may be texts, too."""


class GeneratedText(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, or what is new of it in a stream."""

    model_name: str
    model_version: str
    id: str | UnsetType = UNSET
    text_output: str
    finish_reason: str | UnsetType = UNSET
    """It is ``None`` in a stream until the end, as vLLM's backend has it."""
    cumulative_logprob: float | UnsetType = UNSET
    num_input_tokens: int | UnsetType = UNSET
    num_output_tokens: int | UnsetType = UNSET
    """Tokens of this answer; in a stream, those since the last one."""


class InferenceError(msgspec.Struct, frozen=True):
    """Why a request is refused, or the last event of a stream that ends early."""

    error: str
    code: str | UnsetType = UNSET
    """An extension: what OpenAI's clients are told, which is more precise."""


class InputParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    binary_data_size: int | None = None
    """Bytes of the tensor after the JSON, in the order of the inputs."""


class InputTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    datatype: str
    shape: list[int]
    parameters: InputParameters = InputParameters()
    data: list[object] | None = None
    """The elements in row-major order, nested or flat."""


class OutputParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    binary_data: bool | None = None


class AskedOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    parameters: OutputParameters = OutputParameters()


class InferRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v2/models/MODEL/infer``, or the JSON that it begins with."""

    id: str = ""
    parameters: dict[str, object] = {}
    """``binary_data_output``, and what ``parameters`` of a :class:`TextRequest` may hold."""
    inputs: list[InputTensor]
    outputs: list[AskedOutput] = []
    """Which outputs to return; without them those that the inputs ask for."""


class BinarySize(msgspec.Struct, frozen=True):
    binary_data_size: int


class OutputTensor(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    datatype: str
    shape: list[int]
    parameters: BinarySize | UnsetType = UNSET
    data: list[str | int | float] | UnsetType = UNSET


class InferResponse(msgspec.Struct, frozen=True, kw_only=True):
    model_name: str
    model_version: str
    id: str | UnsetType = UNSET
    outputs: list[OutputTensor]
