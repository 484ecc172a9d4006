"""Whether an engine can serve a request, and the sequences that the request runs as."""

from __future__ import annotations

import random

from penstock.engine.adapters import AdapterStore
from penstock.engine.beams import beam_sampling, check_search
from penstock.engine.engine_plan import EnginePlan
from penstock.engine.predicted import most_predicted
from penstock.errors import RequestError
from penstock.interface.executor import Executor
from penstock.interface.messages import EngineRequest
from penstock.interface.request_checks import check_request
from penstock.interface.sampler import NewSequence
from penstock.pooling.task_check import check_task
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import SequenceState, make_sequences


class SequenceMaker:
    """Checks requests, and makes sequences of them, each with a state of the executor's sampler."""

    def __init__(
        self,
        engine_plan: EnginePlan,
        executor: Executor,
        scheduler: Scheduler,
        adapters: AdapterStore,
        drafts_follow: bool,
    ) -> None:
        """``drafts_follow``: a proposer is shown every token of a sequence."""
        able, config = executor.capabilities, engine_plan.config
        self._spec = engine_plan.spec
        classifier = self._spec.classifier
        self.labels = None if classifier is None else classifier.labels
        """The labels by which the model classifies texts; None if it does not classify."""
        self.most_predicted = most_predicted(engine_plan, able)
        """Maximum number of tokens in a draft of a prediction; 0: predictions are refused."""
        self._lengths = config.lengths
        self._scheduler = scheduler
        self._adapters = adapters
        self._sampler = executor.sampler
        self._seeds = random.Random(config.seed)
        self._places_ahead = able.depth > 1 and able.placeholders
        self._draws_ahead = able.draws_ahead
        self._most_logprobs = able.most_logprobs
        self._drafts_follow = drafts_follow

    def check(self, request: EngineRequest) -> None:
        """Raise RequestError if the request could not be served; changes nothing."""
        spec, answer = self._spec, request.params if request.pooling is None else None
        check_task(request.pooling, self.labels)
        check_request(request, spec.vocab_size, self._lengths, spec.hidden_size)
        self._scheduler.check(len(request.prompt_token_ids), answer)
        if answer is not None and answer.beam_search is not None:
            check_search(answer, spec, self._most_logprobs, self._drafts_follow)
        self._adapters.find(request.adapter)
        if request.prediction and not self.most_predicted:
            raise RequestError(
                "this model's steps cannot take back what was drafted of a prediction, as it is "
                "served; leave it out, or start the server with --speculative ngram",
                "prediction",
            )

    def make(self, request: EngineRequest) -> SequenceState:
        """Return the first sequence of a request that was checked; it has the others as its
        siblings. A request without a seed of its own gets the next one of the engine's."""
        params, spec = request.params, self._spec
        adapter = self._adapters.find(request.adapter)
        if request.pooling is not None:
            return make_sequences(request, seed=0, adapter=adapter)
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(64)
        leader = make_sequences(request, seed, spec.eos_token_ids, adapter)
        sampled = params
        if params.beam_search is not None:
            sampled = beam_sampling(params, len(leader.ending_token_ids), spec.vocab_size)
        for sequence in (leader, *leader.siblings):
            sequence.sampling_state = state = self._sampler.state(
                NewSequence(
                    sampled,
                    sequence.key,
                    request.prompt_token_ids,
                    spec.vocab_size,
                    spec.eos_token_ids,
                )
            )
            # The next mask depends on the token.
            if self._places_ahead and not params.is_constrained and not sequence.is_beam:
                sequence.runs_ahead = self._draws_ahead or state.greedy
        return leader
