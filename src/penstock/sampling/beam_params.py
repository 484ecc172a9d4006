"""The options of ``LLM.beam_search``."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import RequestError
from penstock.sampling.beam_search import BeamSearch
from penstock.sampling.params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """A beam search under the names that vLLM's users know; of its ``beam_width`` beams all are
    returned."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    early_stopping: bool = False

    @property
    def sampling_params(self) -> SamplingParams:
        """The same as ``generate`` takes it. Raises RequestError for what a search has no use
        for."""
        if self.temperature not in (0, 1):
            raise RequestError(
                "a beam search draws nothing, so temperature has no effect; leave it out",
                "temperature",
            )
        search = BeamSearch(
            width=self.beam_width,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
        )
        search.validate()  # here, where its width has this name
        return SamplingParams(
            n=self.beam_width,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            include_stop_str_in_output=self.include_stop_str_in_output,
            logprobs=0,  # sums of log-probabilities are what tells beams apart
            beam_search=search,
        )
