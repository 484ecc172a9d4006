"""What the server says of its model to clients of the dialect."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from penstock.engine.ipc.wire import ModelFacts
from penstock.interface.buckets import Buckets
from penstock.server.kserve.api import VERSION
from penstock.server.kserve.signature import INPUTS, OUTPUTS
from penstock.server.metrics import Counts

EXTENSIONS: Final = (
    "binary_tensor_data",
    "model_repository",
    "model_configuration",
    "statistics",
    "parameters",
    "generate",
)
"""Triton's extensions of the protocol that there are."""
_PLATFORM: Final = "penstock"
_NS: Final = 1e9


class ServerMetadata(msgspec.Struct, frozen=True):
    """The answer of ``GET /v2``."""

    name: str
    version: str
    extensions: tuple[str, ...]


class ServerLive(msgspec.Struct, frozen=True):
    live: bool = True


class ServerReady(msgspec.Struct, frozen=True):
    ready: bool = True


class ModelReady(msgspec.Struct, frozen=True):
    name: str
    ready: bool = True


class TensorMetadata(msgspec.Struct, frozen=True):
    name: str
    datatype: str
    shape: list[int]
    """-1 stands for any number."""


class ModelMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``GET /v2/models/MODEL``."""

    name: str
    versions: tuple[str, ...] = (VERSION,)
    platform: str = _PLATFORM
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ConfigInput(msgspec.Struct, frozen=True):
    name: str
    data_type: str
    dims: list[int]
    optional: bool


class ConfigOutput(msgspec.Struct, frozen=True):
    name: str
    data_type: str
    dims: list[int]


class TransactionPolicy(msgspec.Struct, frozen=True):
    decoupled: bool
    """Whether a request may have several responses."""


class ConfigParameter(msgspec.Struct, frozen=True):
    string_value: str


class TritonConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``GET /v2/models/MODEL/config``, as Triton configures models."""

    name: str
    platform: str = _PLATFORM
    backend: str = _PLATFORM
    max_batch_size: int = 0
    """A request has one text: the server makes its batches itself."""
    input: list[ConfigInput]
    output: list[ConfigOutput]
    parameters: dict[str, ConfigParameter]
    model_transaction_policy: TransactionPolicy = TransactionPolicy(decoupled=True)


class CountedTime(msgspec.Struct, frozen=True):
    count: int = 0
    ns: int = 0

    @classmethod
    def of(cls, seconds: Buckets) -> CountedTime:
        return cls(seconds.count, round(seconds.total * _NS))


class InferenceTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What requests in all dialects took."""

    success: CountedTime
    """Times from the arrival to the last token."""
    fail: CountedTime
    """Their time is not counted."""
    queue: CountedTime
    compute_input: CountedTime
    """The computation of prompts, until the first token."""
    compute_infer: CountedTime
    """The computation of answers, after it."""
    compute_output: CountedTime = CountedTime()
    cache_hit: CountedTime = CountedTime()
    """No answers are kept."""
    cache_miss: CountedTime = CountedTime()


class ModelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str = VERSION
    last_inference: int
    """When the last answer ended, in milliseconds of Unix time; 0 before the first."""
    inference_count: int
    """Answers."""
    execution_count: int
    """The steps of its engines; 0 before they were told."""
    inference_stats: InferenceTimes


class StatisticsOfModels(msgspec.Struct, frozen=True):
    """The answer of ``GET /v2/models/stats``."""

    model_stats: list[ModelStatistics]


class RepositoryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /v2/repository/index``."""

    ready: bool = False
    """Whether only models that can serve are listed."""


class RepositoryModel(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the answer of ``POST /v2/repository/index``."""

    name: str
    version: str = VERSION
    state: Literal["READY", "UNAVAILABLE", "LOADING", "UNLOADING"] = "READY"
    reason: str = ""


class RepositoryChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of requests to load and to unload a model."""

    parameters: dict[str, object] = {}


def metadata_of(name: str) -> ModelMetadata:
    """The tensors of a model of this name: those of all models."""
    return ModelMetadata(
        name=name,
        inputs=[TensorMetadata(each.name, each.datatype, each.shape) for each in INPUTS],
        outputs=[TensorMetadata(each.name, each.datatype, each.shape) for each in OUTPUTS],
    )


def config(model: ModelFacts) -> TritonConfig:
    told = {
        "architecture": model.architecture,
        "max_model_len": str(model.lengths.max_model_len),
        "vocab_size": str(model.vocab_size),
    }
    return TritonConfig(
        name=model.served_model_name,
        input=[ConfigInput(i.name, i.config_type, i.shape, i.optional) for i in INPUTS],
        output=[ConfigOutput(each.name, each.config_type, each.shape) for each in OUTPUTS],
        parameters={name: ConfigParameter(text) for name, text in told.items()},
    )


def statistics(model: str, counts: Counts, steps: int) -> ModelStatistics:
    """What the server has counted; ``steps`` are the engine's."""
    return ModelStatistics(
        name=model,
        last_inference=counts.last_end_ms,
        inference_count=counts.end_to_end.count,
        execution_count=steps,
        inference_stats=InferenceTimes(
            success=CountedTime.of(counts.end_to_end),
            fail=CountedTime(counts.failures),
            queue=CountedTime.of(counts.queue),
            compute_input=CountedTime.of(counts.prefill),
            compute_infer=CountedTime.of(counts.decode),
        ),
    )
