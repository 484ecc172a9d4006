"""The model that a GGUF file's metadata describe."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.errors import ModelError, shown
from penstock.gguf.metadata import GgufValue
from penstock.gguf.special_tokens import end_token_ids
from penstock.interface.sources import Shape, Stored
from penstock.models.classifier import with_labels
from penstock.models.gguf.architecture import ADJUSTED, COMMON, Architecture, Fields
from penstock.models.gguf.architectures import ARCHITECTURES
from penstock.models.gguf.blocks import FACTOR, GgufTypes
from penstock.models.gguf.keys import Keys
from penstock.models.gguf.kinds import ENCODER, require_model
from penstock.models.gguf.labels import read_labels, stored_head
from penstock.models.gguf.names import GENERAL, IDLE
from penstock.models.gguf.rope import Floats, RopeScaling, read_scaling
from penstock.models.name_forms import Told
from penstock.models.names import Name, NameMap
from penstock.models.registry import read_spec
from penstock.models.spec import DType, ModelSpec
from penstock.models.wording import Wording
from penstock.quant.formats import GGUF_FORMATS

SAMPLING: Final = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
    "repeat_last_n": "penalty_last_n",
}
"""The keys of ``general.sampling`` by the names of ``generation_config.json``."""
_IDLE_KEYS: Final = (
    *("attention.causal", "rope.dimension_count", "expert_count", "tensor_data_layout"),
)
_EMBEDDING: Final = "token_embd.weight"
_TOKENS: Final = "tokenizer.ggml.tokens"
_VOCAB_SIZE: Final = "vocab_size"
EXPERTS: Final = " with experts"
"""What the name of an architecture in the table ends with, where files say by a key that it is
meant."""


@dataclass(frozen=True)
class GgufTensors:
    """What is known of a file's tensors before they are read."""

    shapes: Mapping[str, Shape]
    types: Mapping[str, str]
    """The type of each, by the names of GGUF."""
    floats: Floats


def read_gguf_spec(
    metadata: Mapping[str, GgufValue],
    tensors: GgufTensors,
    *,
    ignore: Collection[str] = (),
    sampling_defaults: bool = True,
    where: str,
) -> ModelSpec:
    """The model in a file of this metadata and these tensors.

    ``ignore`` names keys of the architecture that are passed over though they are not known;
    without ``sampling_defaults`` what the makers recommend is. Raises ModelError, naming ``where``,
    for architectures, keys and values that Penstock does not know.
    """
    require_model(metadata, tensors.shapes, where)
    keys = Keys(metadata, where, tensors.shapes)
    architecture = _architecture(keys)
    fields, scaling = _fields(keys, architecture, tensors, end_token_ids(metadata))
    _check_vocabulary(keys, metadata, tensors.shapes[_EMBEDDING][0], ignore)
    generation: Fields = {
        name: value for name, key in SAMPLING.items() if (value := keys.sampling(key)) is not None
    }
    spec = read_spec(
        fields,
        generation=generation,
        sampling_defaults=sampling_defaults,
        where=where,
        wording=_wording(keys, architecture),
    )
    spec = architecture.stored(spec)
    labels = read_labels(keys, tensors.shapes)
    ignored = keys.finish(ignore)
    idle = f"{IDLE}|{architecture.idle}|{_drafting(keys)}"
    values = {name: _told(keys, key) for name, key in architecture.values.items()}
    stored = {**GENERAL, **architecture.names(spec), **values}
    if labels is not None:
        stored["score"] = stored_head(tensors.shapes)
    factors = _factors(tensors.shapes, {each.stored + each.suffix for each in stored.values()})
    names = NameMap(stored, idle, factors=factors)
    own = GgufTypes.of(tensors.types, names)
    notes = [f"{where}: {', '.join(ignored)} ignored, as asked"] if ignored else []
    kept = own.formats if own is not None else {}
    if lost := [n for n in factors if tensors.types[n] in GGUF_FORMATS and n not in kept]:
        notes.append(
            f"{len(lost)} tensors in blocks have a factor ({lost[0].removesuffix('.weight')}"
            f"{FACTOR}) that their format does not keep, and become {spec.dtype} as they are read"
        )
    spec = replace(spec, names=names, quantized=own, notes=(*spec.notes, *notes))
    if labels is not None:
        spec = with_labels(spec, labels, stored["score"])
    return scaling.applied(spec)


def _architecture(keys: Keys) -> Architecture:
    name = keys.architecture
    found = ARCHITECTURES.get(name)
    if keys.integer("expert_count", 0) and name + EXPERTS in ARCHITECTURES:
        found = ARCHITECTURES[name + EXPERTS]
    if found is None and ENCODER.search(name):
        raise ModelError(
            f"{keys.where}: general.architecture is {name!r:.60}, an encoder, whose tokens see the "
            "whole text; only causal models are served, also for embeddings and reranking (such as "
            "Qwen3-Embedding and Qwen3-Reranker)"
        )
    if found is None:
        known = ", ".join(sorted(each for each in ARCHITECTURES if EXPERTS not in each))
        raise ModelError(
            f"{keys.where}: general.architecture is {name!r:.60}, which is not read from GGUF "
            f"files; those that are: {known}. If the model's Hugging Face checkpoint is supported "
            "(docs/models.md), take that"
        )
    return found


