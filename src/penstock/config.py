"""The engine's options as a user asks for them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.cache.geometry import KvDType
from penstock.dtypes import DType, DTypeOption, KvCacheDTypeOption, QuantizationName
from penstock.profile import Profile
from penstock.speculative_config import SpeculativeConfig

BackendName = Literal["auto", "cpu", "cuda", "reference"]
LoadFormat = Literal["auto", "dummy"]
GenerationConfigOption = Literal["auto", "none"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asks for. ``None`` and ``"auto"`` mean: chosen for the machine and the model.

    :func:`~penstock.resolve.resolve` turns it into a
    :class:`~penstock.resolved_config.ResolvedConfig`; nothing else reads a ``None``. ``--help``
    shows the descriptions.
    """

    model: Annotated[
        str,
        Meta(
            description="The model to serve: a checkpoint folder, a hub id, or nothing for the "
            "demo model that ships with Penstock."
        ),
    ] = ""
    revision: Annotated[
        str | None,
        Meta(
            description="The branch, tag or commit of the model on the hub. The default is its "
            "main branch."
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        Meta(description="A folder or hub id of the tokenizer. The default is the model's own."),
    ] = None
    served_model_name: Annotated[
        str | None,
        Meta(
            description="The name by which clients ask for the model. The default is MODEL as it "
            "was given."
        ),
    ] = None
    dtype: Annotated[
        DTypeOption,
        Meta(description="The type of the weights in memory; auto keeps the checkpoint's."),
    ] = "auto"
    load_format: Annotated[
        LoadFormat,
        Meta(
            description="Where weights come from: auto reads the checkpoint, dummy draws random "
            "ones from the seed and needs a config.json alone."
        ),
    ] = "auto"
    quantization: Annotated[
        QuantizationName,
        Meta(
            description="Rounds the matrices to so many bits while they are loaded: none, int8 "
            "or int4."
        ),
    ] = "none"
    quantization_group: Annotated[
        int | None,
        Meta(
            description="How many columns share a float32 scale: 32, 64 or 128, or 0 for whole "
            "rows. The default is whole rows, and in int4 windows of 32 columns on the row's "
            "8-bit grid."
        ),
    ] = None
    quantization_zero_points: Annotated[
        bool,
        Meta(
            description="With --quantization-group, quantizes asymmetrically: a zero point is "
            "stored for each group, so that its codes span the range of its weights. Otherwise "
            "the grid is symmetric."
        ),
    ] = False
    quantize_activations: Annotated[
        bool | None,
        Meta(
            description="With --quantization, also rounds the activations that the matrices "
            "multiply to 8 bits. The default is yes on the CPU, and no on a GPU, where weights "
            "alone are quantized."
        ),
    ] = None
    quantize_head: Annotated[
        bool,
        Meta(
            description="With --quantization, keeps the output matrix in int8. Without, it stays "
            "in --dtype."
        ),
    ] = True
    quantization_calibration: Annotated[
        bool,
        Meta(
            description="With --quantization, or a KV cache in int4, lets the model read a short "
            "text before its matrices are rounded, to measure how large each column of their "
            "inputs is, and where keys lie. It costs a first start the time of one prompt. "
            "Without, the matrices alone decide how columns are scaled, and keys are rounded as "
            "they are."
        ),
    ] = True
    backend: Annotated[
        BackendName,
        Meta(
            description="What computes: cpu, cuda (an NVIDIA GPU), or reference (NumPy, for "
            "tests). auto takes a GPU if there is one that serves, and the CPU otherwise."
        ),
    ] = "auto"
    threads: Annotated[
        int | str | None,
        Meta(
            description="The compute threads of the CPU: a number, or a list of CPUs such as "
            "0-7,16-23 that get one each. The default is one for each physical core that this "
            "process may use."
        ),
    ] = None
    tensor_parallel: Annotated[
        int,
        Meta(
            description="How many processes of this machine share every layer of the model, each "
            "with a part of the weights, of the KV cache and of the threads. Output is the same "
            "bit by bit. On GPUs, one for each, this has not been tried yet."
        ),
    ] = 1
    pipeline_parallel: Annotated[
        int,
        Meta(
            description="Into how many stages the model's layers are cut, each a process with its "
            "own weights and KV cache. Several steps are in flight, so that all stages work. "
            "Output is the same bit by bit. With --tensor-parallel, ranks share each stage. Not "
            "with --speculative."
        ),
    ] = 1
    pipeline_stages: Annotated[
        str | None,
        Meta(
            description="Where the first stages wait, HOST:PORT,HOST:PORT in their order, each "
            "started by 'penstock stage MODEL --host HOST --port PORT'. The engine itself is the "
            "last stage; --pipeline-parallel is one more than there are, or names more, which are "
            "processes of this machine."
        ),
    ] = None
    pipeline_secret_file: Annotated[
        str | None,
        Meta(
            description="A file with the secret that stages on other hosts were given. The "
            "default is the environment variable PENSTOCK_PIPELINE_SECRET."
        ),
    ] = None
    deterministic: Annotated[
        bool,
        Meta(
            description="A request's tokens never depend on what else runs. Turned off on a GPU, "
            "products are cuBLAS's, which may be faster and may differ in the last bits. The CPU "
            "is always deterministic."
        ),
    ] = True
    max_model_len: Annotated[
        int | None,
        Meta(
            description="The longest prompt and output together, in tokens. The default is the "
            "model's limit, or what the KV cache holds. Of LongRoPE's two lists of frequencies, "
            "this or else the model's limit chooses one."
        ),
    ] = None
    max_input_len: Annotated[
        int | None,
        Meta(
            description="The longest prompt, in tokens. The default is what 'penstock build' was "
            "given, or else as much as the context holds. With --max-output-len, too, a sequence "
            "runs only if the KV cache holds it and all that run to their ends."
        ),
    ] = None
    max_output_len: Annotated[
        int | None,
        Meta(
            description="The longest answer, in tokens. The default is what 'penstock build' was "
            "given, or else as much as the context has left."
        ),
    ] = None
    kv_cache_bytes: Annotated[
        int | None,
        Meta(
            description="The memory for the KV cache, and for states of sequences where the "
            "model's layers keep some. The default is what all sequences can "
            "fill, at most half of the memory that is free, or on a GPU all that is left there."
        ),
    ] = None
    kv_disk: Annotated[
        str | None,
        Meta(
            description="Keeps keys and values on disk, too, in this folder and up to this size, "
            "as /var/cache/kv:100GB: what the KV cache forgets, or an earlier start has computed, "
            "is read there where that is faster than computing it. Engines of one machine may "
            "share the folder."
        ),
    ] = None
    kv_host_bytes: Annotated[
        int | None,
        Meta(
            description="On a GPU, keeps keys and values in so much memory of the host, too, such "
            "as 32GiB: what the KV cache forgets is copied back from there where that is faster "
            "than computing it. Alone or above --kv-disk. On a CPU, give --kv-cache-bytes more."
        ),
    ] = None
    kv_disk_key_file: Annotated[
        str | None,
        Meta(
            description="Encrypts what kv_disk keeps by the key in this file, of at least 16 "
            "bytes. With another key, nothing of it is found."
        ),
    ] = None
    kv_cache_dtype: Annotated[
        KvCacheDTypeOption,
        Meta(
            description="The type of cached keys and values; auto takes the weights' type. int8 "
            "holds nearly twice the tokens of a 16-bit type; so does fp8 (fp8_e4m3 is the same), "
            "less exactly; k8v4, keys in int8 and values in int4, 2.6 times as many; int4 nearly "
            "four times as many, which costs quality."
        ),
    ] = "auto"
    max_num_seqs: Annotated[
        int | None,
        Meta(
            description="How many sequences run in one step at most. The default is 64, on a GPU "
            "256, or --max-num-batched-tokens if that is less."
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        Meta(
            description="How many tokens one step computes at most, of prompts and of sequences "
            "that decode together. The default is 512, on a GPU 2048, or --max-num-seqs if that "
            "is more."
        ),
    ] = None
    lora_modules: Annotated[
        tuple[str, ...],
        Meta(
            description="Loads a LoRA adapter, as PEFT saves it, from a folder, and serves it "
            "beside the model: requests choose it by this name as their model. NAME=PATH; may be "
            "repeated."
        ),
    ] = ()
    max_loras: Annotated[
        int | None,
        Meta(
            description="How many adapters run in one step at most; more may be loaded, and take "
            "turns. The default is one for each of --lora-modules. With it alone, adapters may be "
            "loaded while the server runs."
        ),
    ] = None
    max_lora_rank: Annotated[
        int | None,
        Meta(description="The largest rank of an adapter, at most 256. The default is 16."),
    ] = None
    enable_prefix_caching: Annotated[
        bool,
        Meta(
            description="Keeps the keys and values of prompts, so that a request that begins "
            "like an earlier one need not compute them again."
        ),
    ] = True
    speculative: Annotated[
        SpeculativeConfig | None,
        Meta(
            description="Drafts tokens and verifies several in a step, which changes speed and "
            "nothing else. ngram drafts what the text repeats; draft:model=PATH by a smaller "
            "model; self by the model itself in int4; medusa:model=PATH and eagle:model=PATH by "
            "heads that read its hidden states. docs/speculation.md lists the options."
        ),
    ] = None
    generation_config: Annotated[
        GenerationConfigOption,
        Meta(
            description="Where sampling options come from that a request leaves out: auto takes "
            "temperature, top_p, top_k, min_p, repetition_penalty and max_new_tokens of the "
            "model's generation_config.json; none leaves them out: temperature 1 and nothing cut, "
            "or in penstock chat and the page 0.8, top-k 40, top-p 0.95 and min-p 0.05."
        ),
    ] = "auto"
    ignore_config_field: Annotated[
        tuple[str, ...],
        Meta(
            description="Accepts a field of the model's config.json that Penstock does not know "
            "and you know to change nothing, as name or section.name. May be repeated."
        ),
    ] = ()
    classifier_from_token: Annotated[
        tuple[str, ...],
        Meta(
            description="Makes the model classify: its labels are these words, told apart by the "
            "logits that they have as the next token. no and yes make a reranker of "
            "Qwen3-Reranker, whose score is the probability of the last word. May be repeated, "
            "once for each word. Not needed for checkpoints that name such words themselves."
        ),
    ] = ()
    artifact: Annotated[
        bool,
        Meta(
            description="Starts from weights that an earlier start packed and kept on disk, and "
            "keeps them there."
        ),
    ] = True
    artifact_dir: Annotated[
        str | None,
        Meta(
            description="The folder of kept engine artifacts. The default is engines in "
            "$PENSTOCK_CACHE_DIR, or in ~/.cache/penstock."
        ),
    ] = None
    seed: Annotated[
        int,
        Meta(
            description="The seed of dummy weights, and of the seeds that requests get which "
            "name none."
        ),
    ] = 0
    profile: Annotated[
        Profile | None,
        Meta(
            description="A file that penstock tune has written: its options hold where none are "
            "given here."
        ),
    ] = None

    def kv_dtype(self, weights: DType) -> KvDType:
        """Return the type of the KV cache of a model that computes in ``weights``."""
        match self.kv_cache_dtype:
            case "auto":
                return weights
            case "fp8_e4m3":  # what vLLM calls it, too
                return "fp8"
            case asked:
                return asked
