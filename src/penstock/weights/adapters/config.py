"""Reads the ``adapter_config.json`` of a LoRA adapter, as PEFT writes it.

Strictly: an option that would change the result and is not implemented is refused by its name, and
so is one that is not known and asks for something.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from penstock.errors import WeightError, shown
from penstock.interface.adapters import MAX_RANK
from penstock.models.json_objects import read_json_object

Number = TypeVar("Number", int, float)

CONFIG: Final = "adapter_config.json"
ALL_LINEAR: Final = "all-linear"
_LARGEST: Final = 3.0e38
"""What a scale may be at most: a float32 holds a little more."""

_IDLE: Final = frozenset(
    {
        *("peft_type", "task_type", "auto_mapping", "base_model_name_or_path", "revision"),
        *("inference_mode", "peft_version", "lora_dropout", "loftq_config", "eva_config"),
        *("corda_config", "lora_ga_config", "megatron_config", "megatron_core", "runtime_config"),
        *("qalora_group_size", "layers_pattern", "layers_to_transform", "exclude_modules"),
        *("fan_in_fan_out", "ensure_weight_tying", "arrow_config"),
    }
)
"""Options of training and of bookkeeping, and those of which the tensors themselves tell."""
_READ: Final = frozenset(
    {
        *("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules"),
        *("init_lora_weights", "bias"),
    }
)
_CHANGE_BASE: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations after which an adapter belongs to changed weights of its base."""
_REFUSED: Final[Mapping[str, str]] = {
    "use_dora": "DoRA scales whole columns of the base",
    "use_qalora": "QA-LoRA pools the input",
    "use_bdlora": "block-diagonal matrices are not read",
    "lora_bias": "biases of adapters are not added",
    "modules_to_save": "modules saved in full would replace the base's",
    "trainable_token_indices": "embeddings of single tokens would replace the base's",
    "layer_replication": "layers cannot be replicated",
    "target_parameters": "parameters that are no linear module, such as experts', are not adapted",
    "alora_invocation_tokens": "activated LoRA begins in the middle of a prompt",
}
_FIX: Final = "merge the adapter into its base (merge_and_unload), or train one without it"


@dataclass(frozen=True)
class AdapterConfig:
    """The options of an adapter that say what its tensors mean."""

    path: Path
    """The file that it was read from."""
    rank: int
    alpha: float
    rslora: bool
    rank_pattern: Mapping[str, int]
    """Ranks of the modules whose names these regular expressions fit at their end."""
    alpha_pattern: Mapping[str, float]
    target_modules: tuple[str, ...] | str
    """Ends of names, or a regular expression of whole names, or ``ALL_LINEAR``."""
    layers: tuple[int, ...] | None
    """The layers alone in which these are adapted; None: all."""
    excludes: bool
    """Whether modules are left out by an option of their own."""

    @classmethod
    def read(cls, folder: Path) -> AdapterConfig:
        """Raises WeightError for what is malformed, or asks for what is not implemented."""
        path = folder / CONFIG
        if not path.exists():
            raise WeightError(
                f"{folder} is no adapter: it has no {CONFIG}; give the folder that PEFT's "
                "save_pretrained has written"
            )
        return _Reader(path, read_json_object(path, WeightError)).config()

    def rank_of(self, module: str) -> int:
        return _of_pattern(self.rank_pattern, module, self.rank)

    def scale_of(self, module: str) -> float:
        rank = self.rank_of(module)
        alpha = _of_pattern(self.alpha_pattern, module, self.alpha)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank

    def targets(self, module: str) -> bool:
        """Whether the options name a module of the base to be adapted."""
        if isinstance(self.target_modules, str):
            if self.target_modules == ALL_LINEAR:
                return True
            return re.fullmatch(self.target_modules, module) is not None
        named = any(module == end or module.endswith("." + end) for end in self.target_modules)
        if not named or self.layers is None:
            return named
        numbers = [int(part) for part in module.split(".") if part.isdigit()]
        return bool(numbers) and numbers[0] in self.layers


def _of_pattern(pattern: Mapping[str, Number], module: str, otherwise: Number) -> Number:
    """As PEFT's ``get_pattern_key``: the first expression that fits the end of the name."""
    for key, value in pattern.items():
        if re.fullmatch(_at_end(key), module):
            return value
    return otherwise


