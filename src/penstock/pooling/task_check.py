"""Whether a model does what a request asks for: generate, embed or classify."""

from __future__ import annotations

from penstock.errors import RequestError
from penstock.pooling.labels import Labels
from penstock.pooling.params import PoolingParams


def check_task(pooling: PoolingParams | None, labels: Labels | None) -> None:
    """Raise RequestError for a request to generate or embed where the model has ``labels``, and for
    one to classify where it has none. ``pooling`` is None of one to generate."""
    if labels is None:
        if pooling is not None and pooling.task == "classify":
            raise RequestError(
                "this model has no labels to classify by: serve a checkpoint with a classification "
                "head (...ForSequenceClassification), or name words that are labels by "
                "classifier_from_token",
                "model",
            )
    elif pooling is None or pooling.task != "classify":
        what = "generates none" if pooling is None else "has no embeddings of them"
        raise RequestError(
            f"this model classifies texts and {what}: ask it at /v1/classify, /v1/score or "
            "/v1/rerank, in Python by classify() or score()",
            "model",
        )


def check_pairs(labels: Labels) -> None:
    """Raise RequestError where the model classifies, and none of its labels is the score of a
    pair."""
    if labels.relevance is None:
        raise RequestError(
            f"this model tells texts by {len(labels.names)} labels, none of which says how well "
            "two texts fit, so it has no scores: ask it at /v1/classify, in Python by classify()",
            "model",
        )
