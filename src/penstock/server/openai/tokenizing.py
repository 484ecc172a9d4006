"""``POST /tokenize`` and ``POST /detokenize``, with vLLM's fields, and llama-server's."""

from __future__ import annotations

import asyncio

import msgspec

from penstock.interface.token_ids import check_token_ids, first_bad_token
from penstock.server.engine import Engine
from penstock.server.errors import ApiError
from penstock.server.openai.functions import with_tools
from penstock.server.openai.messages import chat_prompt
from penstock.server.openai.protocol import ChatRequest, Message
from penstock.server.serving import Serving

MAX_DETOKENIZED = 1 << 20
"""Token ids in one request; each takes about two microseconds."""


class TokenizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A text or the messages of a chat; the result is the tokens of a completion or chat with the
    same prompt."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    """The default is that of completions and chats: true for a text, false for messages."""
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None

    # A text as llama-server has it.
    content: str | None = None
    add_special: bool | None = None
    """``add_special_tokens`` for ``content``; the default is false."""
    parse_special: bool | None = None
    """Whether names of special tokens in ``content`` are these tokens; the default is true."""
    with_pieces: bool | None = None
    """Whether each token of ``content`` comes with its text."""


class TokenPiece(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    piece: str | list[int]
    """The token's text, or its bytes where these are no text."""


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int | TokenPiece]
    token_strs: list[str] | None = None
    """Text of each token by itself, with U+FFFD for incomplete characters."""


class DetokenizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool | None = None
    """The default is false: the text of every token is returned."""


class Text(msgspec.Struct, frozen=True):
    """A text, by the names that vLLM and llama-server have for it."""

    prompt: str
    content: str


async def tokenized(request: TokenizeRequest, serving: Serving) -> Tokens:
    """Raises ApiError or RequestError naming the field at fault."""
    engine, tenant = serving.engine, serving.caller.name
    if request.content is not None:
        return await _of_content(request, request.content, serving)
    for name in _OF_CONTENT:
        if getattr(request, name) is not None:
            raise ApiError(400, f"{name} is only allowed with content", param=name)
    if (request.prompt is None) == (request.messages is None):
        raise ApiError(400, "give either prompt or messages", param="prompt")
    if request.messages is None:
        for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
            if getattr(request, name) is not None:
                raise ApiError(400, f"{name} is only allowed with messages", param=name)
        assert request.prompt is not None
        add_special = request.add_special_tokens is not False
        (tokens,) = await engine.inputs.encode(
            [request.prompt], params=["prompt"], add_special_tokens=add_special, tenant=tenant
        )
    else:
        chat = ChatRequest(
            model=engine.model.served_model_name,
            messages=request.messages,
            add_special_tokens=request.add_special_tokens,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            chat_template_kwargs=request.chat_template_kwargs,
        )
        tokens = await chat_prompt(with_tools(chat), engine, serving.styles, tenant=tenant)
    texts = None
    if request.return_token_strs:
        texts = await asyncio.to_thread(lambda: list(map(engine.tokenizer.token_text, tokens)))
    return Tokens(
        count=len(tokens),
        max_model_len=engine.model.lengths.max_model_len,
        tokens=list(tokens),
        token_strs=texts,
    )


_OF_CONTENT = ("add_special", "parse_special", "with_pieces")


async def _of_content(request: TokenizeRequest, content: str, serving: Serving) -> Tokens:
    engine = serving.engine
    for field in msgspec.structs.fields(request):
        name = field.name
        if name not in ("model", "content", *_OF_CONTENT) and getattr(request, name) is not None:
            raise ApiError(400, f"{name} is not allowed with content", param=name)
    (tokens,) = await engine.inputs.encode(
        [content],
        params=["content"],
        add_special_tokens=request.add_special is True,
        parse_special=request.parse_special is not False,
        tenant=serving.caller.name,
    )
    told: list[int | TokenPiece] = list(tokens)
    if request.with_pieces:
        pieces = engine.tokenizer.pieces
        told = await asyncio.to_thread(
            lambda: [TokenPiece(id=token, piece=_piece(pieces[token])) for token in tokens]
        )
    max_model_len = engine.model.lengths.max_model_len
    return Tokens(count=len(tokens), max_model_len=max_model_len, tokens=told)


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenized(request: DetokenizeRequest, engine: Engine) -> Text:
    """Raises ApiError naming the token that the model does not have."""
    vocab = engine.model.vocab_size
    if len(request.tokens) > MAX_DETOKENIZED:
        raise ApiError(
            400,
            f"tokens holds {len(request.tokens)} ids, and at most {MAX_DETOKENIZED} are taken at "
            "once; send them in several requests",
            param="tokens",
        )
    bad = first_bad_token(request.tokens, vocab)
    if bad is not None:
        check_token_ids(request.tokens[bad : bad + 1], vocab, f"tokens[{bad}]")
    skip = request.skip_special_tokens is True
    text = await asyncio.to_thread(engine.tokenizer.decode, request.tokens, skip)
    return Text(text, text)
