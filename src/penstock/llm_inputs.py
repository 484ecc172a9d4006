"""What calls of ``LLM`` are given: prompts, options, templates, and the bar that they show."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from penstock.errors import ConfigError, RequestError, shown
from penstock.sampling.params import SamplingParams
from penstock.vllm_names import OF_CALLS

Given = TypeVar("Given")
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


def one_of(**names: Given) -> Given:
    """The value of an option that has several names, or None if none of them is given. Raises
    RequestError if two are."""
    given = [name for name, value in names.items() if value is not None]
    if len(given) > 1:
        raise RequestError(f"{' and '.join(given)} are the same; give one", given[0])
    return names[given[0] if given else next(iter(names))]


def check_foreign(call: str, given: Mapping[str, object]) -> None:
    """Raise RequestError for keywords that ``call`` of ``LLM`` does not have, but for those of
    vLLM's that ask for nothing."""
    for name, value in given.items():
        foreign = OF_CALLS.get(name)
        if foreign is not None:
            foreign.check(name, value, RequestError)
        elif name in SamplingParams.__struct_fields__:
            raise RequestError(f"{name} is an option of SamplingParams, not of {call}()", name)
        else:
            raise RequestError(f"{call}() has no option {name!r}", name)


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


def conversations(messages: Any) -> list[Sequence[Message]]:
    """One conversation, or several, as a list of conversations. Raises RequestError for what is
    none, and for a message without a role or content."""
    if not _is_list(messages):
        raise RequestError(_no_messages("messages", messages), "messages")
    several = len(messages) > 0 and _is_list(messages[0])
    if not several:
        _check_conversation(messages, "messages")
        return [messages]
    for i, conversation in enumerate(messages):
        if not _is_list(conversation):
            raise RequestError(_no_messages(f"messages[{i}]", conversation), "messages")
        _check_conversation(conversation, f"messages[{i}]")
    return list(messages)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _no_messages(where: str, value: object) -> str:
    return (
        f'{where} must be a list of messages such as {{"role": "user", "content": "Hi"}}, not '
        + shown(value)
    )


def _check_conversation(messages: Sequence[Any], where: str) -> None:
    if not messages:
        raise RequestError(f"{where} must hold at least one message", "messages")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(
                f'{where}[{i}] must be a dict such as {{"role": "user", "content": "Hi"}}, not '
                + shown(message),
                "messages",
            )
        if not isinstance(message.get("role"), str):
            raise RequestError(f"{where}[{i}].role is required, and is a text", "messages")
        # An answer may be calls alone, reasoning alone, or empty.
        if message.get("content") is None and message["role"] != "assistant":
            raise RequestError(f"{where}[{i}].content is required", "messages")


def check_priority(priority: object) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise RequestError(f"priority must be an integer, not {priority!r:.80}", "priority")
