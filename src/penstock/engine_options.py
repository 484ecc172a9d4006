"""The engine options of Python's callers, under the names that they know."""

from __future__ import annotations

import logging
import numbers
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any, Final, Literal

import msgspec

from penstock.config import EngineConfig
from penstock.errors import ConfigError, shown
from penstock.profile import Profile
from penstock.speculative_config import SpeculativeConfig, parse_speculative, speculative_config
from penstock.vllm_names import Foreign

_log = logging.getLogger("penstock.options")


@dataclass(frozen=True)
class _Advice:
    """An option of vLLM's that changes no output: any value of its kind is accepted, and logged
    unless it asks for nothing."""

    kind: type
    neutral: tuple[object, ...]
    why: str

    def check(self, name: str, value: object) -> None:
        """Raise ConfigError for a value of another kind; log one that asks for something."""
        if Foreign(self.neutral, self.why).accepts(value):
            return
        kind = numbers.Real if self.kind is float else self.kind
        if not isinstance(value, kind) or (isinstance(value, bool) and self.kind is not bool):
            raise ConfigError(f"{name} must be of type {self.kind.__name__}, not {shown(value)}")
        _log.warning("%s=%s has no effect: %s", name, shown(value), self.why)


_ONE_DEVICE: Final = "a model runs on one device here; leave it out"
_NO_CODE: Final = "a checkpoint's own code is never run; leave it out"
_TEXT_ONLY: Final = "models read and write text only; leave it out"
_NEVER: Final = "there is nothing of the kind here"

_FOREIGN: Final[Mapping[str, Foreign | _Advice]] = {
    "tensor_parallel_size": Foreign((1,), "it is called tensor_parallel"),
    "pipeline_parallel_size": Foreign((1,), "it is called pipeline_parallel"),
    "data_parallel_size": Foreign((1,), _ONE_DEVICE),
    "enable_expert_parallel": Foreign((False,), _ONE_DEVICE),
    "distributed_executor_backend": Foreign(("mp", "uni"), _ONE_DEVICE),
    "trust_remote_code": Foreign((False,), _NO_CODE),
    "tokenizer_mode": Foreign(("auto", "hf", "slow"), "tokenizers are read in one way"),
    "skip_tokenizer_init": Foreign((False,), "give prompts as token ids: no text is needed then"),
    "tokenizer_revision": Foreign((), "give tokenizer= a folder of that revision"),
    "code_revision": Foreign((), _NO_CODE),
    "config_format": Foreign(("auto", "hf"), "convert the model to a Hugging Face checkpoint"),
    "hf_token": Foreign((), "log in with `hf auth login`, or set HF_TOKEN"),
    "hf_overrides": Foreign(({},), "change config.json, or see classifier_from_token"),
    "download_dir": Foreign((), "set HF_HOME"),
    "cpu_offload_gb": Foreign((0, 0.0), "a smaller kv_cache_bytes or quantization= needs less"),
    "kv_offloading_size": Foreign((0, 0.0), "kv_host_bytes= gives the host's memory, in bytes"),
    "enable_lora": Foreign((False, True), "max_loras= and lora_modules= ask for adapters"),
    "max_cpu_loras": _Advice(int, (), "all adapters that are loaded stay in memory"),
    "lora_dtype": Foreign(("auto",), "adapters are kept in the type of the weights"),
    "fully_sharded_loras": Foreign((False,), _ONE_DEVICE),
    "limit_mm_per_prompt": Foreign(({},), _TEXT_ONLY),
    "mm_processor_kwargs": Foreign(({},), _TEXT_ONLY),
    "allowed_local_media_path": Foreign(("",), _TEXT_ONLY),
    "task": Foreign(("auto", "generate", "embed"), "generate() and embed() are always there"),
    "runner": Foreign(("auto", "generate", "pooling"), "generate() and embed() are always there"),
    "device": Foreign(("auto",), 'backend="cpu" or "cuda" chooses'),
    "max_seq_len": Foreign((), "it is called max_model_len"),
    "max_num_tokens": Foreign((), "it is called max_num_batched_tokens"),
    "kv_cache_memory_bytes": Foreign((), "it is called kv_cache_bytes"),
    "speculative_config": Foreign(({},), "it is called speculative"),
    "logits_processors": Foreign(([], ()), "logit_bias and grammar are options of SamplingParams"),
    "override_generation_config": Foreign(({},), "give SamplingParams with each request"),
    "block_size": Foreign((16,), "blocks of the cache have a fixed size; leave it out"),
    "enable_chunked_prefill": Foreign((True,), "max_num_batched_tokens limits a step"),
    "enable_sleep_mode": Foreign((False,), "close() releases the memory"),
    "enforce_eager": _Advice(bool, (False, True), _NEVER),
    "max_seq_len_to_capture": _Advice(int, (8192,), _NEVER),
    "max_context_len_to_capture": _Advice(int, (8192,), _NEVER),
    "disable_custom_all_reduce": _Advice(bool, (False, True), _NEVER),
    "disable_async_output_proc": _Advice(bool, (False, True), _NEVER),
    "async_scheduling": _Advice(bool, (False, True), _NEVER),
    "disable_log_stats": _Advice(bool, (False, True), "nothing is logged of its own accord"),
    "use_v2_block_manager": _Advice(bool, (False, True), _NEVER),
    "max_parallel_loading_workers": _Advice(int, (), "threads= load, too"),
    "use_tqdm_on_load": _Advice(bool, (False,), "load_progress= is told how loading goes on"),
    "swap_space": _Advice(float, (0, 4), "a preempted sequence is computed again, from the cache"),
    "gpu_memory_utilization": _Advice(float, (0.9,), "kv_cache_bytes sets the cache's memory"),
    "guided_decoding_backend": _Advice(str, ("auto",), "there is one"),
}

