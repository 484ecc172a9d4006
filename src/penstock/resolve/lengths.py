"""Decides how long requests may be, as far as the options say."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.models.spec import ModelSpec
from penstock.resolve.inputs import Reasons


@dataclass(frozen=True)
class LengthDecision:
    """The context that the plan is made for, and the longest sequence within the bounds."""

    context: int
    """Positions of the plan, which choose between LongRoPE's lists: they do not depend on the
    bounds of prompts and answers, so that no bit of an answer does."""
    longest: int
    """Tokens of the longest sequence, prompt and answer."""
    sure: bool
    """Whether prompts and answers are both bounded, so that the longest sequence is one to be
    expected."""
    reasons: Reasons

    @property
    def fix(self) -> str:
        """What to lower where the longest sequence is too long."""
        return "max_input_len or max_output_len" if self.sure else "max_model_len"


def decide_lengths(config: EngineConfig, spec: ModelSpec) -> LengthDecision:
    """Return the lengths; raise ConfigError for bounds that no request could have."""
    context = config.max_model_len or spec.max_positions
    prompt, answer = config.max_input_len, config.max_output_len
    for name, value in (("max_input_len", prompt), ("max_output_len", answer)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, not {value}")
    together = (prompt or 1) + (answer or 1)
    if together > context and (prompt is not None or answer is not None):
        raise ConfigError(
            f"a prompt of {prompt or 1} tokens (max_input_len) and an answer of {answer or 1} "
            f"(max_output_len) are together {together}, and the context (max_model_len) holds "
            f"{context}; lower one of the bounds"
        )
    sure = prompt is not None and answer is not None
    reasons = {}
    if prompt is not None:
        reasons["max_input_len"] = "as asked"
    if answer is not None:
        reasons["max_output_len"] = "as asked"
    return LengthDecision(context, together if sure else context, sure, reasons)
