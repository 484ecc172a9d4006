"""Strict reading of a GGUF file's metadata: every key of the model is used, idle, or refused."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from penstock.errors import ModelError, shown
from penstock.gguf.arrays import Numbers
from penstock.gguf.metadata import GgufValue
from penstock.models.gguf.kinds import ARCHITECTURE
from penstock.models.limits import MAX_LAYERS
from penstock.models.reader import MAX_INTEGER
from penstock.models.unknown_fields import refusal


class Keys:
    """The keys of one architecture, without its name before them, and those that were asked for.

    Numbers come as configurations have them: of float32, the shortest decimal that it is nearest
    to. Getters raise :class:`~penstock.errors.ModelError` for a value of the wrong type.
    """

    def __init__(
        self, metadata: Mapping[str, GgufValue], where: str, tensors: Collection[str] = ()
    ) -> None:
        self._metadata, self._where, self._tensors = metadata, where, tensors
        self._used: set[str] = set()
        self.architecture = self.text_of(ARCHITECTURE)
        """What ``general.architecture`` says."""

    @property
    def where(self) -> str:
        """The file, as messages name it."""
        return self._where

    def error(self, key: str, problem: str) -> ModelError:
        """Return a ModelError about a key of the architecture."""
        whole = f"{self.architecture}.{key}"
        value = self._metadata.get(whole)
        said = "absent" if value is None else shown(_plain(value))
        return ModelError(f"{self._where}: {whole} ({said}) {problem}")

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self._metadata

    def has_tensor(self, end: str) -> bool:
        """Whether the name of some tensor of the file ends so."""
        return any(name.endswith(end) for name in self._tensors)

    @property
    def layers(self) -> int:
        """The layers of the model, at least one, without those behind them that draft."""
        count = self.integer("block_count", low=1, high=MAX_LAYERS)
        return count - self.integer("nextn_predict_layers", 0, high=count - 1)

    @property
    def head_size(self) -> int:
        """The size of a head where the file does not say it."""
        hidden = self.integer("embedding_length", low=1)
        return hidden // self.integer("attention.head_count", low=1, high=hidden)

    def raw(self, key: str) -> object:
        """The value, an array as a list; None where the key is absent."""
        whole = f"{self.architecture}.{key}"
        self._used.add(whole)
        value = self._metadata.get(whole)
        return None if value is None else _plain(value)

    def value(self, key: str) -> object:
        """The value; of an array that has one for each layer, the one that all have.

        Raises ModelError where layers differ.
        """
        value = self.raw(key)
        if not isinstance(value, list):
            return value
        if not value or any(each != value[0] for each in value):
            raise self.error(key, "differs between layers, which is not supported here")
        return value[0]

    def each_layer(self, key: str) -> list[int]:
        """The number of each layer, where files have a list, or one for all of them."""
        value = self.raw(key)
        said = value if isinstance(value, list) else [value] * self.layers
        numbers = [each for each in said if isinstance(each, int) and not isinstance(each, bool)]
        if len(numbers) < max(len(said), self.layers):
            raise self.error(key, f"must be {self.layers} integers, one for each layer")
        return numbers[: self.layers]

    def integer(
        self, key: str, default: int | None = None, *, low: int = 0, high: int = MAX_INTEGER
    ) -> int:
        value = self.value(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, "must be an integer; convert the model again")
        if not low <= value <= high:
            raise self.error(key, f"must be from {low} to {high}; convert the model again")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.value(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, "must be a number; convert the model again")
        return float(value)

    def text_of(self, whole: str) -> str:
        """The text of a key, which is given in full."""
        value = self._metadata.get(whole)
        if not isinstance(value, str):
            raise ModelError(
                f"{self._where}: {whole} is {shown(value)}, and must be text; download the file "
                "again"
            )
        return value

    def numbers_of(self, whole: str) -> tuple[float, ...]:
        """The numbers of a key, which is given in full: one for each layer, or one for all."""
        value, layers = self._metadata.get(whole), self.layers
        plain = None if value is None else _plain(value)
        said = plain if isinstance(plain, list) else [plain] * layers
        numbers = [float(each) for each in said if isinstance(each, int | float)]
        if len(numbers) != layers or len(said) != layers:
            raise ModelError(f"{self._where}: {whole} must be {layers} numbers, one for each layer")
        return tuple(numbers)

    def id_of(self, name: str) -> int | None:
        """The id of a special token of the vocabulary, if it has one."""
        value = self._metadata.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def sampling(self, name: str) -> float | int | None:
        """What the makers recommend, if they do."""
        value = self._metadata.get(f"general.sampling.{name}")
        if value is None or isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        plain = _plain(value)
        return plain if isinstance(plain, (int, float)) else None

    def finish(self, ignore: Collection[str] = ()) -> tuple[str, ...]:
        """Refuse keys of the architecture that nothing has asked for, but for those of ``ignore``,
        which are returned; and names in ``ignore`` that are none of these."""
        prefix = f"{self.architecture}."
        unread = [key for key in self._metadata if key.startswith(prefix) and key not in self._used]
        unknown = {key: shown(_plain(self._metadata[key])) for key in unread if key not in ignore}
        if unknown:
            raise ModelError(f"{self._where}: {refusal(unknown, 'key')}")
        for key in sorted(set(ignore) - set(unread)):
            raise ModelError(
                f"{self._where}: ignore_config_field {key} is of no use: the file has no such key, "
                "or Penstock knows it; leave it out"
            )
        return tuple(unread)


def _plain(value: GgufValue) -> object:
    if isinstance(value, Numbers):
        return [_plain(each) for each in value]
    if isinstance(value, float) and math.isfinite(value):
        with np.errstate(over="ignore"):
            short = np.float32(value)
        return float(str(short)) if float(short) == value else value
    return value
