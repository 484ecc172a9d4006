"""Text to token ids and back."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.errors import ContextLengthError, RequestError, TokenizerError, as_error
from penstock.tokenizer.codec import Codec
from penstock.tokenizer.detokenizer import IncrementalDetokenizer
from penstock.tokenizer.length_bound import LengthBound
from penstock.tokenizer.pieces import Pieces
from penstock.vllm_names import OF_TOKENIZER, no_attribute

if TYPE_CHECKING:
    from penstock.tokenizer.chat import ChatTemplate, Message


@dataclass(frozen=True)
class TokenizerSettings:
    """What a checkpoint says about its tokenizer besides the vocabulary."""

    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Token ids that end generation: the tokenizer's own end token first, then the others."""
    prefix_ids: tuple[int, ...] = ()
    """Token ids put before a text that is encoded with special tokens (usually the BOS token)."""
    suffix_ids: tuple[int, ...] = ()
    between_ids: tuple[int, ...] = ()
    """Token ids put between two texts that are encoded as a pair."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """Special tokens by role (``bos_token``, ``eos_token``, ``unk_token``, ...), for chat
    templates."""
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    """Chat template sources by name: ``default`` and perhaps ``tool_use``."""
    silent_ids: frozenset[int] = frozenset()
    """Token ids whose entries in the vocabulary are names, not text: they stand for none."""


class Tokenizer:
    """A checkpoint's tokenizer. Made by :func:`~penstock.tokenizer.load.load_tokenizer`.

    Immutable, so safe to share between threads.
    """

    def __init__(self, codec: Codec, settings: TokenizerSettings) -> None:
        self.settings = settings
        self.pieces = Pieces(codec, settings.silent_ids)
        self.special_ids = frozenset(i for i, token in codec.added.items() if token.special)
        self._codec = codec
        self._templates: dict[str, ChatTemplate] = {}

    def with_chat_template(self, source: str) -> Tokenizer:
        """The same tokenizer, whose one chat template is ``source``. Raises TokenizerError."""
        other = copy.copy(self)  # shares the codec
        other.settings = replace(self.settings, chat_templates={"default": source})
        other._templates = {}
        other.check_templates()
        return other

    def check_templates(self) -> None:
        """Raise TokenizerError if there is a chat template that cannot be compiled."""
        for name in self.settings.chat_templates:
            self._template(name)

    @property
    def codec(self) -> Codec:
        """The vocabulary, and what cuts texts into its tokens."""
        return self._codec

    @property
    def bos_token_id(self) -> int | None:
        return self.settings.bos_token_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.settings.eos_token_ids

    @property
    def eos_token_id(self) -> int | None:
        """The first of :attr:`eos_token_ids`."""
        return self.settings.eos_token_ids[0] if self.settings.eos_token_ids else None

    @property
    def eos_token(self) -> str | None:
        """The name of :attr:`eos_token_id`."""
        return None if self.eos_token_id is None else self.token_text(self.eos_token_id)

    def __len__(self) -> int:
        return self.vocab_size

    if not TYPE_CHECKING:  # or every name would be one of a tokenizer's

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("Penstock's tokenizer", name, OF_TOKENIZER)

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id. A model may have more logits than this."""
        return self._codec.size

    def check_model(self, vocab_size: int) -> None:
        """Raise TokenizerError if this cannot be the tokenizer of a model of ``vocab_size`` tokens.

        Tokens that were added to a vocabulary may lie beyond the model's: checkpoints name marks of
        images there that never reach the language model.
        """
        if self.vocab_size <= vocab_size:
            return
        size = self._codec.size_without(self._codec.added)
        if size > vocab_size:
            raise TokenizerError(
                f"the tokenizer has {size} tokens, and the model {vocab_size}: it is "
                "another model's; name the model's own by --tokenizer, or leave that out"
            )

    @property
    def has_chat_template(self) -> bool:
        return bool(self.settings.chat_templates)

    @cached_property
    def length_bound(self) -> LengthBound | None:
        """The most bytes that a token can hold; None if that is not certain.

        Found out when first asked for: some 0.1 s for a vocabulary of 150,000.
        """
        return self._codec.length_bound()

    def check_length(self, text: str, max_tokens: int, param: str = "prompt") -> None:
        """Raise ContextLengthError if ``text`` has more than ``max_tokens`` tokens for certain.

        Takes no time worth mentioning, whatever the text's length; a text that passes may have
        more nevertheless. ``param`` is the field at fault.
        """
        if len(text) <= max_tokens or self.length_bound is None:  # short
            return
        if not self.length_bound.fits(text, max_tokens):
            raise ContextLengthError(
                f"{param} has {len(text)} characters, and a prompt may have {max_tokens} tokens "
                f"(max_model_len, max_input_len) of {self.length_bound.longest} bytes at most: it "
                "cannot fit; shorten it",
                param,
            )

    def encode(
        self, text: str, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """The token ids of ``text``.

        ``add_special_tokens`` surrounds them with what the checkpoint asks for (BOS, EOS).
        With ``parse_special=False`` a special token's name in ``text`` is ordinary text, so that
        text from outside cannot end a turn. Raises RequestError if ``text`` is not Unicode text
        (lone surrogates), or if the tokenizer fails on it.
        """
        check_unicode(text)
        with as_error(
            lambda cause: RequestError(
                f"the text cannot be tokenized: {cause}; it may hold a very long run of "
                "characters of one kind",
                "prompt",
            )
        ):
            (ids,) = self._codec.encode([text], parse_special)
        if add_special_tokens:
            return [*self.settings.prefix_ids, *ids, *self.settings.suffix_ids]
        return ids

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence of tokens: what a detokenizer gives, all at once."""
        detokenizer = self.detokenizer(skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.flush()

    def detokenizer(
        self, skip_special_tokens: bool = True, prompt_token_ids: Sequence[int] = ()
    ) -> IncrementalDetokenizer:
        """A detokenizer for the tokens that follow ``prompt_token_ids``."""
        skip = self.special_ids if skip_special_tokens else frozenset()
        return IncrementalDetokenizer(self.pieces, skip, prompt_token_ids)

    def token_text(self, token_id: int) -> str:
        """One token on its own, as log-probabilities name it; U+FFFD for parts of characters."""
        return self.pieces[token_id].decode(errors="replace")

    def token_id(self, token: str) -> int | None:
        """The id of a vocabulary entry, spelled as in the vocabulary."""
        return self._codec.token_id(token)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        documents: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenize: bool = False,
    ) -> str:
        """The prompt for a conversation, to be encoded with ``add_special_tokens=False``.

        It is text; ``tokenize``, which transformers' users know, may only be False.

        The options are those of :meth:`~penstock.tokenizer.chat.ChatTemplate.render`. A
        checkpoint's ``tool_use`` template, if it has one, serves requests with tools. Raises
        RequestError if there is no template, or with the template's own message.
        """
        if tokenize:
            raise RequestError(
                "apply_chat_template gives text: encode it with add_special_tokens=False",
                "tokenize",
            )
        known = self.settings.chat_templates
        template = self._template("tool_use" if tools and "tool_use" in known else "default")
        if template is None:
            raise RequestError(
                "this model has no chat template: name a file with one by --chat-template FILE "
                "(in Python, chat_template=Path(FILE)); plain completions need none",
                "messages",
            )
        return template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            documents=documents,
            continue_final_message=continue_final_message,
            chat_template_kwargs=chat_template_kwargs,
        )

    def _template(self, name: str) -> ChatTemplate | None:
        source = self.settings.chat_templates.get(name)
        if source is None:
            return None
        if name not in self._templates:
            from penstock.tokenizer.chat import ChatTemplate  # imports Jinja

            self._templates[name] = ChatTemplate(source, self.settings.special_tokens)
        return self._templates[name]


def check_unicode(text: str) -> None:
    """Raise RequestError for a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text has a lone surrogate (U+{ord(text[error.start]):04X}) at character "
            f"{error.start}, which is not Unicode text; send valid UTF-8",
            "prompt",
        ) from error
