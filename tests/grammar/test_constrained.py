"""Requests with grammars in the engine: what comes out, whatever runs beside them."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from support.grammars import EOS, FINITE, PADDED, STOP, Language, byte_engine_plan, choice, regex
from support.overlap_executor import Deferred, HashExecutor

from penstock.engine.core import EngineCore
from penstock.engine.loader import EnginePlan
from penstock.errors import RequestError
from penstock.grammar import matcher
from penstock.grammar.spec import GrammarSpec
from penstock.grammar.tokens import Vocabulary
from penstock.interface.messages import EngineRequest, FinishReason, SequenceUpdate
from penstock.sampling.params import SamplingParams


@pytest.fixture(scope="module")
def engine_plan(tmp_path_factory: pytest.TempPathFactory) -> EnginePlan:
    return byte_engine_plan(tmp_path_factory.mktemp("bytes"))


Make = Callable[..., EngineCore]


@pytest.fixture(params=["one by one", "overlapping"])
def make(request: pytest.FixtureRequest, engine_plan: EnginePlan) -> Iterator[Make]:
    """Makes cores whose logits are a hash of what they read in the cache."""
    cores = []

    def made(num_blocks: int = 200, **limits: int) -> EngineCore:
        config = msgspec.structs.replace(engine_plan.config, **limits)
        inner = HashExecutor(num_blocks, PADDED)
        executor = inner if request.param == "one by one" else Deferred(inner)
        cores.append(EngineCore(dataclasses.replace(engine_plan, config=config), executor))
        return cores[-1]

    yield made
    for core in cores:
        core.check_integrity()
        assert core.stats().kv_blocks_used == 0
        core.close()


def ask(name: str, params: SamplingParams, prompt: list[int] | None = None) -> EngineRequest:
    return EngineRequest(
        request_id=name, prompt_token_ids=prompt or list(b"a prompt"), params=params
    )


Outputs = dict[tuple[str, int], list[int]]


class Finished:
    """What the updates of a run come to."""

    def __init__(self) -> None:
        self.tokens: Outputs = {}
        self.ends: dict[tuple[str, int], SequenceUpdate] = {}

    def take(self, updates: list[SequenceUpdate]) -> None:
        for update in updates:
            key = (update.request_id, update.index)
            assert key not in self.ends
            self.tokens.setdefault(key, []).extend(update.token_ids)
            if update.finish_reason is not None:
                self.ends[key] = update

    def text(self, name: str, index: int = 0) -> str:
        end = self.ends[name, index]
        assert end.error is None, end.error
        tokens = self.tokens[name, index]
        if end.finish_reason is FinishReason.STOP and not end.ends_in_text:
            tokens = tokens[:-1]
        return bytes(tokens).decode()


def finish(core: EngineCore, requests: list[EngineRequest]) -> Finished:
    finished = Finished()
    for request in requests:
        core.add_request(request)
    while core.has_work:
        finished.take(core.step())
        core.check_integrity()
    return finished


def mixed() -> list[tuple[EngineRequest, Language | None]]:
    """Every language greedy and sampled, with other options, among requests without one."""
    requests: list[tuple[EngineRequest, Language | None]] = []
    for i, language in enumerate(FINITE):
        for j, options in enumerate(
            [
                {"temperature": 0.0},
                {"temperature": 1.5, "seed": i},
                {"top_k": 40, "seed": i, "repetition_penalty": 1.2, "presence_penalty": 0.5},
                {"top_p": 0.9, "seed": i, "logprobs": 2, "logit_bias": {ord("1"): 3.0}},
                {"temperature": 2.0, "seed": i, "n": 3, "stop_token_ids": (STOP,)},
            ]
        ):
            params = SamplingParams(grammar=language.spec, max_tokens=150, **options)  # type: ignore
            requests.append((ask(f"{i}-{j}", params, list(b"prompt") * (5 * j + i + 1)), language))
        free = SamplingParams(max_tokens=20, seed=i, ignore_eos=True)
        requests.append((ask(f"free-{i}", free), None))
    return requests


def test_every_output_is_of_its_language(make: Make) -> None:
    requests = mixed()
    finished = finish(make(), [request for request, _ in requests])
    for request, language in requests:
        for index in range(request.params.n):
            if language is not None:
                assert finished.ends[request.request_id, index].finish_reason is FinishReason.STOP
                assert language.holds(finished.text(request.request_id, index))


def test_a_request_alone_gives_what_it_gives_among_others_and_preempted(make: Make) -> None:
    requests = [request for request, _ in mixed()]
    core = make()
    alone: Outputs = {}
    for request in requests:
        alone |= finish(core, [request]).tokens
    assert finish(make(), requests).tokens == alone
    # Those that came first outgrow a cache that all were admitted to.
    tight = make(num_blocks=11, max_num_seqs=12, max_num_batched_tokens=40)
    long = SamplingParams(max_tokens=120, ignore_eos=True, seed=1)
    growing = [ask(f"long-{i}", long, [i] * 30) for i in range(3)]
    finished = finish(tight, [*growing, *requests]).tokens
    assert {key: tokens for key, tokens in finished.items() if key in alone} == alone
    assert tight.stats().preemptions > 0


def test_cached_prefixes_change_nothing(make: Make) -> None:
    language = FINITE[0]
    params = SamplingParams(grammar=language.spec, seed=4, max_tokens=150)
    core = make()
    first = finish(core, [ask("r", params, list(b"long prompt " * 20))])
    again = finish(core, [ask("r", params, list(b"long prompt " * 20))])
    assert core.stats().prefix_hits > 0
    assert again.tokens == first.tokens


def test_the_end_of_a_grammar_is_the_end_of_the_output(make: Make) -> None:
    core = make()
    finished = finish(
        core,
        [
            ask("closed", SamplingParams(grammar=choice("abc").spec, temperature=0)),
            ask("early", SamplingParams(grammar=choice("abc").spec, min_tokens=50, seed=1)),
            ask("deaf", SamplingParams(grammar=choice("abc").spec, ignore_eos=True, seed=1)),
            ask("open", SamplingParams(grammar=regex("a+").spec, max_tokens=7, ignore_eos=True)),
            ask("told", SamplingParams(grammar=regex("a+").spec, logit_bias={EOS: 100.0})),
            ask(
                "late",
                SamplingParams(grammar=regex("a+").spec, logit_bias={EOS: 100.0}, min_tokens=5),
            ),
            ask(
                "turn",
                SamplingParams(
                    grammar=regex("a+").spec, logit_bias={STOP: 100.0}, stop_token_ids=(STOP,)
                ),
            ),
        ],
    )
    for name in ("closed", "early", "deaf"):
        assert finished.text(name) == "abc"
        assert finished.tokens[name, 0] == list(b"abc"), "nothing is sampled behind it"
        assert finished.ends[name, 0].ends_in_text
    assert finished.tokens["open", 0] == list(b"a" * 7)
    assert finished.ends["open", 0].finish_reason is FinishReason.LENGTH
    assert finished.tokens["told", 0] == [ord("a"), EOS]
    assert finished.tokens["late", 0] == [*b"aaaaa", EOS]
    assert finished.tokens["turn", 0] == [ord("a"), STOP]
    assert finished.ends["turn", 0].stop_reason == STOP


def test_options_that_forbid_all_that_the_grammar_allows(make: Make) -> None:
    finished = finish(
        make(),
        [
            ask(
                "none",
                SamplingParams(grammar=choice("ab").spec, min_tokens=3, stop_token_ids=(ord("b"),)),
            ),
            ask("fine", SamplingParams(grammar=choice("ab").spec)),
        ],
    )
    assert finished.tokens["none", 0] == [ord("a")]
    assert finished.ends["none", 0].finish_reason is FinishReason.ERROR
    assert "no token to choose" in str(finished.ends["none", 0].error)
    assert finished.text("fine") == "ab"


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec(kind="regex", text="a(b"),
        GrammarSpec(kind="json_schema", text='{"type": "objekt"}'),
        GrammarSpec(kind="json_schema", text='{"$ref": "https://example.com/schema.json"}'),
        GrammarSpec(kind="lark", text="start: missing"),
        GrammarSpec(kind="choice", text="[]"),
    ],
    ids=lambda spec: spec.kind,
)
def test_a_bad_grammar_ends_its_request_alone(spec: GrammarSpec, make: Make) -> None:
    core, good = make(), SamplingParams(grammar=choice("good").spec, seed=1)
    finish(core, [ask("before", good)])
    bad = SamplingParams(grammar=spec, n=2, prompt_logprobs=1)
    finished = finish(core, [ask("a", good), ask("bad", bad), ask("b", good)])
    for index in range(2):
        end = finished.ends["bad", index]
        assert end.finish_reason is FinishReason.ERROR
        assert end.error
        assert finished.tokens["bad", index] == []
    assert finished.text("a") == finished.text("b") == "good"
    assert not core.has_work


class Panic(BaseException):
    """A panic of a library in Rust is such an exception."""


def test_a_panic_while_compiling_ends_its_request_alone(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.grammar import compile as compiling

    compile_grammar = compiling.compile_grammar

    def panics(spec: GrammarSpec, vocabulary: Vocabulary) -> compiling.CompiledGrammar:
        if spec == choice("bad").spec:
            raise Panic("index out of bounds")
        return compile_grammar(spec, vocabulary)

    monkeypatch.setattr(compiling, "compile_grammar", panics)
    bad, good = (SamplingParams(grammar=choice(text).spec, seed=1) for text in ("bad", "good"))
    core = make()
    for round_ in "12":
        finished = finish(core, [ask(f"bad {round_}", bad), ask(f"good {round_}", good)])
        end = finished.ends[f"bad {round_}", 0]
        assert end.finish_reason is FinishReason.ERROR
        assert "could not be compiled: index out of bounds" in str(end.error)
        assert finished.text(f"good {round_}") == "good"


def test_a_grammar_that_takes_too_long_ends_its_request_alone(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make()
    finish(core, [ask("compiled", SamplingParams(grammar=regex("[a-z]{5}").spec))])
    monkeypatch.setattr(matcher, "MOST_SECONDS", 0.0)
    finished = finish(
        core,
        [
            ask("slow", SamplingParams(grammar=regex("[a-z]{5}").spec, seed=1)),
            ask("free", SamplingParams(max_tokens=5, ignore_eos=True)),
        ],
    )
    assert "less ambiguous" in str(finished.ends["slow", 0].error)
    assert len(finished.tokens["slow", 0]) == 1
    assert len(finished.tokens["free", 0]) == 5


def test_a_request_that_waits_for_its_grammar(make: Make) -> None:
    """It counts as waiting, keeps its id, and can be aborted; others do not wait for it."""
    core = make()
    slow = SamplingParams(grammar=regex("[a-z]{4}").spec, n=2, seed=1)
    core.add_request(ask("slow", slow))
    assert core.has_work
    assert core.stats().waiting == 2
    for params in (slow, SamplingParams()):
        with pytest.raises(RequestError, match="is in use"):
            core.add_request(ask("slow", params))
    ended = core.abort(["slow"])
    assert [(u.index, u.finish_reason) for u in ended] == [
        (0, FinishReason.ABORT),
        (1, FinishReason.ABORT),
    ]
    assert core.stats().waiting == 0
    assert not core.has_work
    assert core.abort(["slow"]) == []
    assert len(finish(core, [ask("slow", slow)]).text("slow")) == 4
    core.add_request(ask("running", SamplingParams(max_tokens=400, ignore_eos=True, seed=1)))
    core.step()
    with pytest.raises(RequestError, match="is in use"):
        core.add_request(ask("running", slow))
    core.abort(["running"])
    while core.has_work:
        core.step()


def test_a_grammar_that_nobody_waits_for_any_more_is_not_compiled(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.grammar import compile as compiling

    compile_grammar = compiling.compile_grammar
    begun, go = threading.Event(), threading.Event()
    compiled: list[str] = []

    def slowly(spec: GrammarSpec, vocabulary: Vocabulary) -> compiling.CompiledGrammar:
        compiled.append(spec.text)
        begun.set()
        assert go.wait(60)
        return compile_grammar(spec, vocabulary)

    monkeypatch.setattr(compiling, "compile_grammar", slowly)
    held, gone, shared = (choice(text).spec for text in ("held", "gone", "shared"))
    core = make()
    core.add_request(ask("held", SamplingParams(grammar=held)))
    assert begun.wait(60)
    for name, spec in [("1", gone), ("2", gone), ("3", shared), ("4", shared), ("5", gone)]:
        core.add_request(ask(name, SamplingParams(grammar=spec)))
    assert len(core.abort(["1", "2", "3", "5", "held"])) == 5
    go.set()
    finished = finish(core, [])
    assert finished.text("4") == "shared"
    assert compiled == [held.text, shared.text], "one that was begun is compiled to its end"
    assert finish(core, [ask("6", SamplingParams(grammar=gone))]).text("6") == "gone"
    assert finish(core, [ask("7", SamplingParams(grammar=held))]).text("7") == "held"
    assert compiled == [held.text, shared.text, gone.text]


def test_sequences_that_are_aborted_leave_nothing(make: Make) -> None:
    core = make()
    endless = SamplingParams(grammar=regex("[a-z]+").spec, n=4, max_tokens=300, ignore_eos=True)
    for round_ in range(3):
        for i in range(4):
            core.add_request(ask(f"{round_}-{i}", endless))
        for _ in range(400):
            core.step()
            if core.stats().tokens_generated > 200 * (round_ + 1):
                break
        core.abort([f"{round_}-{i}" for i in range(4)])
        while core.has_work:
            core.step()
    assert finish(core, [ask("r", SamplingParams(grammar=choice("ok").spec))]).text("r") == "ok"
    assert len(core._constraints._masks._begun) <= 16


def test_a_model_without_a_tokenizer_cannot_be_constrained(tmp_path: Path) -> None:
    engine_plan = byte_engine_plan(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    core = EngineCore(engine_plan, HashExecutor(20, PADDED))
    finished = finish(core, [ask("r", SamplingParams(grammar=choice("ok").spec))])
    assert "has no tokenizer; name a folder" in str(finished.ends["r", 0].error)
    core.close()
