"""One LLM, used from several threads, by iterators side by side, after its end and after a fork."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock import LLM, GrammarSpec, SamplingParams
from penstock.errors import EngineDeadError, RequestError
from penstock.sandbox.local import LocalWorker

PROMPTS = [f"def f{i}(x):" for i in range(6)]
LIMIT = 60.0
"""Seconds after which whatever a test waits for has failed."""


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(threads=2, kv_cache_bytes=1 << 24, max_num_seqs=8) as llm:
        yield llm


def params(seed: int) -> SamplingParams:
    return SamplingParams(temperature=0.9, seed=seed, max_tokens=24, ignore_eos=True, logprobs=1)


def alone(llm: LLM) -> list[Any]:
    return [shown(llm.generate(prompt, params(i))[0], llm) for i, prompt in enumerate(PROMPTS)]


def shown(output: Any, llm: LLM) -> Any:
    one = output.outputs[0]
    assert one.finish_reason == "length"
    return one.text, tuple(one.token_ids), repr(one.logprobs)


def test_threads_get_what_they_would_get_alone(llm: LLM) -> None:
    expected = alone(llm)
    embedded = [output.embedding.tobytes() for output in llm.embed(PROMPTS)]

    def work(thread: int) -> None:
        for round_ in range(3):
            i = (thread + round_) % len(PROMPTS)
            if thread % 3 == 2:
                last = None
                for last in llm.stream(PROMPTS[i], params(i)):
                    assert last.prompt == PROMPTS[i]
                assert shown(last, llm) == expected[i]
            else:
                both = [PROMPTS[i], PROMPTS[0]]
                for output, j in zip(
                    llm.generate(both, [params(i), params(0)]), (i, 0), strict=True
                ):
                    assert shown(output, llm) == expected[j]
            assert llm.embed(PROMPTS[i])[0].embedding.tobytes() == embedded[i]

    with ThreadPoolExecutor(5) as pool:
        for done in [pool.submit(work, thread) for thread in range(5)]:
            done.result(LIMIT)
    llm.check_integrity()
    assert llm.stats().running == llm.stats().waiting == 0


@pytest.mark.slow
def test_an_unfinished_stream_does_not_hold_the_engine(llm: LLM) -> None:
    expected = alone(llm)
    streams = [llm.stream(PROMPTS[i], params(i)) for i in range(3)]
    begun = [next(stream) for stream in streams]
    assert shown(llm.generate(PROMPTS[3], params(3))[0], llm) == expected[3]
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(llm.generate, PROMPTS[4], params(4)).result(LIMIT)
    assert shown(other[0], llm) == expected[4]
    assert all(0 < output.outputs[0].num_tokens < 24 for output in begun)
    for i in (1, 0, 2):
        *_, last = streams[i]
        assert shown(last, llm) == expected[i]
    llm.check_integrity()


@pytest.mark.slow
def test_streams_in_turn(llm: LLM) -> None:
    expected = alone(llm)
    streams = {i: llm.stream(PROMPTS[i], params(i)) for i in range(3)}
    last: dict[int, Any] = {}
    while streams:
        for i, stream in list(streams.items()):
            output = next(stream, None)
            if output is None:
                del streams[i]
            else:
                last[i] = output
    assert [shown(last[i], llm) for i in range(3)] == expected[:3]


@pytest.mark.parametrize("way", ["close", "drop", "cycle", "raise"])
def test_abandoned_streams_stop(llm: LLM, way: str) -> None:
    stream: Any = llm.stream([PROMPTS[0], PROMPTS[1]], params(0))
    next(stream)
    assert llm.stats().running == 2
    if way == "close":
        stream.close()
    elif way == "cycle":
        ring: list[Any] = [stream]
        ring.append(ring)
        del ring
    elif way == "raise":
        with pytest.raises(KeyError):
            stream.throw(KeyError("x"))
    del stream
    gc.collect()
    assert llm.stats().running == 0
    llm.check_integrity()


def test_a_stream_that_is_collected_within_a_step(llm: LLM) -> None:
    """A finalizer may run anywhere, also where the same thread steps the engine."""
    stream: Any = llm.stream(PROMPTS[0], params(0))
    next(stream)
    core = llm._core._core
    plain = core.step

    def step() -> Any:
        nonlocal stream
        if stream is not None:
            stream = None
            gc.collect()
        return plain()

    core.step = step  # type: ignore[method-assign]
    try:
        assert llm.generate(PROMPTS[1], params(1))[0].finished
    finally:
        del core.step
    assert llm.stats().running == 0


def test_a_signal_handler_is_told(llm: LLM) -> None:
    reported: list[BaseException] = []

    def handler(*args: Any) -> None:
        try:
            llm.generate(PROMPTS[1], params(1))
        except RequestError as error:
            reported.append(error)

    core = llm._core._core
    plain = core.step

    def step() -> Any:
        if not reported:
            signal.raise_signal(signal.SIGUSR1)
        return plain()

    before = signal.signal(signal.SIGUSR1, handler)
    core.step = step  # type: ignore[method-assign]
    try:
        assert llm.generate(PROMPTS[0], params(0))[0].finished
    finally:
        del core.step
        signal.signal(signal.SIGUSR1, before)
    assert "signal handler" in str(reported[0])


def test_a_refused_request_leaves_others_alone(llm: LLM) -> None:
    expected = alone(llm)
    stream = llm.stream(PROMPTS[0], params(0))
    next(stream)
    with pytest.raises(RequestError, match="temperature"):
        llm.generate([PROMPTS[1], PROMPTS[2]], [params(1), SamplingParams(temperature=-1.0)])
    with pytest.raises(RequestError, match="empty"):
        llm.embed([PROMPTS[1], {"prompt_token_ids": []}])
    *_, last = stream
    assert shown(last, llm) == expected[0]
    assert llm.stats().running == llm.stats().waiting == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda llm: llm.generate(None), "prompts must be"),
        (lambda llm: llm.generate(5), "prompts must be"),
        (lambda llm: llm.generate([5]), "a prompt is text"),
        (lambda llm: llm.generate("a", {"max_tokens": 1}), "params must be SamplingParams"),
        (lambda llm: llm.generate("a", [1]), "params must be SamplingParams"),
        (lambda llm: llm.generate("a", 1), "params must be SamplingParams"),
        (lambda llm: llm.generate("a", priority="high"), "priority must be an integer"),
        (lambda llm: llm.embed("a", "mean"), "pooling must be PoolingParams"),
        (lambda llm: llm.embed("a", priority=None), "priority must be an integer"),
        (lambda llm: llm.generate({"prompt_token_ids": 5}), "prompt_token_ids must be a list"),
        (lambda llm: llm.generate({"prompt_token_ids": "12"}), "prompt_token_ids must be a list"),
        (lambda llm: llm.generate({"prompt_token_ids": ["1"]}), "token ids are integers"),
    ],
)
def test_calls_that_make_no_sense(llm: LLM, call: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        call(llm)


def test_after_the_end() -> None:
    llm = LLM(threads=1, kv_cache_bytes=1 << 24)
    stream = llm.stream(PROMPTS[0], params(0))
    next(stream)
    llm.close()
    llm.close()
    calls: list[Callable[[], Any]] = [
        lambda: next(stream),
        lambda: llm.generate("a"),
        lambda: llm.chat([{"role": "user", "content": "a"}]),
        lambda: llm.embed("a"),
        lambda: list(llm.stream("a")),
        llm.stats,
        llm.check_integrity,
    ]
    for call in calls:
        with pytest.raises(EngineDeadError, match="closed"):
            call()
    assert llm.config.max_num_seqs > 0


def test_closed_before_its_grammar_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may close it between the two checks; then no process may be left."""
    forks: list[str] = []
    monkeypatch.setattr(LocalWorker, "run", lambda worker, job: forks.append("one"))
    with LLM(threads=1, kv_cache_bytes=1 << 24) as llm:
        monkeypatch.setattr(llm._core, "check", lambda requests: llm.close())
        with pytest.raises(EngineDeadError, match="closed"):
            llm.generate("a", SamplingParams(grammar=GrammarSpec(kind="regex", text="a")))
    assert forks == []


