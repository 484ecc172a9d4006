"""Options of other programs' command lines: what to write instead."""

from __future__ import annotations

import re

import pytest

from penstock.cli.foreign_options import _CALLED, instead_of
from penstock.cli.main import main
from penstock.cli.options import add_engine_arguments
from penstock.cli.parser import Parser, UsageError
from penstock.config import EngineConfig
from penstock.engine_options import _FOREIGN

ONE_DEVICE = "a model runs on one device here; leave it out"


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["--model", "x"], "write the model without an option's name"),
        (["-m", "x"], "write the model without an option's name"),
        (["-tp", "2"], "it is called --tensor-parallel"),
        (["--tensor-parallel-size=2"], "it is called --tensor-parallel"),
        (["-pp", "2"], "it is called --pipeline-parallel"),
        (["-dp", "2"], ONE_DEVICE),
        (["x", "-c", "4096"], "did you mean --max-model-len?"),
        (["--ctx-size", "4096"], "did you mean --max-model-len?"),
        (["-t", "4"], "did you mean --threads?"),
        (["--gpu-memory-utilization", "0.9"], "--kv-cache-bytes sets the cache's memory"),
        (["--no-enable-chunked-prefill"], "--max-num-batched-tokens limits a step"),
        (["-ngl", "99"], "which --backend chooses"),
        (["--kv-cache-memory-bytes", "5"], "it is called --kv-cache-bytes"),
        (["-n", "5"], "see 'penstock test --help'"),  # --max-tokens is none of this command's
        (["--seeding"], "did you mean --seed?"),
        (["--stream"], "see 'penstock test --help'"),
        (["-xyz"], "see 'penstock test --help'"),
    ],
)
def test_the_hint(argv: list[str], hint: str) -> None:
    parser = Parser("penstock test", "")
    add_engine_arguments(parser)
    with pytest.raises(UsageError, match=r"unknown option -[\w-]+; .*" + re.escape(hint) + "$"):
        parser.parse(argv)


def test_a_command_without_a_model_is_not_told_to_take_one() -> None:
    with pytest.raises(UsageError, match="see 'penstock test --help'"):
        Parser("penstock test", "").parse(["--model"])


def test_hints_name_options_as_the_command_line_does() -> None:
    ours = {"--" + name.replace("_", "-") for name in EngineConfig.__struct_fields__}
    for name in _FOREIGN:
        hint = instead_of("--" + name.replace("_", "-"), ours, True)
        assert hint, name
        assert not re.search(r"[a-z]_[a-z]|=|\(\)|Params", hint), hint
    assert not _CALLED.keys() & ours


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["bench", "serve", "http://localhost:1", "--trace", "x.csv"], "did you mean --workload?"),
        (["bench", "serve", "http://localhost:1", "--request-rate", "4"], "did you mean --rate?"),
        (["tune", "--workload", "x.csv", "--out", "y.json"], "did you mean --trace?"),
    ],
)
def test_a_load_has_other_names_elsewhere(
    argv: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert hint in capsys.readouterr().err
