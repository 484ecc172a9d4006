"""Reads ``generation_config.json``: how the makers of a model recommend to sample from it.

The fields that count are those that vLLM applies, too; whether to sample at all (``do_sample``) is
for requests to say, by a temperature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.errors import RequestError
from penstock.models.reader import ConfigReader
from penstock.models.wording import Wording
from penstock.sampling.defaults import SamplingDefaults
from penstock.sampling.ranges import RANGES

_FIELDS: Final[Mapping[str, str]] = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "repeat_last_n": "repeat_last_n",  # which GGUF files have, and these do not
    "max_tokens": "max_new_tokens",
}
"""What the file calls each option."""


@dataclass(frozen=True)
class GenerationConfig:
    eos_token_ids: tuple[int, ...]
    """Further tokens that end a sequence."""
    defaults: SamplingDefaults


def read_generation_config(
    fields: Mapping[str, object],
    vocab_size: int,
    where: str,
    defaults: bool = True,
    wording: Wording | None = None,
) -> GenerationConfig:
    """The parts of ``generation_config.json`` that are served; all other fields are passed over.

    Without ``defaults`` these are the ends of sequences alone.

    Raises ModelError, naming ``where``, for values that no request may have.
    """
    reader = ConfigReader(fields, where, wording=wording)
    values = {}
    for name, field in _FIELDS.items() if defaults else ():
        value = reader.raw(field)
        if value is None:
            continue
        try:
            RANGES[name].check(field, value)  # type: ignore[arg-type]  # checks the type, too
        except RequestError as error:
            raise reader.error(
                field, f"cannot be applied: {error}; correct it, or set generation_config to none"
            ) from None
        values[name] = value
    return GenerationConfig(
        reader.integers("eos_token_id", high=vocab_size - 1),
        SamplingDefaults(**values),  # type: ignore[arg-type]
    )
