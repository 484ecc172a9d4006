"""What a scheduler refuses before it starts: limits that contradict, requests that cannot fit."""

from __future__ import annotations

from penstock.cache.kv_cache import KvCache
from penstock.errors import ConfigError, RequestError
from penstock.sampling.params import SamplingParams

PROMPT_LOGIT_ROWS = 256
"""Maximum number of rows in a step that get logits only for log-probabilities of prompts. More
would take memory that nothing else needs: half a megabyte each with a vocabulary of 128
thousand."""


def most_logit_rows(max_num_seqs: int, rows_per_sequence: int, max_num_batched_tokens: int) -> int:
    """Rows of a step that may get logits: those of all sequences with drafts, and of prompts."""
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
    prompt: int, params: SamplingParams | None, max_model_len: int, cache: KvCache
) -> int:
    """Return the maximum number of tokens, prompt and output, that a request can have.

    Raises RequestError if a prompt of ``prompt`` tokens cannot be served with ``params``, or
    without output (None): it is empty, fills the context, leaves less of it than output is asked
    for, or could not finish even with the whole cache to itself.
    """
    if prompt == 0:
        raise RequestError("the prompt is empty; give it at least one token", "prompt")
    if params is None:
        _check_unanswered(prompt, max_model_len, cache)
        return prompt
    if prompt >= max_model_len:
        raise RequestError(
            f"the prompt has {prompt} tokens, which leaves no room to answer in a context "
            f"(max_model_len) of {max_model_len}; shorten the prompt",
            "prompt",
        )
    check_room(prompt, params, max_model_len)
    total = max_model_len if params.max_tokens is None else prompt + params.max_tokens
    needed = cache.blocks_for(total - 1)  # the last token is never fed back
    if needed > cache.num_blocks:
        raise RequestError(
            f"{prompt} prompt and up to {total - prompt} output tokens need {needed} cache "
            f"blocks of {cache.block_size} tokens, and there are {cache.num_blocks}; "
            "lower max_tokens, shorten the prompt, or give the KV cache more memory",
            "max_tokens",
        )
    return total


def check_room(prompt: int, params: SamplingParams, max_model_len: int) -> None:
    """Raise RequestError if more output is asked for than the context leaves after a prompt of
    ``prompt`` tokens."""
    room = max_model_len - prompt
    for name, asked in (("min_tokens", params.min_tokens), ("max_tokens", params.max_tokens)):
        if asked is not None and asked > room:
            raise RequestError(
                f"the prompt has {prompt} tokens and {name} asks for {asked} more, but the "
                f"context (max_model_len) holds {max_model_len}; lower {name} to at most {room}"
                + (", leave it out" if name == "max_tokens" else "")
                + " or shorten the prompt",
                name,
            )


def _check_unanswered(prompt: int, max_model_len: int, cache: KvCache) -> None:
    """Raise RequestError unless the whole prompt fits the context and the cache."""
    if prompt > max_model_len:
        raise RequestError(
            f"the prompt has {prompt} tokens, and the context (max_model_len) holds "
            f"{max_model_len}; shorten the prompt",
            "prompt",
        )
    needed = cache.blocks_for(prompt)
    if needed > cache.num_blocks:
        raise RequestError(
            f"{prompt} prompt tokens need {needed} cache blocks of {cache.block_size} tokens, and "
            f"there are {cache.num_blocks}; shorten the prompt, or give the KV cache more memory",
            "prompt",
        )
