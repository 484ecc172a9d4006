"""Decides the backend, its threads, and where its packed weights are kept."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.artifact.root import asked_root
from penstock.backends.backend import Backend, BackendChoice, Obstacle
from penstock.backends.registry import choose_backend
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.plan.lower import lower
from penstock.resolve.adapters import only_plain
from penstock.resolve.inputs import Inputs, Reasons, model_types, reason
from penstock.resolve.quantization import as_read
from penstock.resolve.ranks import only_alone
from penstock.resolve.stages import local_stages, only_whole
from penstock.threads import Threads, among


@dataclass(frozen=True)
class BackendDecision:
    """The backend that computes."""

    choice: BackendChoice
    reasons: Reasons

    @property
    def backend(self) -> Backend:
        return self.choice.backend


@dataclass(frozen=True)
class ThreadsDecision:
    """The compute threads."""

    threads: Threads
    reasons: Reasons


@dataclass(frozen=True)
class ArtifactDecision:
    """Where engine artifacts are kept."""

    folder: str | None
    """None: none are read or kept."""
    reasons: Reasons


def decide_backend(inputs: Inputs) -> BackendDecision:
    """Return the backend asked for, or else the first that runs the model and its draft."""
    config, drafts = inputs.config, inputs.draft is not None

    def obstacle(candidate: Backend) -> Obstacle | None:
        alone = only_alone(config, candidate, inputs.hardware, drafts)
        alone = alone or only_plain(config, candidate)
        if alone is not None:
            return alone
        # What a backend lacks does not depend on how it rounds weights: any plan can be asked.
        types = inputs.types
        plan = lower(
            as_read(inputs.spec, config, candidate), types.weights, kv_dtype=types.kv_cache
        )
        found = candidate.obstacle(plan, inputs.trees)
        if found is None and inputs.draft is not None:
            types = model_types(config, inputs.draft)
            plan = lower(
                as_read(inputs.draft, config, candidate), types.weights, kv_dtype=types.kv_cache
            )
            found = candidate.obstacle(plan)
        return found

    choice = choose_backend(config.backend, inputs.hardware, obstacle)
    alone = only_alone(config, choice.backend, inputs.hardware, drafts)
    alone = alone or only_whole(config, choice.backend) or only_plain(config, choice.backend)
    if alone is not None:
        raise ConfigError(str(alone))
    choice.backend.check_deterministic(config.deterministic)
    reasons = {
        "backend": reason(config.backend, choice.reason),
        "deterministic": "the default" if config.deterministic else "as asked",
    }
    return BackendDecision(choice, reasons)


def decide_threads(inputs: Inputs, backend: Backend) -> ThreadsDecision:
    """Return the threads asked for, or else those that suit the backend on this machine."""
    threads = backend.threads(inputs.config.threads, inputs.hardware)
    world, stages = inputs.config.tensor_parallel, local_stages(inputs.config)
    what = "ranks" if stages == 1 else "stages" if world == 1 else "processes"
    threads = among(threads, world * stages, inputs.hardware, what)
    cpus = "one for each thread" if threads.cpus else "placed by the system"
    return ThreadsDecision(threads, {"threads": threads.reason, "cpus": cpus})


def decide_artifacts(config: EngineConfig, backend: Backend) -> ArtifactDecision:
    """Return the folder asked for, or else the default one, if the backend packs weights."""
    folder, why = _artifact_dir(config, backend)
    return ArtifactDecision(folder, {"artifact_dir": why})


def _artifact_dir(config: EngineConfig, backend: Backend) -> tuple[str | None, str]:
    asked = config.artifact_dir
    if asked is not None and not (backend.keeps_weights and config.artifact):
        why = f"{backend.name} keeps no packed weights" if config.artifact else "artifacts are off"
        raise ConfigError(f"artifact_dir {asked} has no effect, since {why}; leave it out")
    if not backend.keeps_weights:
        return None, f"the {backend.name} backend keeps no packed weights"
    if not config.artifact:
        return None, "as asked"
    return asked_root(asked)
