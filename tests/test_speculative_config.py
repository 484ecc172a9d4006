from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.config import EngineConfig
from penstock.engine_options import engine_config
from penstock.errors import ConfigError
from penstock.speculative_config import (
    Eagle,
    Medusa,
    Ngram,
    describe,
    parse_speculative,
    speculative_config,
)


def test_text_and_dict() -> None:
    assert parse_speculative("ngram") == Ngram()
    wanted = Ngram(num_tokens=4, min_match=2, adaptive=False)
    assert parse_speculative("ngram:num_tokens=4,min_match=2,adaptive=false") == wanted
    options = {"method": "ngram", "num_tokens": 4, "min_match": 2, "adaptive": False}
    assert speculative_config(options) == wanted
    assert parse_speculative(describe(wanted)) == wanted


def test_heads() -> None:
    assert parse_speculative("medusa") == Medusa(num_tokens=8, acceptance="exact")
    typical = "medusa:model=a/b,acceptance=typical,typical_threshold=0.25,typical_alpha=1"
    wanted = Medusa(model="a/b", acceptance="typical", typical_threshold=0.25, typical_alpha=1.0)
    assert parse_speculative(typical) == parse_speculative(describe(wanted)) == wanted
    options = {"method": "medusa", "acceptance": "typical", "typical_alpha": 1}
    assert speculative_config(options) == Medusa(acceptance="typical", typical_alpha=1.0)
    eagle = Eagle(num_tokens=63, depth=10, width=10, quantization="int8")
    assert parse_speculative("eagle:num_tokens=63,depth=10,width=10,quantization=int8") == eagle
    assert parse_speculative(describe(eagle)) == eagle
    for config in (wanted, eagle):
        packed = msgspec.msgpack.encode(EngineConfig(speculative=config))
        assert msgspec.msgpack.decode(packed, type=EngineConfig).speculative == config


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("foo", r"method 'foo'\. There are: ngram, "),
        ("ngrams", "did you mean 'ngram'"),
        ("", "''"),
        ("ngram:", "key=value"),
        ("ngram:num_tokens", "key=value"),
        ("ngram:num_token=4", "did you mean 'num_tokens'"),
        ("ngram:model=a", "no option 'model'; there are num_tokens, adaptive, min_match"),
        ("ngram:num_tokens=4,num_tokens=5", "twice"),
        ("ngram:num_tokens=x", "num_tokens must be a whole number"),
        ("ngram:num_tokens=-1", "num_tokens must be at least 1"),
        ("ngram:num_tokens=0", "num_tokens must be at least 1"),
        ("ngram:num_tokens=17", "num_tokens must be at most 16"),
        ("ngram:min_match=0", "min_match must be at least 1"),
        ("ngram:shared_tokens=5", "shared_tokens must be 0 or from"),
        ("medusa:num_tokens=64", "num_tokens must be at most 63"),
        ("medusa:acceptance=some", "acceptance must be one of exact, typical"),
        ("medusa:acceptance=typical,typical_alpha=x", "typical_alpha must be a number"),
        ("medusa:acceptance=typical,typical_alpha=nan", "typical_alpha must be greater than 0"),
        ("medusa:acceptance=typical,typical_threshold=1.5", "typical_threshold must be"),
        ("medusa:typical_threshold=0.2", "has no effect with acceptance exact"),
        ("medusa:depth=3", "no option 'depth'"),
        ("eagle:depth=11", "depth must be at most 10"),
        ("eagle:width=0", "width must be at least 1"),
        ("eagle:quantization=int3", "quantization must be one of auto, none, int8, int4"),
        ("ngram:adaptive=yes", "adaptive must be true or false"),
    ],
)
def test_what_cannot_be_is_named(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_speculative(text)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": 3},
        {"method": "ngram", "num_tokens": "4"},
        {"method": "ngram", "num_tokens": True},
        {"method": "ngram", "adaptive": 1},
        {"method": "ngram", "what": 1},
        {"method": "medusa", "acceptance": "typical", "typical_alpha": "0.1"},
        {"method": "medusa", "acceptance": "typical", "typical_alpha": True},
    ],
)
def test_dicts_are_as_strict(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        speculative_config(options)


def test_as_an_engine_option(tmp_path: Path) -> None:
    by_dict = engine_config("", {"speculative": {"method": "ngram", "num_tokens": 4}})
    assert by_dict.speculative == Ngram(num_tokens=4)
    assert engine_config("", {"speculative": "ngram:num_tokens=4"}) == by_dict
    assert engine_config("", {"speculative": Ngram(num_tokens=4)}) == by_dict
    with pytest.raises(ConfigError, match="speculative must be text"):
        engine_config("", {"speculative": 4})
    # As it goes to the engine's process.
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(by_dict), type=EngineConfig) == by_dict
