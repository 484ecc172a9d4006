"""A tokenizer.json as the vocabulary of a GGUF file: the other direction of ``gguf_vocab.py``.

What is written is read again and compared: every token's text, and texts of all kinds, must become
the same ids as before. A tokenizer of which that is not true is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer as Backend

from penstock.errors import TokenizerError
from penstock.gguf.arrays import Numbers
from penstock.gguf.metadata import GgufValue
from penstock.gguf.special_tokens import Kind, SpecialTokens
from penstock.gguf.writing import NewValue
from penstock.tokenizer.codec import LibraryCodec
from penstock.tokenizer.gguf_byte_pairs import SPACE
from penstock.tokenizer.gguf_pre_tokenizer_choice import chosen_pre_tokenizer, probe_texts
from penstock.tokenizer.gguf_pre_tokenizers import PreTokenizer
from penstock.tokenizer.gguf_scores import scores_of
from penstock.tokenizer.gguf_vocab import build_vocab
from penstock.tokenizer.sentencepiece_model import SentencePieceModel
from penstock.tokenizer.tokenizer import Tokenizer

_ROLES: Final = {
    "unk_token": "unknown",
    "pad_token": "padding",
    "sep_token": "seperator",
    "mask_token": "mask",
}
"""Special tokens by role, and what keys call them, GGUF's own spelling included."""
_ANOTHER: Final = "serve the folder itself, whose tokenizer Penstock runs as it is"
_NORMALIZERS: Final = frozenset({"Replace", "Prepend"})
_UNICODE: Final = frozenset({"NFC", "NFKC", "NFD", "NFKD"})


@dataclass(frozen=True)
class WrittenVocab:
    """``tokenizer.*`` of a file, by whole keys."""

    values: Mapping[str, NewValue]
    notes: tuple[str, ...]
    """What the file cannot say, and what follows."""


def written_vocab(
    tokenizer: Tokenizer,
    rows: int,
    ends: Sequence[int],
    where: str,
    pieces: SentencePieceModel | None = None,
) -> WrittenVocab:
    """The vocabulary of a model whose embedding has so many ``rows``, and whose texts the tokens
    ``ends`` end, the EOS token first.

    ``pieces`` is the ``tokenizer.model`` of the checkpoint, if it has one: scores and kinds are
    those that stand there, if its pieces are the tokenizer's. Raises TokenizerError, naming
    ``where``, for tokenizers that files cannot hold.
    """
    return _Writer(tokenizer, rows, ends, where, pieces).write()


