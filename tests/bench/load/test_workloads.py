"""What is asked: drawn lengths, shared beginnings, files of prompts, traces."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bench.load.prompt_files import read_prompt_file
from penstock.bench.load.sizes import Sizes
from penstock.bench.load.trace_files import TraceScale, is_trace, read_trace
from penstock.bench.load.turn import Conversation, Piece
from penstock.bench.load.wordbook import Wordbook, all_words, by_pieces, measured
from penstock.bench.load.words import WORDS
from penstock.bench.load.workload import ChatWorkload, PatternWorkload, RandomWorkload, Workload
from penstock.errors import ConfigError
from penstock.workload.patterns import Patterns


def _first(workload: Workload, count: int, seed: int = 0) -> list[Conversation]:
    return list(islice(workload.conversations(seed), count))


def _text(conversation: Conversation, turn: int = 0, book: Wordbook | None = None) -> str:
    return (book or Wordbook()).text(conversation.turns[turn].content)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 500), st.integers(0, 500), st.integers(0, 9))
def test_sizes(low: int, more: int, seed: int) -> None:
    import numpy as np

    generator = np.random.default_rng(seed)
    for text in (f"{low}", f"{low}..{low + more}", f"{low}~{more}"):
        sizes = Sizes.parse(text)
        drawn = [sizes.draw(generator) for _ in range(20)]
        assert min(drawn) >= (1 if sizes.deviation is not None else low)
        assert sizes.deviation is not None or max(drawn) <= sizes.high
        assert Sizes.parse(str(sizes)) == sizes


@pytest.mark.parametrize(
    "text",
    ["", "0", "5..4", "-3", "1..x", "3~", "0~3", "1e3", "9" * 20, "3~" + "9" * 20],
)
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"512, 100\.\.900"):
        Sizes.parse(text)


def test_random_prompts_share_nothing_and_are_the_same_again() -> None:
    workload = RandomWorkload(Sizes(20, 40), Sizes(1, 9))
    first, again, other = _first(workload, 20), _first(workload, 20), _first(workload, 20, seed=1)
    assert first == again
    assert [c.turns[0].new_tokens for c in first] != [c.turns[0].new_tokens for c in other]
    texts = [_text(each) for each in first]
    assert len({text[:30] for text in texts}) == 20
    assert [len(text.split()) for text in texts] == [c.turns[0].new_tokens for c in first]
    salted = [_text(each, book=Wordbook(salt=1)) for each in first]
    assert not {text[:30] for text in texts} & {text[:30] for text in salted}


def test_prefixes_are_shared() -> None:
    found = _first(RandomWorkload(Sizes(5, 5), Sizes(1, 1), prefix_tokens=30, prefixes=3), 40)
    beginnings = {" ".join(_text(each).split()[:30]) for each in found}
    assert len(beginnings) == 3
    assert len({_text(each) for each in found}) == 40


def test_conversations_grow() -> None:
    (one,) = _first(ChatWorkload(Sizes(3, 3), Sizes(4, 4), Sizes(2, 2), Sizes(50, 50), 8), 1)
    assert [turn.continues for turn in one.turns] == [None, 0, 1]
    assert [turn.after for turn in one.turns] == [(), (0,), (1,)]
    assert [turn.delay_s for turn in one.turns] == [0, 0.05, 0.05]
    assert [turn.new_tokens for turn in one.turns] == [12, 4, 4]


def test_patterns_are_even() -> None:
    found = _first(PatternWorkload(Patterns((1, 9), (2, 8))), 40)
    names = [each.turns[0].pattern for each in found]
    assert {name: names.count(name) for name in names} == {
        f"{i}-in-{o}-out": 10 for i in ("short", "long") for o in ("short", "long")
    }


def test_wordbooks() -> None:
    assert measured(lambda text: len(text.split()), "tokenizer").exact
    letters = measured(len, "tokenizer")
    assert not letters.exact
    assert letters.tokens_per_word > 3
    half = by_pieces(["\u0120" + word for word in WORDS[:100]] + ["x"] * 50, "server")
    assert half.words == WORDS[:100]
    assert half.exact
    assert not by_pieces(list(all_words()), "server").exact
    assert len(set(WORDS)) == len(WORDS)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 300), st.integers(1, 300))
def test_a_shorter_piece_begins_a_longer_one(a: int, b: int) -> None:
    short, long = (Wordbook().text([Piece((7, 3), n)]) for n in sorted((a, b)))
    assert f"{long} ".startswith(f"{short} ")


# Files of prompts.


def test_forms_of_prompt_files(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(
        '\ufeff{"prompt": "a", "max_tokens": 3}\n'
        '{"question": "b", "answer": "c", "category": "maths"}\n\n'
        '{"turns": ["d", "e"]}\n'
        '{"messages": [{"role": "user", "content": "f"}, {"role": "assistant", "content": "g"},'
        ' {"role": "user", "content": "h"}]}\n'
        '{"conversations": [{"from": "human", "value": "i"}, {"from": "gpt", "value": "j"}]}\n'
    )
    assert not is_trace(path)
    found = read_prompt_file(path, 7).recorded
    assert [[turn.content for turn in each.turns] for each in found] == [
        [("a",)],
        [("b",)],
        [("d",), ("e",)],
        [("f",), ("h",)],
        [("i",)],
    ]
    assert [each.turns[0].output_tokens for each in found] == [3, 7, 7, 7, 7]
    assert found[1].turns[0].pattern == "maths"


@pytest.mark.parametrize(
    "line",
    ["{", "3", "{}", '{"prompt": ""}', '{"turns": []}', '{"turns": [3]}', '{"messages": "x"}']
    + ['{"prompt": "a", "max_tokens": 0}', '{"prompt": "a", "max_tokens": "b"}', "", "\udcff"],
)
def test_bad_prompt_files(tmp_path: Path, line: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'\n{"prompt": "a"}\n'[: 99 if line else 1])
    with path.open("ab") as file:
        file.write(line.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"line 3|holds no prompt"):
        read_prompt_file(path, None)


# Traces.


def test_azure(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.6805900,10,0\n"
        "2023-11-16 18:15:48.6805900+00:00,100,10\n"
    )
    assert is_trace(path)
    found = read_trace(path, TraceScale(0.5, 2.0))
    assert found.name == "azure"
    assert found.described()["left_out"] == 1
    first, second = found.recorded
    assert (first.at_s, first.turns[0].new_tokens, first.turns[0].output_tokens) == (0, 187, 22)
    assert second.at_s == pytest.approx(1.0)


def test_burstgpt(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "9,ChatGPT,5,6,11,x\n5.0,GPT-4,472,18,490,Conversation log\n"
    )
    found = read_trace(path, TraceScale())
    assert found.name == "burstgpt"
    assert [(c.at_s, c.turns[0].new_tokens) for c in found.recorded] == [(0, 472), (4, 5)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("-5,3,4", "line 3"),
        ("nan,3,4", "line 3"),
        ("5,x,4", "line 3"),
        ("5", "line 3"),
        ("5,inf,4", "line 3"),
        ("5,-3,4", "line 3"),
        ("5,3,1e9", "line 3"),
        ("someday,3,4", "line 3"),
    ],
)
def test_bad_rows(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "b.csv"
    path.write_text(f"Timestamp,Request tokens,Response tokens\n1,2,3\n{row}\n")
    with pytest.raises(ConfigError, match=message):
        read_trace(path, TraceScale())


def test_unknown_columns(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_text("when,what\n1,2\n")
    with pytest.raises(ConfigError, match=r"has the columns when, what; Azure's have TIMESTAMP"):
        read_trace(path, TraceScale())
    path.write_text("Timestamp,Request tokens,Response tokens\n1,0,3\n")
    with pytest.raises(ConfigError, match="holds no request"):
        read_trace(path, TraceScale())


def test_mooncake_shares_what_its_hashes_share(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(
        '{"timestamp": 3000, "input_length": 1100, "output_length": 9, "hash_ids": [1, 2, 3]}\n'
        '{"timestamp": 1000, "input_length": 1030, "output_length": 0, "hash_ids": [1, 2, 4]}\n'
        '{"timestamp": 1000, "input_length": 1030, "output_length": 2, "hash_ids": [1, 5, 4]}\n'
    )
    assert is_trace(path)
    found = read_trace(path, TraceScale(0.25))
    assert [each.at_s for each in found.recorded] == [0, 2]
    assert found.described()["left_out"] == 1
    second, first = (_text(each).split() for each in found.recorded)
    assert (len(first), len(second)) == (275, 258)
    assert first[:128] == second[:128]
    assert first[128:140] != second[128:140]


def test_turns_that_depend_on_each_other(tmp_path: Path) -> None:
    """An agent asks two tools at once, and goes on with what both have said."""
    path = tmp_path / "agents.jsonl"
    path.write_text(
        '{"session_id": 1, "id": "a", "input_length": 9, "output_length": 3, "timestamp": 0}\n'
        '{"session_id": 1, "id": "b", "after": ["a"], "delay": 10, "input_length": 4,'
        ' "output_length": 3}\n'
        '{"session_id": 1, "id": "c", "after": ["a"], "input_length": 5, "output_length": 3}\n'
        '{"session_id": 1, "after": ["b", "c"], "input_length": 6, "output_length": 3}\n'
    )
    (one,) = read_trace(path, TraceScale(speed=2.0)).recorded
    assert [turn.after for turn in one.turns] == [(), (0,), (0,), (1, 2)]
    assert [turn.continues for turn in one.turns] == [None, 0, 0, 1]
    assert one.turns[1].delay_s == 0.005


def test_times_of_a_part(tmp_path: Path) -> None:
    """Those without would come at the start, whenever they were recorded."""
    path = tmp_path / "m.jsonl"
    line = '{"input_length": 3, "output_length": 1, "session_id": 1'
    path.write_text(f'{line}, "timestamp": 5}}\n{line}}}\n')
    assert [each.at_s for each in read_trace(path, TraceScale()).recorded] == [0]
    with path.open("a") as file:
        file.write('{"input_length": 3, "output_length": 1}\n')
    with pytest.raises(ConfigError, match="1 of 2 conversations have a timestamp"):
        read_trace(path, TraceScale())


@pytest.mark.parametrize(
    "line",
    [
        '{"input_length": 3}',
        '{"input_length": -3, "output_length": 1}',
        '{"input_length": 3, "output_length": 1, "timestamp": -1}',
        '{"input_length": 3, "output_length": 1, "hash_ids": []}',
        '{"input_length": 3, "output_length": 1, "delay": -1}',
        '{"input_length": 3, "output_length": 1, "after": ["x"]}',
        '{"input_length": 0, "output_length": 1}',
        '{"input_length": 1000000000, "output_length": 1}',
        '{"input_length": 3, "output_length": 1, "timestamp": 1e16}',
        '{"input_length": 3, "output_length": 1, "hash_ids": [1], "block_size": 1000000000}',
        "[]",
    ],
)
def test_bad_lines(tmp_path: Path, line: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError):
        read_trace(path, TraceScale())
