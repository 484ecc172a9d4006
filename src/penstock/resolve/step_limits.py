"""Decides how many sequences and tokens a step has at most."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.backends.backend import Defaults
from penstock.config import EngineConfig
from penstock.resolve.inputs import Reasons, reason
from penstock.scheduler.limits import check_step_limits


@dataclass(frozen=True)
class StepLimits:
    """The sequences and tokens that one step has at most."""

    max_num_seqs: int
    max_num_batched_tokens: int
    reasons: Reasons


def decide_step_limits(config: EngineConfig, defaults: Defaults) -> StepLimits:
    """Return the limits asked for, or else the backend's, made to fit each other."""
    seqs, tokens = config.max_num_seqs, config.max_num_batched_tokens
    max_num_seqs = seqs or min(defaults.max_num_seqs, tokens or defaults.max_num_seqs)
    max_num_batched_tokens = tokens or max(defaults.max_num_batched_tokens, max_num_seqs)
    check_step_limits(max_num_seqs, max_num_batched_tokens)
    within = f"{defaults.max_num_seqs}, within max_num_batched_tokens"
    reasons = {
        "max_num_seqs": reason(seqs, within),
        "max_num_batched_tokens": reason(tokens, "the default"),
    }
    return StepLimits(max_num_seqs, max_num_batched_tokens, reasons)
