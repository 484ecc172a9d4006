"""The scripts that train the demo models, and the measure of what they write."""

from __future__ import annotations

import importlib
import json
from itertools import islice
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from support.checkpoints import tiny_checkpoint
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from penstock import demo_model_path
from penstock.tokenizer import load_tokenizer

SCRIPTS = Path(__file__).parents[2] / "examples" / "train_demo"


@pytest.fixture(autouse=True)
def scripts_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def script(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_cut_newlines_are_the_same_text() -> None:
    stream = script("stream")
    tokenizer = Tokenizer.from_file(str(demo_model_path() / "tokenizer.json"))
    text = "def f(x):\n    if x:\n        return 1\n\n    return 2\n" * 200
    ids = np.asarray(tokenizer.encode(text).ids, dtype=np.int32)
    halves = stream.cuts(tokenizer)
    newline, four = (tokenizer.token_to_id(t) for t in ("Ċ", "ĠĠĠĠ"))
    assert halves[tokenizer.token_to_id("ĊĠĠĠĠ")] == [newline, four]
    assert newline not in halves
    cut = stream.cut_newlines(ids, halves, np.random.default_rng(1))
    indents = int(np.isin(ids, list(halves)).sum())
    assert 0.01 * indents < len(cut) - len(ids) < 0.12 * indents
    assert tokenizer.decode(cut.tolist()) == tokenizer.decode(ids.tolist()) == text


def test_packages_repeat_nothing_that_is_held_out(tmp_path: Path) -> None:
    corpus = script("corpus")
    lines = [f"value_{i} = compute(arguments[{i}])\n" for i in range(20)]
    held_out = [corpus.Document("library.py", "".join(lines[:10]))]

    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    write("one/own.py", "".join(lines[6:]))  # four lines of the library's are no copy of it
    write("one/copy.py", "if True:\n" + "".join(f"    {line}\n\n" for line in lines[5:]))
    write("two/again.py", "".join(lines[6:]))
    write("two/table.py", f"table = {list(range(100))}\n")
    write("two/broken.py", "# coding: nothing\n")
    assert [d.path for d in corpus.read_packages(tmp_path, held_out)] == ["one/own.py"]
    everything = corpus.read_packages(tmp_path, [])
    assert [d.path for d in everything] == ["one/copy.py", "one/own.py"]


def test_a_share_of_packages_is_written_beside_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = script("corpus")
    library, packages, out = (tmp_path / name for name in ("library", "packages", "out"))
    corpus.Document("one.py", "x = 1\n").write(library)
    documents = [corpus.Document(f"some/{i}.py", f"x = {i}\n") for i in range(50)]
    for document in documents:
        document.write(packages)
    given = f"corpus.py {out} --library {library} --packages {packages} --share 0.3"
    monkeypatch.setattr("sys.argv", given.split())
    corpus.main()
    assert (out / "one.py").read_text() == "x = 1\n"
    chosen = {file.name for file in (out / "packages" / "some").iterdir()}
    assert chosen == {Path(d.path).name for d in documents if d.place < 300}
    assert 0 < len(chosen) < 50


def test_prompts_are_of_the_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, written = script("corpus"), script("written")
    tokenizer = load_tokenizer(demo_model_path())
    text = "".join(f"value_{i} = compute(arguments[{i}])\n" for i in range(100))
    documents = [corpus.Document("long.py", text), corpus.Document("short.py", "x = 1\n")]
    prompts = islice(written.prompts_of(documents, tokenizer, np.random.default_rng(1)), 5)
    for prompt in prompts:
        assert (prompt.name, prompt.prompt) == ("long.py", len(prompt.token_ids))
        assert "\n" + tokenizer.decode(prompt.token_ids) in "\n" + text


def test_a_teacher_says_what_is_to_be_predicted() -> None:
    decoder = script("decoder")
    torch.manual_seed(1)
    model, teacher = (decoder.make_model(decoder.SIZES["draft"], None).eval() for _ in range(2))
    windows = torch.arange(34).view(2, 17)
    certain = nn.functional.one_hot(windows[:, 1:], decoder.VOCAB_SIZE).float()
    with torch.no_grad():
        plain = decoder.loss_of(model, windows)
        torch.testing.assert_close(decoder.loss_of(model, windows, wanted=certain), plain)
        own, other = (decoder.distribution(each, windows) for each in (model, teacher))
        torch.testing.assert_close(own.sum(-1), torch.ones(2, 16))
        entropy = -(other * other.log()).sum(-1).mean()
        # Cross entropy is least where it is the teacher's own.
        torch.testing.assert_close(decoder.loss_of(teacher, windows, wanted=other), entropy)
        assert decoder.loss_of(model, windows, wanted=other) > entropy


def test_windows_continue_where_they_were() -> None:
    stream = script("stream")
    numbers = np.arange(1000, dtype=np.int32)
    whole = stream.Windows(numbers, 10, seed=1)
    first = whole.take(98)  # a pass
    assert torch.equal(first, first[:, :1] + torch.arange(11))
    assert len(set(first[:, 0].tolist())) == 98
    expected = [whole.take(30) for _ in range(5)]
    later = stream.Windows(numbers, 10, seed=1)
    later.position = 98
    assert all(torch.equal(later.take(30), each) for each in expected)
    with pytest.raises(ValueError, match="20 tokens are too few for windows of 10"):
        stream.Windows(numbers[:20], 10, seed=1)


def test_only_the_decay_knows_the_end() -> None:
    schedule = script("progress").Schedule
    shorter, longer = schedule(10, 4), schedule(30, 4)
    for step, used in [(0, 0.0), (20, 1.0), (900, 5.9)]:
        assert shorter.rate(step, used) == longer.rate(step, used)
    assert shorter.rate(0, 0) < shorter.rate(20, 1) < shorter.rate(900, 5.9) == 1
    assert shorter.rate(900, 8) == pytest.approx(0.502)
    assert 0 < shorter.rate(900, 11) < 0.01


def test_a_stopped_training_continues_to_the_same_bits(tmp_path: Path) -> None:
    decoder, progress = script("decoder"), script("progress")

    class Training:
        def __init__(self) -> None:
            torch.manual_seed(1)
            self.model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.RMSNorm(8))
            self.optimizers = decoder.make_optimizers(self.model, 0.01)
            self.average = progress.Average(self.model)
            self.counts = progress.Counts()

        def steps(self, count: int) -> None:
            for _ in range(count):
                generator = torch.Generator().manual_seed(self.counts.step)
                self.model(torch.randn(4, 8, generator=generator)).square().mean().backward()
                for optimizer in self.optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                self.average.update(self.model, self.counts.step)
                self.counts.step += 1

        @property
        def tensors(self) -> list[Tensor]:
            return [*self.model.parameters(), *self.average.tensors.values()]

    through, stopped, continued = Training(), Training(), Training()
    through.steps(5)
    stopped.steps(3)
    file = tmp_path / "folder" / "state.pt"
    parts = stopped.model, stopped.average, stopped.optimizers
    progress.write_state(file, stopped.counts, *parts)
    assert [path.name for path in file.parent.iterdir()] == ["state.pt"]
    parts = continued.model, continued.average, continued.optimizers
    continued.counts = progress.read_state(file, *parts)
    continued.steps(2)
    assert continued.counts.step == 5
    assert all(map(torch.equal, through.tensors, continued.tensors))
    assert not torch.equal(through.tensors[0], through.average.tensors["0.weight"])


