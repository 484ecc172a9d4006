"""The engine: requests in, tokens out, step by step."""

from __future__ import annotations

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
from penstock.engine.beams import BeamGroups
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
from penstock.engine.predicted import predicted_text, without_proposer
from penstock.engine.prompt_logprobs import PromptLogprobsTracker
from penstock.engine.sequence_maker import SequenceMaker
from penstock.engine.step_cycle import StepCycle
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
from penstock.kv_disk_config import BlockPlace
from penstock.models.spec import ModelSpec
from penstock.pooling.labels import Labels
from penstock.processes.wake import Wake
from penstock.resolved_config import ResolvedConfig
from penstock.scheduler.limits import PROMPT_LOGIT_ROWS
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import SequenceState
from penstock.weights.model_files import ModelFiles

if TYPE_CHECKING:
    from penstock.engine.tiers.tiers import KvTiers
    from penstock.speculate.speculation import Speculation


class EngineCore:
    """Schedules, runs and samples; knows token ids only. Not thread-safe.

    :meth:`start` makes one from options, and :meth:`of` one of loaded models; the constructor takes
    the parts and loads nothing. ``speculation`` is required where the options ask for it.
    A request that fails on the way (NaN logits, say) ends with ``FinishReason.ERROR`` and its
    message; the others go on.
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
        """``files`` are the model's, if they have been opened."""
        config = engine_plan.config
        if speculation is None and config.speculative is not None:
            raise ValueError("the options ask for speculation, which was not given")
        self._engine_plan = engine_plan
        self.adapters = adapters or AdapterStore(engine_plan)
        self._executor = executor
        self._speculation = speculation
        able = executor.capabilities
        cache = KvCache(
            executor.num_blocks,
            BLOCK_SIZE,
            windows=engine_plan.plan.kv_groups.windows or (None,),
            enable_prefix_caching=config.enable_prefix_caching,
            states=state_limits(engine_plan),
        )
        self.wake: Wake | None = None
        """Set when there is work that no call has brought; None if all work comes by calls."""
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
        self._sequences = SequenceMaker(
            engine_plan,
            executor,
            self._scheduler,
            self.adapters,
            drafts_follow=speculation is not None and speculation.follows_tokens,
        )
        self._prompts = PromptLogprobsTracker()
        self._constraints = Constraints(
            config.tokenizer_path, self.spec.vocab_size, self.spec.eos_token_ids, mask_threads
        )
        self._beams = BeamGroups(self._scheduler)
        self._runner = StepRunner(
            executor,
            self._scheduler,
            self._constraints,
            self._prompts,
            None if self._speculation is None else self._speculation.typical,
            caches=bool(engine_plan.plan.kv_layers),
        )
        self._cycle = StepCycle(
            self._scheduler,
            self._constraints,
            self._runner,
            UpdateMaker(self._scheduler, self._constraints, self._beams, self._prompts),
            able.late_masks,
        )

    @classmethod
    def start(
        cls,
        config: EngineConfig,
        mark: Mark = lambda phase: None,
        files: ModelFiles | None = None,
        progress: ProgressCallback = no_progress,
    ) -> EngineCore:
        """Load what ``config`` asks for; ``files`` are its model's, if they have been opened.

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
        """The labels by which the model classifies texts; None if it does not classify."""
        return self._sequences.labels

    @property
    def max_model_len(self) -> int:
        return self.config.max_model_len

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything, even if it only waits: for a step in flight whose
        sequences have ended, or for a grammar."""
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
        """The blocks of the cache as bytes, to be used between steps; None if the executor does
        not read and write blocks, or steps overlap."""
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
        self._sequences.check(request)

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request; raises RequestError and changes nothing if it cannot be served."""
        self.check(request)
        params = request.params
        if self._constraints.holds(request.request_id) or (
            params.is_constrained and self._scheduler.holds(request.request_id)
        ):
            raise RequestError(f"request id {request.request_id!r} is in use", "request_id")
        leader = self._sequences.make(request)
        if request.pooling is not None:
            self._queue(leader)
            return
        if self._tiers is not None and request.keep_s > 0:
            self._tiers.keep(leader, request.keep_s)
        constraint = params.constraint
        if constraint is None:
            self._queue(leader)
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
                self._speculation.expect(sequence, text, self._sequences.most_predicted)

    def _queue(self, leader: SequenceState) -> None:
        """Let the scheduler start a request, and the tiers look for its prefix."""
        self._scheduler.add(leader)
        if self._tiers is not None:
            self._tiers.expect(leader)

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

        Where steps overlap (:class:`~penstock.engine.step_cycle.StepCycle`): submit one, and return
        what the one before it produced.
        """
        if self._tiers is not None:
            return self._tiered_step(self._tiers)
        return self._plain_step()

    def _plain_step(self) -> list[SequenceUpdate]:
        if self._constraints.num_waiting:
            return [*self._admit(), *self._cycle.advance(self._speculation)]
        return self._cycle.advance(self._speculation)

    def _tiered_step(self, tiers: KvTiers) -> list[SequenceUpdate]:
        """Move blocks between the cache and the tiers below it, then run a step."""
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
        """Queue the requests whose grammars have been compiled; returns the ends of those whose
        grammars could not be."""
        ready, failed = self._constraints.compiled(patiently=not self._steps_wait)
        for leader in ready:
            self._queue(leader)
        updates = []
        for leader, message in failed:
            self._prompts.pop(leader.request_id)
            for sequence in (leader, *leader.siblings):
                updates.append(end_of(sequence, FinishReason.ERROR, message))
                updates[-1].refused = True
        return updates

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
        """Forget every cached prefix, and the texts of ended requests that drafts are made from.

        Running requests are not disturbed.
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
        """Forget an adapter; requests that use it go on."""
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
