"""A GGUF file's vocabulary as a codec that gives llama.cpp's token ids.

Native code makes it where there is such. Else, and where native code refuses what is in the file,
the ``tokenizers`` library does, with the same ids for every text; it says what it refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer

from penstock.errors import TokenizerError
from penstock.gguf.arrays import Numbers, Strings
from penstock.gguf.metadata import GgufValue
from penstock.gguf.special_tokens import END_FIELDS, Kind, SpecialTokens
from penstock.tokenizer.codec import Codec, LibraryCodec
from penstock.tokenizer.gguf_byte_pairs import byte_pairs
from penstock.tokenizer.gguf_fields import Fields
from penstock.tokenizer.gguf_pre_tokenizers import PreTokenizer, pre_tokenizer
from penstock.tokenizer.gguf_sentencepiece import piece_ranks, sentencepiece
from penstock.tokenizer.native_codec import NativeCodec
from penstock.tokenizer.native_errors import refusing

_MAX_TOKEN_CHARS = 1 << 16
"""Maximum length of a token. The longest of known vocabularies have some hundred characters."""
_MAX_SPECIAL = 1 << 16
"""Maximum number of tokens that texts are searched for. Gemma has six thousand, and each takes some
20 us when the vocabulary is made."""


@dataclass(frozen=True)
class GgufVocab:
    """A vocabulary and the settings that come with it."""

    codec: Codec
    bos_token_id: int | None
    end_token_ids: tuple[int, ...]
    """Tokens that end a generation: the EOS token first."""
    silent_ids: frozenset[int]
    """Tokens that have a name but no text."""
    prefix_ids: tuple[int, ...]
    """What a text that is encoded with special tokens begins with."""
    suffix_ids: tuple[int, ...]
    special_tokens: dict[str, str]
    """Special tokens by role, as chat templates know them: ``bos_token``, ..."""


def build_vocab(metadata: Mapping[str, GgufValue], native: bool = True) -> GgufVocab:
    """Build the tokenizer that ``tokenizer.ggml.*`` describes. Raises TokenizerError.

    Without ``native`` the library makes it; native code is compared with it.
    """
    fields = Fields(metadata)
    model = fields.scalar("model", str, "")
    tokens = _tokens(fields)
    count = len(tokens)
    kinds = fields.numbers("token_type", int, count, Kind.NORMAL)
    roles = _roles(fields, model, count)
    eos, bos = roles.get("eos_token"), roles.get("bos_token")
    ends = [fields.token_id(name, count) for name in END_FIELDS]
    special = SpecialTokens.read(tokens, Numbers(kinds), eos, (i for i in ends if i is not None))
    _check(special)
    stripping = "phi-3" in _name(metadata) or "phi3" in _name(metadata)
    added = _added(special, tokens, stripping)
    if model == "llama":
        prefix = _around(fields, "bos", bos, True)
        codec = _sentencepiece(fields, tokens, kinds, roles.get("unk_token"), added, native)
    elif model in ("gpt2", "gemma4"):
        pre = pre_tokenizer("gemma4" if model == "gemma4" else fields.scalar("pre", str, ""))
        prefix = _around(fields, "bos", bos, pre.add_bos, pre.needs_bos)
        codec = _byte_pairs(fields, tokens, pre, added, native)
    else:
        raise TokenizerError(
            f"tokenizer.ggml.model is {model!r:.100}; Penstock reads 'llama' (SentencePiece), "
            "'gpt2' and 'gemma4' (byte pairs). Name a folder with the tokenizer.json of the "
            "original checkpoint by --tokenizer"
        )
    return GgufVocab(
        codec,
        bos_token_id=bos,
        end_token_ids=special.ends,
        silent_ids=special.silent,
        prefix_ids=prefix,
        suffix_ids=_around(fields, "eos", eos, False),
        special_tokens={role: tokens[token] for role, token in roles.items()},
    )


def _sentencepiece(
    fields: Fields,
    tokens: Strings,
    kinds: NDArray[Any],
    unknown: int | None,
    added: Sequence[AddedToken],
    native: bool,
) -> Codec:
    if not fields.has("scores"):
        raise TokenizerError("the GGUF file has no tokenizer.ggml.scores, which model llama needs")
    scores = fields.numbers("scores", float, len(tokens), 0.0)
    ranks = piece_ranks(tokens, scores, kinds)
    space_prefix = fields.scalar("add_space_prefix", bool, True)
    if native:
        codec = NativeCodec.by_rank(tokens, ranks, unknown, space_prefix, added)
        if codec is not None:
            return codec
    name = None if unknown is None else tokens[unknown]
    library = sentencepiece(_distinct(tokens), ranks, name, space_prefix)
    _add(library, added)
    return LibraryCodec(library)


def _byte_pairs(
    fields: Fields,
    tokens: Strings,
    pre: PreTokenizer,
    added: Sequence[AddedToken],
    native: bool,
) -> Codec:
    if not fields.has("merges"):
        raise TokenizerError(
            "the GGUF file has no tokenizer.ggml.merges, without which no text can be cut into "
            "its tokens; convert the model again, or name a folder with tokenizer.json by "
            "--tokenizer"
        )
    merges = fields.strings("merges")
    if native:
        codec = NativeCodec.by_merges(tokens, merges, pre, added)
        if codec is not None:
            return codec
    library = byte_pairs(_distinct(tokens), merges, pre)
    _add(library, added)
    return LibraryCodec(library)


def _distinct(tokens: Strings) -> dict[str, int]:
    """The tokens by their text. Raises TokenizerError if two have the same."""
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        twice = next(token for i, token in enumerate(tokens) if vocab[token] != i)
        raise TokenizerError(f"tokenizer.ggml.tokens holds {twice!r:.100} twice")
    return vocab


def _tokens(fields: Fields) -> Strings:
    tokens = fields.strings("tokens")
    if not tokens:
        raise TokenizerError(
            "the GGUF file has no tokenizer.ggml.tokens; convert the model again with its "
            "vocabulary, or name a folder with tokenizer.json by --tokenizer"
        )
    sizes = tokens.sizes
    if sizes.max() > _MAX_TOKEN_CHARS and (longest := tokens.lengths.max()) > _MAX_TOKEN_CHARS:
        raise TokenizerError(
            f"tokenizer.ggml.tokens holds one of {longest} characters, and a token has at most "
            f"{_MAX_TOKEN_CHARS}; download or convert the file again"
        )
    if sizes.all():
        return tokens
    return Strings.of(token or f"[EMPTY_{token_id}]" for token_id, token in enumerate(tokens))


def _roles(fields: Fields, model: str, count: int) -> dict[str, int]:
    """The special tokens by role. SentencePiece's own ids hold where a file of it names none."""
    usual = {"bos": 1, "eos": 2, "unknown": 0} if model == "llama" else {}
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding"}
    roles = {}
    for role, name in {**names, "mask": "mask"}.items():
        token = fields.token_id(f"{name}_token_id", count)
        if token is None and not fields.has(f"{name}_token_id"):
            token = usual.get(name)
        if token is not None and token < count:
            roles[f"{role}_token"] = token
    return roles


