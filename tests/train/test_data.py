"""What is read of files, what is held out, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock import demo_model_path
from penstock.errors import ConfigError
from penstock.tokenizer import Tokenizer, load_tokenizer
from penstock.train.data import Sample, read_samples, split
from penstock.train.windows import batches, check_length, in_turn, most_frequent, token_stream

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(demo_model_path())


def lines(path: Path, *objects: object) -> Path:
    path.write_text("\n".join(map(json.dumps, objects)) + "\n")
    return path


def test_folders_are_read_by_name(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.py").write_text("x = 2\n")
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "c.bin").write_bytes(b"\xff\xfe")
    lines(tmp_path / "d.jsonl", {"text": "three"}, {"text": "four", "id": 7})
    samples = read_samples(tmp_path, tokenizer)
    assert [s.name for s in samples] == ["a.txt", "b/two.py", "d.jsonl:1", "d.jsonl:2"]
    texts = [tokenizer.decode(s.token_ids) for s in samples]
    assert texts == ["one", "x = 2\n", "three", "four"]
    assert all(s.prompt == 0 for s in samples)


def test_prompts_and_chats_say_where_the_answer_starts(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    data = lines(
        tmp_path / "data.jsonl",
        {"prompt": "def f():", "completion": "\n    pass\n"},
        {"prompt": "def g():"},
        {
            "messages": [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": "x = 1"},
            ]
        },
        {"messages": [{"role": "user", "content": "hello"}]},
    )
    answered, asked, chat, opened = read_samples(data, tokenizer)
    assert tokenizer.decode(answered.token_ids[: answered.prompt]) == "def f():"
    assert tokenizer.decode(answered.token_ids[answered.prompt :]) == "\n    pass\n"
    assert answered.token_ids[-1] in tokenizer.eos_token_ids
    assert asked.token_ids[: asked.prompt] == tokenizer.encode("def g():")
    assert tokenizer.decode(chat.token_ids[: chat.prompt]) == "# hello\n"
    assert tokenizer.decode(chat.token_ids[chat.prompt :]) == "x = 1\n\n"
    assert opened.prompt == len(opened.token_ids)


def test_text_cannot_end_a_turn(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.txt").write_text("a <|endoftext|> b")
    (sample,) = read_samples(tmp_path, tokenizer)
    assert sample.token_ids.count(0) == 1  # the one that begins every text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: .*truncated"),
        ("[]", "line 2: Expected `object`"),
        ('{"text": 5}', r"line 2: .*\$\.text"),
        ('{"title": "x"}', 'line 2: each line needs "text"'),
        ('{"completion": "x"}', 'line 2: each line needs "text"'),
        ('{"text": "a", "prompt": "b"}', "this one has text and prompt"),
        ('{"messages": []}', 'line 2: "messages" is empty'),
        ('{"messages": [{"role": "user"}]}', 'needs a "role" and a "content"'),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, tokenizer: Tokenizer, line: str, message: str) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=message) as caught:
        read_samples(data, tokenizer)
    assert str(data) in str(caught.value)


def test_data_that_is_not_there(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="there is no file or folder"):
        read_samples(tmp_path / "nowhere", tokenizer)
    with pytest.raises(ConfigError, match="has no files that end in"):
        read_samples(tmp_path, tokenizer)
    (tmp_path / "a.txt").write_text("\n")
    with pytest.raises(ConfigError, match="has no text"):
        read_samples(tmp_path, tokenizer)
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"a\.txt: not UTF-8 text"):
        read_samples(tmp_path, tokenizer)


def test_the_split_is_a_matter_of_names() -> None:
    samples = [Sample(f"file{i}.txt", [i]) for i in range(1000)]
    training, held_out = split(samples, 0.1)
    assert 60 < len(held_out) < 140
    assert sorted(s.name for s in training + held_out) == sorted(s.name for s in samples)
    again = split(list(reversed(samples)), 0.1)[1]
    assert {s.name for s in again} == {s.name for s in held_out}
    assert {s.name for s in held_out} < {s.name for s in split(samples, 0.2)[1]}


def test_of_one_text_the_end_is_held_out() -> None:
    training, held_out = split([Sample("a.txt", list(range(100)))], 0.2)
    assert training[0].token_ids == list(range(80))
    assert held_out[0].token_ids == list(range(80, 100))


@pytest.mark.parametrize("share", [0.001, 0.2, 0.5, 0.999])
@pytest.mark.parametrize("count", [2, 3, 12])
def test_few_documents_are_split_too(count: int, share: float) -> None:
    samples = [Sample(f"{i}.txt", [i] * 100) for i in range(count)]
    training, held_out = split(samples, share)
    assert training
    assert held_out
    assert sorted(s.name for s in training + held_out) == sorted(s.name for s in samples)
    by_name = [sample for sample in samples if sample.held_out(share)]
    if 0 < len(by_name) < count:
        assert held_out == by_name
    elif not by_name:  # as few as have the share of the tokens
        assert (len(held_out) - 1) / count < share
    assert {s.name for s in split(samples[::-1], share)[1]} == {s.name for s in held_out}


def test_the_demo_models_held_out_files_stay_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target has not seen them, and its heads may not either."""
    scripts = ROOT / "examples" / "train_demo"
    spec = importlib.util.spec_from_file_location("train_demo_corpus", scripts / "corpus.py")
    assert spec is not None
    assert spec.loader is not None
    corpus = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "train_demo_corpus", corpus)
    spec.loader.exec_module(corpus)
    documents = [corpus.Document(f"folder/file{i}.py", "x = 1\n") for i in range(2000)]
    _, held_out = corpus.split(documents)
    assert held_out
    share = corpus.HELD_OUT_PER_MILLE / 1000
    ours = split([Sample(d.path, [0]) for d in documents], share)[1]
    assert [s.name for s in ours] == [d.path for d in held_out]


