"""Models that classify: what stands in the place of the output matrix, and how ``config.json`` says
it.

A checkpoint of a ``*ForSequenceClassification`` has the layers of a language model and a matrix
``score`` with a row for each label. Others classify by the language model's own words: a reranker
is asked whether a document answers a query, and the logits of ``no`` and ``yes`` say so
(``classifier_from_token``, as vLLM calls it, and sentence-transformers' ``LogitScore``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from penstock.errors import ModelError
from penstock.models.names import Name
from penstock.models.reader import ConfigReader
from penstock.models.spec import ClassifierSpec, ModelSpec
from penstock.pooling.labels import LabelActivation, Labels

SUFFIX: Final = "ForSequenceClassification"
"""What the names of architectures end with that classify."""
MOST_LABELS: Final = 1 << 16

TokenId = Callable[[str], int]
"""Returns the token whose text this is; raises ModelError where it is none, or several."""

_ACTIVATIONS: Final[dict[str, LabelActivation]] = {
    "regression": "none",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}
"""The activation for each value of ``problem_type``."""
_TORCH: Final[dict[str, LabelActivation]] = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.activation.Softmax": "softmax",
    "torch.nn.modules.linear.Identity": "none",
}
"""The activation for each function that sentence-transformers names."""
_SCORE: Final = Name("score")
_METHODS: Final = ("from_2_way_softmax", "no_post_processing")
_COMMON: Final = ("problem_type", "sbert_ce_default_activation_function", "sentence_transformers")


def read_classifier(config: ConfigReader, spec: ModelSpec, token_id: TokenId) -> ModelSpec:
    """``spec`` as the model that classifies which ``config`` describes. Raises ModelError."""
    tokens = config.texts("classifier_from_token")
    original = config.boolean("is_original_qwen3_reranker", False)
    method = config.text("method", _METHODS[0]) if tokens or original else None
    names = _label_names(config)
    for name in _COMMON:
        config.raw(name)
    if tokens is None:
        if original:
            raise config.error("is_original_qwen3_reranker", "needs classifier_from_token")
        activation = _activation(config, len(names))
        return with_labels(spec, labels_of(names, activation))
    if method not in _METHODS:
        raise config.error("method", f"must be one of {', '.join(_METHODS)}")
    if method == _METHODS[0] and len(tokens) != 2:
        raise config.error("classifier_from_token", f"must name two tokens for {_METHODS[0]}")
    return by_tokens(spec, tokens, tuple(map(token_id, tokens)))


def with_labels(spec: ModelSpec, labels: Labels, stored: Name = _SCORE) -> ModelSpec:
    """``spec`` with a matrix ``score``, which is ``stored`` so, in the place of its output matrix,
    which checkpoints may have nevertheless, and nobody reads."""
    names = spec.names
    if names is not None:
        idle = names.idle
        if "head" in names.names:
            idle = rf"{idle}|{names.names['head'].stored}\.(weight|bias)"
        names = replace(names, names={**names.names, "score": stored}, idle=idle)
    return replace(spec, names=names, classifier=ClassifierSpec(labels))


def by_tokens(spec: ModelSpec, names: Sequence[str], tokens: Sequence[int]) -> ModelSpec:
    """``spec`` as a model whose labels are tokens, given from the least relevant to the most.

    Of one token, the score is its logit's sigmoid; of several, which exclude each other, the share
    of the last. Raises ModelError for tokens that the model does not have, or one twice.
    """
    for token in tokens:
        if not 0 <= token < spec.vocab_size:
            raise ModelError(
                f"the label {token} is not among the model's {spec.vocab_size} tokens; name "
                "others by classifier_from_token"
            )
    if len(set(tokens)) < len(tokens) or not tokens:
        raise ModelError(
            f"the labels {', '.join(map(repr, names))} must be tokens that differ; name others by "
            "classifier_from_token"
        )
    labels = Labels(
        names=tuple(names),
        activation="sigmoid" if len(tokens) == 1 else "softmax",
        relevance=len(tokens) - 1,
    )
    return replace(spec, classifier=ClassifierSpec(labels, tuple(tokens)))


def labels_of(names: Sequence[str], activation: LabelActivation) -> Labels:
    """Labels of a matrix ``score``; where there is one alone, it says how well two texts fit."""
    relevance = 0 if len(names) == 1 else None
    return Labels(names=tuple(names), activation=activation, relevance=relevance)


def _label_names(config: ConfigReader) -> tuple[str, ...]:
    """The names of the labels, which are two where nothing is said, as in transformers."""
    config.raw("label2id")
    named = config.raw("id2label")
    stated = config.optional_integer("num_labels", high=MOST_LABELS)
    if named is None:
        return tuple(f"LABEL_{i}" for i in range(2 if stated is None else stated))
    if not isinstance(named, dict) or not named or len(named) > MOST_LABELS:
        raise config.error("id2label", f"must name 1 to {MOST_LABELS} labels by their numbers")
    if stated is not None and stated != len(named):
        raise config.error("num_labels", f"contradicts id2label, which has {len(named)}")
    try:
        return tuple(str(named[str(i)]) for i in range(len(named)))
    except KeyError as missing:
        raise config.error("id2label", f"has no label {missing.args[0]}") from None


def _activation(config: ConfigReader, count: int) -> LabelActivation:
    usual: LabelActivation = "sigmoid" if count == 1 else "softmax"
    if config.has("problem_type"):
        kind = config.text("problem_type")
        if kind not in _ACTIVATIONS:
            raise config.error("problem_type", f"must be one of {', '.join(_ACTIVATIONS)}")
        return usual if kind == "single_label_classification" else _ACTIVATIONS[kind]
    name, of = "sbert_ce_default_activation_function", config
    section = config.section("sentence_transformers")
    if section is not None and section.has("activation_fn"):
        name, of = "activation_fn", section
    if not of.has(name):
        return usual
    function = of.text(name)
    if function not in _TORCH:
        raise of.error(name, f"is not supported; supported are {', '.join(_TORCH)}")
    return _TORCH[function]
