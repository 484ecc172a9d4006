"""What the attack sends, and what it counts as trouble."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from jinja2.sandbox import SandboxedEnvironment

from hostile import attack, bodies, files, grammars, sockets, templates
from hostile.case import Case


def head_and_body(case: Case) -> tuple[bytes, bytes]:
    head, _, body = case.data.partition(b"\r\n\r\n")
    return head, body


@pytest.mark.slow
@pytest.mark.parametrize("make", [grammars.cases, bodies.cases])
def test_posted_cases_are_faultless_http(make: object) -> None:
    cases = list(make("demo"))  # type: ignore[operator]
    assert len({case.name for case in cases}) == len(cases) > 150
    for case in cases:
        head, body = head_and_body(case)
        assert f"Content-Length: {len(body)}".encode() in head


@pytest.mark.slow
def test_chains_are_ten_times_as_long_at_the_second_scale() -> None:
    sizes = {case.name: len(head_and_body(case)[1]) for case in grammars.cases("demo")}
    short = sizes["chain of items as guided_json, 1x"]
    assert 9 < sizes["chain of items as guided_json, 10x"] / short < 12


def test_a_chain_refers_to_what_it_defines() -> None:
    schema = dict(grammars.schemas(1))["chain of items"]
    text = json.dumps(schema)
    names = {part.split('"')[0] for part in text.split('"#/$defs/')[1:]}
    assert names == set(schema["$defs"])


def test_sockets_have_names_of_their_own() -> None:
    cases = list(sockets.cases("demo"))
    assert len({case.name for case in cases}) == len(cases) >= 38
    assert sum(case.closes_early for case in cases) == 2


@pytest.mark.parametrize("name", templates.BOMBS)
def test_templates_go_off_when_asked_to_alone(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "from"
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text("{}")
    templates.checkpoint(folder, tmp_path / "to", templates.BOMBS[name])
    source = json.loads((tmp_path / "to" / "tokenizer_config.json").read_text())["chat_template"]
    environment = SandboxedEnvironment()
    environment.intercepted_binops = frozenset("*")  # or Jinja multiplies when it compiles
    rendered = environment.from_string(source).render(messages=[{"content": "hello"}])
    assert rendered == "hello"


@pytest.mark.slow
def test_every_breakage_changes_the_folder(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (whole / name).write_text("{}")
    (whole / "model.safetensors").write_bytes(b"\0" * 64)
    for number, (name, harm) in enumerate(files.breakages()):
        folder = tmp_path / str(number)
        files.broken(whole, folder, harm)
        changed = name.split(":")[0]
        path = folder / changed
        assert not path.is_file() or path.read_bytes() != (whole / changed).read_bytes(), name


@pytest.mark.parametrize(
    ("code", "stderr", "trouble"),
    [
        (0, "", None),
        (1, "penstock: the file is cut\n", None),
        (1, "Traceback (most recent call last):\nKeyError: 'a'\n", "a traceback: KeyError: 'a'"),
        (1, "", "not an error of one line: ''"),
        (-11, "", "it died by signal 11"),
    ],
)
def test_what_a_load_may_end_with(code: int, stderr: str, trouble: str | None) -> None:
    done = subprocess.CompletedProcess([], code, "", stderr)
    assert attack.fault(done) == trouble