def test_the_corpus_is_written_as_it_is_split(tmp_path: Path) -> None:
    import subprocess

    library = tmp_path / "library"
    (library / "site-packages").mkdir(parents=True)
    (library / "site-packages" / "other.py").write_text("no\n")
    (library / "deep").mkdir()
    (library / "deep" / "a.py").write_bytes("# coding: latin-1\nx = 'é'\n".encode("latin-1"))
    script = ROOT / "examples" / "train_demo" / "corpus.py"
    command = [sys.executable, str(script), str(tmp_path / "out"), "--library", str(library)]
    subprocess.run(command, check=True)
    written = [p for p in (tmp_path / "out").rglob("*") if p.is_file()]
    assert written == [tmp_path / "out" / "deep" / "a.py"]
    assert written[0].read_text(encoding="utf-8").endswith("x = 'é'\n")


def test_windows_are_of_the_stream() -> None:
    stream = np.arange(1000, dtype=np.int32)
    source = batches(stream, 10, 4, np.random.default_rng(1))
    seen: set[int] = set()
    for _ in range(24):  # a pass
        windows = next(source)
        assert windows.shape == (4, 10)
        assert windows.dtype == torch.int64
        assert torch.equal(windows, windows[:, :1] + torch.arange(10))
        assert not seen & set(windows[:, 0].tolist())
        seen |= set(windows[:, 0].tolist())
    exact = batches(stream[:40], 10, 4, np.random.default_rng(1))
    assert sorted(next(exact)[:, 0].tolist()) == [0, 10, 20, 30]
    spread = torch.cat(list(in_turn(stream, 10, 4, 5)))
    assert spread[:, 0].tolist() == [0, 240, 490, 740, 990]


def test_streams_are_checked() -> None:
    stream = token_stream([Sample("a", [1, 5, 5]), Sample("b", [2, 5, 2])], 6, seed=1)
    assert sorted(stream.tolist()) == [1, 2, 2, 5, 5, 5]
    assert most_frequent(stream, 2, 6).tolist() == [2, 5]
    with pytest.raises(ConfigError, match="token 5, but the model has 5"):
        token_stream([Sample("a", [5])], 5, seed=1)
    with pytest.raises(ConfigError, match="has 6 tokens, and 8 are needed"):
        check_length(stream, 8, "the training text")
