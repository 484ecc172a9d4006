"""Tasks of lm-evaluation-harness."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import tiny_checkpoint
from support.log_probabilities import log_probabilities
from support.needs import Need, needs_native
from support.quantized_runs import command

from penstock.api import LLM
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.evaluate.harness import Harness
from penstock.evaluate.harness_model import HarnessModel, sampling_of
from penstock.evaluate.text_model import TextModel
from penstock.evaluate.windows import Window
from penstock.sampling.params import SamplingParams

LONGEST = 24
TEXT = "The quick brown fox jumps over the lazy dog. " * 4


@dataclass(frozen=True)
class Request:
    args: tuple[Any, ...]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    folder = str(tiny_checkpoint("llama"))
    with LLM(folder, artifact=False, max_model_len=LONGEST) as made:
        yield made


@pytest.fixture(scope="module")
def text_model() -> Iterator[TextModel]:
    with TextModel.open(EngineConfig(model=str(tiny_checkpoint("llama"))), LONGEST) as made:
        yield made


def summed(model: TextModel, tokens: list[int], first: int) -> float:
    window = Window(tokens, first)
    rows = np.concatenate([log_probabilities(each) for each in model.logits(window)])
    return float(rows[np.arange(len(rows)), list(window.targets)].sum())


@needs_native
def test_likelihoods_are_sums_over_the_tokens_of_continuations(
    llm: LLM, text_model: TextModel
) -> None:
    pairs = [("The quick ", "brown fox"), ("The quick", " brown fox"), ("2 + 2 =", " 4")]
    found = HarnessModel(llm).loglikelihood([Request(pair) for pair in pairs])
    tokenizer = llm.tokenizer
    for (context, continuation), (value, _) in zip(pairs, found, strict=True):
        whole = tokenizer.encode(context + continuation, False, False)
        own = len(tokenizer.encode(context.rstrip(), False, False))
        bos = text_model.encode("")[0]
        expected = summed(text_model, [*bos, *whole], len(bos) + own)
        assert value == pytest.approx(expected, abs=1e-3)
    assert found[0][0] == found[1][0]  # the same tokens


@needs_native
def test_what_greedy_search_writes_is_said_to_be_that(llm: LLM) -> None:
    model, prompt = HarnessModel(llm), "The quick brown"
    options: dict[str, object] = {"until": ["\n"], "max_gen_toks": 6, "do_sample": False}
    (written,) = model.generate_until([Request((prompt, options))])
    params = SamplingParams(max_tokens=6, temperature=0.0, stop=("\n",))
    tokens = [*model._bos, *llm.tokenizer.encode(prompt, False, False)]
    (output,) = llm.generate([{"prompt_token_ids": tokens}], params)
    assert written == output.outputs[0].text
    best = llm.tokenizer.decode(output.outputs[0].token_ids[:1])
    if llm.tokenizer.encode(prompt + best, False, False)[:-1] == tokens[len(model._bos) :]:
        ((_, greedy),) = model.loglikelihood([Request((prompt, best))])
        assert greedy
    ((_, greedy),) = model.loglikelihood([Request((prompt, " fox jumps over"))])
    assert not greedy


@needs_native
def test_whole_texts_are_read_in_windows_that_count_each_token_once(
    llm: LLM, text_model: TextModel
) -> None:
    model = HarnessModel(llm)
    windows = model._rolling(TEXT)
    tokens = llm.tokenizer.encode(TEXT, False, False)
    assert len(windows) > 2
    assert [token for each in windows for token in each.targets] == tokens
    assert all(len(each.token_ids) <= LONGEST - 1 for each in windows)
    assert len(windows[-1].token_ids) == LONGEST - 1  # with as many tokens before as there is room
    (value,) = model.loglikelihood_rolling([Request((TEXT,))])
    expected = sum(summed(text_model, list(each.token_ids), each.first) for each in windows)
    assert value == pytest.approx(expected, abs=1e-2)


@needs_native
def test_texts_that_are_too_long_lose_their_beginnings(llm: LLM) -> None:
    model = HarnessModel(llm)
    window = model._pair(TEXT, " fox")
    assert len(window.token_ids) == LONGEST - 1
    assert llm.tokenizer.decode(list(window.targets)).strip() == "fox"
    model.generate_until([Request((TEXT, {"until": [], "max_gen_toks": 8}))])
    with pytest.raises(ConfigError, match=f"texts of {LONGEST} tokens, and a sequence"):
        model.generate_until([Request((TEXT, {"until": [], "max_gen_toks": LONGEST}))])


def test_what_tasks_say_of_generation() -> None:
    assert sampling_of({"until": "\n", "do_sample": False}).temperature == 0
    assert sampling_of({"until": "\n", "do_sample": False}).max_tokens == 256
    assert sampling_of({"until": ["a", ""], "temperature": 0.0}).stop == ("a",)
    warm = sampling_of({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_gen_toks": 5})
    assert (warm.temperature, warm.top_p, warm.max_tokens, warm.seed) == (0.6, 0.9, 5, 0)
    with pytest.raises(ConfigError, match="generation with num_beams"):
        sampling_of({"num_beams": 4})


def test_without_the_package_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    with pytest.raises(ConfigError, match=r"arc_easy is no file, .* lm-eval"):
        Harness.open(["arc_easy"])


QUESTIONS = [
    {"text": "The quick brown", "choices": [" fox", " dog"], "answer": 0},
    {"text": "jumps over the", "choices": [" lazy", " me"], "answer": 0},
    {"text": "The quick", "choices": [" over", " brown"], "answer": 1},
]
YAML = """
task: NAME
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: KIND
doc_to_text: "{{text}}"
doc_to_target: "{{TARGET}}"
"""
KINDS = {
    "choices": 'doc_to_choice: "{{choices}}"\nmetric_list: [{metric: acc}, {metric: acc_norm}]\n',
    "written": "generation_kwargs: {until: ['.'], max_gen_toks: 4}\n"
    "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n",
    "whole": "metric_list: [{metric: word_perplexity}]\n",
}
OF_KIND = {
    "choices": ("multiple_choice", "answer"),
    "written": ("generate_until", "choices[0]"),
    "whole": ("loglikelihood_rolling", "text"),
}


@needs_native
@pytest.mark.slow
def test_variants_do_tasks_of_the_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lacks = Need.EXTRA.reason("lm-eval, by pip install 'penstock[lm-eval]'")
    package = pytest.importorskip("lm_eval.tasks", reason=lacks)
    # Its own thousands of tasks take 20 s of processor time to list.
    manager = partial(package.TaskManager, include_defaults=False)
    monkeypatch.setattr(package, "TaskManager", manager)
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    data = tasks / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, QUESTIONS)))
    for name, (kind, target) in OF_KIND.items():
        text = YAML.replace("NAME", name).replace("KIND", kind).replace("DATA", str(data))
        (tasks / f"{name}.yaml").write_text(text.replace("TARGET", target) + KINDS[name])
    (tasks / "lost.yaml").write_text(
        YAML.replace("NAME", "lost").replace("KIND", "multiple_choice")
        .replace("DATA", str(tmp_path / "nowhere.jsonl")).replace("TARGET", "answer")
        + KINDS["choices"]
    )  # fmt: skip
    text_file, model = tmp_path / "text.txt", tiny_checkpoint("llama", intermediate_size=96)
    text_file.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    words = ["--text", text_file, "--max-windows", 1, "--compare", "rtn:4:32"]
    words += ["--task-folder", tasks, "--max-questions", 2]
    out = tmp_path / "out"
    code, said, err = command(capsys, model, "--out", out, *words, "--tasks", *OF_KIND)
    assert code == 0, err
    assert "choices acc" in said.splitlines()[0]
    variants = json.loads((out / "comparison.json").read_text())["variants"]
    for each in variants:
        assert list(each["tasks"]) == list(OF_KIND)
        assert [own["questions"] for own in each["tasks"].values()] == [2, 2, 2]
        assert "acc_norm,none" in each["tasks"]["choices"]["metrics"]
        assert each["tasks"]["whole"]["value"] > 1
    for name, message in (
        ("nothing", "--tasks nothing is neither a file nor a task of lm-evaluation-harness"),
        ("lost", "--tasks lost: its questions cannot be had"),
    ):
        code, _, err = command(capsys, model, "--out", tmp_path / "x", *words, "--tasks", name)
        assert code != 0
        assert message in err
        assert not (tmp_path / "x").exists()
