"""The tokens that are labels of a language model which classifies by its own words: as an option, a
configuration, or sentence-transformers' files beside it name them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import ModelError, TokenizerError
from penstock.models.classifier import by_tokens
from penstock.models.json_objects import read_json_object
from penstock.models.reader import ConfigReader
from penstock.models.spec import ModelSpec
from penstock.regular_file import read_regular
from penstock.tokenizer import Tokenizer, load_tokenizer

_MODULES: Final = "modules.json"
_LOGIT_SCORE: Final = ".LogitScore"


class LabelTokens:
    """Finds tokens by their texts, in a tokenizer that is loaded when it is first asked."""

    def __init__(self, tokenizer: Path) -> None:
        self._path = tokenizer
        self._loaded: Tokenizer | None = None

    def id(self, text: str) -> int:
        """The token of this entry in the vocabulary, as vLLM finds it, or else the one token that
        the text is. Raises ModelError where it is none, or several."""
        try:
            if self._loaded is None:
                self._loaded = load_tokenizer(self._path, check_templates=False)
            entry = self._loaded.token_id(text)
            if entry is not None:
                return entry
            tokens = self._loaded.encode(text, add_special_tokens=False)
        except TokenizerError as error:
            raise ModelError(f"the label {text!r} needs the model's tokenizer: {error}") from None
        if len(tokens) != 1:
            raise ModelError(
                f"the label {text!r} is {len(tokens)} tokens of this model, and must be one; name "
                "others by classifier_from_token"
            )
        return tokens[0]


def by_asked_tokens(spec: ModelSpec, asked: Sequence[str], tokens: LabelTokens) -> ModelSpec:
    """``spec`` as a model whose labels are the tokens that an option names. Raises ModelError."""
    if spec.classifier is not None and not spec.classifier.tokens:
        raise ModelError(
            "classifier_from_token is for language models, and this model has labels of its own: "
            "leave it out"
        )
    return by_tokens(spec, asked, [tokens.id(text) for text in asked])


def by_logit_score(spec: ModelSpec, folder: Path) -> ModelSpec:
    """``spec`` as the reranker that sentence-transformers makes of it: where its ``modules.json``
    ends with a ``LogitScore``, which names the token of a relevant document, and perhaps that of
    one that is not. As it is where there is no such file. Raises ModelError."""
    path = folder / _MODULES
    if spec.classifier is not None or not os.path.lexists(path):
        return spec
    module = _last_module(path)
    if module is None:
        return spec
    config = _config(folder / module / "config.json")
    relevant = config.integer("true_token_id", low=0)
    other = config.optional_integer("false_token_id", low=0)
    if other is None:
        return by_tokens(spec, ["relevant"], [relevant])
    return by_tokens(spec, ["irrelevant", "relevant"], [other, relevant])


def _last_module(path: Path) -> str | None:
    """The folder of the last module, where that is a LogitScore."""
    try:
        modules = msgspec.json.decode(read_regular(path), type=list[Mapping[str, object]])
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}; download it again") from None
    last = modules[-1] if modules else {}
    if not str(last.get("type")).endswith(_LOGIT_SCORE):
        return None
    name = last.get("path")
    if not isinstance(name, str) or Path(name).name != name:
        raise ModelError(f"{path}: the path of {last.get('type')} ({name!r:.80}) is no folder here")
    return name


def _config(path: Path) -> ConfigReader:
    return ConfigReader(read_json_object(path, ModelError), str(path))
