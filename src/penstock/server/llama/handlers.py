"""The handlers of the dialect, and its endpoints."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import shown
from penstock.server.errors import RETRY_AFTER_S, ApiError, unavailable
from penstock.server.fill import Gap
from penstock.server.intake import Intake
from penstock.server.llama import errors
from penstock.server.llama.api import LlamaJob, settings
from penstock.server.llama.field_table import rules_of
from penstock.server.llama.infill import infill_tokens
from penstock.server.llama.input import completion_of
from penstock.server.llama.paths import COMPLETION, COMPLETIONS, INFILL, PROPS, SLOTS, TEMPLATE
from penstock.server.llama.protocol import (
    DefaultSettings,
    InfillRequest,
    LlamaError,
    LlamaPart,
    LlamaProps,
    LlamaRequest,
    LlamaSlot,
    TemplatePrompt,
    TemplateRequest,
)
from penstock.server.openai.body import DialectDecoder
from penstock.server.openai.functions import with_tools
from penstock.server.openai.key_query import PromptReader, PromptReaders, Prompts, of_completion
from penstock.server.openai.messages import chat_prompt
from penstock.server.openai.protocol import ChatRequest
from penstock.server.openai.template_reads import TemplateReads
from penstock.server.openapi import Endpoint
from penstock.server.serving import Serving
from penstock.server.sse import EventStream, unless_ended
from penstock.server.supervisor import Supervisor
from penstock.version import __version__

_CONTINUE = "Continue a prompt, as llama-server does."
_FAIL = "fail_on_no_slot"
"""The query parameter by which a client learns from the status whether a request would wait."""
_WAITS, _FAILS = "0", "1"
_FILL = "Fill a gap in a text, as llama-server does."


class LlamaHandlers:
    """The handlers, over one engine; ``reads`` are the variables that chat templates read."""

    def __init__(self, intake: Intake, engine: Supervisor, reads: TemplateReads) -> None:
        self._intake = intake
        self._engine = engine
        model = engine.model.served_model_name
        self._decoder = DialectDecoder(LlamaRequest, rules_of(COMPLETION), model)
        self._infills = DialectDecoder(InfillRequest, rules_of(INFILL), model)
        self._templates = DialectDecoder(TemplateRequest, rules_of(TEMPLATE), model, reads)
        self.prompt_readers: PromptReaders = {
            COMPLETION: PromptReader(self._decoder, _prompts),
            COMPLETIONS: PromptReader(self._decoder, _prompts),
            INFILL: PromptReader(self._infills, _prompts_of_gap),
        }

    async def llama_completion(self, request: Request) -> Response | EventStream:
        return await self._intake.answered(request, self._decoder, LlamaJob.prepare, errors.body)

    async def llama_completions(self, request: Request) -> Response | EventStream:
        return await self.llama_completion(request)

    async def llama_infill(self, request: Request) -> Response | EventStream:
        return await self._intake.answered(request, self._infills, LlamaJob.prepare, errors.body)

    async def llama_template(self, request: Request) -> Response:
        body = await self._intake.decoded(request, self._templates)
        self._intake.check_model(body.model)
        work = _prompt(body, self._intake.serving_to(request))
        return _json(await unless_ended(request, request.receive, work))

    async def llama_props(self, request: Request) -> Response:
        tokenizer, model = self._engine.tokenizer, self._engine.model
        params = model.sampling_defaults.params(model.lengths.max_model_len)
        bos = tokenizer.bos_token_id
        return _json(
            LlamaProps(
                default_generation_settings=DefaultSettings(
                    n_ctx=model.lengths.max_model_len, params=settings(params, -1)
                ),
                total_slots=self._slots,
                model_alias=model.served_model_name,
                chat_template=tokenizer.settings.chat_templates.get("default", ""),
                bos_token="" if bos is None else tokenizer.token_text(bos),
                eos_token=tokenizer.eos_token or "",
                build_info=f"penstock {__version__}",
            )
        )

    async def llama_slots(self, request: Request) -> Response:
        total, open_ones = self._slots, self._engine.llm.open_sequences.count
        fails = request.query_params.get(_FAIL, _WAITS)
        if fails not in (_WAITS, _FAILS):
            raise ApiError(
                400, f"{_FAIL} must be {_WAITS} or {_FAILS}, not {shown(fails)}", param=_FAIL
            )
        if fails == _FAILS and open_ones >= total:
            raise unavailable(
                f"all {total} sequences that may run are in use", "no_slot", RETRY_AFTER_S
            )
        context = self._engine.model.lengths.max_model_len
        slots = [LlamaSlot(id=i, n_ctx=context, is_processing=i < open_ones) for i in range(total)]
        return Response(msgspec.json.encode(slots), media_type="application/json")

    @property
    def _slots(self) -> int:
        """How many sequences run at once; others wait."""
        return self._engine.max_sequences - self._engine.setup.max_waiting

    def endpoints(self) -> list[Endpoint]:
        return [
            *(
                Endpoint(
                    "POST",
                    path,
                    handler,
                    summary,
                    LlamaPart,
                    body,
                    LlamaPart,
                    works=True,
                    rules=rules_of(path),
                    error=LlamaError,
                    error_body=errors.body,
                )
                for path, handler, body, summary in (
                    (COMPLETION, self.llama_completion, LlamaRequest, _CONTINUE),
                    (COMPLETIONS, self.llama_completions, LlamaRequest, _CONTINUE),
                    (INFILL, self.llama_infill, InfillRequest, _FILL),
                )
            ),
            Endpoint(
                "POST",
                TEMPLATE,
                self.llama_template,
                "The prompt that a chat's messages make.",
                TemplatePrompt,
                TemplateRequest,
                rules=rules_of(TEMPLATE),
                error=LlamaError,
                error_body=errors.body,
            ),
            Endpoint(
                "GET",
                PROPS,
                self.llama_props,
                "The model and its defaults, as llama-server tells them.",
                LlamaProps,
            ),
            Endpoint(
                "GET",
                SLOTS,
                self.llama_slots,
                "The room for sequences that run, as llama-server tells of it.",
                LlamaSlot,
                query={_FAIL: {"enum": [_WAITS, _FAILS]}},
                error=LlamaError,
                error_body=errors.body,
                listed=True,
            ),
        ]


async def _prompts(request: LlamaRequest, serving: Serving) -> Prompts:
    return await of_completion(completion_of(request, request.prompt), serving)


async def _prompts_of_gap(request: InfillRequest, serving: Serving) -> Prompts:
    gap = Gap.of(serving.engine.tokenizer, "", "ask /completion")
    tokens = await infill_tokens(request, serving, gap)
    return Prompts([tokens], request.cache_salt, request.model)


async def _prompt(body: TemplateRequest, serving: Serving) -> TemplatePrompt:
    """The text of the tokens that the messages make. Raises ApiError or RequestError."""
    chat = ChatRequest(
        model=body.model,
        messages=body.messages,
        add_generation_prompt=body.add_generation_prompt,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    engine, tenant = serving.engine, serving.caller.name
    tokens = await chat_prompt(with_tools(chat), engine, serving.styles, tenant=tenant)
    text = await asyncio.to_thread(engine.tokenizer.decode, tokens, False)
    return TemplatePrompt(prompt=text)


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
