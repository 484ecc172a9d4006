"""Names and options of vLLM's that are none here, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.errors import PenstockError, shown


@dataclass(frozen=True)
class Foreign:
    """An option of vLLM's that is none here: None and values that ask for nothing are accepted."""

    neutral: tuple[object, ...]
    """The values that ask for nothing."""
    hint: str
    """What to do instead of another value."""

    def accepts(self, value: object) -> bool:
        """Whether ``value`` asks for nothing; ``True`` is not the number 1 here."""
        return value is None or any(type(value) is type(v) and value == v for v in self.neutral)

    def check(self, name: str, value: object, error: Callable[[str, str], PenstockError]) -> None:
        """Raise ``error`` of a message and ``name`` unless ``value`` asks for nothing."""
        if not self.accepts(value):
            raise error(f"{name}={shown(value)} cannot be honoured: {self.hint}", name)


_SERVER: Final = "AsyncLLM(...) runs the engine in a process of its own; `penstock serve` serves it"

OF_PACKAGE: Final[Mapping[str, str]] = {
    "AsyncLLMEngine": _SERVER,
    "AsyncEngineArgs": _SERVER,
    "LLMEngine": "LLM(...) is the engine; stream() gives outputs as they come",
    "EngineArgs": "EngineConfig has the engine's options; LLM(...) takes them as keywords",
    "PoolingRequestOutput": "LLM.embed gives EmbeddingOutput",
    "EmbeddingRequestOutput": "LLM.embed gives EmbeddingOutput",
    "ClassificationRequestOutput": "LLM.classify gives ClassificationOutput",
    "ScoringRequestOutput": "LLM.score gives ScoringOutput",
}
"""Those that would be imported from the package."""

OF_LLM: Final[Mapping[str, str]] = {
    "llm_engine": "config has the engine's options and stats() its figures",
    "model_config": "config has the model's options, such as max_model_len",
    "encode": "embed() gives embeddings; hidden states of single tokens are not given",
    "reward": "classify(use_activation=False) gives the logit of a reward model's one label",
    "collective_rpc": "a model runs on one device, in this process",
    "apply_model": "a model is a plan of operations, which `penstock explain` prints",
    "start_profile": "`penstock bench latency` says where the time goes",
    "stop_profile": "`penstock bench latency` says where the time goes",
    "sleep": "close() releases the memory; the next start restores packed weights from disk",
    "wake_up": "make a new LLM; its start restores packed weights from disk",
    "get_metrics": "stats() has the engine's figures",
    "set_tokenizer": "give LLM(...) the tokenizer= that it is to have",
    "preprocess_chat": "get_tokenizer().apply_chat_template(messages) gives the prompt",
}

_TEXT_ONLY: Final = "models read and write text only; leave it out"

OF_CALLS: Final[Mapping[str, Foreign]] = {
    "prompt_adapter_request": Foreign((), "put the prompt's text before each prompt"),
    "prompt_token_ids": Foreign((), 'give prompts as dicts: {"prompt_token_ids": [...]}'),
    "guided_options_request": Foreign(
        (), "give SamplingParams(structured_outputs=...) with each request"
    ),
    "chat_template_content_format": Foreign(
        ("auto",), "the template is given each message's content as it is: a text, or its parts"
    ),
    "mm_processor_kwargs": Foreign(({},), _TEXT_ONLY),
    "tokenization_kwargs": Foreign(({},), "SamplingParams has truncate_prompt_tokens"),
}
"""Keywords of the calls of ``LLM``."""

OF_TOKENIZER: Final[Mapping[str, str]] = {
    "convert_tokens_to_ids": "token_id(token) gives the id of a vocabulary's entry",
    "convert_ids_to_tokens": "token_text(id) gives the text of a token",
    "get_vocab": "token_id(token) and token_text(id) look single entries up",
    "batch_encode_plus": "encode(text) gives the token ids of a text",
    "encode_plus": "encode(text) gives the token ids of a text",
    "tokenize": "encode(text) gives token ids, and token_text(id) the text of each",
}


def no_attribute(owner: str, name: str, hints: Mapping[str, str]) -> AttributeError:
    """The error for a name that ``owner`` does not have, with the hint if there is one."""
    hint = hints.get(name)
    return AttributeError(f"{owner} has no attribute {name!r}" + (f": {hint}" if hint else ""))
