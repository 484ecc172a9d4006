"""Turns a chat request, in either dialect, into a request to the engine."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.errors import ContextLengthError, RequestError
from penstock.grammar.spec import GrammarSpec
from penstock.interface.messages import EngineRequest, RequestOptions
from penstock.parsing.answer_grammar import answer_grammar
from penstock.parsing.asked_calls import Calls
from penstock.parsing.marks import has_special_marks, start_behind
from penstock.parsing.style import Start
from penstock.sampling.params import SamplingParams
from penstock.server.engine import Engine
from penstock.server.errors import ApiError
from penstock.server.fanout import Generation, refused_by_name
from penstock.server.keeping import kept
from penstock.server.meter import Meter
from penstock.server.openai.choice_stream import Reading
from penstock.server.openai.constraint import Constraint, asked_constraint, schema_text
from penstock.server.openai.messages import chat_prompt
from penstock.server.openai.names import CHAT, Names
from penstock.server.openai.prompts import completion_tokens
from penstock.server.openai.protocol import ChatRequest, CompletionRequest, Prediction
from penstock.server.openai.sampling import (
    bound_by,
    chat_params,
    completion_params,
    kept_prompt,
    stopped_by,
)
from penstock.server.openai.tools import ToolUse, tool_use
from penstock.server.serving import Serving


@dataclass(frozen=True)
class PreparedChat:
    """One validated chat: its messages are one tokenized prompt, its options are checked."""

    request: ChatRequest
    prompt: list[int]
    params: SamplingParams
    reading: Reading
    engine: Engine
    meter: Meter
    options: RequestOptions
    bound_by: str
    """The request field that the grammar comes from; empty without a grammar."""
    names: Names
    """The client's field names."""

    def generation(self, request_id: str) -> Generation:
        """Start the generation; call it once."""
        asked = EngineRequest.of(request_id, self.prompt, self.params, self.options)
        outputs = self.engine.outputs(asked)
        if self.bound_by:
            outputs = refused_by_name(outputs, self.bound_by)
        return self.meter.measured(asked, outputs)


async def prepare_chat(
    request: ChatRequest, serving: Serving, meter: Meter, names: Names = CHAT
) -> PreparedChat:
    """Validate and tokenize a chat. ``names`` are the client's field names, for errors.

    Raises ApiError or RequestError for what is refused before the engine runs.
    """
    engine, styles = serving.engine, serving.styles
    options = kept(serving.caller.options(request), request.cache_keep_s, engine)
    use = tool_use(request, styles, names)
    asked = asked_constraint(request, names)
    if use is not None and asked is not None:
        _check_together(use, asked, names)
    tokenizer, reasoning = engine.tokenizer, styles.reasoning
    tenant = serving.caller.name
    prompt = await _prompt(request, serving, use, names)
    params = chat_params(request, engine.model, len(prompt), names.limit)
    style = None if use is None else use.style
    if has_special_marks(tokenizer, reasoning, style):
        params = msgspec.structs.replace(params, skip_special_tokens=False)
    if style is not None and style.stop:
        params = stopped_by(params, tokenizer.token_id(style.stop))
    start = start_behind(tokenizer, prompt, reasoning, style)
    calls = use.calls if use is not None and (use.binds or asked is not None) else None
    binding = ""
    if calls is not None or asked is not None:
        binding = names.tools if asked is None or (use is not None and use.forced) else asked.param
        await _check_parts(serving, calls, asked)
        spec = None if asked is None else asked.spec
        grammar = answer_grammar(tokenizer, reasoning, start, calls, spec)
        await serving.grammars.check(grammar, binding, tenant)
        params = bound_by(params, grammar, binding, engine.model)
    if request.prediction is not None:
        predicted = await _predicted(request.prediction, serving)
        options = msgspec.structs.replace(options, prediction=predicted)
    reading = Reading(reasoning, start, use)
    return PreparedChat(request, prompt, params, reading, engine, meter, options, binding, names)


