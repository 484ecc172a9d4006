"""A session: what is asked, shown, kept and refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from support.terminal_text import TerminalText

from penstock.chat.chat_model import Delta, Usage
from penstock.chat.commands import COMMANDS
from penstock.chat.conversation import Conversation
from penstock.chat.lines import LineReader, line_with_prompt_aside, state_folder
from penstock.chat.session import ChatSession
from penstock.chat.used_sampling import UsedSampling
from penstock.chat.views import Screen
from penstock.errors import EngineDeadError, PenstockError, RequestError
from penstock.sampling.defaults import INTERACTIVE, SamplingDefaults


class Echo:
    """A model that says what it was asked, or raises what it is given."""

    interruptible = False
    name = "echo"
    chat_template_kwargs: tuple[str, ...] | None = ("enable_thinking", "tone")
    context_tokens: int | None = None
    sampling_defaults: SamplingDefaults | None = SamplingDefaults()

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.asked: list[Conversation] = []

    def describe(self) -> str:
        return "for tests"

    def stream(self, conversation: Conversation) -> Generator[Delta, None, None]:
        self.asked.append(conversation)
        if self.errors:
            raise self.errors.pop()
        said = conversation.messages[-1].content
        yield Delta(reasoning_content="Hm.")
        yield Delta(content="you said ")
        yield Delta(content=said, finish_reason="stop", usage=Usage(3, 2, 1))

    def close(self) -> None:
        """Nothing."""


def converse(*lines: str, model: Echo | None = None) -> tuple[str, Echo]:
    """What a terminal without colours shows when these lines are typed, and the model."""
    typed = iter(lines)

    def read(prompt: str) -> str:
        for line in typed:
            return line
        raise EOFError

    model = model or Echo()
    stream = TerminalText()
    screen = Screen(stream, {"NO_COLOR": "1", "TERM": "xterm"})
    ChatSession(model, screen).run(LineReader(None, read=read))
    return stream.getvalue(), model


def test_turns_add_up() -> None:
    out, model = converse("one", " two ", "")
    assert [len(asked.messages) for asked in model.asked] == [1, 3]
    assert model.asked[1].messages[1].content == "you said one"
    assert model.asked[1].messages[1].reasoning_content == "Hm."
    assert "you said two\n" in out
    assert "2 tokens" in out
    assert "1 of 3 prompt tokens cached" in out


def test_blocks_of_lines() -> None:
    _, model = converse('"""a', "", 'b"""', '"""', "c", '"""', '"""d"""', 'say """x""" please')
    assert [asked.messages[-1].content for asked in model.asked] == [
        "a\n\nb",
        "c",
        "d",
        'say """x""" please',
    ]
    _, model = converse('/system """You', 'rhyme."""', "a")
    assert model.asked[0].system == "You\nrhyme."


def test_commands_change_what_is_asked() -> None:
    _, model = converse(
        "/system Be brief.", "/set temperature 0", "a", "/clear", "/system none", "b"
    )
    first, second = model.asked
    assert (first.system, first.parameters.temperature) == ("Be brief.", 0.0)
    assert (second.system, second.turns, second.parameters.temperature) == ("", 1, 0.0)


def test_variables_of_the_template() -> None:
    lines = "/set enable-thinking false", "/set tone [1, 2]", "a", "/set tone default", "b", "/show"
    out, model = converse(*lines)
    assert [asked.chat_template_kwargs for asked in model.asked] == [
        {"enable_thinking": False, "tone": [1, 2]},
        {"enable_thinking": False},
    ]
    assert "chat template: enable_thinking false; unset: tone\n" in out


def test_variables_of_a_template_that_is_not_known() -> None:
    echo = Echo()
    echo.chat_template_kwargs = None
    out, _ = converse(
        "/set tone dry", "/set temprature 1", "/set to/ne x", "a", "/show", model=echo
    )
    assert echo.asked[0].chat_template_kwargs == {"tone": "dry"}
    assert "there is no parameter 'temprature'; did you mean temperature?" in out
    assert "there is no parameter 'to/ne'" in out
    assert 'chat template: tone "dry"; the server does not say what else it reads\n' in out


def test_a_file_that_sets_what_the_template_does_not_read(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"chat_template_kwargs": {"mood": 1, "tone": 2}}')
    out, _ = converse(f"/load {path}", "/set mood default", "/show")
    assert "the chat template does not read mood, which the file sets\n" in out
    assert "chat template: tone 2; unset: enable_thinking\n" in out


def test_a_slash_behind_a_space_or_in_a_block_is_a_message() -> None:
    _, model = converse(" /etc/passwd is what?", '"""/etc/hosts', 'is, too"""')
    said = [asked.messages[-1].content for asked in model.asked]
    assert said == ["/etc/passwd is what?", "/etc/hosts\nis, too"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/hepl", "there is no command /hepl; did you mean /help?"),
        ("/xyzzy", "/help lists the commands"),
        ("/set", "parameters: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05 (penstock"),
        ("/set temperature", "/set temperature needs a value"),
        ("/set temprature 1", "'temprature'; did you mean temperature?"),
        ("/set enable_thinkin 0", "did you mean enable_thinking?"),
        ("/set xyzzy 1", "ignore_eos, and of the template enable_thinking, tone"),
        ("/set", "chat template: unset: enable_thinking, tone"),
        ("/set tone dry", 'chat template: tone "dry"; unset: enable_thinking'),
        ("/set top_p 2", "top_p must be in (0, 1]"),
        ("/clear everything", "/clear takes nothing"),
        ("/system", "there is no system message"),
        ("/load", "/load needs the name of a file"),
        ("/load /nowhere.json", "/nowhere.json: No such file or directory"),
        ("/save /nowhere/x.json", "there is no folder /nowhere; make it, or name another file"),
        ("/save /", "/ exists"),
        ("/save ~nouser/x", "/save ~nouser/x: there is no such home folder"),
        ("/load ~nouser/x", "/load ~nouser/x: there is no such home folder"),
        ("/set tone " + "[" * 5000, "the value of tone cannot be taken: it is nested more than"),
        ("/set tone " + "[" * 51 + "]" * 51, "nested more than 50 levels deep"),
        ("/set stop " + "[" * 5000, "it is nested more than 100"),
        ("caf\udce9", "what you wrote is not UTF-8 text"),
        ("/SHOW", "model: echo, for tests"),
        ("/?", "/save FILE"),
    ],
)
def test_what_commands_say(line: str, words: str) -> None:
    out, model = converse(line)
    assert words in out
    assert model.asked == []


def test_what_the_makers_recommend_holds() -> None:
    echo = Echo()
    echo.sampling_defaults = SamplingDefaults(temperature=0.6, top_k=20)
    out, _ = converse("/set top_k 5", "/set seed 3", "/show", model=echo)
    assert out.startswith("echo: for tests\n")
    assert (
        "parameters: top_k 5, seed 3 (set by you); temperature 0.6 (the model's); top_p 1.0, "
        "min_p 0.0 (neutral) chat"
    ) in " ".join(out.split())
    used = UsedSampling(Conversation().seeded(), echo.sampling_defaults)
    assert used.asked.keys() == {"seed"}
    assert used.all["temperature"] == 0.6


def test_a_model_that_recommends_nothing() -> None:
    out, model = converse("a")
    assert "for tests, temperature 0.8 (the model recommends none)\n" in out
    used = UsedSampling(model.asked[0], SamplingDefaults(max_tokens=5))
    assert used.asked == {**INTERACTIVE.sampled, "seed": model.asked[0].drawn_seed}


def test_a_server_that_does_not_say() -> None:
    echo = Echo()
    echo.sampling_defaults = None
    out, model = converse("/set", "/set min_p 0.1", "a", model=echo)
    assert "parameters: the server's choice\n" in out
    assert "parameters: min_p 0.1 (set by you); the rest is the server's choice\n" in out
    assert UsedSampling(model.asked[0], None).asked == {"min_p": 0.1}


def test_each_conversation_has_a_seed_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    out, model = converse("a", f"/save {path}", "b", "/clear", "c", f"/load {path}", "d", "/show")
    first, second, third, fourth = (asked.drawn_seed for asked in model.asked)
    assert first == second == fourth
    assert third not in (first, None)
    assert f"seed {first} (drawn for this conversation)" in " ".join(out.split())


def test_help_lists_every_command() -> None:
    out, _ = converse("/help")
    for command in COMMANDS:
        assert command.usage in out


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    out, _ = converse("a", f"/save {path}", "b", f"/save {path}")
    assert "1 turn saved" in out
    assert "2 turns saved" in out
    assert len(json.loads(path.read_text())["messages"]) == 4
    out, model = converse(f"/save {path}", f"/load {path}", "c")
    assert "exists; name another file" in " ".join(out.split())
    assert len(model.asked[0].messages) == 5


@pytest.mark.parametrize("error", [RequestError("too long"), PenstockError("broke off")])
def test_a_question_that_fails_is_no_turn(error: Exception) -> None:
    out, model = converse("a", "b", model=Echo(error))
    assert f"error: {error}" in out
    assert [message.content for message in model.asked[1].messages] == ["b"]


@pytest.mark.parametrize("error", [RuntimeError("odd"), OSError(5, "I/O"), MemoryError()])
def test_an_error_that_nobody_expects_leaves_the_conversation(error: Exception) -> None:
    out, model = converse("a", "b", "c", model=Echo(error))
    assert f"internal error, {type(error).__name__}" in " ".join(out.split())
    assert [message.content for message in model.asked[2].messages] == ["b", "you said b", "c"]


def test_a_line_that_cannot_be_decoded_leaves_the_conversation() -> None:
    lines = iter(["a", None, "b"])

    def read(prompt: str) -> str:
        for line in lines:
            return b"\xe9".decode() if line is None else line
        raise EOFError

    model = Echo()
    stream = TerminalText()
    ChatSession(model, Screen(stream, {"TERM": "dumb"})).run(LineReader(None, read=read))
    assert "what you wrote is not UTF-8 text" in stream.getvalue()
    assert len(model.asked[1].messages) == 3


def test_debug_raises_what_nobody_expects() -> None:
    session = ChatSession(Echo(RuntimeError("odd")), Screen(io.StringIO()), debug=True)
    lines = iter(["a"])
    with pytest.raises(RuntimeError, match="odd"):
        session.run(LineReader(None, read=lambda prompt: next(lines)))


def test_a_dead_engine_ends_the_session() -> None:
    with pytest.raises(EngineDeadError):
        converse("a", "b", model=Echo(EngineDeadError("gone")))


@pytest.mark.parametrize("line", ["/exit", "/bye", "/quit"])
def test_leaving(line: str) -> None:
    _, model = converse(line, "a")
    assert model.asked == []


def shown(environ: dict[str, str], terminal: bool) -> str:
    stream = TerminalText() if terminal else io.StringIO()
    ChatSession(Echo(), Screen(stream, environ)).ask("**it**")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("environ", "terminal", "holds"),
    [
        ({"TERM": "xterm"}, True, lambda out: "\x1b[1mit\x1b[0m" in out and "\x1b[2mHm." in out),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, lambda out: "(reasoning)\nHm.\n(answer)" in out),
        ({"TERM": "dumb"}, True, lambda out: "\x1b" not in out and "**it**" in out),
        ({"TERM": "xterm"}, False, lambda out: out == "you said **it**\n"),
    ],
    ids=["terminal", "no colour", "dumb", "file"],
)
def test_how_it_is_shown(
    environ: dict[str, str], terminal: bool, holds: Callable[[str], bool]
) -> None:
    assert holds(shown(environ, terminal))


def test_what_is_no_terminal_gets_the_answers_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a\n/set top_p 2\n/show\nb"))
    answers = io.StringIO()
    session = ChatSession(Echo(), Screen(answers))
    session.run(LineReader(None, read=line_with_prompt_aside))
    assert answers.getvalue() == "you said a\nyou said b\n"
    aside = capsys.readouterr()
    assert aside.out == ""
    for said in ("echo: for tests", ">>> ", "2 tokens", "top_p must be", "said so far: 1 turn"):
        assert said in aside.err


def test_lines_aside_are_harmless_on_a_terminal() -> None:
    aside = TerminalText()
    Screen(io.StringIO(), {"TERM": "xterm", "NO_COLOR": "1"}, aside).say("error: \x1b[2J")
    assert aside.getvalue() == "error: ␛[2J\n"


def test_where_history_is_kept() -> None:
    assert state_folder({"XDG_STATE_HOME": "/s"}) == Path("/s/penstock")
    assert state_folder({"XDG_STATE_HOME": "relative"}) == Path.home() / ".local/state/penstock"
