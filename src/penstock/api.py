"""What a Python user touches: ``LLM``, which runs the engine in the caller's process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypedDict

from penstock.config import EngineConfig, ResolvedConfig
from penstock.engine.core import EngineCore
from penstock.engine.loader import open_model
from penstock.engine.shared_core import SharedCore
from penstock.errors import ConfigError, RequestError
from penstock.frontend.output_processor import OutputProcessor
from penstock.frontend.outputs import RequestOutput
from penstock.gguf.metadata import GgufValue
from penstock.grammar.cache import GrammarCache
from penstock.grammar.spec import GrammarSpec
from penstock.interface.messages import EngineRequest, EngineStats, SequenceUpdate
from penstock.pooling.output import EmbeddingOutput, embedding_output
from penstock.pooling.params import PoolingParams
from penstock.sampling.params import SamplingParams
from penstock.sandbox.jobs import Checked, CheckGrammar
from penstock.sandbox.local import LocalWorker
from penstock.speculative_config import SpeculativeConfig, parse_speculative, speculative_config
from penstock.tokenizer import Tokenizer, load_tokenizer
from penstock.weights.model_files import ModelFiles


class PromptDict(TypedDict, total=False):
    """A prompt by one of its two names, as vLLM users write it."""

    prompt: str
    prompt_token_ids: list[int]


Prompt = str | PromptDict
Message = dict[str, Any]
"""One chat message as OpenAI's API has it: ``{"role": ..., "content": ...}``."""


