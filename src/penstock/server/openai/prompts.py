"""The prompts of a completion, as texts and tokens, and those of whatever takes texts likewise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.interface.token_ids import check_token_ids
from penstock.server.engine import Engine
from penstock.server.errors import ApiError
from penstock.server.fill import Gap
from penstock.server.openai.protocol import CompletionRequest, Prompt
from penstock.server.openai.sampling import COMPLETION_MAX_TOKENS, kept_prompt
from penstock.server.serving import Serving

MAX_PROMPTS = 1024
"""Most prompts in one request; more would hold the connection for longer than clients wait."""


@dataclass(frozen=True)
class CompletionPrompt:
    text: str | None  # needed for echo alone
    token_ids: list[int]


async def completion_tokens(request: CompletionRequest, serving: Serving) -> list[list[int]]:
    """The prompts of a request, as they would be computed; nothing else of it is checked.

    Raises ApiError or RequestError naming the field at fault.
    """
    return [prompt.token_ids for prompt in await prompts_of(request, serving)]


def gap_of(request: CompletionRequest, engine: Engine) -> Gap | None:
    """The marks of the gap that is to be filled; None where a text is continued. Raises ApiError
    where the model, or another field, does not go with it."""
    if not request.suffix:
        return None
    for name, asked in (
        ("echo", request.echo),
        ("truncate_prompt_tokens", request.truncate_prompt_tokens is not None),
    ):
        if asked:
            raise ApiError(
                400,
                f"{name} does not go with suffix: the prompt is then what is before a gap and what "
                "is behind it; leave one of both out",
                param=name,
            )
    return Gap.of(engine.tokenizer, "suffix", "leave suffix out")


async def _filling(
    request: CompletionRequest, gap: Gap, serving: Serving
) -> list[CompletionPrompt]:
    """The prompts of a request to fill gaps. Names of special tokens in its texts are text."""
    inputs = serving.engine.inputs
    given = split_prompts(request.prompt)
    texts = [prompt for prompt in given if isinstance(prompt, str)]
    suffix, *encoded = await inputs.encode(
        [request.suffix or "", *texts],
        params=["suffix", *names_of(texts, "prompt")],
        add_special_tokens=False,
        parse_special=False,
        tenant=serving.caller.name,
    )
    before = serving.engine.tokenizer.settings.prefix_ids
    if request.add_special_tokens is False:
        before = ()
    tokens = iter(encoded)
    prefixes = (next(tokens) if isinstance(each, str) else each for each in given)
    return [
        CompletionPrompt(None, gap.prompt(prefix, suffix, before=before)) for prefix in prefixes
    ]


async def prompts_of(request: CompletionRequest, serving: Serving) -> list[CompletionPrompt]:
    engine = serving.engine
    gap = gap_of(request, engine)
    if gap is not None:
        return await _filling(request, gap, serving)
    given = split_prompts(request.prompt)
    add_special = request.add_special_tokens is not False
    texts = [prompt for prompt in given if isinstance(prompt, str)]
    tokens = iter(
        await engine.inputs.encode(
            texts,
            params=names_of(texts, "prompt"),
            add_special_tokens=add_special,
            any_length=request.truncate_prompt_tokens is not None,
            tenant=serving.caller.name,
        )
    )
    prompts = []
    for prompt in given:
        if isinstance(prompt, str):
            prompts.append(CompletionPrompt(prompt, next(tokens)))
        elif request.echo:
            check_token_ids(prompt, engine.model.vocab_size)
            prompts.append(CompletionPrompt(engine.tokenizer.decode(prompt), prompt))
        else:
            prompts.append(CompletionPrompt(None, prompt))
    return [_kept(prompt, request, engine) for prompt in prompts]


def _kept(prompt: CompletionPrompt, request: CompletionRequest, engine: Engine) -> CompletionPrompt:
    """What ``truncate_prompt_tokens`` leaves of a prompt."""
    asked = COMPLETION_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    token_ids = kept_prompt(prompt.token_ids, request, asked, engine.model)
    if len(token_ids) == len(prompt.token_ids):
        return prompt
    return CompletionPrompt(engine.tokenizer.decode(token_ids) if request.echo else None, token_ids)


def split_prompts(
    prompt: Prompt, name: str = "prompt", most: int = MAX_PROMPTS
) -> list[str | list[int]]:
    """Split the prompts of a request: one text, several, one list of token ids, or several lists.

    Raises ApiError naming the field ``name``; at most ``most`` prompts are allowed.
    """
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(item) for item in prompt}
    if not prompt or len(kinds) > 1:
        raise ApiError(
            400,
            f"{name} must be text, a list of texts, a list of token ids or a list of such lists, "
            + ("not an empty list" if not prompt else "not a mixture"),
            param=name,
        )
    if kinds == {int}:
        return [[item for item in prompt if isinstance(item, int)]]
    if len(prompt) > most:
        raise ApiError(
            400, f"{name} has {len(prompt)} entries; one request may hold {most}", param=name
        )
    return [item for item in prompt if not isinstance(item, int)]


def names_of(prompts: Sequence[object], name: str) -> list[str]:
    """Return how errors name each prompt of the field ``name``."""
    return [name] if len(prompts) == 1 else [f"{name}[{i}]" for i in range(len(prompts))]
