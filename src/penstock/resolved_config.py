"""What the engine runs with: every option decided, for one machine and one model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.cache.geometry import KvDType
from penstock.config import LoadFormat
from penstock.dtypes import DType, QuantizationName, WindowColumns
from penstock.kv_disk_config import KvDisk
from penstock.length_limits import LengthLimits
from penstock.sampling.defaults import SamplingDefaults
from penstock.speculative_config import SpeculativeConfig
from penstock.threads import format_cpus

if TYPE_CHECKING:
    from penstock.quant.scheme import Quantization

ChosenBackend = Literal["cpu", "cuda", "reference"]


class ResolvedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine runs with: every value decided, each with its reason in ``reasons``."""

    model_path: str
    tokenizer_path: str
    served_model_name: str
    dtype: DType
    load_format: LoadFormat
    quantization: QuantizationName
    quantization_group: int | None
    quantization_zero_points: bool
    quantize_activations: bool
    quantize_head: bool
    quantization_calibration: bool
    """Whether the model is run on a calibration text before its weights are packed
    (``engine/calibration.py``)."""
    weight_bytes: int
    backend: ChosenBackend
    threads: int
    cpus: tuple[int, ...]
    """The CPU that each thread is pinned to; empty: the system places the threads."""
    deterministic: bool
    max_model_len: int
    max_input_len: int | None
    """None: as much as the context holds."""
    max_output_len: int | None
    """None: as much as the context has left."""
    num_blocks: int
    kv_cache_bytes: int
    kv_cache_dtype: KvDType
    num_states: int
    """Number of state slots; 0 where no layer of the model keeps states."""
    state_bytes: int
    """Bytes of a state slot in the backend's layout."""
    max_num_seqs: int
    max_num_batched_tokens: int
    max_logit_rows: int
    """Maximum number of rows with logits in one step."""
    enable_prefix_caching: bool
    speculative: SpeculativeConfig | None
    drafts: bool
    """Whether this model drafts for another: one token of each sequence in a step."""
    artifact_dir: str | None
    """None: no artifacts are read or kept."""
    sampling_defaults: SamplingDefaults
    """Values of the sampling options that a request leaves out."""
    seed: int
    reasons: dict[str, str]
    tensor_parallel: int = 1
    """Number of ranks that share every layer, each in a process; this process is rank 0."""
    max_loras: int = 0
    """Number of adapters that can take part in one step; 0: no adapters are served."""
    max_lora_rank: int = 0
    """The largest rank of an adapter."""
    lora_modules: dict[str, str] = {}
    """Folders of the adapters that are loaded at the start, by the names of the adapters."""
    pipeline_parallel: int = 1
    """Number of pipeline stages, each a process with some of the layers; this process is the last
    stage."""
    pipeline_stages: tuple[str, ...] = ()
    """Addresses, HOST:PORT, of the first stages, those on other hosts; all others are processes of
    this machine."""
    window_columns: WindowColumns = 16
    """Number of columns in a window of INT4 weights, which the backend determines."""
    kv_disk: KvDisk | None = None
    """The folder on disk to which blocks of the KV cache are written; None: there is none."""
    kv_host_bytes: int = 0
    """Bytes of host memory for blocks of a GPU's KV cache; 0: none are kept there."""
    built: str | None = None
    """The engine artifact from which max_input_len and max_output_len were taken; None: they are
    options of this start."""
    target_path: str | None = None
    """The target's checkpoint, for draft heads that share weights with it; otherwise None."""
    notes: tuple[str, ...] = ()
    """Lines for the user who starts the engine."""

    @property
    def lengths(self) -> LengthLimits:
        """Limits of the lengths of prompts and answers."""
        origin = "set at this start"
        if self.built is not None:
            origin = f"which the engine artifact {self.built} was built with"
        return LengthLimits(self.max_model_len, self.max_input_len, self.max_output_len, origin)

    @property
    def rows_per_sequence(self) -> int:
        """Number of rows that a sequence has in a decode step (``Limits.rows_per_sequence``)."""
        return rows_per_sequence(self.speculative, self.drafts)

    @property
    def state_log(self) -> int:
        """Number of tokens that a sequence's state can take back (``Limits.state_log``)."""
        return self.rows_per_sequence if self.num_states else 0

    @property
    def schemes(self) -> Quantization:
        """The quantization schemes of the model's matrices."""
        from penstock.quant.choice import choose  # imports arrays, and commands read options first

        return choose(
            self.quantization,
            self.quantization_group,
            self.quantize_head,
            zero_points=self.quantization_zero_points,
            activations=self.quantize_activations,
            window_columns=self.window_columns,
        )

    def explain(self) -> str:
        """One line per option: value and why."""
        width = max(len(name) for name in self.reasons)
        return "\n".join(
            f"{name:<{width}}  {self._written(name)}  ({why})" for name, why in self.reasons.items()
        )

    def _written(self, name: str) -> str:
        """The value of an option as text: numbers with commas, CPUs as a list of ranges."""
        value = getattr(self, name)
        if name == "cpus":
            return format_cpus(self.cpus) or "any"
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return f"{value:,}" if is_number else str(value)


def rows_per_sequence(speculative: SpeculativeConfig | None, drafts: bool) -> int:
    """Number of rows that a sequence has in a decode step.

    A target verifies all drafted tokens behind the last one, and a model that drafts has two rows.
    """
    if speculative is not None:
        return 1 + speculative.num_tokens
    return 2 if drafts else 1
