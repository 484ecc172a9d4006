"""Every field that clients send and this server does not act on, and whether it is refused.

``docs/clients.md`` is made of this table, the bodies are read by it (``server/fields``) and the
OpenAPI document tells it. Fields that are acted on are those of the structs; a field that is in
neither is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from penstock.server.fields.rules import ANYTHING, EVERY_NAME, Rule, any_of, these
from penstock.server.openai.paths import (
    CHAT,
    CLASSIFY,
    COMPLETIONS,
    EMBEDDINGS,
    POOLING,
    RERANK,
    RESPONSES,
    SCORE,
    TOKENIZE,
)
from penstock.server.openai.responses.protocol import LOGPROBS

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model is to reason, in the words of all clients that have such an option."""

_TEXT, _WHOLE, _SWITCH = any_of(str), any_of(int), any_of(bool)
_OBJECT, _LIST = any_of(dict[str, Any]), any_of(list[Any])

_OLDER = (COMPLETIONS, CHAT)
_ANSWERS = (COMPLETIONS, CHAT, RESPONSES)
_CHATS = (CHAT, RESPONSES)
_JUDGED = (CLASSIFY, SCORE, RERANK)
_RANKINGS = (*_JUDGED, POOLING)
_EVERY = (COMPLETIONS, CHAT, RESPONSES, EMBEDDINGS, *_RANKINGS)

_NO_WISH = "only a chat template that reads a variable for it can follow"
_NOT_KEPT = "nothing is stored"
_PRIVATE = "a client's own note, which the model is not shown"
_NO_MEDIA = "the model reads and writes text only"
_NO_SEARCH = "the server has no tools of its own"
_CUTS = "no prompt is cut"
_SAMPLER = "there is no such step in sampling"
_STARTED = "it is decided when the server is started"
_OUTPUT = "answers have no such form"


def _each(fields: str, endpoints: tuple[str, ...], why: str, **rest: Any) -> Iterator[Rule]:
    """One rule for each of the fields, which are separated by spaces."""
    for name in fields.split():
        yield Rule(name, endpoints, why, **rest)


def _under(places: str, names: str) -> str:
    return " ".join(f"{place}.{name}" for place in places.split() for name in names.split())


_HINTS = (
    Rule("store", _OLDER, "nothing is stored; responses are", these(False), these(True)),
    Rule("metadata", (COMPLETIONS, CHAT, EMBEDDINGS), _NOT_KEPT, these({}), _OBJECT),
    Rule("service_tier", _ANSWERS, "all requests are of one tier; see `priority`",
         these("auto", "default"), _TEXT),
    Rule("prompt_cache_key", _ANSWERS, "prefixes are found by content; see `cache_salt`",
         advice=_TEXT),
    Rule("prompt_cache_options", _CHATS, "prefixes are kept while there is room", advice=_OBJECT),
    Rule("prompt_cache_retention", _ANSWERS, "prefixes are kept while there is room; with "
         "`--kv-disk`, `24h` is as `cache_keep_s`", advice=_TEXT),
    Rule("verbosity", (CHAT,), "models have no such option; say it in a message",
         advice=any_of(Literal["low", "medium", "high"])),
    Rule("text.verbosity", (RESPONSES,), "models have no such option; say it in a message",
         advice=any_of(Literal["low", "medium", "high"])),
    Rule("request_id", _EVERY, "ids are the header `X-Request-Id`'s", advice=_TEXT),
    Rule("cache_prompt", _OLDER, "cached prefixes change no answer", these(True), these(False)),
    # What pages for several servers have of Ollama's options.
    *_each("num_ctx num_keep", _OLDER, "prompts are not cut", advice=_WHOLE),
    *_each("num_batch num_gpu num_thread", _OLDER, _STARTED, advice=_WHOLE),
    *_each("use_mmap use_mlock", _OLDER, _STARTED, advice=_SWITCH),
    Rule("keep_alive", _OLDER, _STARTED, advice=any_of(int | float | str)),
    Rule("guided_decoding_backend", _OLDER, "there is one", advice=_TEXT),
)  # fmt: skip