def test_closed_while_another_thread_generates() -> None:
    llm = LLM(threads=1, kv_cache_bytes=1 << 24)
    begun = threading.Event()
    ended: list[BaseException] = []

    def work() -> None:
        try:
            for _ in llm.stream(PROMPTS[0], SamplingParams(max_tokens=1000, ignore_eos=True)):
                begun.set()
        except EngineDeadError as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(LIMIT)
    llm.close()
    thread.join(LIMIT)
    assert not thread.is_alive()
    assert "closed" in str(ended[0])


def test_a_forked_process_is_told(llm: LLM) -> None:
    stream = llm.stream(PROMPTS[0], params(0))
    next(stream)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        reported = b"nothing"
        try:
            llm.close()
            next(stream)
        except EngineDeadError as error:
            reported = str(error).encode()
        finally:
            os.write(writing, reported)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert b"forked" in pipe.read()
    os.waitpid(child, 0)
    *_, last = stream
    assert last.finished


def test_a_forked_child_closes_while_another_thread_checks(llm: LLM) -> None:
    """The thread that holds the lock does not exist in the child."""
    held, leave = threading.Event(), threading.Event()

    def check() -> None:
        with llm._grammars._lock:
            held.set()
            leave.wait(LIMIT)

    thread = threading.Thread(target=check)
    thread.start()
    assert held.wait(LIMIT)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(LIMIT))
        status = 1
        try:
            llm.close()
            status = 0
        finally:
            os._exit(status)
    leave.set()
    thread.join(LIMIT)
    _, status = os.waitpid(child, 0)
    assert status == 0


