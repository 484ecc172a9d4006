"""``penstock generate`` and ``penstock explain`` on the model that ships with the package."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.waiting import PATIENCE_S, until

import penstock
from penstock.backends.cpu import native
from penstock.cli import main as cli

PROMPT = "def add(a, b):\n    return"


def generate(*words: str) -> int:
    options = ["--backend", "reference", "--max-model-len", "256", "--max-tokens", "3"]
    return cli.main(["generate", *options, *words])


def expected(prompt: str, max_tokens: int = 3) -> str:
    params = penstock.SamplingParams(temperature=0, max_tokens=max_tokens)
    with penstock.LLM(backend="reference", max_model_len=256) as llm:
        return llm.generate([prompt], params)[0].outputs[0].text


def test_one_prompt_is_the_text_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("-p", PROMPT, "--temperature", "0") == 0
    captured = capsys.readouterr()
    assert captured.out == expected(PROMPT) + "\n"
    assert captured.err.startswith("3 tokens in ")


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("-p", PROMPT, "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_json_of_several(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prompts = [PROMPT, "import os\n", "class A:\n"]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": p, "max_tokens": 9}) + "\n" for p in prompts))
    assert generate("-f", str(file), "--json", "--temperature", "0") == 0
    captured = capsys.readouterr()
    records = [json.loads(line) for line in captured.out.splitlines()]
    records.sort(key=lambda record: record["line"])
    assert [record["prompt"] for record in records] == prompts
    assert records[0]["text"] == expected(PROMPT)
    for record in records:
        assert 1 <= record["output_tokens"] <= 3
        assert record["prompt_tokens"] > 0
        assert record["finish_reason"] in ("length", "stop")
        assert 0 < record["ttft_s"] <= record["seconds"]
    assert "note: max_tokens: such fields of lines are copied, not used" in captured.err


def test_several_sequences_of_one_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("-p", PROMPT, "--n", "3", "--json", "--seed", "5") == 0
    first = capsys.readouterr().out
    records = [json.loads(line) for line in first.splitlines()]
    assert [record["index"] for record in records] == [0, 1, 2]
    assert generate("-p", PROMPT, "--n", "3", "--json", "--seed", "5") == 0
    again = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [r["text"] for r in again] == [r["text"] for r in records]


def test_a_beam_search(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("-p", PROMPT, "--beam-width", "3", "--n", "2", "--json") == 0
    texts = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    params = penstock.BeamSearchParams(beam_width=3, max_tokens=3)
    with penstock.LLM(backend="reference", max_model_len=256) as llm:
        (output,) = llm.beam_search(PROMPT, params)
    assert texts == [beam.text for beam in output.outputs[:2]]


def test_several_prompts_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("-p", PROMPT, "-p", "import os\n", "--temperature", "0", "--quiet") == 0
    out = capsys.readouterr().out
    assert out.startswith("==> def add(a, b):\n" + expected(PROMPT))
    assert "\n==> import os\n" in out


def test_chat_uses_the_template(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("-p", "Reverse a list.", "--chat", "--json", "--temperature", "0") == 0
    record = json.loads(capsys.readouterr().out)
    params = penstock.SamplingParams(temperature=0, max_tokens=3)
    with penstock.LLM(backend="reference", max_model_len=256) as llm:
        messages = [{"role": "user", "content": "Reverse a list."}]
        assert record["text"] == llm.chat(messages, params)[0].outputs[0].text


def test_chat_in_another_template(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = "{{ messages[0].content }}:"
    path = tmp_path / "chat.jinja"
    path.write_text(source)
    words = ["-p", "def f(x)", "--temperature", "0", "--max-tokens", "4", "--json", "--quiet"]
    assert generate(*words, "--chat", "--chat-template", str(path)) == 0
    record = json.loads(capsys.readouterr().out)
    params = penstock.SamplingParams(temperature=0, max_tokens=4)
    messages = [{"role": "user", "content": "def f(x)"}]
    for template in (source, path):
        with penstock.LLM(backend="reference", chat_template=template) as llm:
            (output,) = llm.chat(messages, params)
            assert output.prompt_token_ids == llm.tokenizer.encode("def f(x):", False)
            assert output.outputs[0].text == record["text"]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (Path("/nowhere.jinja"), "chat_template /nowhere.jinja cannot be used"),
        ("{% if", "not valid Jinja"),
        (" ", "must be a Jinja template, or the Path"),
        (3, "must be a Jinja template, or the Path"),
    ],
)
def test_what_is_no_template(template: Any, message: str) -> None:
    with pytest.raises(penstock.PenstockError, match=message):
        penstock.LLM(backend="reference", chat_template=template)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["-p", "x", "--max-model-len", "0"], 2, "max_model_len must be at least 1"),
        (["-p", "x", "--kv-cache-bytes", "999TiB"], 2, "set kv_cache_bytes to at most"),
        (["/nowhere/model", "-p", "x"], 1, "/nowhere/model"),
        (["", "-p", "x"], 2, "argument MODEL: it is empty"),
        (["-p", "x", "--chat-template", "x.jinja"], 2, "add --chat"),
        (["-p", "x", "--chat", "--chat-template", "/nowhere.jinja"], 2, "cannot be used"),
        (["-p", "x " * 400], 1, "256"),
        (["-p", "x", "--temperature", "-1"], 2, "--temperature"),
        (["-p", "x", "--regex", "caf\udce9"], 2, "argument --regex: it is not UTF-8 text"),
        (["-p", "x", "--choice", "caf\udce9"], 2, "argument --choice: it is not UTF-8 text"),
    ],
)
def test_mistakes(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(*words) == code
    error = capsys.readouterr().err
    assert error.startswith("penstock: error: ")
    assert message in error
    assert error.count("\n") == 1


def test_explain_gives_reasons_and_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--max-num-seqs", "3"]) == 0
    out = capsys.readouterr().out
    assert "max_num_seqs" in out
    assert "as asked" in out
    assert "RopeWrite" in out
    assert cli.main(["explain", "--no-plan"]) == 0
    assert "RopeWrite" not in capsys.readouterr().out


def test_explain_says_which_kernels_would_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_ISA", raising=False)
    best = native.load().isa
    cores = f"for cores with {native.load().second_level_cache() // 1024:,} KiB of L2 each"
    for isa, line in (
        ("", f"kernels  {best}  (the best of this installation that runs here), {cores}\n"),
        (best, f"kernels  {best}  (as PENSTOCK_ISA says), {cores}\n"),
        ("garbage", "kernels  none: PENSTOCK_ISA=garbage: there is no such instruction set; "),
    ):
        monkeypatch.setenv("PENSTOCK_ISA", isa)
        assert cli.main(["explain", "--no-plan"]) == 0
        assert line in capsys.readouterr().out
    assert cli.main(["explain", "--no-plan", "--backend", "reference"]) == 0
    assert "kernels" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "holds"),
    [
        (["--choice", "yes, both", "--choice", "no"], lambda text: text in ("yes, both", "no")),
        (["--regex", "[0-9]{3}"], lambda text: len(text) == 3 and text.isdecimal()),
        (["--json-schema", "schema.json"], lambda text: json.loads(text) in (True, False)),
        (["--grammar", "grammar.lark"], lambda text: text in ("a", "aa")),
    ],
    ids=["choice", "regex", "schema", "grammar"],
)
def test_what_the_output_must_be(
    words: list[str],
    holds: Callable[[str], bool],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "schema.json").write_text('{"type": "boolean"}')
    (tmp_path / "grammar.lark").write_text('start: "a" "a"?')
    monkeypatch.chdir(tmp_path)
    assert generate("-p", PROMPT, "--seed", "1", "--quiet", "--max-tokens", "12", *words) == 0
    assert holds(capsys.readouterr().out.removesuffix("\n"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--regex", "a(b"], "argument --regex: the regular expression cannot be used: "),
        (["--regex", "a(b"], "unclosed group"),
        (["--json-schema", "missing.json"], "argument --json-schema: cannot read missing.json"),
        (["--json-schema", "bad.json"], "argument --json-schema: bad.json: the JSON schema is not"),
        (["--json-schema", "odd.json"], "argument --json-schema: odd.json: the JSON schema "),
        (["--grammar", "bad.lark"], "argument --grammar: bad.lark: the grammar cannot be used: "),
        (["--choice", ""], "argument --choice: there must be choices, and none may be empty"),
        (["--regex", "a", "--choice", "b"], "not allowed with"),
    ],
)
def test_a_bad_grammar_is_one_line(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "odd.json").write_text('{"type": "oddity"}')
    (tmp_path / "bad.lark").write_text("start: b")
    monkeypatch.chdir(tmp_path)
    assert generate("-p", PROMPT, *words) == cli.EXIT_USAGE
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_bad_grammar_is_no_fault_of_a_files_lines(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n' * 3)
    assert generate("-f", str(path), "--json", "--regex", "a(b") != 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "unclosed group" in err.splitlines()[-1]


def test_a_prompt_that_is_piped_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT + "\n"))
    assert generate("--temperature", "0", "--quiet") == 0
    assert capsys.readouterr().out == expected(PROMPT) + "\n"


LINES = [
    b'{"prompt": "import os\\n", "id": 7, "tags": {"a": [1.50]}}',
    b"not JSON",
    b'{"text": "no prompt"}',
    b'{"prompt": 5}',
    b'{"prompt": "\xff"}',
    b'{"prompt": "x", "seconds": 1}',
    b'{"prompt": "' + b"x " * 400 + b'"}',
    b"",
    b'{"prompt": "class A:\\n", "id": 8}',
]


def test_a_bad_line_is_a_record_of_its_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\n".join(LINES))
    assert generate("-f", str(path), "--json", "--temperature", "0", "--quiet") == 1
    captured = capsys.readouterr()
    records = {r["line"]: r for r in map(json.loads, captured.out.splitlines())}
    assert captured.err == ""
    assert sorted(records) == [1, 2, 3, 4, 5, 6, 7, 9]
    assert (records[1]["id"], records[1]["tags"]) == (7, {"a": [1.5]})
    assert records[9]["id"] == 8
    assert records[1]["text"] == expected("import os\n")
    assert "error" not in records[9]
    for line, words in {
        2: "malformed",
        3: 'no field "prompt"',
        4: "str",
        5: "UTF-8",
        6: "'seconds'",
        7: "context",
    }.items():
        assert words in records[line]["error"]
        assert "text" not in records[line]


def test_bad_lines_for_people(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"prompt": "import os\\n"}\n{}\n{"prompt": "class A:\\n"}\n')
    assert generate("-f", str(path), "--quiet", "--n", "2") == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"penstock: error: {path}, line 2: there is no field")
    assert [line for line in captured.out.splitlines() if line.startswith("==>")] == [
        "==> import os",
        "==> import os",
        "==> class A:",
        "==> class A:",
    ]


def test_lines_of_several_files_name_theirs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    words = []
    for path in paths:
        path.write_text("import os\n")
        words += ["-f", str(path)]
    assert generate(*words, "--json") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted((r["file"], r["line"]) for r in records) == [(str(p), 1) for p in paths]


def test_control_c_keeps_what_is_done(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    lines = [{"prompt": "import os\n", "max": i} for i in range(200)]
    path.write_text("\n".join(map(json.dumps, lines)))
    words = ["--threads", "1", "--max-num-seqs", "2", "--json", "--max-tokens", "20"]
    answers = tmp_path / "answers.jsonl"
    with answers.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "generate", "-f", str(path), *words],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    until(lambda: answers.stat().st_size, PATIENCE_S, "the first record")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    records = [json.loads(line) for line in answers.read_text().splitlines()]
    assert 1 <= len(records) < 200
    assert f"interrupted: {len(records)} of 200 prompts are done" in err
