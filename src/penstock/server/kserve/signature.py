"""The model's tensors: what it takes and gives, as the protocol describes models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Datatype = Literal["BYTES", "BOOL", "INT32", "UINT32", "UINT64", "FP32"]


@dataclass(frozen=True)
class Signature:
    """One tensor of the model."""

    name: str
    datatype: Datatype
    several: bool = False
    """Whether it may have any number of elements, and not one alone."""
    optional: bool = True

    @property
    def shape(self) -> list[int]:
        """Its shape, where -1 stands for any number."""
        return [-1] if self.several else [1]

    @property
    def config_type(self) -> str:
        """The datatype as model configurations call it."""
        return "TYPE_STRING" if self.datatype == "BYTES" else f"TYPE_{self.datatype}"


INPUTS: Final = (
    Signature("text_input", "BYTES", optional=False),
    Signature("stream", "BOOL"),
    Signature("sampling_parameters", "BYTES"),
    Signature("exclude_input_in_output", "BOOL"),
    Signature("return_finish_reason", "BOOL"),
    Signature("return_cumulative_logprob", "BOOL"),
    Signature("return_num_input_tokens", "BOOL"),
    Signature("return_num_output_tokens", "BOOL"),
    Signature("max_tokens", "INT32"),
    Signature("min_tokens", "INT32"),
    Signature("temperature", "FP32"),
    Signature("top_p", "FP32"),
    Signature("top_k", "INT32"),
    Signature("min_p", "FP32"),
    Signature("seed", "UINT64"),
    Signature("repetition_penalty", "FP32"),
    Signature("presence_penalty", "FP32"),
    Signature("frequency_penalty", "FP32"),
    Signature("stop_words", "BYTES", several=True),
    Signature("bad_words", "BYTES", several=True),
)
OUTPUTS: Final = (
    Signature("text_output", "BYTES"),
    Signature("finish_reason", "BYTES"),
    Signature("cumulative_logprob", "FP32"),
    Signature("num_input_tokens", "UINT32"),
    Signature("num_output_tokens", "UINT32"),
)
"""All but the first are given where an input of the same name, with ``return_`` before it, or the
list of outputs asks for them."""
