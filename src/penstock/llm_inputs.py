"""What calls of ``LLM`` are given: prompts, options, templates, and the bar that they show."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

from penstock.errors import ConfigError, RequestError
from penstock.sampling.params import SamplingParams

Params = SamplingParams | Sequence[SamplingParams] | None
"""The options of all prompts, or those of each; None: as the model's makers recommend."""


class PromptDict(TypedDict, total=False):
    """A prompt by one of its two names, as vLLM users write it."""

    prompt: str
    prompt_token_ids: list[int]


class TextPrompt(TypedDict):
    """A prompt that is a text."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt of token ids."""

    prompt_token_ids: list[int]


Prompt = str | PromptDict | TextPrompt | TokensPrompt
Message = dict[str, Any]
"""One chat message as OpenAI's API has it: ``{"role": ..., "content": ...}``."""


def token_ids_of(given: Any) -> list[int]:
    """The token ids of a list, an array of NumPy's or another sequence of integers."""
    if isinstance(given, str) or not hasattr(given, "__iter__"):
        raise RequestError(
            f"prompt_token_ids must be a list of integers, not {given!r:.80}", "prompt"
        )
    plain: list[Any] = given.tolist() if hasattr(given, "tolist") else list(given)
    if not set(map(type, plain)) <= {int}:
        plain = [_plain_id(token) for token in plain]
    return plain


def _plain_id(token: Any) -> Any:
    if not isinstance(token, bool) and isinstance(token, numbers.Integral):
        return int(token)
    return token  # refused with the other checks of a request


def one_of(params: Params, sampling_params: Params) -> Params:
    if params is not None and sampling_params is not None:
        raise RequestError("params and sampling_params are the same; give one", "params")
    return params if sampling_params is None else sampling_params


def check_no_adapter(lora_request: object) -> None:
    """Raise RequestError if an adapter is asked for."""
    if lora_request is not None:
        raise RequestError(
            "lora_request cannot be honoured: merge the adapter into the model", "lora_request"
        )


@contextlib.contextmanager
def progress_bar(use_tqdm: bool | Callable[..., Any], total: int) -> Iterator[Callable[[], object]]:
    """What to call for each prompt that is done: it moves a bar, if there is to be one."""
    if use_tqdm is False:
        yield lambda: None
        return
    from tqdm import tqdm

    make = tqdm if use_tqdm is True else use_tqdm
    with make(total=total, desc="Processed prompts", unit=" prompts") as bar:
        yield bar.update


def template_source(template: object) -> str:
    """The source of a chat template; empty if there is none. Raises ConfigError and
    TokenizerError for what is no template."""
    if template is None:
        return ""
    from penstock.tokenizer.chat import ChatTemplate, read_chat_template  # imports Jinja

    if isinstance(template, Path):
        return read_chat_template(template, f"chat_template {template}")
    if not isinstance(template, str) or not template.strip():
        raise ConfigError(
            "chat_template must be a Jinja template, or the Path of a file with one, not "
            f"{template!r:.80}"
        )
    ChatTemplate(template, {})
    return template


def listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, (str, dict)):
        return [prompts]
    if not hasattr(prompts, "__iter__"):
        raise RequestError(
            f"prompts must be a prompt or a list of them, not {type(prompts).__name__}", "prompt"
        )
    return list(prompts)


def check_priority(priority: object) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise RequestError(f"priority must be an integer, not {priority!r:.80}", "priority")
