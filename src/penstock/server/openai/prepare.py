"""From the request of a chat, in either dialect, to what the engine is asked."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.sampling.params import SamplingParams
from penstock.server.engine import Engine
from penstock.server.fanout import Generation
from penstock.server.meter import Meter
from penstock.server.openai.answers import Reading, has_special_marks, opened
from penstock.server.openai.constraint import Constraint, asked_constraint
from penstock.server.openai.errors import ApiError
from penstock.server.openai.messages import chat_prompt
from penstock.server.openai.names import CHAT, Names
from penstock.server.openai.protocol import ChatRequest
from penstock.server.openai.sampling import chat_params
from penstock.server.openai.tools import ToolUse, tool_use
from penstock.server.parsing.answer_grammar import Beginning, answer_grammar
from penstock.server.parsing.styles import Styles


@dataclass(frozen=True)
class PreparedChat:
    """One validated chat: its messages are one tokenized prompt, its options are checked."""

    request: ChatRequest
    prompt: list[int]
    params: SamplingParams
    reading: Reading
    engine: Engine
    meter: Meter

    def generation(self, request_id: str) -> Generation:
        """Ask the engine; to be called once."""
        return self.meter.measured(
            self.engine.generate(
                self.prompt,
                self.params,
                request_id=request_id,
                priority=self.request.priority or 0,
                cache_salt=self.request.cache_salt or "",
            )
        )


async def prepare_chat(
    request: ChatRequest, engine: Engine, meter: Meter, styles: Styles, names: Names = CHAT
) -> PreparedChat:
    """Raises ApiError or RequestError for what can be refused before the engine is asked.

    ``names`` are what the client calls the fields at fault.
    """
    use = tool_use(request, styles, names)
    asked = asked_constraint(request, names)
    if use is not None and asked is not None:
        _check_together(use, asked)
    tokenizer, reasoning = engine.tokenizer, styles.reasoning
    prompt = await chat_prompt(request, engine, () if use is None else use.tools)
    longest = engine.model.max_model_len
    params = chat_params(
        request, engine.model.vocab_size, longest - len(prompt), longest, names.limit
    )
    if has_special_marks(tokenizer, reasoning, None if use is None else use.style):
        params = msgspec.structs.replace(params, skip_special_tokens=False)
    inside = reasoning is not None and opened(tokenizer, prompt, reasoning)
    grammar = answer_grammar(
        tokenizer,
        None if reasoning is None else Beginning(reasoning, inside),
        use.calls if use is not None and (use.binds or asked is not None) else None,
        None if asked is None else asked.spec,
    )
    if grammar is not None:
        params = msgspec.structs.replace(params, grammar=grammar)
    return PreparedChat(request, prompt, params, Reading(reasoning, inside, use), engine, meter)


def _check_together(use: ToolUse, asked: Constraint) -> None:
    """Raise ApiError where calls and the constraint cannot both be had."""
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
