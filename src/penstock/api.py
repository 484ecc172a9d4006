"""What a Python user touches: ``LLM``, which runs the engine in the caller's process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.engine.core import EngineCore
from penstock.engine.loader import load_models, open_model, plan_engine
from penstock.engine.shared_core import SharedCore
from penstock.engine_options import engine_config
from penstock.errors import RequestError
from penstock.frontend.output_processor import OutputProcessor
from penstock.frontend.outputs import RequestOutput
from penstock.interface.loading import ProgressCallback, no_progress
from penstock.interface.messages import EngineRequest, EngineStats
from penstock.kv_disk_config import BlockPlace
from penstock.llm_adapters import LlmAdapters, Lora
from penstock.llm_grammars import CheckedGrammars
from penstock.llm_inputs import (
    Message,
    Params,
    Prompt,
    PromptDict,
    check_foreign,
    conversations,
    listed,
    one_of,
    progress_bar,
    template_source,
)
from penstock.llm_pooling import LlmPooling
from penstock.llm_requests import RequestMaker
from penstock.llm_tokenizer import LlmTokenizer
from penstock.pooling.output import ClassificationOutput, EmbeddingOutput, ScoringOutput
from penstock.pooling.params import PoolingParams
from penstock.resolved_config import ResolvedConfig
from penstock.sampling.beam_params import BeamSearchParams
from penstock.sampling.params import SamplingParams
from penstock.tokenizer import Tokenizer
from penstock.tokenizer.chat_tokens import tokenize_chat
from penstock.vllm_names import OF_LLM, no_attribute

__all__ = ["LLM", "Message", "Prompt", "PromptDict"]


class LLM:
    """A model, loaded and ready, in this process.

    ``model`` is a checkpoint folder or a hub id; empty or None is the demo model. Every other
    option is a field of :class:`~penstock.config.EngineConfig`, or one of vLLM's that asks for
    nothing (``engine_options``). ``chat_template`` takes the place of the model's own: the template
    itself, or the Path of a file with it. ``load_progress`` is told how loading goes on. The
    tokenizer is loaded when it is first needed, or with ``require_tokenizer`` before any weight is.
    Raises ConfigError, ModelError, TokenizerError or WeightError with the cause and the fix.

    Several threads may use it at once, and one may use it while it has an unfinished
    :meth:`stream`: their requests are computed together, and none changes what another gives.
    After :meth:`close`, and in a process that was forked from the one that made it, every call
    raises EngineDeadError. :class:`~penstock.frontend.async_llm.AsyncLLM` serves many callers
    without a thread for each.
    """

    def __init__(
        self,
        model: str | None = "",
        *,
        chat_template: str | Path | None = None,
        load_progress: ProgressCallback = no_progress,
        require_tokenizer: bool = False,
        **options: Any,
    ) -> None:
        template = template_source(chat_template)
        config = engine_config(model, options)
        files = open_model(config)
        engine_plan = plan_engine(config, files)
        path, vocab_size = engine_plan.config.tokenizer_path, engine_plan.spec.vocab_size
        self._tokenizer = LlmTokenizer(path, files, vocab_size, template)
        if require_tokenizer:
            self._tokenizer.get()
        models = load_models(engine_plan, files=files, progress=load_progress)
        self._core = SharedCore(EngineCore.of(models))
        self._making = RequestMaker(self._core.config, self._tokenizer.get)
        self._pooling = LlmPooling(self._core, self._making, self._core.labels, self._tokenizer.get)
        self._grammars = CheckedGrammars()
        self._adapters = LlmAdapters(
            self._core.adapter_names,
            self._core.config.lora_modules,
            self._core.load_adapter,
            self._core.drop_adapter,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; raises TokenizerError if it has none that can be read."""
        return self._tokenizer.get()

    @property
    def config(self) -> ResolvedConfig:
        return self._core.config

    @property
    def block_place(self) -> BlockPlace | None:
        """Where blocks of prefixes are kept on disk, and may be pinned; None without
        ``kv_disk``."""
        return self._core.block_place

    def get_tokenizer(self) -> Tokenizer:
        """:attr:`tokenizer`, as vLLM's users ask for it."""
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The options that the model's makers recommend."""
        defaults = self.config.sampling_defaults
        return SamplingParams(**defaults.sampled, max_tokens=defaults.max_tokens)

    def reset_prefix_cache(self) -> None:
        """Forget what prompts and outputs of before have left in the cache."""
        self._core.reset_prefix_cache()

    if not TYPE_CHECKING:  # or every name would be one of LLM's

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("LLM", name, OF_LLM)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        sampling_params: Params = None,
        use_tqdm: bool | Callable[..., Any] = False,
        priority: int = 0,
        lora: Lora = None,
        lora_request: Lora = None,
        **foreign: Any,
    ) -> list[RequestOutput]:
        """Complete each prompt; outputs come back in the order of ``prompts``.

        One ``params``, or ``sampling_params``, serves all prompts, or there is one for each;
        without, they are as the model's makers recommend (``config.sampling_defaults``).
        ``lora``, or ``lora_request``, names the adapter that all prompts use, or that of each.
        ``use_tqdm`` shows a bar of the prompts that are done; it may be a class like tqdm's. A
        prompt that cannot be served raises RequestError before any is started; one that fails on
        the way has ``error`` set and ``finish_reason`` "error". Other keywords are those of vLLM's
        that ask for nothing.
        """
        check_foreign("generate", foreign)
        prompts = listed(prompts)
        params = one_of(params=params, sampling_params=sampling_params)
        lora = one_of(lora=lora, lora_request=lora_request)
        done: dict[str, RequestOutput] = {}
        ids: list[str] = []
        outputs = self.stream(prompts, params, priority=priority, lora=lora, started=ids)
        with contextlib.closing(outputs), progress_bar(use_tqdm, len(prompts)) as advance:
            for output in outputs:
                if output.finished:
                    done[output.request_id] = output
                    advance()
        return [done[request_id] for request_id in ids]

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        use_tqdm: bool | Callable[..., Any] = False,
        priority: int = 0,
        lora: Lora = None,
        lora_request: Lora = None,
        **foreign: Any,
    ) -> list[RequestOutput]:
        """Search for the likeliest continuations of each prompt: ``outputs`` has the beams, the
        best one first, each with its ``cumulative_logprob``.

        :meth:`generate` does the same with ``SamplingParams(beam_search=BeamSearch(...))``, for
        other options beside it.
        """
        check_foreign("beam_search", foreign)
        if not isinstance(params, BeamSearchParams):
            raise RequestError(
                f"params must be BeamSearchParams, not {type(params).__name__}", "params"
            )
        asked, adapters = params.sampling_params, one_of(lora=lora, lora_request=lora_request)
        return self.generate(prompts, asked, use_tqdm=use_tqdm, priority=priority, lora=adapters)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        *,
        sampling_params: Params = None,
        use_tqdm: bool | Callable[..., Any] = False,
        chat_template: str | Path | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
        lora: Lora = None,
        lora_request: Lora = None,
        **foreign: Any,
    ) -> list[RequestOutput]:
        """Complete one conversation, or several, rendered by the model's chat template.

        ``chat_template`` takes its place in this call. ``tools`` are shown to the model where the
        template shows tools; what it calls is text of the output. ``chat_template_kwargs`` are
        variables that the template itself documents. Raises RequestError for what is no
        conversation, such as an empty one. The other options are those of :meth:`generate` and
        of :meth:`~penstock.tokenizer.chat.ChatTemplate.render`.
        """
        check_foreign("chat", foreign)
        params = one_of(params=params, sampling_params=sampling_params)
        lora = one_of(lora=lora, lora_request=lora_request)
        given = conversations(messages)
        tokenizer = self.tokenizer
        if chat_template is not None:
            tokenizer = tokenizer.with_chat_template(template_source(chat_template))
        prompts: list[Prompt] = [
            {
                "prompt_token_ids": tokenize_chat(
                    tokenizer,
                    conversation,
                    add_generation_prompt,
                    dict(chat_template_kwargs or {}),
                    add_special_tokens=False,
                    tools=tools or (),
                    continue_final_message=continue_final_message,
                )
            }
            for conversation in given
        ]
        return self.generate(prompts, params, use_tqdm=use_tqdm, priority=priority, lora=lora)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling: PoolingParams | None = None,
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool | Callable[..., Any] = False,
        priority: int = 0,
        lora: Lora = None,
        lora_request: Lora = None,
        **foreign: Any,
    ) -> list[EmbeddingOutput]:
        """Embed each prompt by the model's hidden states; outputs in the order of ``prompts``.

        ``pooling_params`` is another name of ``pooling``, and ``use_tqdm`` shows a bar. Other
        keywords are those of vLLM's that ask for nothing.

        A prompt that cannot be served raises RequestError before any is started; one that fails
        on the way has ``error`` set.
        """
        check_foreign("embed", foreign)
        pooling = one_of(pooling=pooling, pooling_params=pooling_params)
        prompts = listed(prompts)
        adapters = self._adapters.digests(
            one_of(lora=lora, lora_request=lora_request), len(prompts)
        )
        return self._pooling.embed(prompts, pooling, priority, adapters, use_tqdm)

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_activation: bool = True,
        use_tqdm: bool | Callable[..., Any] = False,
        priority: int = 0,
        lora: Lora = None,
        lora_request: Lora = None,
        **foreign: Any,
    ) -> list[ClassificationOutput]:
        """What a model with a classification head says of each prompt: ``probs``, a value for each
        label, and the likeliest ``label``; without ``use_activation``, the logits.

        Raises RequestError where the model has no labels. The other options are those of
        :meth:`embed`.
        """
        check_foreign("classify", foreign)
        prompts = listed(prompts)
        adapters = self._adapters.digests(
            one_of(lora=lora, lora_request=lora_request), len(prompts)
        )
        return self._pooling.classify(prompts, use_activation, priority, adapters, use_tqdm)

    def score(
        self,
        queries: str | Sequence[str],
        documents: str | Sequence[str],
        *,
        instruction: str | None = None,
        use_activation: bool = True,
        use_tqdm: bool | Callable[..., Any] = False,
        priority: int = 0,
        lora: Lora = None,
        lora_request: Lora = None,
        **foreign: Any,
    ) -> list[ScoringOutput]:
        """How well each document fits its query, or the one query of all.

        A model with one label, or whose labels are tokens such as no and yes, judges both texts
        together (docs/models.md has how they become one prompt, and where ``instruction`` stands
        in it). Of other models it is the cosine of the texts' embeddings. The options are those of
        :meth:`classify`, but that there is one adapter for all.
        """
        check_foreign("score", foreign)
        (adapter,) = self._adapters.digests(one_of(lora=lora, lora_request=lora_request), 1)
        first = [queries] if isinstance(queries, str) else list(queries)
        second = [documents] if isinstance(documents, str) else list(documents)
        return self._pooling.score(
            first, second, instruction, use_activation, priority, adapter, use_tqdm
        )

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        priority: int = 0,
        lora: Lora = None,
        started: list[str] | None = None,
    ) -> Generator[RequestOutput, None, None]:
        """Generate as :meth:`generate` does, yielding each request's output so far as tokens come.

        ``started`` receives the request ids in the order of ``prompts``. Closing the iterator
        stops what is still running. While it is not asked for more, its requests go on whenever
        other calls have the engine step.
        """
        prompts = listed(prompts)
        adapters = self._adapters.digests(lora, len(prompts))
        requests = self._making.of_outputs(prompts, params, priority, adapters)
        ids = [request.request_id for request, _ in requests]
        if started is not None:
            started += ids
        processor = OutputProcessor(self.tokenizer if self._tokenizer.exists else None)
        entered = [request for request, _ in requests]
        self._check(entered)
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
        params: Params = None,
    ) -> None:
        """Raise RequestError if one of the prompts could not be served as asked."""
        self._check([request for request, _ in self._making.of_outputs(prompts, params, 0)])

    def _check(self, requests: Sequence[EngineRequest]) -> None:
        self._core.check(requests)
        constraints = (request.params.constraint for request in requests)
        self._grammars.check(set(filter(None, constraints)))

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the adapters that are loaded."""
        return self._adapters.names

    def load_adapter(self, name: str, path: str | Path) -> None:
        """Load a LoRA adapter from a folder, as PEFT saves it, in the place of one of this name.

        Raises ConfigError where the engine has no room for adapters (``max_loras``), and
        WeightError for one that is damaged, asks for what is not served, or is for another model.
        """
        self._adapters.load(name, path)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter. What uses it already goes on. Raises RequestError."""
        self._adapters.unload(name)

    def stats(self) -> EngineStats:
        return self._core.stats()

    def check_integrity(self) -> None:
        """Raise AssertionError if the cache's books do not balance. For tests."""
        self._core.check_integrity()

    def close(self) -> None:
        """Release threads and memory. Calls of other threads that still run raise
        EngineDeadError."""
        self._grammars.close()
        self._core.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