_WORDS: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    tuple: "a list of texts",
}
_DTYPES: Final[Mapping[str, str]] = {"half": "float16", "float": "float32"}


def engine_config(model: str | None, options: Mapping[str, Any]) -> EngineConfig:
    """EngineConfig of keyword options.

    None is an option's default. vLLM's options that are none here are accepted where they ask for
    nothing; those that change no output are logged. Raises ConfigError for what cannot be
    honoured, and for an unknown name with the nearest known.
    """
    known = EngineConfig.__struct_fields__
    given = {
        name: value for name, value in {"model": model, **options}.items() if value is not None
    }
    for name in options:
        if name not in known:
            _check_foreign(name, options[name])
    given = {name: value for name, value in given.items() if name in known}
    if options.get("enable_lora") is True and "lora_modules" not in given:
        given.setdefault("max_loras", 1)  # as many as vLLM has
    if isinstance(given.get("lora_modules"), Mapping):
        modules = given["lora_modules"].items()
        given["lora_modules"] = tuple(f"{name}={path}" for name, path in modules)
    speculative, profile = given.pop("speculative", None), given.pop("profile", None)
    if type(given.get("dtype")).__module__ == "torch":
        given["dtype"] = str(given["dtype"]).removeprefix("torch.")
    if isinstance(given.get("dtype"), str):
        given["dtype"] = _DTYPES.get(given["dtype"], given["dtype"])
    given = {name: _checked(name, value) for name, value in given.items()}
    if isinstance(speculative, str):
        speculative = parse_speculative(speculative)
    elif isinstance(speculative, Mapping):
        speculative = speculative_config(speculative)
    elif speculative is not None and not isinstance(speculative, SpeculativeConfig):
        raise ConfigError(
            'speculative must be text such as "ngram:num_tokens=4" or a dict such as '
            f'{{"method": "ngram", "num_tokens": 4}}, not {speculative!r}'
        )
    if isinstance(profile, str | PurePath):
        profile = Profile.read(Path(profile))
    if isinstance(profile, Profile):
        given = profile.over(given)
    elif profile is not None:
        raise ConfigError(f"profile must be the path of a file, not {shown(profile)}")
    return EngineConfig(speculative=speculative, profile=profile, **given)


def foreign_hint(name: str) -> str:
    """What to do instead of vLLM's option ``name``; empty if it is none of those known."""
    foreign = _FOREIGN.get(name)
    if isinstance(foreign, _Advice):
        return foreign.why
    return "" if foreign is None else foreign.hint


def _checked(name: str, value: Any) -> Any:
    """``value`` as the option's type has it. Raises ConfigError for another type."""
    if not isinstance(value, bool) and isinstance(value, numbers.Integral):
        value = int(value)  # NumPy's, too
    elif isinstance(value, PurePath):
        value = str(value)
    elif isinstance(value, list):
        value = tuple(value)
    kind = typing.get_type_hints(EngineConfig)[name]
    words = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        pass
    if words and isinstance(value, str) and name != "dtype":
        return value  # refused where it is decided, with more to say
    what = f"one of {', '.join(words)}" if words else _in_words(kind)
    raise ConfigError(f"{name} must be {what}, not {shown(value)}")


def _in_words(kind: Any) -> str:
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    words = (_WORDS.get(typing.get_origin(each) or each) for each in kinds)
    return " or ".join(filter(None, words))


def _check_foreign(name: str, value: Any) -> None:
    """Raise ConfigError for an option that is none here, unless ``value`` asks for nothing."""
    foreign = _FOREIGN.get(name)
    if foreign is None:
        near = get_close_matches(name, EngineConfig.__struct_fields__, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"there is no engine option {name!r}{hint}")
    if isinstance(foreign, _Advice):
        foreign.check(name, value)
    else:
        foreign.check(name, value, lambda message, _: ConfigError(message))
