"""One text that is asked for, whole or as a stream."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec
from msgspec import UNSET

from penstock.errors import ContextLengthError, RequestError
from penstock.frontend.outputs import CompletionOutput, RequestOutput
from penstock.server.errors import ApiError
from penstock.server.fanout import has_news, last
from penstock.server.fanout import merged as joined
from penstock.server.kserve import errors
from penstock.server.kserve.input import NAMES, completion, with_prompt
from penstock.server.kserve.protocol import GeneratedText, TextParameters, TextRequest
from penstock.server.meter import Meter
from penstock.server.openai.prepare import PreparedChat, prepare_raw
from penstock.server.serving import Serving
from penstock.server.sse import event

VERSION: Final = "1"
"""The version of the model that is served: there is one."""
_PROMPT = "prompt"
_TEXT = "text_input"


class TextJob:
    """One validated request; its prompt is tokenized and its options are checked."""

    def __init__(
        self, request: TextRequest, asked: TextParameters, prepared: PreparedChat, model: str
    ) -> None:
        self._request = request
        self._asked = asked
        self._prepared = prepared
        self._model = model
        self._before = request.text_input if with_prompt(asked) else ""

    @classmethod
    async def prepare(
        cls, request: TextRequest, asked: TextParameters, model: str, serving: Serving, meter: Meter
    ) -> TextJob:
        """Validate a request, whose options are ``asked``. Raises ApiError or RequestError for what
        is refused before the engine runs."""
        with_prompt(asked)  # before the prompt is tokenized
        body = completion(model, request.text_input, asked)
        try:
            prepared = await prepare_raw(body, serving, meter, NAMES, to_the_end=False)
        except RequestError as error:
            raise _as_named(error) from None
        return cls(request, asked, prepared, model)

    async def whole(self) -> GeneratedText:
        """The whole answer."""
        (output,) = await last([self._prepared.generation(self._id())])
        (choice,) = output.outputs
        return self._text(output, choice, None)

    async def answer(self) -> bytes:
        """The whole answer as JSON."""
        return msgspec.json.encode(await self.whole())

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events: as it comes, or whole in one where no stream is asked
        for."""
        if not self._asked.stream:
            yield event(await self.answer())
            return
        before: CompletionOutput | None = None
        async with aclosing(joined([self._prepared.generation(self._id())])) as outputs:
            async for _, output in outputs:
                (choice,) = output.outputs
                if has_news(choice, before):
                    yield event(msgspec.json.encode(self._text(output, choice, before)))
                    before = choice

    def error(self, failure: ApiError) -> bytes:
        """The event that says why a stream ends early."""
        return errors.event(failure)

    def _id(self) -> str:
        return f"kserve-{uuid.uuid4().hex}"

    def _text(
        self, output: RequestOutput, choice: CompletionOutput, before: CompletionOutput | None
    ) -> GeneratedText:
        """What is new in ``choice`` since ``before``."""
        asked, new = self._asked, choice.since(before)
        likelihood = choice.cumulative_logprob or 0.0
        return GeneratedText(
            model_name=self._model,
            model_version=VERSION,
            id=self._request.id or UNSET,
            text_output=self._before + new.text,
            finish_reason=str(choice.finish_reason) if asked.return_finish_reason else UNSET,
            cumulative_logprob=likelihood if asked.return_cumulative_logprob else UNSET,
            num_input_tokens=(
                len(output.prompt_token_ids) if asked.return_num_input_tokens else UNSET
            ),
            num_output_tokens=len(new.token_ids) if asked.return_num_output_tokens else UNSET,
        )


def _as_named(error: RequestError) -> RequestError:
    """``error`` of the prompt, by what the client calls it."""
    if error.param != _PROMPT:
        return error
    text = str(error)
    if text.startswith(_PROMPT):
        text = _TEXT + text.removeprefix(_PROMPT)
    kind = ContextLengthError if isinstance(error, ContextLengthError) else RequestError
    return kind(text, _TEXT)
