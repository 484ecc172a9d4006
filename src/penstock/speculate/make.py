"""From a configuration to speculation that is ready to run."""

from __future__ import annotations

from penstock.backends.cpu import native
from penstock.engine.loader import Blueprint, Mark, load
from penstock.errors import ConfigError
from penstock.speculate.config import Ngram
from penstock.speculate.draft import Proposer
from penstock.speculate.draft_model import ModelProposer
from penstock.speculate.ngram import NgramProposer
from penstock.speculate.speculation import Speculation
from penstock.speculate.suffix import Automaton, SuffixAutomaton


def make_speculation(blueprint: Blueprint, mark: Mark = lambda phase: None) -> Speculation | None:
    """What the configuration asks for, with its weights; None where it asks for none.

    Raises what :func:`~penstock.engine.loader.load` raises.
    """
    asked = blueprint.config.speculative
    if asked is None:
        return None
    proposer: Proposer
    if isinstance(asked, Ngram):
        proposer = NgramProposer(asked, _automaton())
    else:
        draft = blueprint.draft
        assert draft is not None, "a blueprint with a draft model has the draft's"
        proposer = ModelProposer(
            load(draft, mark),
            draft.config.max_num_batched_tokens,
            draft.config.enable_prefix_caching,
        )
    return Speculation(proposer, asked.num_tokens, asked.adaptive)


def _automaton() -> type[Automaton]:
    """The native one, where native code was built and runs: other backends do without it."""
    try:
        return native.load().SuffixAutomaton
    except ConfigError:
        return SuffixAutomaton