async def prepare_raw(
    request: CompletionRequest,
    serving: Serving,
    meter: Meter,
    names: Names,
    to_the_end: bool = True,
    asked: Constraint | None = None,
) -> PreparedChat:
    """Validate and tokenize one prompt that is continued as it is, for a dialect in which chats
    and completions have one form of answers. ``to_the_end``: without ``max_tokens`` an answer may
    go on to the end of the context. ``asked`` is a constraint that the request, which then has
    none, could not say. Raises as :func:`prepare_chat`."""
    engine = serving.engine
    options = kept(serving.caller.options(request), request.cache_keep_s, engine)
    (prompt,) = await completion_tokens(request, serving)
    limited = request
    if request.max_tokens is None and to_the_end:
        limited = msgspec.structs.replace(
            request, max_tokens=max(engine.model.lengths.room(len(prompt)), 1)
        )
    params = completion_params(limited, engine.model, len(prompt))
    if asked is None:
        asked = asked_constraint(request, names)
    if asked is not None:
        await serving.grammars.check(asked.spec, asked.param, serving.caller.name)
        params = bound_by(params, asked.spec, asked.param, engine.model)
    chat = ChatRequest(model=request.model, messages=[])
    reading = Reading(None, Start.BEGINNING, None)
    binding = "" if asked is None else asked.param
    return PreparedChat(chat, prompt, params, reading, engine, meter, options, binding, names)


async def chat_tokens(request: ChatRequest, serving: Serving, names: Names = CHAT) -> list[int]:
    """The prompt of a chat, as it would be computed; nothing else of it is checked.

    Raises ApiError or RequestError naming the field at fault.
    """
    return await _prompt(request, serving, tool_use(request, serving.styles, names), names)


async def _prompt(
    request: ChatRequest, serving: Serving, use: ToolUse | None, names: Names
) -> list[int]:
    engine = serving.engine
    tools = () if use is None else use.tools
    try:
        prompt = await chat_prompt(request, engine, serving.styles, tools, serving.caller.name)
    except RequestError as error:
        raise _as_named(error, names) from None
    asked_tokens = request.max_completion_tokens or request.max_tokens
    return kept_prompt(prompt, request, asked_tokens, engine.model)


async def _predicted(prediction: Prediction, serving: Serving) -> list[int]:
    """The tokens of a prediction, as an answer may have them."""
    (tokens,) = await serving.engine.inputs.encode(
        [prediction.text],
        params=["prediction.content"],
        add_special_tokens=False,
        parse_special=False,
        tenant=serving.caller.name,
    )
    most = serving.engine.model.lengths.max_model_len
    if len(tokens) > most:
        raise ContextLengthError(
            f"prediction.content has {len(tokens)} tokens, and the context (max_model_len) holds "
            f"{most}: it cannot come out as a whole; shorten it",
            "prediction.content",
        )
    return tokens


def _as_named(error: RequestError, names: Names) -> RequestError:
    """``error`` of the messages, by what the client calls them."""
    if error.param != CHAT.messages:
        return error
    text = str(error)
    if text.startswith(CHAT.messages):
        text = names.messages + text.removeprefix(CHAT.messages)
    kind = ContextLengthError if isinstance(error, ContextLengthError) else RequestError
    return kind(text, names.messages)


async def _check_parts(serving: Serving, calls: Calls | None, asked: Constraint | None) -> None:
    """Raise RequestError naming the field whose grammar cannot be used."""
    grammars, tenant = serving.grammars, serving.caller.name
    if asked is not None:
        await grammars.check(asked.spec, asked.param, tenant)
    for function in () if calls is None else calls.functions:
        schema = GrammarSpec(kind="json_schema", text=schema_text(function.schema, function.param))
        await grammars.check(schema, function.param, tenant)


def _check_together(use: ToolUse, asked: Constraint, names: Names) -> None:
    """Raise ApiError if calls and the constraint cannot be combined.

    A format constrains content, and an answer of forced calls has none: then it has no effect.
    """
    if use.forced and asked.param in (names.format, names.schema):
        return
    if use.forced:
        raise ApiError(
            400,
            f"{asked.param}: tool_choice binds the output already, to calls; send one of them",
            param=asked.param,
        )
    if use.style.bare:
        raise ApiError(
            400,
            f"{asked.param}: this model writes calls without a mark before them, so that they "
            "could not be told from such an output; send it without tools, or tool_choice 'none'",
            param=asked.param,
        )
