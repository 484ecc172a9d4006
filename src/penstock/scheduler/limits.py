"""Checks that step limits agree, and that a request can fit."""

from __future__ import annotations

from penstock.cache.kv_cache import KvCache
from penstock.errors import ConfigError, RequestError
from penstock.interface.request_checks import check_length
from penstock.length_limits import LengthLimits
from penstock.sampling.params import SamplingParams

PROMPT_LOGIT_ROWS = 256
"""Maximum number of rows in a step that get logits only for log-probabilities of prompts. More
would take memory that nothing else needs: half a megabyte each with a vocabulary of 128
thousand."""


def most_logit_rows(max_num_seqs: int, rows_per_sequence: int, max_num_batched_tokens: int) -> int:
    """Return the maximum number of rows with logits in a step: of sequences, drafts and prompts."""
    rows = max_num_seqs * rows_per_sequence + PROMPT_LOGIT_ROWS
    return min(rows, max_num_batched_tokens)


def check_step_limits(max_num_seqs: int, max_num_batched_tokens: int) -> None:
    """Raise ConfigError unless every running sequence gets a token in every step."""
    if max_num_seqs < 1:
        raise ConfigError(f"max_num_seqs must be at least 1, not {max_num_seqs}")
    if max_num_batched_tokens < max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens ({max_num_batched_tokens}) is less than max_num_seqs "
            f"({max_num_seqs}), so not every running sequence would get a token in every "
            "step; raise the first or lower the second"
        )


def most_tokens(
    prompt: int, params: SamplingParams | None, lengths: LengthLimits, cache: KvCache
) -> int:
    """Return the maximum number of tokens, prompt and output, that a request can have.

    Raises RequestError if a prompt of ``prompt`` tokens cannot be served with ``params``, or
    without output (None): it is empty, fills the context, leaves less of it than output is asked
    for, is longer than prompts may be, asks for more than answers may have, or could not finish
    even with the whole cache to itself.
    """
    check_length(prompt, params, lengths)
    if params is None:
        _check_blocks(prompt, 0, "prompt", cache)
        return prompt
    total = prompt + (lengths.room(prompt) if params.max_tokens is None else params.max_tokens)
    _check_blocks(prompt, total - prompt, "max_tokens", cache)
    return total


def check_beams(prompt: int, total: int, width: int, cache: KvCache, max_num_seqs: int) -> None:
    """Raise RequestError if so many beams, of ``total`` tokens each at most, could not run together
    with the whole engine to themselves."""
    if width > max_num_seqs:
        raise RequestError(
            f"a beam search of width {width} runs {width} sequences together, and "
            f"{max_num_seqs} may run (max_num_seqs); lower the width",
            "beam_width",
        )
    # Beams that were preempted share the prompt if it is found in the cache, and with windows it is
    # behind them in the end. Admission keeps a place free for each that runs.
    places = len(cache.windows)
    shares = cache.enable_prefix_caching and not cache.forgets
    shared = prompt // cache.block_size * places if shares else 0
    needed = shared + width * (cache.blocks_for(total - 1) - shared + places)
    if needed > cache.num_blocks:
        raise RequestError(
            f"{width} beams of {prompt} prompt and up to {total - prompt} output tokens need "
            f"{needed} cache blocks of {cache.block_size} tokens, and there are "
            f"{cache.num_blocks}; lower max_tokens or the width, or give the KV cache more memory",
            "beam_width",
        )


def _check_blocks(prompt: int, output: int, param: str, cache: KvCache) -> None:
    """Raise RequestError naming ``param`` if the whole cache could not hold the request."""
    needed = cache.blocks_for(prompt + max(output - 1, 0))  # the last token is never fed back
    if needed <= cache.num_blocks:
        return
    asked, less = f"{prompt} prompt tokens", "shorten the prompt"
    if output:
        asked, less = f"{prompt} prompt and up to {output} output tokens", f"lower {param}, {less}"
    raise RequestError(
        f"{asked} need {needed} cache blocks of {cache.block_size} tokens, and there are "
        f"{cache.num_blocks}; {less}, or give the KV cache more memory",
        param,
    )