PROMPT = 'import os\n\ndef other(): pass\n\ndef f(a):\n    """Say \\w."""\n'


@pytest.mark.parametrize(
    ("continuation", "kind"),
    [
        ("    return a\n\n", None),  # perhaps it goes on
        ("    return a\n\nx = 1\n", "Return"),
        ("    return a +\n    b\n", None),
        ("    # why\n    return (a +\n1)\n    x = = 2\n", "Return"),
        ("    if a:\n        b = 1\n    else\n        c\n    d\n", None),
        ("    if a:\n        b = 1\n    else:\n        c\n    d\n", "If"),
        ("    if a:\n        b = 1\n      c = 1\n    d\n", None),
        ("    if a:\n        b = 1\n\n        c = = 1\n    d\n", None),
        ("x = 1\ny = 2\n", None),
        ("  return a\nx = 1\n", None),
        ("", None),
    ],
)
def test_what_counts_as_a_first_statement(continuation: str, kind: str | None) -> None:
    measure = script("first_statements")
    found = measure.first_statement(measure.Problem(PROMPT, "f"), continuation)
    assert (found and type(found).__name__) == kind


def test_a_mean_has_the_shares_that_are_asked_for(tmp_path: Path) -> None:
    mix = script("mix")
    folder = tiny_checkpoint()
    doubled = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        for parameter in doubled.parameters():
            parameter.mul_(2)
    doubled.save_pretrained(tmp_path)
    parts = [mix.Part.parse(f"{folder}=1"), mix.Part.parse(f"{tmp_path}=3")]
    for one, two in zip(mix.mean_of(parts).parameters(), doubled.parameters(), strict=True):
        torch.testing.assert_close(one, two * (7 / 8))


def test_a_mean_has_the_record_of_its_latest_part(tmp_path: Path) -> None:
    """However the parts are ordered: the mean has seen all that the latest has."""
    mix, card = script("mix"), script("card")
    record = json.loads((demo_model_path() / "training.json").read_text())
    record.pop("mean_of", None)
    library = {**record, "training_tokens_seen": 5_000}
    library.pop("of_packages", None)
    packages = {**library, "training_tokens_seen": 7_000, "of_packages": 3}
    packages |= {"seen_before_packages": 5_000, "training_documents": 10}
    for name, each in [("library", library), ("packages", packages)]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "training.json").write_text(json.dumps(each))
    parts = [mix.Part.parse(f"{tmp_path / each}=1") for each in ("packages", "library")]
    mean = mix.record_of([parts[0], mix.Part(parts[1].folder, 3)], 0.5)
    assert (mean["training_tokens_seen"], mean["held_out_bits_per_byte"]) == (7_000, 0.5)
    config = json.loads((demo_model_path() / "config.json").read_text())
    text = " ".join(card.render(config, mean).split())
    assert "0.25 of those after 7,000, 0.75 of those after 5,000 tokens" in text
    assert "7 files of the Python standard library and 3 of packages" in text
    assert "7,000 tokens, the first 5,000 of the library alone" in text
    assert "of packages" not in card.render(config, library)
    draft = {**packages, "of_own_text": 2, "learnt_of_teacher": 1_000}
    text = " ".join(card.render(config, draft).split())
    assert "5 files of the Python standard library and 3 of packages, and 2 that" in text
    assert "In the last 1,000 tokens it learnt what" in text
