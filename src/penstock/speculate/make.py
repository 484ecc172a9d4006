"""Makes the configured speculation, with its weights."""

from __future__ import annotations

from penstock.engine.loader import Blueprint, Mark, draft_tokens, load, suffix_automaton
from penstock.models.heads import EagleSpec
from penstock.speculate.draft import Proposer
from penstock.speculate.draft_model import ModelProposer
from penstock.speculate.eagle import EagleProposer
from penstock.speculate.medusa import MedusaProposer
from penstock.speculate.ngram import NgramProposer
from penstock.speculate.speculation import Speculation
from penstock.speculate.typical import Typical
from penstock.speculative_config import Eagle, Medusa, Ngram, SpeculativeConfig


def make_speculation(blueprint: Blueprint, mark: Mark = lambda phase: None) -> Speculation | None:
    """Load the configured proposer; return None if no speculation is configured.

    Raises what :func:`~penstock.engine.loader.load` raises.
    """
    asked = blueprint.config.speculative
    if asked is None:
        return None
    typical = None
    if isinstance(asked, Medusa) and asked.acceptance == "typical":
        typical = Typical(asked.typical_threshold, asked.typical_alpha)
    if isinstance(asked, Ngram):
        return Speculation(
            NgramProposer(asked, suffix_automaton()), asked.num_tokens, asked.adaptive
        )
    draft = blueprint.draft
    assert draft is not None, "a blueprint with a model that drafts has the draft's"
    proposer = _proposer(asked, draft, mark)
    return Speculation(proposer, asked.num_tokens, asked.adaptive, typical=typical)


def _proposer(asked: SpeculativeConfig, draft: Blueprint, mark: Mark) -> Proposer:
    executor = load(draft, mark)
    config, spec = draft.config, draft.spec
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
            token_ids=draft_tokens(draft),
        )
    return ModelProposer(
        executor,
        config.max_num_batched_tokens,
        config.enable_prefix_caching,
        draft.plan.kv_groups.windows,
    )