def _check(special: SpecialTokens) -> None:
    count = len(special.control) + len(special.user_defined)
    if count > _MAX_SPECIAL:
        raise TokenizerError(
            f"tokenizer.ggml.token_type calls {count} tokens control, unknown or user defined "
            f"ones, and {_MAX_SPECIAL} may be; download or convert the file again"
        )


def _around(
    fields: Fields, role: str, token: int | None, usual: bool, always: bool = False
) -> tuple[int, ...]:
    if not fields.scalar(f"add_{role}_token", bool, usual) and not always:
        return ()
    if token is not None:
        return (token,)
    if fields.has(f"add_{role}_token"):
        raise TokenizerError(
            f"tokenizer.ggml.add_{role}_token is true, and the GGUF file has no "
            f"tokenizer.ggml.{role}_token_id"
        )
    return ()


def _name(metadata: Mapping[str, GgufValue]) -> str:
    name = metadata.get("general.name")
    return name.lower() if isinstance(name, str) else ""


def _added(special: SpecialTokens, tokens: Strings, stripping: bool) -> list[AddedToken]:
    """``stripping`` control tokens take the white space that follows them, as Phi-3's do."""
    keeping = ("<unk>", "<s>", "<|endoftext|>")
    return [
        AddedToken(
            token,
            special=is_special,
            normalized=False,
            rstrip=stripping and token not in keeping,
        )
        for is_special, ids in ((True, special.control), (False, special.user_defined))
        for token in tokens.take(ids)
    ]


def _add(backend: Tokenizer, added: Sequence[AddedToken]) -> None:
    """Add what texts are searched for to the library's tokenizer."""
    with refusing("the GGUF file's tokenizer.ggml.tokens cannot be used"):
        backend.add_special_tokens([token for token in added if token.special])
        backend.add_tokens([token for token in added if not token.special])
