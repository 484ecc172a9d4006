"""Profiles: read strictly, used where nothing is asked for, and named as the reason."""

from __future__ import annotations

import typing
from pathlib import Path

import msgspec
import pytest
from support.profiles import profile_of

from penstock import LLM
from penstock.cli import main as cli
from penstock.cli.options import add_engine_arguments, engine_config, engine_words
from penstock.cli.parser import Parser, UsageError
from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.engine_options import engine_config as python_config
from penstock.errors import ConfigError
from penstock.profile import Profile, ProfileOptions
from penstock.written_file import write_json

OPTIONS = ProfileOptions(max_num_seqs=8, quantization="int8", max_waiting=16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    write_json(path, profile_of(OPTIONS))
    return path


def asked(*words: str) -> EngineConfig:
    parser = Parser("penstock", "")
    add_engine_arguments(parser)
    return engine_config(parser.parse(words))


def test_options_are_typed_as_the_engines() -> None:
    engine = typing.get_type_hints(EngineConfig)
    for name, kind in typing.get_type_hints(ProfileOptions).items():
        if name != "max_waiting":
            kinds = set(typing.get_args(kind)) - {msgspec.UnsetType}
            own = engine[name]
            wanted = set(typing.get_args(own)) if typing.get_origin(own) is not None else {own}
            if typing.get_origin(own) is typing.Literal:
                assert own in kinds or set(typing.get_args(own)) == kinds, name
            else:
                assert kinds == wanted, name


def test_what_is_given_goes_before_the_profile(path: Path) -> None:
    words = ["--profile", str(path), "--quantization", "none"]
    for config in (asked(*words), python_config("", {"profile": path, "quantization": "none"})):
        assert (config.max_num_seqs, config.quantization) == (8, "none")
        packed = msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig)
        assert packed == config
    again = asked(*words)
    assert engine_words(again) == ["--max-num-seqs", "8"]
    assert hash(again) == hash(asked(*words))
    # As generate and chat give them to an LLM.
    assert python_config("", msgspec.structs.asdict(again)).quantization == "none"


def test_the_profile_is_the_reason(path: Path) -> None:
    words = ["--profile", str(path), "--backend", "cpu", "--max-num-seqs", "4"]
    resolved = plan_engine(asked(*words)).config
    because = "from the profile (made for 5.4 requests/s within ttft:500ms)"
    assert (resolved.quantization, resolved.reasons["quantization"]) == ("int8", because)
    assert resolved.reasons["max_num_seqs"] == "as asked"
    assert [note for note in resolved.notes if "profile" in note] == [
        "max_num_seqs is 4, as asked, in the place of the profile's 8, with which it was tuned"
    ]


def test_explain_tells_what_a_profile_is(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--profile", str(path), "--backend", "cpu", "--no-plan"]) == 0
    out = capsys.readouterr().out
    for text in (
        "8  (from the profile (made for 5.4 requests/s within ttft:500ms))",
        "prompts of 90 tokens and answers of 90 (medians) within ttft:500ms",
        "measured: 3.9 good answers/s, the default 2.1 good answers/s",
        "serve    max_waiting  16  (from the profile",
    ):
        assert text in out, out


def test_elsewhere_it_is_noted(path: Path) -> None:
    made = profile_of(OPTIONS, penstock="0.0.1")
    machine = msgspec.structs.replace(made.made_for.machine, cpu_model="Abacus", threads=99)
    made_for = msgspec.structs.replace(made.made_for, machine=machine)
    write_json(path, msgspec.structs.replace(made, made_for=made_for))
    notes = plan_engine(asked("--profile", str(path), "--backend", "cpu")).config.notes
    for text in ("made on Abacus", "with threads 99", "by Penstock 0.0.1"):
        assert any(text in note for note in notes), notes


def test_another_models_profile_is_refused(path: Path) -> None:
    made = profile_of(OPTIONS)
    model = msgspec.structs.replace(made.made_for.model, name="other/8B", parameters=8)
    made_for = msgspec.structs.replace(made.made_for, model=model)
    write_json(path, msgspec.structs.replace(made, made_for=made_for))
    with pytest.raises(ConfigError, match=r"made for other/8B.*leave the profile out"):
        plan_engine(asked("--profile", str(path), "--backend", "cpu"))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"max_num_seqs"', '"max_num_seq"', "did you mean 'max_num_seqs'"),
        ('"max_num_seqs": 8', '"max_num_seqs": "many"', r"\$\.options\.max_num_seqs"),
        ('"version": 1', '"version": 2', "version 2, and this Penstock reads 1"),
        ("{", "", "is no profile"),
        ('"verified": true,', "", "missing required field `verified`"),
    ],
)
def test_strange_files_are_refused(path: Path, old: str, new: str, told: str) -> None:
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match=told):
        Profile.read(path)
    with pytest.raises(UsageError, match=told):
        asked("--profile", str(path))


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        asked("--profile", str(tmp_path / "none.json"))
    with pytest.raises(ConfigError, match="must be the path"):
        LLM(profile=3)
