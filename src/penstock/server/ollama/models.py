"""What the server says of its model to Ollama's clients."""

from __future__ import annotations

import datetime
import hashlib
from typing import Final, Literal

import msgspec

from penstock.engine.ipc.wire import ModelFacts
from penstock.parsing.styles import Styles
from penstock.server.model_card import capabilities
from penstock.server.status_structs import Capability

OllamaCapability = Literal["completion", "tools", "thinking"]

_CAPABILITIES: Final[dict[Capability, OllamaCapability]] = {
    "completion": "completion",
    "tools": "tools",
    "reasoning": "thinking",
}
_NEVER: Final = "9999-12-31T23:59:59Z"


class ShowRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /api/show``."""

    model: str


class ModelDetails(msgspec.Struct, frozen=True, kw_only=True):
    parent_model: str = ""
    format: str = ""
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str = ""


class LocalModel(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``GET /api/tags``."""

    name: str
    model: str
    modified_at: str
    """When the server has loaded it."""
    size: int = 0
    """Unknown, since weights may be packed otherwise than they are stored."""
    digest: str
    """A digest of what the server knows of the model: another model has another one."""
    details: ModelDetails


class LocalModels(msgspec.Struct, frozen=True):
    """The answer of ``GET /api/tags``."""

    models: list[LocalModel]


class LoadedModel(LocalModel, frozen=True, kw_only=True):
    """One entry of ``GET /api/ps``."""

    expires_at: str = _NEVER
    """It stays as long as the server runs."""
    size_vram: int = 0
    context_length: int
    """Tokens that prompt and answer may have together."""


class LoadedModels(msgspec.Struct, frozen=True):
    """The answer of ``GET /api/ps``."""

    models: list[LoadedModel]


class ModelShown(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``POST /api/show``."""

    modelfile: str = ""
    parameters: str
    """Sampling options that hold where a request leaves them out, one on a line."""
    template: str
    """The chat template, in Jinja's language."""
    details: ModelDetails
    model_info: dict[str, int | str]
    capabilities: list[OllamaCapability]
    modified_at: str


class OllamaVersion(msgspec.Struct, frozen=True):
    version: str


class ModelStatus:
    """The model that is served, as the dialect tells of it."""

    def __init__(self, model: ModelFacts, template: str, styles: Styles, loaded: float) -> None:
        """``loaded`` is a Unix time in seconds."""
        self._model = model
        self._template = template
        self._styles = styles
        self._since = (
            datetime.datetime.fromtimestamp(loaded, datetime.UTC).isoformat().replace("+00:00", "Z")
        )

    def local(self) -> LocalModel:
        return LocalModel(
            name=self._name,
            model=self._name,
            modified_at=self._since,
            digest=hashlib.sha256(msgspec.json.encode(self._model)).hexdigest(),
            details=self._details,
        )

    def loaded(self) -> LoadedModel:
        fields = {name: getattr(self.local(), name) for name in LocalModel.__struct_fields__}
        return LoadedModel(**fields, context_length=self._model.lengths.max_model_len)

    def shown(self) -> ModelShown:
        family = self._model.architecture
        defaults = msgspec.to_builtins(self._model.sampling_defaults)
        can = capabilities(bool(self._template), self._styles, self._model.labels)
        return ModelShown(
            parameters="\n".join(f"{name} {value}" for name, value in defaults.items() if value),
            template=self._template,
            details=self._details,
            model_info={
                "general.architecture": family,
                "general.parameter_count": self._model.parameters,
                f"{family}.context_length": self._model.lengths.max_model_len,
                f"{family}.vocab_size": self._model.vocab_size,
            },
            capabilities=[_CAPABILITIES[each] for each in can if each in _CAPABILITIES],
            modified_at=self._since,
        )

    @property
    def _name(self) -> str:
        return self._model.served_model_name

    @property
    def _details(self) -> ModelDetails:
        family = self._model.architecture
        return ModelDetails(
            family=family, families=[family], parameter_size=_short(self._model.parameters)
        )


def _short(count: int) -> str:
    """A number of weights as the dialect has it: ``1.24B``, ``134.52M``."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            return f"{count / size:.2f}".rstrip("0").rstrip(".") + letter
    return str(count)
