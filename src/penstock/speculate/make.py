"""Makes the configured speculation around what was loaded for it."""

from __future__ import annotations

from typing import NamedTuple

from penstock.interface.automaton import Automaton
from penstock.interface.executor import Executor
from penstock.interface.step import Int32s
from penstock.models.draft_heads import EagleSpec
from penstock.models.spec import ModelSpec
from penstock.plan.plan import Plan
from penstock.resolved_config import ResolvedConfig
from penstock.speculate.draft import Proposer
from penstock.speculate.draft_model import ModelProposer
from penstock.speculate.eagle import EagleProposer
from penstock.speculate.medusa import MedusaProposer
from penstock.speculate.ngram import NgramProposer
from penstock.speculate.speculation import Speculation
from penstock.speculate.typical import Typical
from penstock.speculative_config import Eagle, Medusa, Ngram, SpeculativeConfig


class LoadedDraft(NamedTuple):
    """A model or heads that draft, with their weights."""

    executor: Executor
    config: ResolvedConfig
    spec: ModelSpec
    """The model's spec; for heads, one of ``models/draft_heads.py``."""
    plan: Plan
    token_ids: Int32s | None = None
    """The target's token of each of its own, int32 ``[num_outputs]``; None: the same."""


def make_speculation(
    asked: SpeculativeConfig | None,
    draft: LoadedDraft | None = None,
    automaton: type[Automaton] | None = None,
) -> Speculation | None:
    """Return what is asked for, or None where that is no speculation. Loads nothing.

    ``draft`` becomes its own, to be closed with it; ``automaton`` is what n-grams are looked up in.
    Raises ValueError if what is needed is missing.
    """
    if asked is None:
        return None
    if isinstance(asked, Ngram):
        if automaton is None:
            raise ValueError("speculation by Ngram needs an automaton")
        return Speculation(NgramProposer(asked, automaton), asked.num_tokens, asked.adaptive)
    if draft is None:
        raise ValueError(f"speculation by {type(asked).__name__} needs what drafts to be loaded")
    typical = None
    if isinstance(asked, Medusa) and asked.acceptance == "typical":
        typical = Typical(asked.typical_threshold, asked.typical_alpha)
    return Speculation(_proposer(asked, draft), asked.num_tokens, asked.adaptive, typical=typical)


def _proposer(asked: SpeculativeConfig, draft: LoadedDraft) -> Proposer:
    executor, config, spec = draft.executor, draft.config, draft.spec
    if isinstance(asked, Medusa):
        return MedusaProposer(executor)
    if isinstance(asked, Eagle):
        assert isinstance(spec, EagleSpec)
        return EagleProposer(
            executor,
            features=spec.feature_size,
            target_columns=spec.tapped_size or spec.hidden_size,
            depth=asked.depth,
            width=asked.width,
            max_tokens=config.max_num_batched_tokens,
            token_ids=draft.token_ids,
            windows=draft.plan.kv_groups.windows,
        )
    return ModelProposer(
        executor,
        config.max_num_batched_tokens,
        config.enable_prefix_caching,
        draft.plan.kv_groups.windows,
    )
