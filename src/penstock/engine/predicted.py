"""Starts to draft of what clients predict of outputs, in any engine that can take drafts back."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from penstock.cache.geometry import BLOCK_SIZE
from penstock.engine.engine_plan import EnginePlan
from penstock.engine.loader import suffix_automaton
from penstock.interface.executor import Capabilities
from penstock.speculative_config import MAX_TOKENS

if TYPE_CHECKING:
    from penstock.speculate.prediction import PredictedText
    from penstock.speculate.speculation import Speculation


def most_predicted(engine_plan: EnginePlan, able: Capabilities) -> int:
    """Return how many tokens a draft of a prediction may have in this engine.

    States, and rows of which a block keeps only the last, can be taken back as far as the options
    of speculation made room for. Among steps that run at once, each of other sequences, none can
    wait for what came of its drafts. 0: none is drafted.
    """
    if able.depth > 1 and not able.placeholders:
        return 0
    plan, room = engine_plan.plan, engine_plan.config.rows_per_sequence - 1
    kept = any((layer.rows or BLOCK_SIZE) < BLOCK_SIZE for layer in plan.kv_layers)
    return min(MAX_TOKENS, room) if plan.state_layers or kept else MAX_TOKENS


def predicted_text(tokens: list[int]) -> PredictedText:
    """Return what a client predicts, given its tokens."""
    from penstock.speculate.prediction import PredictedText

    return PredictedText(array("i", tokens), suffix_automaton())


def without_proposer(in_flight: int) -> Speculation:
    """Return speculation for an engine that has none, of which so many steps are in flight."""
    from penstock.speculate.prediction import NoProposer
    from penstock.speculate.speculation import Speculation

    speculation = Speculation(NoProposer(), MAX_TOKENS)
    for _ in range(in_flight):
        speculation.skip()
    return speculation
