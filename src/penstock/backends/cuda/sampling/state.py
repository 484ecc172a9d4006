"""What the sampler must know about one sequence."""

from __future__ import annotations

import math
import sys

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.backends.cuda.sampling.kernels import row
from penstock.backends.cuda.sampling.memory import device_copy
from penstock.backends.cuda.sampling.recent import RecentTokens
from penstock.interface.sampler import NewSequence
from penstock.interface.token_ids import check_token_ids
from penstock.sampling.params import SamplingParams
from penstock.sampling.ranges import MAX_LOGPROBS
from penstock.sampling.select import ONE
from penstock.sampling.sequence import bias_of, ending_of

_TINY = float(np.finfo(np.float32).tiny)


class DeviceSampleState:
    """The state of a sequence: a function of its prompt, output, options and key only.

    The host counts the output, one token a launch. Which tokens they are matters to penalties
    alone: their counts, and the lists of biased and ending tokens, are on the device from the
    first launch on, and are freed with the state. A request that waits takes no device memory; one
    with penalties takes four bytes a token of the vocabulary while it runs, and as many for each of
    the last tokens that they look at.
    """

    def __init__(self, sequence: NewSequence) -> None:
        params, vocab_size = sequence.params, sequence.vocab_size
        assert (params.logprobs or 0) <= MAX_LOGPROBS, "kernels write no more for a row"
        self.vocab_size = vocab_size
        self.num_output = 0
        bias_ids, biases = bias_of(sequence)
        ending = ending_of(sequence)
        self._last = params.repeat_last_n
        penalizes_seen = params.repetition_penalty != 1.0
        self._penalized = self._last != 0 and (
            penalizes_seen or bool(params.frequency_penalty or params.presence_penalty)
        )
        self._min_tokens = min(params.min_tokens, sys.maxsize)
        self._num_ending = len(ending)
        self._always_changes = self._penalized or len(bias_ids) > 0 or params.is_constrained
        by_id = np.argsort(bias_ids)
        self._lists: NDArray[np.int32] = np.concatenate(
            [
                bias_ids[by_id].astype(np.int32),
                biases[by_id].view(np.int32),
                ending.astype(np.int32),
            ]
        )
        self._prompt = (
            list(check_token_ids(sequence.prompt_token_ids, vocab_size))
            if penalizes_seen or self._last is not None
            else []
        )
        self._num_prompt = len(self._prompt)
        self._unsent: list[int] = []  # output that the device's counts lack
        self._device_lists: Tensor | None = None
        self._device_counts: Tensor | None = None
        self._recent: RecentTokens | None = None  # where penalties look at the last tokens alone
        self.logprobs = params.logprobs
        self.is_drawn = params.temperature > 0.0
        self.greedy = not (self.is_drawn or self._always_changes or self._num_ending)
        self.plain = self.greedy and params.logprobs is None
        self.top_k = params.top_k if self.is_drawn and 0 < params.top_k < vocab_size else 0
        self.truncates = self.is_drawn and (self.top_k > 0 or params.top_p < 1.0)
        self.record = self._record(params, sequence.key, len(bias_ids))

    def append(self, token_id: int) -> None:
        """Record an output token that no launch has counted. Raises ValueError."""
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"token {token_id} lies outside the vocabulary of {self.vocab_size}")
        self.num_output += 1
        if self._penalized:
            self._unsent.append(token_id)

    @property
    def num_ending(self) -> int:
        """How many ending tokens the next one must not be: all, or none."""
        return self._num_ending if self.num_output < self._min_tokens else 0

    @property
    def changes_logits(self) -> bool:
        """Whether the options change the logits of the next token."""
        return self._always_changes or self.num_ending > 0

    @property
    def counts(self) -> Tensor | None:
        """int32 ``[vocab]`` on the device, of a penalized sequence once placed."""
        return self._device_counts

    def place(self, device: torch.device) -> None:
        """Queue copies to the device of what options need there."""
        if self._device_lists is None and len(self._lists):
            self._device_lists = device_copy(self._lists, device)
            self.record[row.LISTS.value] = self._device_lists.data_ptr()
        if not self._penalized:
            return
        if self._device_counts is None:
            self._device_counts = torch.zeros(self.vocab_size, dtype=torch.int32, device=device)
            self.record[row.COUNTS.value] = self._device_counts.data_ptr()
            if self._last is not None and self._last > 0:
                self._recent = RecentTokens(self._last, self._device_counts)
            if self._last is not None:
                self._count(self._prompt, 0)
            elif self._prompt:
                prompt = device_copy(np.array(self._prompt, np.int64), device)
                self._device_counts.index_fill_(0, prompt, 1)
            self._prompt = []
        position = self._num_prompt + self.num_output
        self._count(self._unsent, position - len(self._unsent))
        self._unsent = []
        if self._recent is not None:
            self.record[row.PLACE.value] = self._recent.place(position)

    def _count(self, token_ids: list[int], first: int) -> None:
        """Queue that these tokens are counted, ``first`` after as many others."""
        counts = self._device_counts
        if not token_ids or counts is None:
            return
        if self._recent is not None:
            self._recent.take(token_ids, first)
            return
        ids = device_copy(np.array(token_ids, np.int64), counts.device)
        counts.index_add_(0, ids, torch.full_like(ids, 2, dtype=torch.int32))

    def _record(self, params: SamplingParams, key: int, num_biases: int) -> NDArray[np.int64]:
        """Return what never changes of the job's record; ``BITS`` holds the key instead."""
        record = np.zeros(row.WIDTH.value, np.int64)
        record.view(np.uint64)[row.BITS.value] = key & (2**64 - 1)
        record[row.LEAST.value] = math.ceil(params.min_p * ONE)
        record[row.TOP_K.value] = self.top_k
        record[row.NUM_BIASES.value] = num_biases
        reals = record.view(np.float64)
        if self.is_drawn:
            inverse = np.float32(1.0 / max(params.temperature, _TINY))
            reals[row.INVERSE_TEMPERATURE.value] = inverse
        reals[row.TOP_P.value] = params.top_p
        reals[row.REPETITION.value] = np.float32(params.repetition_penalty)
        reals[row.FREQUENCY.value] = np.float32(params.frequency_penalty)
        reals[row.PRESENCE.value] = np.float32(params.presence_penalty)
        return record
