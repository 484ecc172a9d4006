"""The engine: requests in, tokens out, one step at a time."""

from __future__ import annotations

import random
from collections.abc import Iterable

from penstock.backends import Executor
from penstock.cache.kv_cache import KvCache
from penstock.config import EngineConfig, ResolvedConfig
from penstock.engine.loader import Blueprint, Mark, draw, load
from penstock.engine.messages import (
    EngineRequest,
    EngineStats,
    FinishReason,
    SequenceUpdate,
    TokenLogprobs,
    first_bad_token,
)
from penstock.engine.request import Sequence, make_sequences
from penstock.engine.scheduled import ScheduledStep
from penstock.engine.scheduler import Scheduler
from penstock.engine.step import BLOCK_SIZE, StepResult
from penstock.engine.step_builder import build_step_input
from penstock.errors import RequestError
from penstock.models.spec import ModelSpec
from penstock.sampling.sampler import Sampled


class EngineCore:
    """Schedules, runs and samples; knows token ids only. Not thread-safe.

    :meth:`start` makes one from options; the constructor takes the parts, so that a benchmark can
    put its own executor around the real one. A request that fails on the way (NaN logits, say)
    ends with ``FinishReason.ERROR`` and its message; the others go on.
    """

    def __init__(self, blueprint: Blueprint, executor: Executor) -> None:
        config = blueprint.config
        self._blueprint = blueprint
        self._executor = executor
        cache = KvCache(
            executor.num_blocks, BLOCK_SIZE, enable_prefix_caching=config.enable_prefix_caching
        )
        self._scheduler = Scheduler(
            cache, config.max_num_seqs, config.max_num_batched_tokens, config.max_model_len
        )
        self._sampler = executor.sampler()
        self._seeds = random.Random(config.seed)
        self._prompt_logprobs: dict[str, list[TokenLogprobs | None]] = {}

    @classmethod
    def start(cls, config: EngineConfig, mark: Mark = lambda phase: None) -> EngineCore:
        """Load what ``config`` asks for; raises ConfigError, ModelError or WeightError."""
        blueprint = draw(config)
        mark("config")
        return cls(blueprint, load(blueprint, mark))

    @property
    def config(self) -> ResolvedConfig:
        return self._blueprint.config

    @property
    def spec(self) -> ModelSpec:
        return self._blueprint.spec

    @property
    def max_model_len(self) -> int:
        return self.config.max_model_len

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def tokens_computed(self) -> int:
        """Token positions that all steps so far have computed."""
        return self._scheduler.tokens_computed

    def check(self, request: EngineRequest) -> None:
        """Raise RequestError if the request could not be served; changes nothing."""
        vocab_size = self.spec.vocab_size
        request.params.validate(vocab_size)
        bad = first_bad_token(request.prompt_token_ids, vocab_size)
        if bad is not None:
            token = request.prompt_token_ids[bad]
            if type(token) is not int:
                raise RequestError(f"prompt token ids must be integers, not {token!r}", "prompt")
            raise RequestError(
                f"the prompt holds token id {token}, outside the vocabulary of {vocab_size}",
                "prompt",
            )
        self._scheduler.check(len(request.prompt_token_ids), request.params)

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request; raises RequestError and changes nothing if it cannot be served."""
        self.check(request)
        params = request.params
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(64)
        leader = make_sequences(request, seed, self.spec.eos_token_ids)
        for sequence in (leader, *leader.siblings):
            sequence.sampling_state = self._sampler.state(
                params,
                sequence.key,
                request.prompt_token_ids,
                self.spec.vocab_size,
                self.spec.eos_token_ids,
            )
        self._scheduler.add(leader)
        if params.prompt_logprobs is not None:
            self._prompt_logprobs[request.request_id] = [None]

    def abort(self, request_ids: Iterable[str], index: int | None = None) -> list[SequenceUpdate]:
        """Stop these requests and free what they hold; unknown or ended ids are ignored.

        ``index`` names one sequence of each, to be stopped alone, which must have output.
        """
        updates = []
        for request_id in request_ids:
            if index is None:
                self._prompt_logprobs.pop(request_id, None)
            for sequence in self._scheduler.abort(request_id, index):
                updates.append(_ended(sequence, FinishReason.ABORT))
        return updates

    def step(self) -> list[SequenceUpdate]:
        """Run one step, if there is work; returns what it produced."""
        step = self._scheduler.schedule()
        if step is None:
            return []
        result = self._executor.run(build_step_input(step))
        states = [sequence.sampling_state for sequence in step.samples]
        sampled = self._sampler.sample(result, step.sample_rows, states)
        errors = self._report_prompts(step, result)
        tokens = [[token] for token in sampled.token_ids]
        for i, message in sampled.errors.items():
            errors.setdefault(step.samples[i].request_id, message)
            tokens[i] = []
        for i in sampled.particular:
            if i not in sampled.errors:
                states[i].append(sampled.token_ids[i])
        updates = self._scheduler.update(step, tokens)
        if errors:
            updates = [update for update in updates if update.request_id not in errors]
        if sampled.logprobs or self._prompt_logprobs:
            self._add_logprobs(updates, step, sampled)
        for request_id, message in errors.items():
            self._prompt_logprobs.pop(request_id, None)
            for sequence in self._scheduler.abort(request_id):
                updates.append(_ended(sequence, FinishReason.ERROR, message))
        return updates

    def stats(self) -> EngineStats:
        return self._scheduler.stats()

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix; what runs is not disturbed."""
        self._scheduler.cache.reset()

    def check_integrity(self) -> None:
        """Raise AssertionError unless sequences, queues and the cache's books agree."""
        self._scheduler.check_integrity()

    def close(self) -> None:
        self._executor.close()

    def _add_logprobs(
        self, updates: list[SequenceUpdate], step: ScheduledStep, sampled: Sampled
    ) -> None:
        """Put into ``updates`` what was asked for: of each token, and once of the prompt."""
        chosen = {
            (step.samples[i].request_id, step.samples[i].index): entry
            for i, entry in sampled.logprobs.items()
        }
        for update in updates:
            entry = chosen.get((update.request_id, update.index))
            if entry is not None:
                update.logprobs = [entry]
            if update.index == 0:
                update.prompt_logprobs = self._prompt_logprobs.pop(update.request_id, None)

    def _report_prompts(self, step: ScheduledStep, result: StepResult) -> dict[str, str]:
        """Keep the prompt log-probabilities of this step; returns what failed, by request id."""
        errors: dict[str, str] = {}
        if not self._prompt_logprobs:
            return errors
        row = 0
        for each in step.sequences:
            sequence, end = each.sequence, each.start + each.num_tokens
            rows = result.logits[row : row + each.num_logits]
            row += each.num_logits
            wanted = self._prompt_logprobs.get(sequence.request_id)
            k = sequence.params.prompt_logprobs
            first = end - each.num_logits + 1  # the position that the first row predicts
            last = min(end + 1, sequence.num_prompt_tokens)
            if wanted is None or k is None or first >= last:
                continue
            targets = sequence.token_ids[first:last]
            try:
                wanted += self._sampler.prompt_logprobs(rows[: last - first], targets, k)
            except RequestError as error:
                errors[sequence.request_id] = str(error)
        return errors


def _ended(sequence: Sequence, reason: FinishReason, message: str | None = None) -> SequenceUpdate:
    return SequenceUpdate(
        sequence.request_id,
        sequence.index,
        [],
        num_cached_tokens=sequence.num_cached_tokens,
        finish_reason=reason,
        error=message,
    )