def ways(llm: LLM) -> list[Callable[[], object]]:
    """Two thousand requests, each in one of the ways that there are; each returns its outcome."""

    def generated(i: int) -> object:
        text = f"def f{i % 97}(x, y{i % 13}):\n"
        params = SamplingParams(
            temperature=(0.0, 0.8)[i % 2],
            seed=i,
            max_tokens=1 + i % 8,
            stop=("\n", "return")[: i % 3],
            logprobs=(None, 2)[i % 5 == 0],
            bad_words=("self",) if i % 50 == 0 else (),
            ignore_eos=i % 7 == 0,
        )
        if i % 11 == 0:
            (output,) = llm.chat([{"role": "user", "content": text}], params)
        elif i % 4 == 0:
            *_, output = llm.stream(text, params)
        else:
            (output,) = llm.generate(text, params)
        return [(o.text, o.token_ids, o.finish_reason, o.logprobs) for o in output.outputs]

    def left_early(i: int) -> object:
        stream = llm.stream(f"class C{i}:\n", SamplingParams(temperature=0, ignore_eos=True))
        first = next(stream)
        stream.close()
        return first.outputs[0].token_ids[:1]

    def embedded(i: int) -> object:
        (output,) = llm.embed(f"import m{i % 97}")
        return output.embedding.tolist()

    kinds = {0: left_early, 1: embedded}
    return [lambda i=i: kinds.get(i % 20, generated)(i) for i in range(2000)]  # type: ignore[misc]


@pytest.mark.slow
def test_sixteen_threads_give_what_one_gives() -> None:
    with LLM(threads=1, kv_cache_bytes=1 << 24, max_num_seqs=16, max_model_len=256) as llm:
        calls = ways(llm)
        expected = [call() for call in calls]
        core = llm._core._core
        plain, together = core.step, 0

        def step() -> Any:
            nonlocal together
            updates = plain()
            together = max(together, len({update.request_id for update in updates}))
            return updates

        core.step = step  # type: ignore[method-assign]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)
        try:
            with ThreadPoolExecutor(16) as pool:
                found = list(pool.map(lambda call: call(), calls))
        finally:
            sys.setswitchinterval(interval)
            del core.step
        assert [i for i in range(len(calls)) if found[i] != expected[i]] == []
        assert together > 1
        assert llm.stats().running == llm.stats().waiting == 0
        llm.check_integrity()
