"""From a configuration to speculation that is ready to run."""

from __future__ import annotations

from penstock.speculate.config import SpeculativeConfig
from penstock.speculate.ngram import NgramProposer
from penstock.speculate.speculation import Speculation


def make_speculation(config: SpeculativeConfig) -> Speculation:
    return Speculation(NgramProposer(config), config.num_tokens)
