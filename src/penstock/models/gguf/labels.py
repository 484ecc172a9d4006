"""The labels of GGUF files of models that classify, as llama.cpp's converter writes them.

``cls.output`` has a row for each label, and stands in the place of the output matrix;
``classifier.output_labels`` names them. Rerankers that answer yes or no, as Qwen3-Reranker, have
the rows of these two words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.errors import ModelError, shown
from penstock.interface.sources import Shape
from penstock.models.classifier import labels_of
from penstock.models.gguf.keys import Keys
from penstock.models.name_forms import AsVector
from penstock.models.names import Name
from penstock.pooling.labels import Labels

_HEAD: Final = "cls.output"
_WEIGHT: Final = f"{_HEAD}.weight"
_BEFORE: Final = ("cls.weight", "cls.bias", "cls.norm.weight", f"{_HEAD}.bias")
"""What the classifiers of encoders have besides."""
_NAMES: Final = "classifier.output_labels"
_POOLING: Final = "pooling_type"
_UNSAID, _LAST, _RANK = 0, 3, 4
"""What ``pooling_type`` says: nothing; the last token's hidden state, as embeddings are here where
requests ask for no other; the score of a pair."""
_ANSWERS: Final = ("no", "yes")


def read_labels(keys: Keys, shapes: Mapping[str, Shape]) -> Labels | None:
    """The labels of a file; None where it is of a language model. Raises ModelError."""
    pooling, named = keys.raw(_POOLING), keys.raw(_NAMES)
    head = shapes.get(_WEIGHT)
    if head is None:
        if pooling == _RANK or named is not None:
            raise ModelError(
                f"{keys.where} is said to classify ({keys.architecture}.{_POOLING} or "
                f"{keys.architecture}.{_NAMES}), and has no {_WEIGHT}; convert the model again, "
                "with a newer llama.cpp"
            )
        if pooling not in (None, _UNSAID, _LAST):
            raise keys.error(
                _POOLING, f"must be {_LAST}, the last token; requests may ask for another"
            )
        return None
    for name in _BEFORE:
        if name in shapes:
            raise ModelError(
                f"{keys.where} has {name}: a head of more than a row for each label, which is not "
                "served"
            )
    if pooling not in (None, _RANK):
        raise keys.error(_POOLING, f"must be {_RANK} beside {_WEIGHT}; convert the model again")
    rows = 1 if len(head) == 1 else head[0]
    names = _names(keys, named, rows)
    if sorted(names) == sorted(_ANSWERS):
        return Labels(names=names, activation="softmax", relevance=names.index(_ANSWERS[1]))
    return labels_of(names, "sigmoid" if rows == 1 else "softmax")


def stored_head(shapes: Mapping[str, Shape]) -> Name:
    """Where a file that has one has the matrix of labels."""
    return Name(_HEAD, form=AsVector()) if len(shapes[_WEIGHT]) == 1 else Name(_HEAD)


def _names(keys: Keys, named: object, rows: int) -> tuple[str, ...]:
    if named is None:
        return tuple(f"LABEL_{i}" for i in range(rows))
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise ModelError(
            f"{keys.where}: {keys.architecture}.{_NAMES} is {shown(named)}, and must be texts; "
            "convert the model again"
        )
    if len(named) != rows:
        raise keys.error(_NAMES, f"must name {rows} labels, the rows of {_WEIGHT}")
    return tuple(named)
