"""A model that answers in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING

from penstock.backends.registry import backend
from penstock.chat.chat_model import Delta, Usage
from penstock.chat.conversation import Conversation
from penstock.chat.kept_tokens import KeptTokens
from penstock.chat.used_sampling import UsedSampling
from penstock.errors import ConfigError, PenstockError
from penstock.parsing.answer_parser import AnswerParser
from penstock.parsing.marks import has_special_marks, start_behind
from penstock.parsing.styles import AUTO, NONE, Styles
from penstock.sampling.defaults import SamplingDefaults
from penstock.sampling.params import SamplingParams
from penstock.threads import format_count
from penstock.tokenizer.chat_tokens import tokenize_chat
from penstock.tokenizer.chat_variables import chat_template_kwargs

if TYPE_CHECKING:
    from penstock.api import LLM


class LocalModel:
    """A ChatModel of an :class:`~penstock.api.LLM`, which it closes.

    What was said before is in the engine's prefix cache, in the very tokens that were generated, so
    a turn computes what is new alone.
    Names of special tokens in messages are text. Raises ConfigError for a model without a chat
    template.
    """

    interruptible = False  # a step must come to its end

    def __init__(self, llm: LLM) -> None:
        if not llm.tokenizer.has_chat_template:
            raise ConfigError(
                f"{llm.config.model_path} has no chat template, so it was not made for chats: name "
                "a model that was (their names often end in -Instruct or -it), or a template by "
                "--chat-template FILE; `penstock generate` completes texts with any model"
            )
        self._llm = llm
        self._kept = KeptTokens(llm.tokenizer)
        templates = llm.tokenizer.settings.chat_templates
        self._reasoning = Styles.of(llm.tokenizer, NONE, AUTO).reasoning
        self._chat_template_kwargs = chat_template_kwargs(templates.values())

    @property
    def chat_template_kwargs(self) -> tuple[str, ...]:
        return self._chat_template_kwargs

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        return self._llm.config.sampling_defaults

    @property
    def context_tokens(self) -> int:
        return self._llm.config.max_model_len

    @property
    def name(self) -> str:
        return self._llm.config.served_model_name

    def describe(self) -> str:
        config = self._llm.config
        on_gpu = backend(config.backend).on_gpu
        with_threads = "" if on_gpu else f" with {format_count(config.threads)}"
        return (
            f"{config.dtype} on {config.backend}{with_threads}, "
            f"context {config.max_model_len:,} tokens"
        )

    def stream(self, conversation: Conversation) -> Generator[Delta, None, None]:
        llm, style = self._llm, self._reasoning
        tokenizer = llm.tokenizer
        prompt = tokenize_chat(
            tokenizer,
            conversation.as_messages(),
            add_generation_prompt=True,
            chat_template_kwargs=conversation.chat_template_kwargs,
            add_special_tokens=False,
            encode=self._kept.encode,
        )
        start = start_behind(tokenizer, prompt, style)
        parser = AnswerParser(style, start, None, {}, eager=False)
        params = self._params(conversation, len(prompt), has_special_marks(tokenizer, style, None))
        before = None
        outputs = llm.stream({"prompt_token_ids": prompt}, params)
        with contextlib.closing(outputs):
            for output in outputs:
                (answer,) = output.outputs
                new = answer.since(before)
                delta = parser.push(new.text)
                self._kept.generated(new.token_ids)
                before = answer
                if output.error is not None:
                    raise PenstockError(f"the answer failed: {output.error}")
                if output.finished:
                    delta.add(parser.finish())
                yield Delta(
                    content=delta.content,
                    reasoning_content=delta.reasoning,
                    finish_reason=answer.finish_reason,
                    usage=Usage(len(prompt), answer.num_tokens, output.num_cached_tokens),
                )

    def close(self) -> None:
        self._llm.close()

    def _params(
        self, conversation: Conversation, prompt_tokens: int, marks_are_special: bool
    ) -> SamplingParams:
        """What is asked for, and the rest as the model's makers recommend."""
        config = self._llm.config
        room = config.lengths.room(prompt_tokens)
        asked = UsedSampling(conversation, config.sampling_defaults).all
        return SamplingParams(
            **{"max_tokens": config.sampling_defaults.tokens(room), **asked},
            skip_special_tokens=not marks_are_special,
        )
