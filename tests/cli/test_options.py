"""Options made from the structs."""

from __future__ import annotations

import argparse
import importlib
import re

import msgspec
import pytest

from penstock.cli.main import COMMANDS, Command, main
from penstock.cli.options import (
    add_engine_arguments,
    add_sampling_arguments,
    described,
    engine_config,
    option_name,
    parse_count,
    parse_logit_bias,
    parse_size,
    sampling_params,
)
from penstock.cli.parser import Parser, UsageError
from penstock.config import EngineConfig
from penstock.sampling.params import SamplingParams


def engine(*argv: str) -> EngineConfig:
    parser = Parser("penstock test", "")
    add_engine_arguments(parser)
    return engine_config(parser.parse(argv))


def sampling(*argv: str, **defaults: object) -> SamplingParams:
    parser = Parser("penstock test", "")
    add_sampling_arguments(parser, defaults)
    return sampling_params(parser.parse(argv))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command.words))
def test_help_of_every_command(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(f"penstock.cli.{command.module}")
    rare = getattr(module, "RARE", frozenset())
    parser = Parser("penstock " + " ".join(command.words), "", rare)
    module.add_arguments(parser)
    assert all(action.help for action in parser._actions)
    given = {name for action in parser._actions for name in action.option_strings}
    assert main([*command.words, "--help"]) == 0
    usual = capsys.readouterr().out
    assert main([*command.words, "--help-all" if rare else "--help"]) == 0
    whole = capsys.readouterr().out
    for name in given:
        assert re.search(rf"{name}\b", whole), name
        shown = re.search(rf"^  .*{name}[ ,\n]", usual, re.MULTILINE)
        assert shown or name in rare or name.startswith("--no-"), name
    hidden = rare & given
    assert not any(re.search(rf"^  {name}[ ,\n]", usual, re.MULTILINE) for name in hidden)
    assert (f"{len(hidden)} more options: " in usual) == bool(hidden)


def test_nothing_given_is_the_structs_defaults() -> None:
    assert engine() == EngineConfig()
    assert sampling() == SamplingParams()


@pytest.mark.parametrize("struct", [EngineConfig, SamplingParams])
def test_every_field_has_an_option_that_sets_it(struct: type[msgspec.Struct]) -> None:
    parser = Parser("penstock test", "")
    add_engine_arguments(parser, skip={"seed"})
    add_sampling_arguments(parser)
    options = {o: action for action in parser._actions for o in action.option_strings}
    for field in msgspec.structs.fields(struct):
        if field.name in (
            "model",
            "grammar",
            "beam_search",
            "profile",
        ):  # a place; their own; a file
            continue
        action = options[option_name(field.name)]
        if isinstance(action, argparse.BooleanOptionalAction):
            assert getattr(parser.parse([option_name(field.name)]), field.name) is True
            off = option_name("no_" + field.name)
            assert getattr(parser.parse([off]), field.name) is False
            continue
        if action.choices:
            word = str(list(action.choices)[-1])
        elif field.name == "logit_bias":
            word = "3:0.5"
        else:
            word = next(w for w in ("3", "0.5", "text", "ngram") if _reads(action, w))
        value = getattr(parser.parse([option_name(field.name), word]), field.name)
        assert value not in (None, field.default), field.name


def _reads(action: argparse.Action, word: str) -> bool:
    try:
        action.type(word)  # type: ignore[operator,misc]
    except (ValueError, argparse.ArgumentTypeError):
        return False
    return True


def test_engine_options() -> None:
    config = engine(
        *("some/model", "--kv-cache-bytes", "2GiB", "--no-enable-prefix-caching"),
        *("--dtype", "bfloat16", "--threads=3"),
    )
    assert config == EngineConfig(
        model="some/model",
        kv_cache_bytes=2 << 30,
        enable_prefix_caching=False,
        dtype="bfloat16",
        threads=3,
    )


def test_the_model_may_stand_after_the_options() -> None:
    assert engine("--threads", "1", "m") == EngineConfig(model="m", threads=1)


def test_sampling_options() -> None:
    params = sampling(
        *("--stop", "a", "--stop", "b c", "--stop-token-ids", "7", "--temperature", "0"),
        *("--logit-bias", "5:-100", "--logit-bias", "6:1.5", "--max-tokens", "none"),
        max_tokens=128,
    )
    assert params.stop == ("a", "b c")
    assert params.stop_token_ids == (7,)
    assert params.greedy
    assert params.logit_bias == {5: -100.0, 6: 1.5}
    assert params.max_tokens is None


def test_a_commands_own_default() -> None:
    assert sampling(max_tokens=128).max_tokens == 128


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--top-p", "1.5"], "--top-p"),
        (["--temperature", "nan"], "--temperature"),
        (["--n", "x"], "invalid int value: 'x'"),
        (["--max-tokens", "x"], "invalid int value: 'x'"),
        (["--logit-bias", "five:1"], "TOKEN_ID:BIAS"),
        (["--temprature", "1"], "did you mean --temperature?"),
        (["--temprature=1"], "did you mean --temperature?"),
        (["--temp", "1"], "did you mean --temperature?"),
        (["-n", "1"], "did you mean --max-tokens?"),
        (["--xyzzy"], "see 'penstock test --help'"),
    ],
)
def test_mistakes_are_named(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        sampling(*argv)


def test_a_second_place_is_refused() -> None:
    with pytest.raises(UsageError, match="unexpected argument 'b'"):
        engine("a", "b")


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2 << 30), ("2gb", 2 * 10**9), ("1.5K", 1500), ("64", 64), ("3MiB", 3 << 20)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "2 apples", "-1GiB", "2iB", "1e9"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "count"), [("8192", 8192), ("8k", 8000), ("8K", 8192), ("1.5k", 1500), ("1M", 1 << 20)]
)
def test_numbers_of_tokens(text: str, count: int) -> None:
    assert parse_count(text) == count
    assert engine("--max-model-len", text).max_model_len == count


@pytest.mark.parametrize("text", ["", "k", "8 kilo", "-1", "0.5", "8kb"])
def test_numbers_of_tokens_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a number of tokens"):
        parse_count(text)


def test_logit_bias_syntax() -> None:
    assert parse_logit_bias("12:-0.5") == (12, -0.5)


@pytest.mark.parametrize("struct", [EngineConfig, SamplingParams])
def test_every_option_is_described_in_sentences(struct: type[msgspec.Struct]) -> None:
    for name, (_, text) in described(struct).items():
        if name not in ("grammar", "beam_search"):  # they have options of their own
            assert re.fullmatch(r"[A-Za-z].*\.", text), name
            assert "`" not in text
            assert text == " ".join(text.split())


def test_help_is_the_descriptions() -> None:
    parser = Parser("penstock test", "")
    add_engine_arguments(parser)
    text = " ".join(parser.format_help().split())
    assert described(SamplingParams)["temperature"][1] not in text
    assert described(EngineConfig)["max_model_len"][1] in text
    assert "The seed of dummy weights, and of the seeds that requests get which name none." in text
    assert "(default: 0)" in text