def _fields(
    keys: Keys, architecture: Architecture, tensors: GgufTensors, ends: Sequence[int]
) -> tuple[Fields, RopeScaling]:
    """The fields of the model's ``config.json``, and what these cannot say of its rotation."""
    embed = tensors.shapes.get(_EMBEDDING)
    if embed is None or len(embed) != 2:
        raise ModelError(
            f"{keys.where} has no matrix {_EMBEDDING}, so it is no whole model; give the file of "
            "the model"
        )
    if keys.value("attention.causal") is False:
        raise keys.error("attention.causal", "must be true: only causal models are served")
    heads = keys.integer("attention.head_count", 1)
    fields: Fields = {
        "architectures": [architecture.family],
        "dtype": _dtype(tensors),
        "vocab_size": embed[0],
        "tie_word_embeddings": "output.weight" not in tensors.shapes,
        "bos_token_id": keys.id_of("bos"),
        "eos_token_id": list(ends) or keys.id_of("eos"),  # without a vocabulary: what it says
    }
    usual: Fields = {
        "num_key_value_heads": heads,
        "head_dim": keys.head_size if heads else 0,
        "rope_theta": 10_000.0,
        **architecture.otherwise,
    }
    sources = {**COMMON, **architecture.fields}
    for name, key in sources.items():
        if name in architecture.without:
            continue
        value = keys.value(key)
        if value is None:
            value = usual.get(name)
        if value is not None:
            fields[name] = value
    fields |= architecture.fixed
    if keys.has("nextn_predict_layers"):
        fields["num_hidden_layers"] = keys.layers
    fields |= {name: tensor in tensors.shapes for name, tensor in architecture.present.items()}
    for key in (*_IDLE_KEYS, *architecture.idle_keys):
        keys.raw(key)
    _check_heads(keys, architecture)
    scaling = _rope(keys, architecture, fields, tensors.floats)
    architecture.adjust(keys, fields)
    return fields, scaling


def _wording(keys: Keys, architecture: Architecture) -> Wording:
    """What the file calls the fields of its configuration."""
    named = {**ADJUSTED, **COMMON, **architecture.fields}
    return Wording(
        {
            **{field: f"{keys.architecture}.{key}" for field, key in named.items()},
            **{field: f"general.sampling.{key}" for field, key in SAMPLING.items()},
            **{f"{name}_token_id": f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos")},
            "vocab_size": f"the number of rows of {_EMBEDDING}",
        }
    )


def _check_vocabulary(
    keys: Keys, metadata: Mapping[str, GgufValue], rows: int, ignore: Collection[str]
) -> None:
    """Raise ModelError where a file says twice how many tokens there are, and not alike."""
    listed = metadata.get(_TOKENS)
    whole = f"{keys.architecture}.{_VOCAB_SIZE}"
    size = None if whole in ignore else keys.raw(_VOCAB_SIZE)
    said = [f"{_EMBEDDING} has {rows} rows"]
    if isinstance(listed, Sequence) and len(listed) != rows:
        said.append(f"{_TOKENS} has {len(listed)} tokens")
    if size not in (None, rows):
        said.append(f"{whole} is {shown(size)}")
    if len(said) == 1:
        return
    pass_over = ""
    if len(said) == 2 and said[1].startswith(whole):
        pass_over = f", or pass over the key: --ignore-config-field {whole}"
    raise ModelError(
        f"{keys.where}: {' and '.join(said)}, which must be equal; download the file again, or "
        f"convert the model again{pass_over}"
    )


def _factors(shapes: Mapping[str, Shape], taken: Collection[str]) -> dict[str, Stored]:
    """The factors of tensors, by the tensors' names, but for those that are weights of their
    own."""
    factors = {}
    for name in shapes:
        tensor = name.removesuffix(FACTOR) + ".weight"
        pattern = re.sub(r"\.\d+\.", ".*.", name)
        if name.endswith(FACTOR) and tensor in shapes and pattern not in taken:
            stack = len(shapes[tensor]) > 2
            factors[tensor] = Stored(name, shapes[tensor][:1] if stack else (1,), loose=not stack)
    return factors


def _told(keys: Keys, key: str) -> Name:
    """A number of each layer, which the metadata have."""
    return Name(f"{key}.*", suffix="", form=Told(keys.numbers_of(key)))


def _drafting(keys: Keys) -> str:
    """Regular expression of the tensors of layers that draft, which lie behind the others."""
    numbers = "|".join(map(str, range(keys.layers, keys.integer("block_count"))))
    return rf"blk\.({numbers or '(?!)'})\..*"


def _check_heads(keys: Keys, architecture: Architecture) -> None:
    if "head_dim" in architecture.without:
        return
    size = keys.value("attention.key_length")
    if keys.value("attention.value_length") not in (None, size):
        raise keys.error("attention.value_length", "must be attention.key_length here")


def _rope(keys: Keys, architecture: Architecture, fields: Fields, floats: Floats) -> RopeScaling:
    """The rotation of all layers, added to ``fields``."""
    if not architecture.rotates:
        fields.pop("rope_theta", None)
        return RopeScaling(None)
    head_dim = keys.integer("attention.key_length", keys.head_size, low=1)
    dim = keys.integer("rope.dimension_count", head_dim)
    if architecture.partial is not None:
        fields[architecture.partial] = dim / head_dim
    elif dim != head_dim and "head_dim" not in architecture.without:
        raise keys.error("rope.dimension_count", f"must be {head_dim}, the size of a head, here")
    theta = keys.number("rope.freq_base", 10_000.0)
    scaling = read_scaling(keys, theta, dim, floats)
    if scaling.parameters is not None:
        fields["rope_scaling"] = scaling.parameters
    return scaling


def _dtype(tensors: GgufTensors) -> DType:
    """The type to serve in: that of matrices in floats, or bfloat16 where they are in blocks."""
    matrices = [kind for name, kind in tensors.types.items() if len(tensors.shapes[name]) > 1]
    kinds = set(matrices)
    if kinds <= {"F32"}:
        return "float32"
    return "float16" if kinds <= {"F32", "F16"} else "bfloat16"
