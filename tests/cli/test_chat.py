"""``penstock chat`` as a person has it: in a terminal, with a model here and with a server's."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from support.scripted_api import ScriptedApi, delta, end, scripted_api
from support.terminal import CTRL_C, CTRL_D, Terminal, in_terminal

from penstock import LLM, SamplingParams
from penstock.cli import main as cli
from penstock.cli.first_model import FIRST_MODEL, first_model
from penstock.cli.parser import UsageError
from penstock.demo_model import demo_model_path

DEMO = str(demo_model_path())
LOCAL = ["penstock", "chat", DEMO, "--threads", "1", "--max-model-len", "512", "--temperature", "0"]


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with scripted_api() as api:
        api.events = [delta(content="**Hi** there."), *end(prompt_tokens=3, completion_tokens=4)]
        yield api


def remote(api: ScriptedApi) -> list[str]:
    return ["penstock", "chat", "--url", api.url]


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def prompted(terminal: Terminal) -> str:
    shown = terminal.expect(">>> ")
    terminal.idle()
    return shown


def test_a_conversation(api: ScriptedApi, home: dict[str, str], tmp_path: Path) -> None:
    with in_terminal(remote(api), home) as terminal:
        assert f"small: at {api.url}/v1" in prompted(terminal)
        terminal.type("Hello\n")
        shown = prompted(terminal)
        assert "Hi there." in shown
        assert "4 tokens" in shown
        assert "\x1b[1mHi\x1b[0m" in terminal.raw
        terminal.type("/he\t\n")
        assert "/save FILE" in prompted(terminal)
        terminal.type('"""two\nlines"""\n')
        terminal.expect("... ")
        prompted(terminal)
        terminal.type(f"/save {tmp_path}/c.json\n")
        terminal.expect("2 turns saved")
        prompted(terminal)
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    said = json.loads((tmp_path / "c.json").read_text())["messages"]
    assert [message["content"] for message in said] == [
        "Hello",
        "**Hi** there.",
        "two\nlines",
        "**Hi** there.",
    ]
    history = tmp_path / "state/penstock/chat_history"
    assert "Hello" in history.read_text().splitlines()
    assert history.stat().st_mode & 0o077 == 0
    with in_terminal(remote(api), home) as terminal:
        prompted(terminal)
        terminal.type("\x1b[A" * 5 + "\n")  # the first line of before
        assert "Hi there." in prompted(terminal)
    assert api.asked[-1]["messages"] == [{"role": "user", "content": "Hello"}]


def test_control_c(api: ScriptedApi, home: dict[str, str]) -> None:
    api.hold = threading.Event()
    api.events = [delta(content="It begins ")]
    with in_terminal(remote(api), home) as terminal:
        prompted(terminal)
        terminal.type("never asked")
        terminal.expect("never asked")
        terminal.idle()
        terminal.type(CTRL_C)
        prompted(terminal)
        terminal.type(CTRL_C)
        terminal.expect("again")
        prompted(terminal)
        terminal.type("a\n")
        terminal.expect("It ")
        terminal.type(CTRL_C)
        assert "stopped" in prompted(terminal)
        terminal.type("/show\n")
        assert "said so far: 1 turn" in prompted(terminal)
        terminal.type(CTRL_C)
        prompted(terminal)
        terminal.type(CTRL_C)
        assert terminal.wait() == 0
    assert [m["content"] for m in api.asked[0]["messages"]] == ["a"]


@pytest.mark.slow
def test_control_c_stops_an_answer_and_then_leaves(api: ScriptedApi, home: dict[str, str]) -> None:
    api.hold = threading.Event()
    with in_terminal(remote(api), home) as terminal:
        api.events = [delta(content="It begins ")]
        prompted(terminal)
        terminal.type("a\n")
        terminal.expect("It ")
        terminal.type(CTRL_C)
        prompted(terminal)
        terminal.type(CTRL_C)
        assert terminal.wait() == 0


def test_lines_are_as_wide_as_the_terminal(api: ScriptedApi, home: dict[str, str]) -> None:
    api.events = [delta(content="word " * 40), *end()]
    with in_terminal(remote(api), home, columns=30) as terminal:
        prompted(terminal)
        terminal.type("a\n")
        shown = prompted(terminal)
    lines = [line for line in shown.splitlines() if line.startswith("word")]
    assert max(map(len, lines)) == len("word " * 6) - 1


def piped(words: list[str], text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words], input=text, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("words", "text", "question"),
    [
        (["--quick", "Why?"], "", "Why?"),
        (["--quick", "Why?"], "the text\n", "Why?\n\nthe text"),
        (["--quick"], "Why?\n", "Why?"),
        ([], "Why?\nSay.\n", "Why?\nSay."),
    ],
)
def test_one_question(api: ScriptedApi, words: list[str], text: str, question: str) -> None:
    done = piped([*remote(api), *words], text)
    assert (done.stdout, done.stderr, done.returncode) == ("**Hi** there.\n", "", 0)
    assert api.asked[0]["messages"][-1]["content"] == question


@pytest.mark.parametrize("locale", ["C.UTF-8", "POSIX"])
def test_bytes_that_are_no_text(api: ScriptedApi, locale: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *remote(api), "--quick", "hi"],
        input=b"caf\xe9",
        capture_output=True,
        env={**os.environ, "LC_ALL": locale},
        timeout=60,
    )
    assert (done.stdout, done.returncode) == (b"**Hi** there.\n", 0)
    assert done.stderr.startswith(b"penstock: 1 byte of standard input could not be read as UTF-8")
    assert api.asked[0]["messages"][-1]["content"] == "hi\n\ncaf\ufffd"


def test_what_is_asked_of_the_server(
    api: ScriptedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"system": "S", "parameters": {"temperature": 1, "top_k": 5}}')
    monkeypatch.setenv("MY_KEY", "secret")
    words = ["--load", str(path), "--temperature", "0.5", "--stop", "x", "--api-key-env", "MY_KEY"]
    words += ["--chat-template-kwargs", '{"tone": "dry"}']
    assert piped([*remote(api), *words], "U").returncode == 0
    asked = api.asked[0]
    assert (asked["temperature"], asked["top_k"], asked["stop"]) == (0.5, 5, ["x"])
    assert asked["messages"][0] == {"role": "system", "content": "S"}
    assert asked["chat_template_kwargs"] == {"tone": "dry"}
    assert api.keys[0] == "Bearer secret"


def test_what_the_template_does_not_read(
    api: ScriptedApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115
    api.chat_template_kwargs = ("tone",)
    words = [*remote(api)[1:], "--quick", "x", "--chat-template-kwargs", '{"tune": 1}']
    assert cli.main(words) == 2
    assert "reads no variable 'tune'; it reads tone\n" in capsys.readouterr().err
    assert api.asked == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--quick", ""], "there is no question"),
        (["--quick", "caf\udce9"], "argument --quick: it is not UTF-8 text"),
        (["--quick", "x"], "no model is named: name a folder"),
        (["--quick", "x", "--temperature", "-1"], "--temperature"),
        (["--quick", "x", "--url", "ftp://x"], "is no URL of a server"),
        (["--quick", "x", "--url", "http://h", "--threads", "2"], "--threads: it is for a model"),
        (["--quick", "x", "--url", "http://h", "--api-key-env", "NOBODY"], "no environment"),
        (["--quick", "x", DEMO, "--api-key-env", "NOBODY"], "name one with --url"),
        (["--quick", "x", "--load", "/nowhere.json"], "/nowhere.json: No such file"),
        (["--quick", "x", "--chat-template-kwargs", "[1]"], "is no JSON object"),
        (["--quick", "x", "--chat-template-kwargs", "[" * 5000], "nested more than 50 levels"),
        (["--api-key", "x"], "did you mean --api-key-env?"),
    ],
)
def test_mistakes(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115
    monkeypatch.setattr("penstock.weights.hub_size.is_downloaded", lambda model: False)
    assert cli.main(["chat", *words]) in (1, 2)
    error = capsys.readouterr().err
    assert error.startswith("penstock: error: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_a_model_here(home: dict[str, str]) -> None:
    words = ["penstock", "chat", DEMO, "--threads", "1", "--max-model-len", "160"]
    words += ["--temperature", "0", "--ignore-eos", "--max-tokens", "32"]
    with in_terminal(words, home) as terminal:
        assert "context 160 tokens" in " ".join(prompted(terminal).split())
        terminal.type("Reverse a list.\n")
        shown = " ".join(prompted(terminal).split())
        assert "32 tokens" in shown
        assert "cut: max_tokens 32 is used up" in shown
        terminal.type("/set max_tokens default\n")
        prompted(terminal)
        terminal.type("And sort it.\n")
        shown = " ".join(prompted(terminal).split())
        assert "prompt tokens cached" in shown
        assert "cut: the context of 160 tokens is full; /clear empties it" in shown
        terminal.type("And again.\n")
        assert "error: the prompt has" in prompted(terminal)
        terminal.type("/clear\n/set max_tokens 3\n/show\n")
        terminal.expect("said so far: 0 turns")
        prompted(terminal)
        terminal.type("Hello.\n")
        assert "3 tokens" in prompted(terminal)
        terminal.type("/exit\n")
        assert terminal.wait() == 0


@pytest.mark.slow
def test_control_c_leaves_the_engine_healthy(home: dict[str, str]) -> None:
    words = ["penstock", "chat", DEMO, "--threads", "1", "--max-model-len", "2048", "--ignore-eos"]
    with in_terminal(words, home) as terminal:
        prompted(terminal)
        for _ in range(2):
            terminal.type("Reverse a list.\n")
            terminal.expect("\n")  # the echo
            terminal.expect("\n")  # and the answer's first line
            terminal.type(CTRL_C)
            assert "stopped" in prompted(terminal)
        terminal.type("/set max_tokens 4\n")
        prompted(terminal)
        terminal.type("Sort it.\n")
        assert "4 tokens" in prompted(terminal)
        terminal.type(CTRL_D)
        assert terminal.wait() == 0


def test_a_model_that_was_not_made_for_chats(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("*.jinja"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert cli.main(["chat", str(folder), "--quick", "x", "--threads", "1"]) == 2
    error = capsys.readouterr().err
    assert "has no chat template" in error
    assert "--chat-template FILE" in error


def test_one_question_of_a_model_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    words = [*LOCAL[1:], "--quick", "Reverse a list.", "--max-tokens", "8"]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    with LLM(DEMO, threads=1, max_model_len=512) as llm:
        params = SamplingParams(temperature=0, max_tokens=8)
        (expected,) = llm.chat([{"role": "user", "content": "Reverse a list."}], params)
    assert out.rstrip("\n") == expected.outputs[0].text.rstrip("\n")


class Hub:
    """Stands in for the hub's client."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.error = error
        self.downloads = 0
        monkeypatch.setattr(huggingface_hub, "model_info", self.model_info)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot_download)

    def model_info(self, model: str, **_: Any) -> Any:
        if self.error is not None:
            raise self.error
        sizes = {"model.safetensors": 269_000_000, "config.json": 700, "onnx/x.json": 10**9}
        files = [SimpleNamespace(rfilename=name, size=size) for name, size in sizes.items()]
        return SimpleNamespace(siblings=files)

    def snapshot_download(self, *_: Any, local_files_only: bool = False, **__: Any) -> str:
        if local_files_only:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not there")
        self.downloads += 1
        return DEMO