class LLM:
    """A model, loaded and ready, in this process.

    ``model`` is a checkpoint folder, a hub id, or empty for the demo model; every other option
    is a field of :class:`~penstock.config.EngineConfig`. ``chat_template`` takes the place of the
    model's own: the template itself, or the Path of a file with it. Raises ConfigError, ModelError,
    TokenizerError or WeightError with the cause and the fix.

    Several threads may use it at once, and one may use it while it has an unfinished
    :meth:`stream`: their requests are computed together, and none changes what another gives.
    After :meth:`close`, and in a process that was forked from the one that made it, every call
    raises EngineDeadError. :class:`~penstock.frontend.async_llm.AsyncLLM` serves many callers
    without a thread for each.
    """

    def __init__(
        self, model: str = "", *, chat_template: str | Path | None = None, **options: Any
    ) -> None:
        self._template = _template_source(chat_template)
        config = engine_config(model, options)
        files = open_model(config)
        self._core = SharedCore(EngineCore.start(config, files=files))
        self._metadata = _metadata(files, self._core.config.tokenizer_path)
        self._preparing = threading.RLock()
        self._ids = itertools.count()
        self._tokenizer: Tokenizer | None = None
        self._checked: GrammarCache[bool] = GrammarCache()
        self._worker = LocalWorker()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; raises TokenizerError if it has none that can be read."""
        with self._preparing:
            if self._tokenizer is None:
                template = self._template
                # Prompts need no template: one that is no program is refused by chats.
                tokenizer = load_tokenizer(
                    self.config.tokenizer_path, check_templates=False, metadata=self._metadata
                )
                self._metadata = None
                tokenizer.check_model(self._core.vocab_size)
                if template:
                    tokenizer = tokenizer.with_chat_template(template)
                self._tokenizer = tokenizer
            return self._tokenizer

    @property
    def config(self) -> ResolvedConfig:
        return self._core.config

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
    ) -> list[RequestOutput]:
        """Complete each prompt; outputs come back in the order of ``prompts``.

        One ``params`` serves all prompts, or there is one for each; without, they are as the
        model's makers recommend (``config.sampling_defaults``). A prompt that cannot be served
        raises RequestError before any is started; one that fails on the way has ``error``
        set and ``finish_reason`` "error".
        """
        done: dict[str, RequestOutput] = {}
        ids: list[str] = []
        for output in self.stream(prompts, params, priority=priority, started=ids):
            if output.finished:
                done[output.request_id] = output
        return [done[request_id] for request_id in ids]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        template_options: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Complete one conversation, or several, rendered by the model's chat template.

        ``template_options`` are variables that the template itself documents.
        """
        several = bool(messages) and not isinstance(messages[0], dict)
        conversations: Any = messages if several else [messages]
        prompts: list[Prompt] = [
            {
                "prompt_token_ids": self.tokenizer.encode(
                    self.tokenizer.apply_chat_template(
                        conversation, template_options=template_options
                    ),
                    add_special_tokens=False,
                )
            }
            for conversation in conversations
        ]
        return self.generate(prompts, params)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling: PoolingParams | None = None,
        *,
        priority: int = 0,
    ) -> list[EmbeddingOutput]:
        """Embed each prompt by the model's hidden states; outputs in the order of ``prompts``.

        A prompt that cannot be served raises RequestError before any is started; one that fails
        on the way has ``error`` set.
        """
        pooling = PoolingParams() if pooling is None else pooling
        if not isinstance(pooling, PoolingParams):
            raise RequestError(
                f"pooling must be PoolingParams, not {type(pooling).__name__}", "pooling"
            )
        _check_priority(priority)
        requests: dict[str, tuple[EngineRequest, str | None]] = {}
        for prompt in _listed(prompts):
            text, token_ids = self._tokens(prompt)
            request = EngineRequest(
                request_id=f"llm-{next(self._ids)}",
                prompt_token_ids=token_ids,
                pooling=pooling,
                priority=priority,
            )
            requests[request.request_id] = (request, text)
        inbox = self._core.submit([request for request, _ in requests.values()])
        ended: dict[str, SequenceUpdate] = {}
        try:
            while len(ended) < len(requests):
                for update in self._core.next(inbox):
                    if update.finish_reason is not None:
                        ended[update.request_id] = update
        finally:
            self._core.leave(inbox)
        return [
            embedding_output(request, text, ended[request_id])
            for request_id, (request, text) in requests.items()
        ]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        started: list[str] | None = None,
    ) -> Generator[RequestOutput, None, None]:
        """Generate as :meth:`generate` does, yielding each request's output so far as tokens come.

        ``started`` receives the request ids in the order of ``prompts``. Closing the iterator
        stops what is still running. While it is not asked for more, its requests go on whenever
        other calls have the engine step.
        """
        requests = self._requests(prompts, params, priority)
        ids = [request.request_id for request, _ in requests]
        if started is not None:
            started += ids
        # A model of token ids alone (dummy weights, say) needs no tokenizer: then there is no text.
        path = Path(self.config.tokenizer_path)
        has_tokenizer = not path.is_dir() or (path / "tokenizer.json").exists()
        processor = OutputProcessor(self.tokenizer if has_tokenizer else None)
        entered = [request for request, _ in requests]
        self._core.check(entered)
        with self._preparing:
            self._check_grammars({r.params.grammar for r in entered if r.params.grammar})
        for request, text in requests:
            processor.add_request(
                request.request_id, text, request.prompt_token_ids, request.params
            )
        inbox = self._core.submit(entered)
        try:
            while len(processor):
                outputs, aborts = processor.process(self._core.next(inbox))
                for abort in aborts:
                    assert abort.index is not None  # of the sequences that stop strings end
                    self._core.stop(abort.request_ids, abort.index)
                yield from outputs
        finally:
            self._core.leave(inbox)

    def check(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> None:
        """Raise RequestError if one of the prompts could not be served as asked."""
        self._core.check([request for request, _ in self._requests(prompts, params, 0)])

    def stats(self) -> EngineStats:
        return self._core.stats()

    def check_integrity(self) -> None:
        """Raise AssertionError if the cache's books do not balance. For tests."""
        self._core.check_integrity()

    def close(self) -> None:
        """Release threads and memory. Calls of other threads that still run raise
        EngineDeadError."""
        if self._worker.is_own:  # in a forked process, nobody may be left who holds the lock
            with self._preparing:
                self._worker.close()
        self._core.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _requests(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int,
    ) -> list[tuple[EngineRequest, str | None]]:
        listed = _listed(prompts)
        _check_priority(priority)
        several: Any = params if isinstance(params, Sequence) else [params] * len(listed)
        each: list[Any] = list(several)
        for one in each:
            if params is not None and not isinstance(one, SamplingParams):
                raise RequestError(
                    f"params must be SamplingParams, or one for each prompt, not {one!r:.80}",
                    "params",
                )
        if len(each) != len(listed):
            raise RequestError(f"{len(listed)} prompts, but {len(each)} sampling params", "params")
        requests = []
        for prompt, chosen in zip(listed, each, strict=True):
            text, token_ids = self._tokens(prompt)
            if chosen is None:
                room = self.config.max_model_len - len(token_ids)
                chosen = self.config.sampling_defaults.params(room)
            requests.append(
                (
                    EngineRequest(
                        request_id=f"llm-{next(self._ids)}",
                        prompt_token_ids=token_ids,
                        params=chosen,
                        priority=priority,
                    ),
                    text,
                )
            )
        return requests

    def _check_grammars(self, specs: Iterable[GrammarSpec]) -> None:
        """Raise RequestError unless all can be compiled."""
        for spec in specs:
            if self._checked.get(spec) is None:
                answer = self._worker.run(CheckGrammar.of(spec))
                if isinstance(answer, Checked) and answer.fault is not None:
                    raise RequestError(answer.fault, "grammar")
                self._checked.put(spec, True)

    def _tokens(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            return prompt, self._encode(prompt)
        if not isinstance(prompt, dict):
            raise RequestError(
                "a prompt is text, or a dict with 'prompt' or 'prompt_token_ids', "
                f"not {type(prompt).__name__}",
                "prompt",
            )
        token_ids: Any = prompt.get("prompt_token_ids")
        if token_ids is not None:
            if isinstance(token_ids, str) or not hasattr(token_ids, "__iter__"):
                raise RequestError(
                    f"prompt_token_ids must be a list of integers, not {token_ids!r:.80}", "prompt"
                )
            plain: Any = token_ids.tolist() if hasattr(token_ids, "tolist") else list(token_ids)
            return None, plain
        text = prompt.get("prompt")
        if not isinstance(text, str):
            raise RequestError("a prompt dict has 'prompt' or 'prompt_token_ids'", "prompt")
        return text, self._encode(text)

    def _encode(self, text: str) -> list[int]:
        self.tokenizer.check_length(text, self.config.max_model_len)
        return self.tokenizer.encode(text)


def _metadata(files: ModelFiles, tokenizer_path: str) -> Mapping[str, GgufValue] | None:
    """The metadata that a start has read, where the tokenizer is in them."""
    if files.gguf is None or str(files.path) != tokenizer_path:
        return None
    return files.gguf.metadata


def _template_source(template: object) -> str:
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


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, (str, dict)):
        return [prompts]
    if not hasattr(prompts, "__iter__"):
        raise RequestError(
            f"prompts must be a prompt or a list of them, not {type(prompts).__name__}", "prompt"
        )
    return list(prompts)


def _check_priority(priority: object) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise RequestError(f"priority must be an integer, not {priority!r:.80}", "priority")


def engine_config(model: str, options: dict[str, Any]) -> EngineConfig:
    """EngineConfig from keyword options; an unknown one is refused with the nearest known."""
    known: Iterable[str] = EngineConfig.__struct_fields__
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"there is no engine option {name!r}{hint}")
    speculative = options.get("speculative")
    if isinstance(speculative, str):
        options = options | {"speculative": parse_speculative(speculative)}
    elif isinstance(speculative, Mapping):
        options = options | {"speculative": speculative_config(speculative)}
    elif speculative is not None and not isinstance(speculative, SpeculativeConfig):
        raise ConfigError(
            'speculative must be text such as "ngram:num_tokens=4" or a dict such as '
            f'{{"method": "ngram", "num_tokens": 4}}, not {speculative!r}'
        )
    return EngineConfig(model=str(model), **options)
