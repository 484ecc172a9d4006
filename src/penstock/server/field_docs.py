"""The tables of ``docs/clients.md``.

``python -m penstock.server.field_docs`` prints them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from penstock.server.anthropic.field_table import TABLE as ANTHROPIC
from penstock.server.anthropic.field_table import rules_of as anthropic_rules
from penstock.server.anthropic.paths import COUNT, MESSAGES
from penstock.server.anthropic.protocol import CountRequest, MessageRequest
from penstock.server.fields.rules import ANYTHING, Rule, Values
from penstock.server.kserve import paths as kserve
from penstock.server.kserve.field_table import TABLE as KSERVE
from penstock.server.kserve.field_table import rules_of as kserve_rules
from penstock.server.kserve.protocol import InferRequest, TextRequest
from penstock.server.llama import paths as llama
from penstock.server.llama.field_table import TABLE as LLAMA
from penstock.server.llama.field_table import rules_of as llama_rules
from penstock.server.llama.protocol import InfillRequest, LlamaRequest, TemplateRequest
from penstock.server.ollama import paths as ollama
from penstock.server.ollama.field_table import TABLE as OLLAMA
from penstock.server.ollama.field_table import rules_of as ollama_rules
from penstock.server.ollama.models import ShowRequest
from penstock.server.ollama.protocol import (
    EmbedRequest,
    GenerateRequest,
    OldEmbedRequest,
    OllamaChatRequest,
)
from penstock.server.openai.embeddings import EmbeddingRequest
from penstock.server.openai.field_table import TABLE as OPENAI
from penstock.server.openai.field_table import rules_of as openai_rules
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
from penstock.server.openai.protocol import ChatRequest, CompletionRequest
from penstock.server.openai.ranking.protocol import (
    ClassifyRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from penstock.server.openai.responses.protocol import ResponseRequest
from penstock.server.openai.tokenizing import TokenizeRequest
from penstock.server.tgi import paths as tgi
from penstock.server.tgi.field_table import TABLE as TGI
from penstock.server.tgi.field_table import rules_of as tgi_rules
from penstock.server.tgi.protocol import TgiGenerateRequest, TgiRequest, TgiStreamRequest

BODIES: tuple[tuple[str, type[msgspec.Struct], tuple[Rule, ...]], ...] = (
    (COMPLETIONS, CompletionRequest, openai_rules(COMPLETIONS)),
    (CHAT, ChatRequest, openai_rules(CHAT)),
    (RESPONSES, ResponseRequest, openai_rules(RESPONSES)),
    (EMBEDDINGS, EmbeddingRequest, openai_rules(EMBEDDINGS)),
    (TOKENIZE, TokenizeRequest, openai_rules(TOKENIZE)),
    (CLASSIFY, ClassifyRequest, openai_rules(CLASSIFY)),
    (SCORE, ScoreRequest, openai_rules(SCORE)),
    (RERANK, RerankRequest, openai_rules(RERANK)),
    (POOLING, PoolingRequest, openai_rules(POOLING)),
    (MESSAGES, MessageRequest, anthropic_rules(MESSAGES)),
    (COUNT, CountRequest, anthropic_rules(COUNT)),
    (ollama.GENERATE, GenerateRequest, ollama_rules(ollama.GENERATE)),
    (ollama.CHAT, OllamaChatRequest, ollama_rules(ollama.CHAT)),
    (ollama.EMBED, EmbedRequest, ollama_rules(ollama.EMBED)),
    (ollama.OLD_EMBED, OldEmbedRequest, ollama_rules(ollama.OLD_EMBED)),
    (ollama.SHOW, ShowRequest, ollama_rules(ollama.SHOW)),
    (kserve.GENERATE, TextRequest, kserve_rules(kserve.GENERATE)),
    (kserve.GENERATE_STREAM, TextRequest, kserve_rules(kserve.GENERATE_STREAM)),
    (kserve.INFER, InferRequest, kserve_rules(kserve.INFER)),
    (llama.COMPLETION, LlamaRequest, llama_rules(llama.COMPLETION)),
    (llama.COMPLETIONS, LlamaRequest, llama_rules(llama.COMPLETIONS)),
    (llama.INFILL, InfillRequest, llama_rules(llama.INFILL)),
    (llama.TEMPLATE, TemplateRequest, llama_rules(llama.TEMPLATE)),
    (tgi.GENERATE, TgiGenerateRequest, tgi_rules(tgi.GENERATE)),
    (tgi.STREAM, TgiStreamRequest, tgi_rules(tgi.STREAM)),
    (tgi.EITHER, TgiRequest, tgi_rules(tgi.EITHER)),
)
"""The endpoints, the structs of their bodies, and the rules for what these have not."""

TABLE: tuple[Rule, ...] = (*OPENAI, *ANTHROPIC, *OLLAMA, *KSERVE, *LLAMA, *TGI)


def markdown() -> str:
    """Return both tables: the fields that each endpoint acts on, and how it treats the others."""
    return "\n".join([*_acted_on(), "", *_others(TABLE)]) + "\n"


def _acted_on() -> Iterator[str]:
    yield "| endpoint | fields that are acted on |"
    yield "|---|---|"
    for path, body, _ in BODIES:
        names = [f"`{field.encode_name}`" for field in msgspec.structs.fields(body)]
        yield f"| `{path.replace(':path}', '}')}` | {', '.join(names)} |"


def _others(rules: Iterable[Rule]) -> Iterator[str]:
    yield "| field | endpoints | changes nothing | only advises | other values | why |"
    yield "|---|---|---|---|---|---|"
    rows: dict[tuple[str, ...], list[str]] = {}
    for rule in rules:
        cells = _cells(rule)
        rows.setdefault(cells, []).append(f"`{rule.field}`")
    for cells, fields in rows.items():
        yield f"| {', '.join(fields)} | {' | '.join(cells)} |"


def _cells(rule: Rule) -> tuple[str, ...]:
    """Return the columns of a rule's row after its field."""
    endpoints = ", ".join(_SHORT[path] for path in rule.endpoints)
    advice = _code(rule.advice)
    if rule.wish:
        advice += "; followed where the chat template reads it"
    if rule.alias:
        other = f"taken as `{rule.alias}`"
    elif ANYTHING in (rule.nothing, rule.advice):
        other = ""
    else:
        other = f"refused: {rule.fix}"
    if rule.field in _IN_PART:
        other = "acted on, or refused"
    return endpoints, _code(rule.nothing), advice, other, rule.why