OFFLINE = ["chat", "--quick", "x", "--threads", "1", "--max-tokens", "2"]


def test_no_model_and_no_network(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    Hub(monkeypatch, ConnectionError("Name or service not known"))
    assert cli.main([*OFFLINE, "--yes"]) == 1
    error = capsys.readouterr().err
    assert "no model is named, and HuggingFaceTB/SmolLM2-135M-Instruct cannot be" in error
    assert "(Name or service not known)" in error
    assert "`penstock chat PATH`" in error
    assert "`hf download HuggingFaceTB/SmolLM2-135M-Instruct --local-dir SmolLM2`" in error


def test_no_model_is_downloaded_unasked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(monkeypatch)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert cli.main(OFFLINE) == 2
    assert "--yes" in capsys.readouterr().err
    assert hub.downloads == 0
    assert cli.main([*OFFLINE, "--yes"]) == 0
    assert "(269 MB)" in capsys.readouterr().err
    assert hub.downloads == 1


@pytest.mark.parametrize(("answer", "model"), [("\n", True), ("Y\n", True), ("n\n", False)])
def test_the_small_model_is_offered(
    answer: str,
    model: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Hub(monkeypatch)
    for name in ("sys.stdin", "sys.stderr"):
        stream = io.StringIO(answer)
        monkeypatch.setattr(stream, "isatty", lambda: True)
        monkeypatch.setattr(name, stream)
    if model:
        assert first_model(agreed=False) == FIRST_MODEL
    else:
        with pytest.raises(UsageError, match="no model is named"):
            first_model(agreed=False)
    asked = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "Download it? It is kept in" in asked
    assert "(269 MB)" in asked
