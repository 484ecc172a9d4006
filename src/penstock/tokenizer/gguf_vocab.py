"""A GGUF file's vocabulary as a ``tokenizers`` tokenizer that gives llama.cpp's token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer

from penstock.errors import TokenizerError
from penstock.gguf.metadata import GgufValue
from penstock.gguf.special_tokens import END_FIELDS, Kind, SpecialTokens
from penstock.tokenizer.gguf_byte_pairs import byte_pairs
from penstock.tokenizer.gguf_fields import Fields
from penstock.tokenizer.gguf_pre_tokenizers import pre_tokenizer
from penstock.tokenizer.gguf_sentencepiece import sentencepiece
from penstock.tokenizer.native_errors import refusing

_MAX_TOKEN_CHARS = 1 << 16
"""Maximum length of a token. The longest of known vocabularies have some hundred characters."""
_MAX_SPECIAL = 1 << 16
"""Maximum number of tokens that texts are searched for. Gemma has six thousand, and each takes some
20 us when the vocabulary is made."""


@dataclass(frozen=True)
class GgufVocab:
    """A vocabulary and the settings that come with it."""

    backend: Tokenizer
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


def build_vocab(metadata: dict[str, GgufValue]) -> GgufVocab:
    """Build the tokenizer that ``tokenizer.ggml.*`` describes. Raises TokenizerError."""
    fields = Fields(metadata)
    model = fields.scalar("model", str, "")
    tokens = _tokens(fields)
    count = len(tokens)
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != count:
        twice = next(token for i, token in enumerate(tokens) if vocab[token] != i)
        raise TokenizerError(f"tokenizer.ggml.tokens holds {twice!r:.100} twice")
    kinds = fields.array("token_type", int, count) or [int(Kind.NORMAL)] * count
    roles = _roles(fields, model, count)
    unknown, eos, bos = roles.get("unk_token"), roles.get("eos_token"), roles.get("bos_token")
    ends = [fields.token_id(name, count) for name in END_FIELDS]
    special = SpecialTokens.read(tokens, kinds, eos, (i for i in ends if i is not None))
    _check(special)
    if model == "llama":
        scores = fields.array("scores", float, count)
        if not scores:
            raise TokenizerError(
                "the GGUF file has no tokenizer.ggml.scores, which model llama needs"
            )
        prefix = _around(fields, "bos", bos, True)
        backend = sentencepiece(
            vocab,
            scores,
            kinds,
            unknown=None if unknown is None else tokens[unknown],
            space_prefix=fields.scalar("add_space_prefix", bool, True),
        )
    elif model in ("gpt2", "gemma4"):
        pre = pre_tokenizer("gemma4" if model == "gemma4" else fields.scalar("pre", str, ""))
        prefix = _around(fields, "bos", bos, pre.add_bos, pre.needs_bos)
        if not fields.has("merges"):
            raise TokenizerError(
                "the GGUF file has no tokenizer.ggml.merges, without which no text can be cut into "
                "its tokens; convert the model again, or name a folder with tokenizer.json by "
                "--tokenizer"
            )
        backend = byte_pairs(vocab, fields.array("merges", str), pre)
    else:
        raise TokenizerError(
            f"tokenizer.ggml.model is {model!r:.100}; Penstock reads 'llama' (SentencePiece), "
            "'gpt2' and 'gemma4' (byte pairs). Name a folder with the tokenizer.json of the "
            "original checkpoint by --tokenizer"
        )
    stripping = "phi-3" in _name(metadata) or "phi3" in _name(metadata)
    _add(backend, _added(special, tokens, stripping))
    return GgufVocab(
        backend,
        bos_token_id=bos,
        end_token_ids=special.ends,
        silent_ids=special.silent,
        prefix_ids=prefix,
        suffix_ids=_around(fields, "eos", eos, False),
        special_tokens={role: tokens[token] for role, token in roles.items()},
    )


def _tokens(fields: Fields) -> list[str]:
    tokens = fields.array("tokens", str)
    if not tokens:
        raise TokenizerError(
            "the GGUF file has no tokenizer.ggml.tokens; convert the model again with its "
            "vocabulary, or name a folder with tokenizer.json by --tokenizer"
        )
    longest = max(map(len, tokens))
    if longest > _MAX_TOKEN_CHARS:
        raise TokenizerError(
            f"tokenizer.ggml.tokens holds one of {longest} characters, and a token has at most "
            f"{_MAX_TOKEN_CHARS}; download or convert the file again"
        )
    if "" not in tokens:
        return tokens
    return [token or f"[EMPTY_{token_id}]" for token_id, token in enumerate(tokens)]


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


def _name(metadata: dict[str, GgufValue]) -> str:
    name = metadata.get("general.name")
    return name.lower() if isinstance(name, str) else ""


def _added(special: SpecialTokens, tokens: Sequence[str], stripping: bool) -> list[AddedToken]:
    """``stripping`` control tokens take the white space that follows them, as Phi-3's do."""
    keeping = ("<unk>", "<s>", "<|endoftext|>")
    return [
        AddedToken(
            tokens[token],
            special=is_special,
            normalized=False,
            rstrip=stripping and tokens[token] not in keeping,
        )
        for is_special, ids in ((True, special.control), (False, special.user_defined))
        for token in ids
    ]


def _add(backend: Tokenizer, added: Sequence[AddedToken]) -> None:
    with refusing("the GGUF file's tokenizer.ggml.tokens cannot be used"):
        backend.add_special_tokens([token for token in added if token.special])
        backend.add_tokens([token for token in added if not token.special])