class _Writer:
    def __init__(
        self,
        tokenizer: Tokenizer,
        rows: int,
        ends: Sequence[int],
        where: str,
        pieces: SentencePieceModel | None,
    ) -> None:
        self._settings, self._rows, self._where = tokenizer.settings, rows, where
        self._ends = tuple(ends)
        codec = tokenizer.codec
        if not isinstance(codec, LibraryCodec):
            raise self._refused("it is not one of a tokenizer.json")
        self._codec, self._backend = codec, codec.library
        self._json: dict[str, Any] = json.loads(self._backend.to_str())
        self._model: dict[str, Any] = self._json["model"]
        self._steps = _flat(self._json.get("pre_tokenizer"), "pretokenizers")
        self._true = pieces if pieces is not None and self._is_made_of(pieces) else None
        self._notes: list[str] = []

    def write(self) -> WrittenVocab:
        if self._model.get("type") != "BPE":
            raise self._refused(
                f"its model is {self._model.get('type')!r}, and files hold BPE alone"
            )
        for name in ("continuing_subword_prefix", "end_of_word_suffix"):
            if self._model.get(name):
                raise self._refused(f"it has a {name}")
        tokens, kinds = self._tokens()
        bytes_spelled = any(step["type"] == "ByteLevel" for step in self._steps)
        values = self._byte_pairs() if bytes_spelled else self._pieces(tokens, kinds)
        values["tokens"] = tokens
        values["token_type"] = np.array(kinds, np.int32)
        values |= self._special(tokens, kinds)
        whole = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
        self._compare(whole)
        return WrittenVocab(whole | self._templates(), tuple(self._notes))

    def _tokens(self) -> tuple[list[str], list[int]]:
        """All tokens and their kinds; rows of the embedding without one get names of their own."""
        found = {token_id: token for token, token_id in self._model["vocab"].items()}
        special: dict[int, bool] = {}
        aside = 0
        for token in self._json.get("added_tokens", []):
            found[token["id"]] = token["content"]
            special[token["id"]] = token["special"]
            aside += bool(token["special"] and (token["lstrip"] or token["rstrip"]))
        beyond = sorted(token_id for token_id in found if token_id >= self._rows)
        if beyond:
            named = ", ".join(repr(found[each]) for each in beyond[:3])
            self._notes.append(
                f"{len(beyond)} tokens have no row in the embedding and are left out: {named}"
            )
        if aside:
            self._notes.append(
                f"{aside} special tokens take the white space beside them, which files cannot say"
            )
        tokens = [found.get(token_id, f"[PAD{token_id}]") for token_id in range(self._rows)]
        if len(set(tokens)) != len(tokens):
            raise self._refused("two of its tokens have the same text")
        kinds = [self._kind(i, token, found, special) for i, token in enumerate(tokens)]
        return tokens, kinds

    def _kind(
        self, token_id: int, token: str, found: Mapping[int, str], special: Mapping[int, bool]
    ) -> int:
        if token_id not in found:
            return Kind.UNUSED
        if token == self._model.get("unk_token"):
            return Kind.UNKNOWN
        if token_id in special:
            return Kind.CONTROL if special[token_id] else Kind.USER_DEFINED
        if self._true is not None:
            known = token_id < len(self._true.kinds)
            return self._true.kinds[token_id] if known else Kind.UNUSED
        if self._model.get("byte_fallback") and len(token) == 6 and token.startswith("<0x"):
            return Kind.BYTE
        return Kind.NORMAL

    def _is_made_of(self, pieces: SentencePieceModel) -> bool:
        """Whether all tokens but those added are these pieces, each with its id."""
        added = {token["id"] for token in self._json.get("added_tokens", [])}
        count = len(pieces.pieces)
        return all(
            pieces.pieces[token_id] == token if token_id < count else token == f"[PAD{token_id}]"
            for token, token_id in self._model.get("vocab", {}).items()
            if token_id not in added
        )

    def _byte_pairs(self) -> dict[str, NewValue]:
        normalizers = _flat(self._json.get("normalizer"), "normalizers")
        for each in normalizers:
            if each["type"] not in _UNICODE:
                raise self._refused(f"it normalizes texts by {each['type']}")
            self._notes.append(
                f"texts are not normalized ({each['type']}) by those who read the file"
            )
        whole = bool(self._model.get("ignore_merges"))
        name = chosen_pre_tokenizer(
            self._backend.pre_tokenizer, lambda kind: kind.whole_words_first == whole
        )
        if name is None and self._merges_make_all():
            name = chosen_pre_tokenizer(self._backend.pre_tokenizer, _any)
        if name is None:
            raise self._refused(
                "it cuts texts into words in a way that llama.cpp has no name for "
                f"({json.dumps(self._json['pre_tokenizer'])[:200]})"
            )
        merges = [
            merge if isinstance(merge, str) else " ".join(merge) for merge in self._model["merges"]
        ]
        return {"model": "gpt2", "pre": name, "merges": merges}

    def _merges_make_all(self) -> bool:
        """Whether merges make every token out of its own text, so that it does not matter whether
        words are looked up before."""
        definition = {**self._json, "pre_tokenizer": None, "normalizer": None, "added_tokens": []}
        definition["model"] = {**self._model, "ignore_merges": False}
        definition["post_processor"] = None
        bare = Backend.from_str(json.dumps(definition))
        names = list(self._model["vocab"])
        encodings = bare.encode_batch_fast(names, add_special_tokens=False)
        added = {token["content"] for token in self._json.get("added_tokens", [])}
        return all(
            len(each.ids) == 1 or name in added for name, each in zip(names, encodings, strict=True)
        )

    def _pieces(self, tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, NewValue]:
        """SentencePiece's kind: pieces with scores, spaces spelled U+2581."""
        normalizers = _flat(self._json.get("normalizer"), "normalizers")
        for each in normalizers:
            if each["type"] not in _NORMALIZERS:
                raise self._refused(f"it normalizes texts by {each['type']}")
        prefix = any(each["type"] == "Prepend" for each in normalizers)
        for step in self._steps:
            match step["type"]:
                case "Metaspace":
                    prefix = prefix or step.get("prepend_scheme", "always") != "never"
                case "Split":
                    pass  # at spaces, of which U+2581 has left none
                case other:
                    raise self._refused(f"it cuts texts into words by {other}")
        if not self._model.get("byte_fallback"):
            raise self._refused("its pieces are not backed by bytes")
        scores = self._scores(tokens, kinds)
        if scores is None:
            raise self._refused("its merges are not in the order of the pieces that they make")
        return {
            "model": "llama",
            "pre": "default",
            "scores": np.array(scores, np.float32),
            "add_space_prefix": prefix,
        }

    def _scores(self, tokens: Sequence[str], kinds: Sequence[int]) -> list[float] | None:
        """Those of tokenizer.model, else such as have the order of the merges."""
        if self._true is not None:
            own = self._true.scores[: len(tokens)]
            return [*own, *[0.0] * (len(tokens) - len(own))]
        merges = [
            tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge)
            for merge in self._model["merges"]
        ]
        return scores_of(tokens, kinds, [left + right for left, right in merges])

    def _special(self, tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, NewValue]:
        ids = {token: token_id for token_id, token in enumerate(tokens)}
        settings, values = self._settings, dict[str, NewValue]()
        bos = settings.bos_token_id
        eos = self._ends[0] if self._ends else None
        if bos is not None:
            values["bos_token_id"] = bos
        if eos is not None:
            values["eos_token_id"] = eos
        for role, name in _ROLES.items():
            if settings.special_tokens.get(role) in ids:
                values[f"{name}_token_id"] = ids[settings.special_tokens[role]]
        for name, found, token in (
            ("prefix", settings.prefix_ids, bos),
            ("suffix", settings.suffix_ids, eos),
        ):
            if found not in ((), (token,)):
                raise self._refused(
                    f"it puts the tokens {list(found)} around texts, where files can say that of "
                    f"one {'BOS' if name == 'prefix' else 'EOS'} token alone"
                )
        values["add_bos_token"] = settings.prefix_ids != ()
        values["add_eos_token"] = settings.suffix_ids != ()
        known = SpecialTokens.read(tokens, kinds, eos, ()).ends
        more = [token for token in self._ends if token not in known]
        for key, token in zip(("eot_token_id", "eom_token_id"), more, strict=False):
            values[key] = token
        if len(more) > 2:
            raise self._refused(
                f"{len(self._ends)} tokens end a text, and files can name three: "
                f"{', '.join(repr(tokens[each]) for each in self._ends)}"
            )
        return values

    def _templates(self) -> dict[str, NewValue]:
        templates = self._settings.chat_templates
        values: dict[str, NewValue] = {}
        for name, template in templates.items():
            key = "tokenizer.chat_template"
            values[key if name == "default" else f"{key}.{name}"] = template
        others = [name for name in templates if name != "default"]
        if others:
            values["tokenizer.chat_templates"] = others
        return values

    def _compare(self, values: Mapping[str, NewValue]) -> None:
        """Raise TokenizerError unless what is read from these values cuts texts as before."""
        read: dict[str, GgufValue] = {}
        for key, value in values.items():
            match value:
                case np.ndarray():
                    read[key] = Numbers(value)
                case bool() | int() | float() | str():
                    read[key] = value
                case _:
                    read[key] = list(value)
        vocab = build_vocab(read)
        count = min(self._rows, self._backend.get_vocab_size(with_added_tokens=True))
        texts = [*probe_texts(), *self._texts_of_tokens(count)]
        mine = self._codec.encode(texts, True)
        theirs = vocab.codec.encode(texts, True)
        for text, own, other in zip(texts, mine, theirs, strict=True):
            if own != other and max(own, default=0) < self._rows:
                raise self._refused(
                    f"a file's vocabulary would make {other[:12]} of {text!r:.60}, and it "
                    f"makes {own[:12]}"
                )

    def _texts_of_tokens(self, count: int) -> list[str]:
        """What single tokens stand for."""
        decoded = self._backend.decode_batch(
            [[token] for token in range(count)], skip_special_tokens=True
        )
        return [text for text in decoded if text and "\ufffd" not in text and SPACE not in text]

    def _refused(self, reason: str) -> TokenizerError:
        return TokenizerError(
            f"the tokenizer of {self._where} cannot be written into a GGUF file: {reason}; "
            f"{_ANOTHER}"
        )


def _any(kind: PreTokenizer) -> bool:
    return True


def _flat(step: Mapping[str, Any] | None, inside: str) -> list[Mapping[str, Any]]:
    """A step of a tokenizer.json, or those that it is a sequence of."""
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    return [each for part in step[inside] for each in _flat(part, inside)]
