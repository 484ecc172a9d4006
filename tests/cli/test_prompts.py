"""Prompts from options, files and standard input."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from penstock.cli.parser import Parser, UsageError
from penstock.cli.prompts import add_prompt_arguments, read_prompts


def read(*argv: str) -> list[str]:
    parser = Parser("penstock test", "")
    add_prompt_arguments(parser)
    return read_prompts(parser.parse(argv))


def test_options_then_files(tmp_path: Path) -> None:
    lines = tmp_path / "prompts.txt"
    lines.write_text("one \r\n\n  two\n")
    objects = tmp_path / "prompts.jsonl"
    objects.write_text('{"prompt": "a\\nb", "id": 7}\n\n{"prompt": ""}\n')
    found = read("-f", str(lines), "-p", "first", "--file", str(objects), "--prompt", "second")
    assert found == ["first", "second", "one ", "  two", "a\nb", ""]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    for name, text in (("p.txt", "one"), ("p.jsonl", '{"prompt": "one"}')):
        path = tmp_path / name
        path.write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n")
        assert read("-f", str(path)) == ["one"]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("x\ny\n"))
    assert read("-p", "-") == ["x\ny\n"]
    monkeypatch.setattr("sys.stdin", io.StringIO("x\ny\n"))
    assert read("-f", "-") == ["x", "y"]
    with pytest.raises(UsageError, match="more than once"):
        read("-f", "-", "-p", "-")


def undecoded(data: bytes, errors: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(data), "utf-8", errors)


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_bytes_that_are_no_text(
    errors: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([], ["-p", "-"]):
        monkeypatch.setattr("sys.stdin", undecoded("é\ufffd caf".encode() + b"\xe9\xff!", errors))
        assert read(*words) == ["é\ufffd caf\ufffd\ufffd!"]
        error = capsys.readouterr().err
        assert error.startswith("penstock: 2 bytes of standard input could not be read as UTF-8")
        assert error.count("\n") == 1
    monkeypatch.setattr("sys.stdin", undecoded(b"a\ncaf\xe9\n", errors))
    with pytest.raises(UsageError, match="-, line 2: not UTF-8 text"):
        read("-f", "-")


def test_an_option_that_is_no_text() -> None:
    with pytest.raises(UsageError, match="argument -p/--prompt: it is not UTF-8 text"):
        read("-p", "caf\udce9")


@pytest.mark.parametrize(
    ("piped", "prompt"),
    [("x\n", "x"), ("x\ny\r\n", "x\ny"), ("x\n\n", "x\n"), (" ", " "), ("é", "é")],
)
def test_what_is_piped_in_is_a_prompt(
    piped: str, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(piped))
    assert read() == [prompt]
    monkeypatch.setattr("sys.stdin", io.StringIO(piped))
    assert read("-p", "a") == ["a"]


@pytest.mark.parametrize("stdin", [io.StringIO(""), io.StringIO("\n"), None])
def test_no_prompt(stdin: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(UsageError, match="no prompt"):
        read()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"text": "b"}\n', "line 2"),
        ("plain\n", "line 1"),
        ("[]\n", "line 1"),
        ('{"prompt": "a"}\n{"prompt": "b", "x": ' + "[" * 5000, "line 2: it is nested too deeply"),
    ],
)
def test_lines_that_are_no_objects(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read("-f", str(path))


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        read("-f", str(path))
