"""Turns a configuration into an executor that is ready to run: all that happens once, at the
start."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.artifact.format import BuiltLengths
from penstock.artifact.session import ArtifactSession, Keeping, Note
from penstock.backends.registry import looked_for, native_automaton
from penstock.config import EngineConfig
from penstock.demo_model import demo_model_path
from penstock.engine.adapters import AdapterStore
from penstock.engine.cached_blocks import check_kept
from penstock.engine.engine_plan import EnginePlan as EnginePlan
from penstock.engine.engine_plan import state_limits as state_limits
from penstock.engine.engine_plan import step_limits as step_limits
from penstock.engine.plan_weights import Mark as Mark
from penstock.engine.plan_weights import calibrated
from penstock.engine.start import Start, closed_on_error
from penstock.errors import ConfigError, ModelError, WeightError
from penstock.gguf.names import is_gguf
from penstock.hardware import Hardware, detect
from penstock.interface.automaton import Automaton
from penstock.interface.executor import Executor
from penstock.interface.loading import ProgressCallback, no_progress
from penstock.models.draft_heads import taps_of
from penstock.models.spec import ModelSpec
from penstock.plan.plan import Plan
from penstock.resolve import draft_block_bytes, resolve
from penstock.resolved_config import ResolvedConfig
from penstock.speculate.draft_choice import (
    draft_engine_config,
    draft_folder,
    draft_spec,
    reaching,
)
from penstock.speculate.draft_heads_choice import refuse_draft_heads
from penstock.speculative_config import Ngram
from penstock.weights.gguf_spec import gguf_name
from penstock.weights.hub import resolve_model_folder
from penstock.weights.model_files import ModelFiles
from penstock.weights.model_folder import load_model_spec
from penstock.weights.token_map import Int32s, read_token_map

if TYPE_CHECKING:
    from penstock.engine.calibration import Measured
    from penstock.speculate.make import LoadedDraft

_log = logging.getLogger("penstock.artifact")

_ENOUGH: Final = 1 << 62
"""Bytes of memory, of the host or a GPU, that no plan exceeds."""


def open_model(config: EngineConfig) -> ModelFiles:
    """Find the model, and read what its GGUF file says. Raises ConfigError, ModelError or
    WeightError."""
    folder = (
        resolve_model_folder(config.model, config.revision) if config.model else demo_model_path()
    )
    refuse_draft_heads(folder, config.load_format == "dummy")
    return ModelFiles.open(folder)


def plan_engine(
    config: EngineConfig,
    files: ModelFiles | None = None,
    *,
    as_built: bool = True,
    hardware: Hardware | None = None,
    taps: tuple[int, ...] | None = None,
) -> EnginePlan:
    """Read the model's configuration, decide every option and make the plan.

    ``files`` is the model, where :func:`open_model` has opened it. ``as_built``: where the options
    name no length, those hold that the engine artifact was built for. ``hardware`` is what it is
    planned for, by default the machine as it is now. ``taps``: for a process that verifies what
    another one drafts, the layers whose inputs are returned; what drafts is not looked for then.
    Raises what :func:`open_model` does; everything that can be refused without weights is.
    """
    files = files or open_model(config)
    planned = _planned(config, files, as_built, hardware, taps)
    decided = planned.config
    for kept, what in ((decided.kv_disk, "--kv-disk"), (decided.kv_host_bytes, "--kv-host-bytes")):
        if not kept:
            continue
        check_kept(
            planned.plan,
            decided.tensor_parallel,
            decided.pipeline_parallel,
            decided.enable_prefix_caching,
            what,
        )
    return planned


def _planned(
    config: EngineConfig,
    files: ModelFiles,
    as_built: bool,
    hardware: Hardware | None,
    taps: tuple[int, ...] | None,
) -> EnginePlan:
    folder = files.path
    # The revision is the model's; a tokenizer from elsewhere has its own history.
    tokenizer = resolve_model_folder(config.tokenizer) if config.tokenizer else folder
    spec = load_model_spec(
        files,
        config.ignore_config_field,
        config.generation_config == "auto",
        config.classifier_from_token,
        tokenizer,
    )
    if spec.classifier is not None and config.speculative is not None:
        raise ConfigError(
            f"{folder} classifies and generates nothing that could be drafted; leave out "
            "speculative"
        )
    gguf = files.gguf
    if config.served_model_name is None and gguf is not None and Path(config.model or "").exists():
        config = msgspec.structs.replace(config, served_model_name=gguf_name(gguf.metadata, folder))
    spec = replace(spec, notes=(*spec.notes, *_unread(tokenizer)))
    hardware = looked_for(config.backend, detect() if hardware is None else hardware)
    drawn = _draw(config, hardware, folder, tokenizer, spec, taps=taps)
    lengths = (config.max_model_len, config.max_input_len, config.max_output_len)
    if not as_built or lengths != (None, None, None):
        return drawn
    built = _built(drawn, files)
    if built is None:
        return drawn
    name, bounds = built
    config = msgspec.structs.replace(
        config, max_input_len=bounds.max_input_len, max_output_len=bounds.max_output_len
    )
    drawn = _draw(config, hardware, folder, tokenizer, spec, taps=taps)
    reasons = dict(drawn.config.reasons)
    for field in ("max_input_len", "max_output_len"):
        if field in reasons:
            reasons[field] = f"as the engine artifact {name} was built for"
    note = (
        f"the engine artifact {name} was built for {bounds}, and longer requests are refused; name "
        "other lengths by max_model_len, max_input_len or max_output_len, or build it again"
    )
    decided = msgspec.structs.replace(
        drawn.config, built=name, reasons=reasons, notes=(*drawn.config.notes, note)
    )
    return replace(drawn, config=decided)


def hardware_of_rank(resolved: ResolvedConfig) -> Hardware:
    """Return what a rank other than the first is planned for: this machine, with enough memory and
    as many GPUs as ranks, since rank 0 has decided how what there is is used."""
    hardware = looked_for(resolved.backend, replace(detect(), memory_available=_ENOUGH))
    found = hardware.gpu
    if found is None or found.gpu is None:
        return hardware
    gpu = replace(found.gpu, memory_free=_ENOUGH, count=resolved.tensor_parallel)
    return replace(hardware, gpu=replace(found, gpu=gpu))


def artifacts_of(engine_plan: EnginePlan, files: ModelFiles | None = None) -> ArtifactSession:
    """Return the use of the artifact store by the engine's own process, for looking. Raises
    ModelError, WeightError or ConfigError, as loading the model would."""
    own = engine_plan.of_engine
    number = 0 if own.stage is None else own.stage.number
    return ArtifactSession.of(
        own.config, own.own_plan(0), lambda level, text: None, files, stage=number
    )


def _built(drawn: EnginePlan, files: ModelFiles) -> tuple[str, BuiltLengths] | None:
    """The engine artifact that a start would restore, and the lengths that it was built for."""
    try:
        return artifacts_of(drawn, files).built_lengths()
    except (ConfigError, ModelError, WeightError):  # what is wrong with weights, loading says
        return None


def _unread(tokenizer: Path) -> tuple[str, ...]:
    """Notes of what lies beside a GGUF file as it lies beside tokenizer.json, and is not read."""
    beside = tokenizer.with_name("chat_template.jinja")
    if not is_gguf(tokenizer) or not beside.exists():
        return ()
    return (
        f"{beside} is not read, since GGUF files have their own template; --chat-template {beside} "
        "uses it",
    )


def _draw(
    config: EngineConfig,
    hardware: Hardware,
    folder: Path,
    tokenizer: Path,
    spec: ModelSpec,
    drafts: bool = False,
    plan: Plan | None = None,
    taps: tuple[int, ...] | None = None,
) -> EnginePlan:
    """``drafts``: the model drafts for another, a token of each sequence a step. ``plan``: what is
    known of its plan already. ``taps``: as of ``plan_engine``."""
    its_folder = draft_folder(config.speculative, folder) if taps is None else None
    draft = None if its_folder is None else draft_spec(config, its_folder, spec, tokenizer)
    decided = resolve(config, hardware, spec, folder, tokenizer, draft, drafts, plan, taps)
    resolved = decided.config
    if its_folder is None or draft is None or decided.draft is None:
        return EnginePlan(
            resolved,
            spec,
            decided.plan,
            config,
            ranks=decided.ranks,
            stages=decided.stages,
            taps=taps or (),
        )
    draft, notes = reaching(config.speculative, draft, resolved.max_model_len, its_folder)
    resolved = msgspec.structs.replace(resolved, notes=(*resolved.notes, *notes))
    draft_plan = replace(decided.draft, spec=draft)
    kv_bytes = resolved.num_blocks * draft_block_bytes(
        config, draft, decided.plan.kv_groups, resolved.max_model_len
    )
    drafted = _draw(
        draft_engine_config(config, resolved, its_folder, draft_plan, kv_bytes),
        hardware,
        its_folder,
        its_folder,
        draft,
        drafts=draft_plan.feature_size == 0,
        plan=draft_plan,
    )
    if draft_plan.takes_from_target:
        its = msgspec.structs.replace(drafted.config, target_path=resolved.model_path)
        drafted = replace(drafted, config=its)
    return EnginePlan(
        resolved,
        spec,
        decided.plan,
        config,
        drafted,
        decided.ranks,
        decided.stages,
        taps=taps_of(draft),
    )


def draft_tokens(engine_plan: EnginePlan) -> Int32s | None:
    """The token of each column of an EAGLE 3 head's logits, int32 ``[num_outputs]``, distinct.

    None where a column is the token of its number, as of all other models. Raises WeightError.
    """
    offsets, spec = engine_plan.plan.token_offsets, engine_plan.spec
    if offsets is None:
        return None
    return read_token_map(Path(engine_plan.config.model_path), offsets, spec.vocab_size)


def suffix_automaton() -> type[Automaton]:
    """The native suffix automaton, or the one in Python where native code is missing."""
    from penstock.speculate.suffix import SuffixAutomaton

    return native_automaton() or SuffixAutomaton


@dataclass(frozen=True)
class LoadedModels:
    """All that an engine has loaded: the target, and what drafts for it."""

    engine_plan: EnginePlan
    executor: Executor
    draft: LoadedDraft | None = None
    automaton: type[Automaton] | None = None
    """The index for n-gram drafting; None if that is not used."""
    adapters: AdapterStore | None = None
    """What adapters are loaded; None: none yet."""
    files: ModelFiles | None = None
    """The model, where it was opened before."""

    def close(self) -> None:
        """Close the executors; not to be called once an engine owns them."""
        if self.draft is not None:
            self.draft.executor.close()
        self.executor.close()


def load_models(
    engine_plan: EnginePlan,
    mark: Mark = lambda phase: None,
    note: Note = _log.log,
    keeping: Keeping = "worthwhile",
    files: ModelFiles | None = None,
    progress: ProgressCallback = no_progress,
) -> LoadedModels:
    """Load an engine plan's model and that of its draft. If either fails, neither stays open.

    Parameters and errors are those of :func:`load`. Phases of the draft have "draft: " before them.
    """
    adapters = AdapterStore.start(engine_plan)  # first: they are read sooner, and may be refused
    executor = load(engine_plan, mark, note, keeping, files, progress)
    if engine_plan.draft is None:
        automaton = None
        if isinstance(engine_plan.config.speculative, Ngram):
            automaton = suffix_automaton()
        return LoadedModels(
            engine_plan, executor, automaton=automaton, adapters=adapters, files=files
        )
    from penstock.speculate.make import LoadedDraft

    with closed_on_error(executor):
        draft = engine_plan.draft
        token_ids = draft_tokens(draft)
        drafting = load(
            draft, lambda phase: mark(f"draft: {phase}"), note, keeping, progress=progress
        )
        loaded = LoadedDraft(drafting, draft.config, draft.spec, draft.plan, token_ids)
        return LoadedModels(engine_plan, executor, loaded, adapters=adapters, files=files)


def load(
    engine_plan: EnginePlan,
    mark: Mark = lambda phase: None,
    note: Note = _log.log,
    keeping: Keeping = "worthwhile",
    files: ModelFiles | None = None,
    progress: ProgressCallback = no_progress,
) -> Executor:
    """An executor with its weights: restored from an engine artifact, or read and packed.

    ``keeping`` says whether packed weights are kept as an artifact: where that saves the next start
    some time, always (as an engine that is built for the lengths of the options), or never. Unless
    it is "never", products are also tuned, and the measurements kept with the artifact. ``files``
    is the model, where it was opened before. Raises WeightError or ConfigError; ArtifactError only
    if ``keeping`` is "always" and the artifact cannot be kept. Any other trouble with artifacts is
    logged, and the weights are packed.
    """

    def measure() -> Measured | None:
        return calibrated(engine_plan, files, mark, progress)

    config = engine_plan.config
    if engine_plan.stages:
        from penstock.engine.stages.loading import load_stages  # of engines that have any

        return load_stages(engine_plan, measure, mark, note, keeping, files, progress)
    if engine_plan.ranks:
        from penstock.engine.ranks.loading import load_ranks  # of engines that have any

        return load_ranks(
            engine_plan, measure, mark, note, keeping, files, progress, config.threads
        )
    return Start(engine_plan, files, mark, note, keeping, progress).executor(measure)
