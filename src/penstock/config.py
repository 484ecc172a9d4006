"""The engine's options: what a user asks for, and what a machine runs with."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.backend_choice import BackendName, ChosenBackend
from penstock.cache.geometry import KvDType
from penstock.models.spec import DType
from penstock.quant.choice import QuantizationName, choose
from penstock.quant.scheme import Quantization
from penstock.speculate.config import SpeculativeConfig

LoadFormat = Literal["auto", "dummy"]
DTypeOption = Literal["auto", "float32", "bfloat16", "float16"]
KvCacheDTypeOption = Literal["auto", "int8", "float32", "bfloat16", "float16"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asks for. ``None`` and ``"auto"`` mean: chosen for the machine and the model.

    :func:`~penstock.resolve.resolve` turns it into a :class:`ResolvedConfig`; nothing else reads a
    ``None``.
    """

    model: str = ""
    """A checkpoint folder, a hub id, or empty for the demo model that ships with Penstock."""
    revision: str | None = None
    tokenizer: str | None = None
    """Folder or hub id of the tokenizer; None: the model's own."""
    served_model_name: str | None = None
    dtype: DTypeOption = "auto"
    """Type of the weights in memory; auto keeps the checkpoint's."""
    load_format: LoadFormat = "auto"
    """dummy: seeded random weights from a config alone."""
    quantization: QuantizationName = "none"
    """int8 or int4: round the matrices to so many bits while they are loaded."""
    quantization_group: int | None = None
    """Columns that share a float32 scale: 32, 64, 128, or 0 for whole rows; None: whole rows, and
    in int4 windows of 32 columns on the row's 8-bit grid."""
    quantization_zero_points: bool = False
    """With a quantization_group, give each group the code that stands for 0, so that its codes span
    the values it has; else they are symmetric."""
    quantize_activations: bool | None = None
    """With quantization, also round what a product multiplies to 8 bits; None: yes on the CPU, no
    on a GPU. Else weights alone are quantized."""
    quantize_head: bool = True
    """With quantization, keep the output matrix in int8; else it stays in dtype."""
    backend: BackendName = "auto"
    """cuda: an NVIDIA GPU; auto: that if there is one that serves, else cpu."""
    threads: int | str | None = None
    """Compute threads of the CPU, as a number, or as a list of CPUs such as 0-7,16-23 that each get
    one; None: one for each physical core this process may use."""
    deterministic: bool = True
    """A request's tokens never depend on what else runs. On a GPU, without it products are
    cuBLAS's, which may be faster and may differ in the last bits; the CPU always is."""
    max_model_len: int | None = None
    """Longest prompt plus output, in tokens; None: the model's limit, or what the cache holds."""
    kv_cache_bytes: int | None = None
    """Memory for the KV cache; None: what the sequences can fill, at most half of what is free,
    or on a GPU all that is left there."""
    kv_cache_dtype: KvCacheDTypeOption = "auto"
    """Type of cached keys and values; auto: the weights' type. int8 holds nearly twice the tokens
    of a 16-bit type."""
    max_num_seqs: int | None = None
    """Sequences that run in one step; None: 64, on a GPU 256, or the token budget if that is
    less."""
    max_num_batched_tokens: int | None = None
    """Tokens computed in one step, by decode and prefill together; None: 512, on a GPU 2048, or
    max_num_seqs."""
    enable_prefix_caching: bool = True
    speculative: SpeculativeConfig | None = None
    """Draft tokens and verify several a step, which changes speed and nothing else. ngram:
    what the text repeats; draft:model=PATH: by a smaller model; self: by the model itself in int4;
    medusa:model=PATH, eagle:model=PATH: by heads that read its hidden states.
    Options are listed in docs/speculation.md."""
    artifact: bool = True
    """Start from weights that an earlier start packed and kept on disk, and keep them."""
    artifact_dir: str | None = None
    """Folder of kept engine artifacts; None: engines in $PENSTOCK_CACHE_DIR, or in
    ~/.cache/penstock."""
    seed: int = 0
    """Seed of dummy weights and of the seeds given to requests that name none."""


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
    weight_bytes: int
    backend: ChosenBackend
    threads: int
    cpus: tuple[int, ...]
    """The CPU of each thread; empty: where the system puts them."""
    deterministic: bool
    max_model_len: int
    num_blocks: int
    kv_cache_bytes: int
    kv_cache_dtype: KvDType
    max_num_seqs: int
    max_num_batched_tokens: int
    max_logit_rows: int
    """Maximum number of rows with logits in one step."""
    enable_prefix_caching: bool
    speculative: SpeculativeConfig | None
    drafts: bool
    """This model drafts for another, a token of each sequence a step."""
    artifact_dir: str | None
    """None: no artifacts are read or kept."""
    seed: int
    reasons: dict[str, str]
    target_path: str | None = None
    """The target's checkpoint, where heads that draft share weights with their target; otherwise
    None."""
    notes: tuple[str, ...] = ()
    """What whoever starts the engine should know of it, a line each."""

    @property
    def rows_per_sequence(self) -> int:
        """Rows of a sequence in steps that are run again and again: ``Limits``."""
        return rows_per_sequence(self.speculative, self.drafts)

    @property
    def schemes(self) -> Quantization:
        """What the plan's products are quantized to."""
        return choose(
            self.quantization,
            self.quantization_group,
            self.quantize_head,
            zero_points=self.quantization_zero_points,
            activations=self.quantize_activations,
        )

    def explain(self) -> str:
        """One line per option: value and why."""
        width = max(len(name) for name in self.reasons)
        return "\n".join(
            f"{name:<{width}}  {getattr(self, name)}  ({why})" for name, why in self.reasons.items()
        )


def rows_per_sequence(speculative: SpeculativeConfig | None, drafts: bool) -> int:
    """Rows of a sequence in steps that verify drafts, or of a model that drafts and reads them."""
    if speculative is not None:
        return 1 + speculative.num_tokens
    return 2 if drafts else 1