_REASONING = (
    Rule("reasoning_effort", (CHAT,), _NO_WISH, these("auto", "default"), any_of(Effort),
         f"send one of {', '.join(Effort.__args__)}", wish=True),  # type: ignore[attr-defined]
    Rule("reasoning.effort", _CHATS, _NO_WISH, these("auto", "default"), any_of(Effort),
         f"send one of {', '.join(Effort.__args__)}", wish=True),  # type: ignore[attr-defined]
    Rule("reasoning.enabled", _CHATS, _NO_WISH, advice=_SWITCH, wish=True),
    Rule("enable_thinking", _CHATS, _NO_WISH, advice=_SWITCH, wish=True),
    Rule("thinking.type", _CHATS, _NO_WISH,
         advice=any_of(Literal["enabled", "disabled", "adaptive"]), wish=True),
    *_each("reasoning.max_tokens thinking.budget_tokens", _CHATS,
           "`max_tokens` limits reasoning and answer together", advice=_WHOLE),
    *_each("reasoning.summary reasoning.generate_summary", _CHATS, "reasoning is returned as it is",
           advice=_TEXT),
    Rule("reasoning.mode", _CHATS, "there is one", these("standard"), _TEXT),
    Rule("reasoning.context", _CHATS, "the chat template decides what it shows of it",
         these("auto"), any_of(Literal["current_turn", "all_turns"])),
    Rule("reasoning.exclude", _CHATS, "reasoning is returned where the model reasons", these(False),
         fix="leave it out and do not read `reasoning_content`"),
    Rule("include_reasoning", (CHAT,), "reasoning is returned where the model reasons", these(True),
         fix="leave it out and do not read `reasoning_content`"),
    Rule("think", (CHAT,), _NO_WISH,
         advice=any_of(bool | Literal["low", "medium", "high", "max"]), wish=True),
    *_each("separate_reasoning stream_reasoning", (CHAT,), "reasoning is sent apart, as it comes",
           nothing=these(True)),
)  # fmt: skip

_SAMPLING = (
    *_each("typical_p tfs_z", _OLDER, _SAMPLER, nothing=these(1.0)),
    *_each("mirostat top_a", _OLDER, _SAMPLER, nothing=these(0)),
    Rule("repeat_penalty", _OLDER, "llama-server's and Ollama's name of `repetition_penalty`",
         alias="repetition_penalty"),
    *_each("mirostat_tau mirostat_eta", _OLDER, "`mirostat` alone turns it on",
           advice=any_of(int | float)),
    Rule("best_of", _CHATS, "one answer is made for each of `n`", these(1),
         fix="send `n`, or ask `/v1/completions`"),
    Rule("logits_processors", _OLDER, "clients' programs are not run", these([]),
         fix="send `logit_bias`"),
    Rule("guided_whitespace_pattern", _OLDER, "white space is as a schema's JSON may have it",
         fix="send `guided_grammar`"),
    Rule("vllm_xargs", _OLDER, _SAMPLER, these({})),
)  # fmt: skip

_PROMPTS = (
    Rule("truncate_prompt_tokens", (RESPONSES, EMBEDDINGS, *_RANKINGS), _CUTS,
         fix="shorten the prompt"),
    Rule("truncation", (RESPONSES,), "where the input fits; another is refused, never cut",
         these("auto", "disabled")),
    Rule("prompt_embeds", (COMPLETIONS,), "prompts are texts or tokens"),
    Rule("continue_final_message", (TOKENIZE,), "messages alone have a last one", these(False)),
    Rule("documents", (CHAT,), "documents are not shown to the model", these([]),
         fix="put them into a message"),
    Rule("chat_template", (CHAT, TOKENIZE, CLASSIFY), "the template is the server's",
         fix="serve the model with that template"),
    Rule("chat_template_content_format", (CHAT,), "the template is given texts",
         these("auto", "string")),
    Rule("mm_processor_kwargs", (*_CHATS, *_RANKINGS), _NO_MEDIA, these({})),
)  # fmt: skip

_ANSWER_FORMS = (
    Rule("echo", (CHAT,), _OUTPUT, these(False), fix="ask `/v1/completions`"),
    Rule("detokenize", _OLDER, "answers are text", these(True), fix="send it as true"),
    Rule("spaces_between_special_tokens", _OLDER, "tokens are joined as the tokenizer does it",
         these(True)),
    Rule("return_tokens_as_token_ids", _OLDER, _OUTPUT, these(False),
         fix="send `return_token_ids`"),
    Rule("return_hidden_states", _OLDER, _OUTPUT, these(False)),
    Rule("modalities", (CHAT,), _NO_MEDIA, these(["text"]), fix='send ["text"]'),
    Rule("audio", (CHAT,), _NO_MEDIA),
    Rule("stream_options.include_obfuscation", _OLDER, "no padding is added", these(False)),
    Rule("stream_options", (RESPONSES,), "no padding is added, and the end gives the usage",
         these({}, {"include_obfuscation": False}, {"include_usage": True},
               {"include_usage": False})),
    Rule("include[]", (RESPONSES,), "there are no items that would have it",
         these("web_search_call.action.sources", "web_search_call.results",
               "file_search_call.results", "code_interpreter_call.outputs",
               "computer_call_output.output.image_url", "message.input_image.image_url"),
         these("reasoning.encrypted_content"), acted=these(LOGPROBS)),
)  # fmt: skip

