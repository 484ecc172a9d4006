"""Training texts that the target writes itself, with the engine that will serve it.

Drafts are accepted where they match what the target would have said, so its own continuations teach
more than other texts do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.api import LLM, Prompt
from penstock.errors import ConfigError
from penstock.frontend.outputs import RequestOutput
from penstock.sampling.params import SamplingParams
from penstock.train.data import Sample


@dataclass(frozen=True)
class Continuation:
    """How texts are continued by the target."""

    temperature: float
    max_tokens: int
    """Most tokens in each continuation."""
    prefix: int
    """Number of leading tokens that serve as the prompt where a text has no prompt of its own."""
    seed: int


def continue_samples(
    model: str, samples: Sequence[Sample], how: Continuation, show: Callable[[str], None]
) -> list[Sample]:
    """Each sample's prompt with the target's own continuation, in the order of ``samples``.

    A sample with a prompt has that one continued. Any other is cut into pieces of ``prefix`` and
    ``max_tokens`` tokens, and the beginning of each is continued, so that as much text comes out
    as went in. The engine is closed before this returns.

    A continuation has up to ``max_tokens`` tokens, and no more than the context has room for
    behind its prompt. ``show`` is told how many there are so far. Raises ConfigError if no prompt
    is left that fits the context.
    """
    prompts = [prompt for sample in samples for prompt in _prompts(sample, how)]
    with LLM(model, artifact=False) as llm:
        most = llm.config.max_model_len
        fitting = [p for p in prompts if 0 < len(p.token_ids) < most]
        if not fitting:
            raise ConfigError(
                f"none of {len(prompts)} prompts has room for an answer within {most} tokens; "
                "bring shorter ones"
            )
        asked: list[Prompt] = [{"prompt_token_ids": p.token_ids} for p in fitting]
        params = [
            SamplingParams(
                temperature=how.temperature,
                max_tokens=min(how.max_tokens, most - len(p.token_ids)),
                seed=how.seed,
            )
            for p in fitting
        ]
        names: list[str] = []
        done: dict[str, RequestOutput] = {}
        for output in llm.stream(asked, params, started=names):
            if output.finished:
                done[output.request_id] = output
                show(f"the model's own text: {len(done):,} of {len(asked):,} pieces")
    written = []
    for prompt, output in zip(fitting, (done[name] for name in names), strict=True):
        if output.error is not None:
            raise ConfigError(f"{prompt.name} could not be continued: {output.error}")
        ids = [*prompt.token_ids, *output.outputs[0].token_ids]
        written.append(dataclasses.replace(prompt, token_ids=ids))
    return written


def _prompts(sample: Sample, how: Continuation) -> list[Sample]:
    ids = sample.token_ids
    if sample.prompt:
        return [Sample(sample.name, ids[: sample.prompt], sample.prompt)]
    pieces = [ids[i : i + how.prefix] for i in range(0, len(ids), how.prefix + how.max_tokens)]
    return [Sample(sample.name, piece, len(piece)) for piece in pieces]
