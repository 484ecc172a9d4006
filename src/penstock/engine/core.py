"""The engine: requests in, tokens out, step by step."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.cache.changes import CacheChanges
from penstock.cache.geometry import BLOCK_SIZE
from penstock.cache.kv_cache import KvCache
from penstock.config import EngineConfig
from penstock.engine.adapters import AdapterStore
from penstock.engine.beams import BeamGroups, beam_sampling, check_search
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.constraints import Constraints
from penstock.engine.loader import (
    EnginePlan,
    LoadedModels,
    Mark,
    load_models,
    open_model,
    plan_engine,
    state_limits,
)
from penstock.engine.masks import MaskThreads
from penstock.engine.predicted import most_predicted, predicted_text, without_proposer
from penstock.engine.prompt_logprobs import PromptLogprobsTracker
from penstock.engine.step_runner import StepRunner
from penstock.engine.updates import UpdateMaker, end_of, ends_of
from penstock.errors import RequestError
from penstock.interface.executor import Executor
from penstock.interface.loading import ProgressCallback, no_progress
from penstock.interface.messages import (
    EngineRequest,
    EngineStats,
    FinishReason,
    SequenceUpdate,
)
from penstock.interface.request_checks import check_request
from penstock.interface.sampler import NewSequence
from penstock.kv_disk_config import BlockPlace
from penstock.models.spec import ModelSpec
from penstock.pooling.labels import Labels
from penstock.pooling.task_check import check_task
from penstock.processes.wake import Wake
from penstock.resolved_config import ResolvedConfig
from penstock.scheduler.draft import Draft
from penstock.scheduler.limits import PROMPT_LOGIT_ROWS
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import SequenceState, make_sequences
from penstock.weights.model_files import ModelFiles

if TYPE_CHECKING:
    from penstock.engine.tiers.tiers import KvTiers
    from penstock.speculate.speculation import Speculation

_PATIENCE_S = 0.002
"""Longest time, in seconds, that a step waits for grammar masks while another step runs."""


class EngineCore:
    """Schedules, runs and samples; knows token ids only. Not thread-safe.

    :meth:`start` makes one from options, and :meth:`of` one of models that were loaded; the
    constructor takes the parts, with the speculation that there is to be, and loads nothing.
    A request that fails on the way (NaN logits, say) ends with ``FinishReason.ERROR`` and its
    message; the others go on.

    With an executor of depth 2 a step is scheduled and submitted while the one before it runs, of
    which :meth:`step` then returns what came; what comes is the same. Before a step for which
    there may be drafts, and after one that has some, the step in flight is taken in first. Of
    deeper ones, and of those that know no placeholders, sequences are divided among as many steps.
    """

    def __init__(
        self,
        engine_plan: EnginePlan,
        executor: Executor,
        speculation: Speculation | None = None,
        mask_threads: MaskThreads | None = None,
        adapters: AdapterStore | None = None,
        files: ModelFiles | None = None,
    ) -> None:
        """``files`` is the model, where it was opened before."""
        config = engine_plan.config
        if speculation is None and config.speculative is not None:
            raise ValueError("the options ask for speculation, which was not given")
        self._engine_plan = engine_plan
        self.adapters = adapters or AdapterStore(engine_plan)
        self._executor = executor
        self._speculation = speculation
        able = executor.capabilities
        self._places_ahead = able.depth > 1 and able.placeholders
        self._draws_ahead = able.draws_ahead
        self._late_masks = able.late_masks
        self._most_logprobs = able.most_logprobs
        cache = KvCache(
            executor.num_blocks,
            BLOCK_SIZE,
            windows=engine_plan.plan.kv_groups.windows or (None,),
            enable_prefix_caching=config.enable_prefix_caching,
            states=state_limits(engine_plan),
        )
        self.wake: Wake | None = None
        """Set when there is work that no call has brought; None where there is none such."""
        self._tiers: KvTiers | None = None
        if config.kv_disk is not None or config.kv_host_bytes:
            from penstock.engine.tiers.station import open_tiers

            assert executor.blocks is not None, "the plan was checked"
            blocks = CachedBlocks(cache, executor.blocks)
            self.wake = Wake()
            self._tiers = open_tiers(engine_plan, cache, blocks, files, self.wake)
        self._scheduler = Scheduler(
            cache,
            config.max_num_seqs,
            config.max_num_batched_tokens,
            config.lengths,
            self._speculation is not None and self._speculation.reads_all_hidden,
            PROMPT_LOGIT_ROWS if config.max_logit_rows < config.max_num_batched_tokens else None,
            config.lengths.bounded,
            batches=1 if able.placeholders else able.depth,
            depth=max(able.depth, 2),
            adapter_slots=config.max_loras,
            draft_rows=config.max_num_seqs * (config.rows_per_sequence - 1),
            gate=self._tiers,
        )
        self._most_predicted = most_predicted(engine_plan, able)
        self._sampler = executor.sampler
        self._seeds = random.Random(config.seed)
        self._prompts = PromptLogprobsTracker()
        self._constraints = Constraints(
            config.tokenizer_path, self.spec.vocab_size, self.spec.eos_token_ids, mask_threads
        )
        self._beams = BeamGroups(self._scheduler)
        self._updates = UpdateMaker(self._scheduler, self._constraints, self._beams, self._prompts)
        self._runner = StepRunner(
            executor,
            self._scheduler,
            self._constraints,
            self._prompts,
            None if self._speculation is None else self._speculation.typical,
            caches=bool(engine_plan.plan.kv_layers),
        )

    @classmethod
    def start(
        cls,
        config: EngineConfig,
        mark: Mark = lambda phase: None,
        files: ModelFiles | None = None,
        progress: ProgressCallback = no_progress,
    ) -> EngineCore:
        """Load what ``config`` asks for; ``files`` is its model, where that was opened before.

        Raises ConfigError, ModelError or WeightError.
        """
        files = files or open_model(config)
        engine_plan = plan_engine(config, files)
        mark("config")
        return cls.of(load_models(engine_plan, mark, files=files, progress=progress))

    @classmethod
    def of(cls, models: LoadedModels) -> EngineCore:
        """Make an engine of loaded models; if that fails, they are closed."""
        try:
            asked, speculation = models.engine_plan.config.speculative, None
            if asked is not None:
                from penstock.speculate.make import make_speculation  # all that proposes drafts

                speculation = make_speculation(asked, models.draft, models.automaton)
            return cls(
                models.engine_plan,
                models.executor,
                speculation,
                adapters=models.adapters,
                files=models.files,
            )
        except BaseException:
            models.close()
            raise

    @property
    def config(self) -> ResolvedConfig:
        return self._engine_plan.config

    @property
    def spec(self) -> ModelSpec:
        return self._engine_plan.spec

    @property
    def labels(self) -> Labels | None:
        """What the model tells texts by, where it classifies."""
        return None if self.spec.classifier is None else self.spec.classifier.labels

    @property
    def max_model_len(self) -> int:
        return self.config.max_model_len

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything, if only wait for one whose sequences have ended, or
        for a grammar."""
        if self._steps_wait or self._constraints.num_waiting > 0:
            return True
        return self._tiers is not None and self._tiers.has_work

    @property
    def _steps_wait(self) -> bool:
        return self._scheduler.has_work or self._runner.in_flight

    @property
    def tokens_computed(self) -> int:
        """Token positions that all steps so far have computed."""
        return self._scheduler.tokens_computed

    @property
    def blocks(self) -> CachedBlocks | None:
        """The blocks of the cache as bytes, to be used between steps; None where the executor does
        not give them, or steps overlap."""
        return _blocks(self._scheduler.cache, self._executor)

    @property
    def block_place(self) -> BlockPlace | None:
        """Where blocks are kept on disk; None: nowhere."""
        disk = self.config.kv_disk
        if self._tiers is None or not self._tiers.kind or disk is None:
            return None
        return BlockPlace(folder=disk.folder, limit=disk.bytes, kind=self._tiers.kind.hex())

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._scheduler.running)

    def holds(self, request_id: str) -> bool:
        """Whether a request of this id waits or runs."""
        return self._scheduler.holds(request_id) or self._constraints.holds(request_id)

    def check(self, request: EngineRequest) -> None:
        """Raise RequestError if the request could not be served; changes nothing."""
        spec, answer = self.spec, request.params if request.pooling is None else None
        check_task(request.pooling, self.labels)
        check_request(request, spec.vocab_size, self.config.lengths, spec.hidden_size)
        self._scheduler.check(len(request.prompt_token_ids), answer)
        if answer is not None and answer.beam_search is not None:
            check_search(
                answer,
                self.spec,
                self._most_logprobs,
                self._speculation is not None and self._speculation.follows_tokens,
            )
        self.adapters.find(request.adapter)
        if request.prediction and not self._most_predicted:
            raise RequestError(
                "this model's steps cannot take back what was drafted of a prediction, as it is "
                "served; leave it out, or start the server with --speculative ngram",
                "prediction",
            )

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request; raises RequestError and changes nothing if it cannot be served."""
        self.check(request)
        params, adapter = request.params, self.adapters.find(request.adapter)
        if self._constraints.holds(request.request_id) or (
            params.is_constrained and self._scheduler.holds(request.request_id)
        ):
            raise RequestError(f"request id {request.request_id!r} is in use", "request_id")
        if request.pooling is not None:
            pooled = make_sequences(request, seed=0, adapter=adapter)
            self._scheduler.add(pooled)
            if self._tiers is not None:
                self._tiers.expect(pooled)
            return
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(64)
        leader = make_sequences(request, seed, self.spec.eos_token_ids, adapter)
        sampled = params
        if params.beam_search is not None:
            sampled = beam_sampling(params, len(leader.ending_token_ids), self.spec.vocab_size)
        for sequence in (leader, *leader.siblings):
            sequence.sampling_state = state = self._sampler.state(
                NewSequence(
                    sampled,
                    sequence.key,
                    request.prompt_token_ids,
                    self.spec.vocab_size,
                    self.spec.eos_token_ids,
                )
            )
            # The next mask depends on the token.
            if self._places_ahead and not params.is_constrained and not sequence.is_beam:
                sequence.runs_ahead = self._draws_ahead or state.greedy
        if self._tiers is not None and request.keep_s > 0:
            self._tiers.keep(leader, request.keep_s)
        constraint = params.constraint
        if constraint is None:
            self._scheduler.add(leader)
            if self._tiers is not None:
                self._tiers.expect(leader)
        else:
            self._constraints.add(leader, constraint)
        if params.beam_search is not None:
            self._beams.add(leader)
        if params.prompt_logprobs is not None:
            self._prompts.expect(request.request_id)
        if request.prediction and params.beam_search is None:  # no drafts are made for beams
            if self._speculation is None:
                self._speculation = without_proposer(self._runner.num_in_flight)
            text = predicted_text(request.prediction)
            for sequence in (leader, *leader.siblings):
                self._speculation.expect(sequence, text, self._most_predicted)

    def abort(self, request_ids: Iterable[str], index: int | None = None) -> list[SequenceUpdate]:
        """Stop these requests and free what they hold; unknown or ended ids are ignored.

        ``index`` names one sequence of each, to be stopped alone, which must have output.
        """
        updates = []
        for request_id in request_ids:
            if index is None:
                self._prompts.pop(request_id)
                self._beams.drop(request_id)
            ended = self._scheduler.abort(request_id, index)
            if index is None:
                ended = ended or self._constraints.abort(request_id)
            updates += ends_of(ended, FinishReason.ABORT)
        return updates

    def step(self) -> list[SequenceUpdate]:
        """Run one step, if there is work; returns what it produced.

        Where steps overlap: submit one, and return what the one before it produced.
        """
        if self._tiers is not None:
            return self._tiered_step(self._tiers)
        return self._plain_step()

    def _plain_step(self) -> list[SequenceUpdate]:
        if self._constraints.num_waiting:
            return [*self._admit(), *self._step()]
        return self._step()

    def _tiered_step(self, tiers: KvTiers) -> list[SequenceUpdate]:
        """A step, and what moves between the cache and the tiers below it before."""
        for sequence in tiers.advance(self.num_running):
            self._scheduler.put_back(sequence)
        if not self._steps_wait and not self._constraints.num_waiting:
            tiers.wait()
            return []
        before, began = self.tokens_computed, time.perf_counter()
        updates = self._plain_step()
        tiers.computed(self.tokens_computed - before, time.perf_counter() - began)
        return updates

    def _admit(self) -> list[SequenceUpdate]:
        """Queue the requests whose grammars are compiled; returns the end of those that failed."""
        ready, failed = self._constraints.compiled(patiently=not self._steps_wait)
        for leader in ready:
            self._scheduler.add(leader)
            if self._tiers is not None:
                self._tiers.expect(leader)
        updates = []
        for leader, message in failed:
            self._prompts.pop(leader.request_id)
            for sequence in (leader, *leader.siblings):
                updates.append(end_of(sequence, FinishReason.ERROR, message))
                updates[-1].refused = True
        return updates

    def _step(self) -> list[SequenceUpdate]:
        constraints = self._constraints
        ended: list[SequenceUpdate] = []
        if constraints.active and constraints.num_awaiting:
            ended = [self._scheduler.conclude(sequence) for sequence in constraints.release()]
        drafts, features = None, False
        if self._speculation is not None:
            if self._must_be_taken_in(self._speculation):
                ended += self._updates.take_in(self._runner.take_in(), self._speculation)
            drafts = self._drafts(self._speculation)
        masks_pending = may_be_late = False
        if constraints.active:
            if not self._late_masks and drafts:  # the host draws, when the logits are there
                may_be_late = True
            elif not self._late_masks:
                constraints.wait_for_all(_PATIENCE_S)
            masks_pending = constraints.num_awaiting > 0
        step = self._scheduler.schedule(drafts, masks_pending)
        if step is None and masks_pending and not self._runner.in_flight:
            if not ended:
                constraints.wait()
            return ended
        if self._speculation is not None and step is not None:
            features = self._speculation.wants_features(step)
        ended += self._updates.take_in(
            self._runner.advance(step, features, may_be_late), self._speculation
        )
        return ended

    def _must_be_taken_in(self, speculation: Speculation) -> bool:
        """Whether a step is in flight whose tokens the next one's drafts, or lack of them, need."""
        if not self._runner.in_flight:
            return False
        return not self._runner.can_go_on or speculation.may_draft(
            self._scheduler.running, self._scheduler.max_num_batched_tokens
        )

    def _drafts(self, speculation: Speculation) -> dict[SequenceState, Draft]:
        if self._runner.in_flight:
            speculation.skip()
            return {}
        return speculation.drafts(self._scheduler.running, self._scheduler.max_num_batched_tokens)

    def stats(self) -> EngineStats:
        stats = self._scheduler.stats()
        if waiting := self._constraints.num_waiting:
            stats = msgspec.structs.replace(stats, waiting=stats.waiting + waiting)
        if self._speculation is not None:
            stats = msgspec.structs.replace(stats, drafts=self._speculation.figures.snapshot())
        if self._tiers is not None:
            tiers = self._tiers.stats()
            stats = msgspec.structs.replace(
                stats,
                tier=tiers.get("disk"),
                host_tier=tiers.get("host"),
                waiting=stats.waiting + self._tiers.num_aside,
            )
        return stats

    def cache_changes(self, position: int | None) -> CacheChanges:
        """How the prefixes that can be found changed: as KvCache.changes_after."""
        return self._scheduler.cache.changes_after(position)

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix, and what drafts were made from of requests that ended.

        What runs is not disturbed.
        """
        self._scheduler.cache.reset()
        if self._tiers is not None:
            self._tiers.reset()
        if self._speculation is not None:
            self._speculation.reset()

    def load_adapter(self, path: str) -> str:
        """Load an adapter from a folder; return its digest. Raises ConfigError or WeightError."""
        return self.adapters.load(Path(path)).digest

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter; what uses it goes on."""
        self.adapters.drop(digest)

    def check_integrity(self) -> None:
        """Raise AssertionError unless sequences, queues and the cache's books agree."""
        self._scheduler.check_integrity()
        if self._speculation is not None:
            self._speculation.check_integrity()

    def close(self) -> None:
        self._constraints.close()
        if self._speculation is not None:
            self._speculation.close()
        if self._tiers is not None:
            self._tiers.close()
        self._executor.close()


def _blocks(cache: KvCache, executor: Executor) -> CachedBlocks | None:
    if executor.capabilities.depth > 1 or executor.blocks is None:
        return None
    return CachedBlocks(cache, executor.blocks)