def _code(values: Values) -> str:
    """The listed values as code, the types in words."""
    return ", ".join(f"`{text}`" if not text.startswith("any") else text for text in values.texts())


_IN_PART = ("include[]", "messages[].tool_calls")
"""Fields of which the table has some values, and the structs the others."""
_SHORT = {
    COMPLETIONS: "completions",
    CHAT: "chat",
    RESPONSES: "responses",
    EMBEDDINGS: "embeddings",
    TOKENIZE: "tokenize",
    CLASSIFY: "classify",
    SCORE: "score",
    RERANK: "rerank",
    POOLING: "pooling",
    MESSAGES: "messages",
    COUNT: "count_tokens",
    ollama.GENERATE: "generate",
    ollama.CHAT: "Ollama's chat",
    ollama.EMBED: "embed",
    ollama.OLD_EMBED: "Ollama's embeddings",
    ollama.SHOW: "show",
    kserve.GENERATE: "KServe's generate",
    kserve.GENERATE_STREAM: "generate_stream",
    kserve.INFER: "infer",
    llama.COMPLETION: "llama-server's completion",
    llama.COMPLETIONS: "its completions",
    llama.INFILL: "infill",
    llama.TEMPLATE: "apply-template",
    tgi.GENERATE: "TGI's generate",
    tgi.STREAM: "TGI's generate_stream",
    tgi.EITHER: "TGI's root",
}

if __name__ == "__main__":
    print(markdown(), end="")