_SERVICES = (
    Rule("web_search_options", (CHAT,), _NO_SEARCH),
    Rule("moderation", _CHATS, "nothing is moderated"),
    Rule("max_tool_calls", (RESPONSES,), _NO_SEARCH, _WHOLE),
    Rule("tools[].defer_loading", (RESPONSES,), "the model is shown all tools", these(False)),
    Rule("tools[].async", (RESPONSES,), "calls are the client's to make", these(False)),
    Rule("tools[].allowed_callers", (RESPONSES,), _NO_SEARCH, these(["direct"])),
    Rule("background", (RESPONSES,), "answers are made while the client waits", these(False),
         fix="send it as false, and wait; or send a batch"),
    Rule("conversation", (RESPONSES,), "there are responses that are kept, no conversations",
         fix="send `previous_response_id`"),
    Rule("prompt", (RESPONSES,), "no prompts are kept", fix="send its text as `instructions`"),
    Rule("context_management", (RESPONSES,), _CUTS, these([]), fix="send fewer items"),
    Rule("kv_transfer_params", _OLDER, "caches are not handed over", these({})),
    Rule("lora_path", _OLDER, "an adapter is asked for by its name", fix="give it as `model`"),
)  # fmt: skip

_RANKING_FIELDS = (
    *_each("queries data_1", (SCORE,), "another name of `text_1`", alias="text_1"),
    *_each("documents data_2", (SCORE,), "another name of `text_2`", alias="text_2"),
    *_each("activation softmax", _JUDGED, "another name of `use_activation`",
           alias="use_activation"),
    *_each("activation use_activation softmax", (POOLING,), "see `normalize`", advice=_SWITCH),
    Rule("instruct", (SCORE, RERANK), "another name of `instruction`", alias="instruction"),
    *_each("max_tokens_per_doc max_chunks_per_doc", (RERANK,), "no document is cut",
           fix="shorten the documents"),
    Rule("rank_fields", (RERANK,), "documents are texts", these(["text"]), fix="send texts"),
    Rule("task", (POOLING,), "a text has one vector", these("embed"),
         fix="send it as embed"),
    Rule("messages", (POOLING,), "texts are embedded, not chats", fix="send `input`"),
    Rule("embed_dtype", (POOLING,), "vectors have one type", these("float32")),
    Rule("endianness", (POOLING,), "base64 is of little-endian numbers",
         these("native", "little")),
)  # fmt: skip

_SHOWN = (CHAT, TOKENIZE, CLASSIFY)
_NOTES = "cache_control provider_specific_fields extra_content"
_CHAT_PARTS = (
    Rule("messages[].reasoning", _SHOWN, "another name of `reasoning_content`",
         roles=("assistant",), alias="reasoning_content"),
    Rule("messages[].tool_calls", _SHOWN, "an empty list is none", these([])),
    *_each(_under("messages[]", f"{_NOTES} thinking_blocks reasoning_details parsed id created_at "
                  "timestamp model metadata additional_kwargs response_metadata"),
           _SHOWN, _PRIVATE, advice=ANYTHING),
    Rule("messages[].annotations", _SHOWN, _PRIVATE, these([]), _LIST),
    Rule("messages[].images", _SHOWN, _NO_MEDIA, these([])),
    Rule("messages[].audio", _SHOWN, _NO_MEDIA),
    *_each(_under("messages[]", "prefix partial"), _SHOWN, "it is said of the request",
           nothing=these(False), fix="send `continue_final_message`"),
    *_each(_under("messages[].content[]", f"{_NOTES} annotations citations "
                  "prompt_cache_breakpoint"), _SHOWN, _PRIVATE,
           advice=ANYTHING),
    Rule("messages[].tool_calls[].index", _SHOWN, "calls are in the order of the list", _WHOLE),
    *_each(_under("messages[].tool_calls[] messages[].tool_calls[].function "
                  "messages[].function_call", EVERY_NAME), _SHOWN, _PRIVATE, advice=ANYTHING),
    *_each(_under("tools[] tools[].function", _NOTES), (CHAT,), _PRIVATE, advice=ANYTHING),
)  # fmt: skip

_RESPONSES_PARTS = (
    *_each(_under("input[] tools[]", _NOTES), (RESPONSES,), _PRIVATE, advice=ANYTHING),
    Rule("input[].parsed_arguments", (RESPONSES,), _PRIVATE, advice=ANYTHING),
    Rule("input[].encrypted_content", (RESPONSES,), "nothing here is encrypted",
         fix="send reasoning as `content`, or leave the item out"),
    *_each(_under("input[].content[] input[].output[] input[].summary[]",
                  f"{_NOTES} annotations logprobs parsed prompt_cache_breakpoint"),
           (RESPONSES,), _PRIVATE, nothing=these([]), advice=ANYTHING),
)  # fmt: skip

TABLE: tuple[Rule, ...] = (
    *_HINTS,
    *_REASONING,
    *_SAMPLING,
    *_PROMPTS,
    *_ANSWER_FORMS,
    *_SERVICES,
    *_RANKING_FIELDS,
    *_CHAT_PARTS,
    *_RESPONSES_PARTS,
)


def rules_of(endpoint: str) -> tuple[Rule, ...]:
    """Return the rules for the bodies of one endpoint, by its path."""
    return tuple(rule for rule in TABLE if endpoint in rule.endpoints)