def _at_end(key: str) -> str:
    return rf"(.*\.)?({key})"


class _Reader:
    """The fields of one file."""

    def __init__(self, path: Path, fields: Mapping[str, object]) -> None:
        self._path = path
        self._fields = fields

    def config(self) -> AdapterConfig:
        kind = self._fields.get("peft_type")
        if kind != "LORA":
            self._fail(f"peft_type is {shown(kind)}, and only LORA is served")
        for name, value in self._fields.items():
            self._check(name, value)
        layers = self._fields.get("layers_to_transform")
        if isinstance(layers, int) and not isinstance(layers, bool):
            layers = [layers]
        if layers is not None and not _are(layers, int):
            self._fail(f"layers_to_transform must be numbers of layers, not {shown(layers)}")
        return AdapterConfig(
            path=self._path,
            rank=self._rank("r", self._fields.get("r", 8)),
            alpha=self._alpha("lora_alpha", self._fields.get("lora_alpha", 8)),
            rslora=self._fields.get("use_rslora") is True,
            rank_pattern={
                key: self._rank(f"rank_pattern of {key!r}", value)
                for key, value in self._pattern("rank_pattern").items()
            },
            alpha_pattern={
                key: self._alpha(f"alpha_pattern of {key!r}", value)
                for key, value in self._pattern("alpha_pattern").items()
            },
            target_modules=self._target_modules(),
            layers=None if layers is None else tuple(layers),  # type: ignore[arg-type]
            excludes=bool(self._fields.get("exclude_modules")),
        )

    def _check(self, name: str, value: object) -> None:
        """Refuse an option that asks for what is not implemented."""
        if name in _IDLE or value in (None, False, "", [], {}):
            return
        if name in _REFUSED:
            self._fail(f"{name} is {shown(value)}, which is not served: {_REFUSED[name]}; {_FIX}")
        if name == "bias" and value != "none":
            self._fail(f"bias is {shown(value)}: biases of the base cannot be changed; {_FIX}")
        if name == "use_rslora" and value is not True:
            self._fail(f"use_rslora must be true or false, not {shown(value)}")
        if name == "init_lora_weights" and str(value).lower().startswith(_CHANGE_BASE):
            self._fail(
                f"init_lora_weights is {shown(value)}, which has changed the base's weights, too; "
                "save the adapter with path_initial_model_for_weight_conversion, which makes a "
                "plain one of it"
            )
        if name not in _READ:
            self._fail(
                f"{name} is {shown(value)}, and no such option is known here; remove it if it "
                "changes nothing, or merge the adapter into its base"
            )

    def _rank(self, name: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_RANK:
            self._fail(f"{name} is {shown(value)}; ranks of 1 to {MAX_RANK} are served")
        return value

    def _alpha(self, name: str, value: object) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not abs(value) <= _LARGEST:  # type: ignore[arg-type]
            self._fail(f"{name} must be a number of float32, not {shown(value)}")
        return float(value)  # type: ignore[arg-type]

    def _pattern(self, name: str) -> dict[str, object]:
        value = self._fields.get(name) or {}
        if not isinstance(value, dict):
            self._fail(f"{name} must be an object of modules and numbers, not {shown(value)}")
        for key in value:
            self._expression(name, _at_end(key))
        return value

    def _target_modules(self) -> tuple[str, ...] | str:
        value = self._fields.get("target_modules")
        if isinstance(value, str) and value:
            if value != ALL_LINEAR:
                self._expression("target_modules", value)
            return value
        if not _are(value, str):
            self._fail(
                "target_modules must be a list of modules, a regular expression or "
                f'"{ALL_LINEAR}", not {shown(value)}'
            )
        return tuple(value)  # type: ignore[arg-type]

    def _expression(self, name: str, text: str) -> None:
        try:
            re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            self._fail(f"{name} has {shown(text)}, which is no regular expression: {error}")

    def _fail(self, problem: str) -> NoReturn:
        raise WeightError(f"{self._path}: {problem}")


def _are(value: object, kind: type) -> bool:
    """Whether it is a list of such, at least one."""
    return isinstance(value, list) and bool(value) and all(type(each) is kind for each in value)
