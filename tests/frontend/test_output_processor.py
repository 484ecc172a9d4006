"""Outputs: cumulative views, stop strings, logprobs, and what is left to the engine to abort."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from penstock.errors import RequestError
from penstock.frontend.output_processor import OutputProcessor
from penstock.frontend.outputs import Logprob, RequestOutput
from penstock.frontend.stop_strings import StopSearch, StopStrings
from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.messages import Abort, FinishReason, SequenceUpdate
from penstock.sampling.params import SamplingParams
from penstock.tokenizer import Tokenizer, TokenizerSettings
from penstock.tokenizer.codec import LibraryCodec
from penstock.tokenizer.pieces import byte_alphabet

EOS = 256


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Token id = byte; 256 is the end token."""
    backend = Backend(BPE({char: byte for byte, char in enumerate(byte_alphabet())}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return Tokenizer(LibraryCodec(backend), TokenizerSettings(eos_token_ids=(EOS,)))


def update(
    tokens: str | list[int],
    finish: FinishReason | None = None,
    index: int = 0,
    request_id: str = "r",
    **fields: object,
) -> SequenceUpdate:
    ids = list(tokens.encode()) if isinstance(tokens, str) else tokens
    return SequenceUpdate(
        request_id=request_id, index=index, token_ids=ids, finish_reason=finish, **fields
    )  # type: ignore[arg-type]


def start(tokenizer: Tokenizer | None, request_id: str = "r", **params: object) -> OutputProcessor:
    ticks = itertools.count()
    processor = OutputProcessor(tokenizer, clock=lambda: float(next(ticks)))
    processor.add_request(request_id, "p", [112], SamplingParams(**params))  # type: ignore[arg-type]
    return processor


def feed(
    processor: OutputProcessor, chunks: list[str], last: FinishReason | None = FinishReason.LENGTH
) -> Iterator[tuple[RequestOutput, list[Abort]]]:
    """One update per chunk until the request finishes."""
    for i, chunk in enumerate(chunks):
        outputs, aborts = processor.process([update(chunk, last if i == len(chunks) - 1 else None)])
        for output in outputs:
            yield output, aborts


def test_outputs_are_cumulative_and_keep_their_moment(tokenizer: Tokenizer) -> None:
    outputs = [output for output, _ in feed(start(tokenizer), ["ab", "", "cd", "e"])]
    assert [o.outputs[0].text for o in outputs] == ["ab", "ab", "abcd", "abcde"]
    assert [len(o.outputs[0].token_ids) for o in outputs] == [2, 2, 4, 5]
    assert [o.finished for o in outputs] == [False, False, False, True]
    assert [o.outputs[0].finish_reason for o in outputs] == [None, None, None, "length"]
    first, last = outputs[0].outputs[0], outputs[3].outputs[0]
    delta = last.since(first)
    assert (delta.text, bytes(delta.token_ids)) == ("cde", b"cde")
    assert last.since(None).text == "abcde"
    assert outputs[0].prompt == "p"
    assert outputs[0].prompt_token_ids == [112]
    assert "abcde" in repr(last)


def test_metrics_and_cached_tokens(tokenizer: Tokenizer) -> None:
    processor = start(tokenizer)
    (empty,), _ = processor.process([update("", num_cached_tokens=32)])
    (first,), _ = processor.process([update("a")])
    (last,), _ = processor.process([update("b", FinishReason.LENGTH)])
    assert empty.metrics.first_token_time is None
    assert first.metrics.first_token_time == first.metrics.last_token_time == 2.0
    assert first.metrics.finished_time is None
    assert last.metrics.arrival_time == 0.0
    assert last.metrics.first_token_time == 2.0
    assert last.metrics.last_token_time == last.metrics.finished_time == 3.0
    assert last.num_cached_tokens == 32


def test_characters_come_whole_and_the_rest_at_the_end(tokenizer: Tokenizer) -> None:
    processor = start(tokenizer)
    texts = []
    for byte in "é\U0001f999".encode()[:-1]:
        (output,), _ = processor.process([update([byte])])
        texts.append(output.outputs[0].text)
    assert texts == ["", "é", "é", "é", "é"]
    (output,), _ = processor.process([update("", FinishReason.LENGTH)])
    assert output.outputs[0].text == "é\ufffd"


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("cut", [1, 2, 3, 50])
def test_stop_strings_over_any_cut(tokenizer: Tokenizer, cut: int, include: bool) -> None:
    whole = "one STO STOP STOPPED two"
    chunks = [whole[i : i + cut] for i in range(0, len(whole), cut)]
    processor = start(tokenizer, stop=("STOP", "two"), include_stop_str_in_output=include)
    *earlier, (final, aborts) = list(feed(processor, chunks))
    completion = final.outputs[0]
    assert completion.text == ("one STO STOP" if include else "one STO ")
    assert bytes(completion.token_ids) == b"one STO STOP"
    assert completion.finish_reason == "stop"
    assert completion.stop_reason == "STOP"
    assert final.finished
    # If the engine's last update ended it too, there is nothing to abort.
    assert aborts == ([] if cut == 50 else [Abort(["r"], 0)])
    assert len(processor) == 0
    for output, none in earlier:
        assert none == []
        assert completion.text.startswith(output.outputs[0].text)
        assert not output.finished


def test_only_what_may_begin_a_stop_string_is_held_back(tokenizer: Tokenizer) -> None:
    processor = start(tokenizer, stop=("abcd", "bcx"))
    shown = [output.outputs[0].text for output, _ in feed(processor, list("zabcabcy"))]
    assert shown == ["z", "z", "z", "z", "zabc", "zabc", "zabc", "zabcabcy"]
    processor = start(tokenizer, stop=("abcd",))
    shown = [output.outputs[0].text for output, _ in feed(processor, ["ab", "c"])]
    assert shown == ["", "abc"]  # the end decides


def naive_end(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """The stop string that is complete first, the longest of several; where and which."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None


@settings(max_examples=300, deadline=None)
@given(
    st.text(alphabet="abc", max_size=30),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple),
    st.lists(st.integers(0, 5), max_size=20),
)
def test_search_finds_what_the_definition_finds(
    text: str, stops: tuple[str, ...], cuts: list[int]
) -> None:
    search = StopSearch(StopStrings(stops))
    expected = naive_end(text, stops)
    fed, sizes = 0, iter(cuts)
    while fed < len(text):
        part = text[fed : fed + next(sizes, 1)]
        match = search.feed(part)
        if match is not None:
            assert (fed + match.end, match.stop) == expected
            return
        fed += len(part)
        longest = max(
            size
            for size in range(6)
            if size == 0 or any(text[:fed].endswith(s[:size]) and size < len(s) for s in stops)
        )
        assert search.undecided == longest
    assert expected is None


def test_min_tokens_text_is_out_of_reach(tokenizer: Tokenizer) -> None:
    processor = start(tokenizer, stop=("aa",), min_tokens=3)
    *_, (final, _) = list(feed(processor, ["aa", "aaaa"]))
    assert final.outputs[0].text == "aaa"  # three tokens, and then the stop string
    assert bytes(final.outputs[0].token_ids) == b"aaaaa"


def test_tokens_that_end_a_sequence_have_no_text(tokenizer: Tokenizer) -> None:
    for params, text in (
        ({}, "ab"),
        ({"skip_special_tokens": False}, "ab"),
        ({"skip_special_tokens": False, "include_stop_str_in_output": True}, "ab</s>"),
        ({"include_stop_str_in_output": True}, "ab"),
    ):
        processor = start(tokenizer, **params)
        (output,), aborts = processor.process([update([97, 98, EOS], FinishReason.STOP)])
        completion = output.outputs[0]
        assert completion.text == text
        assert completion.token_ids == [97, 98, EOS]
        assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
        assert aborts == []
    processor = start(tokenizer, stop_token_ids=(98,))
    (output,), _ = processor.process([update("ab", FinishReason.STOP, stop_reason=98)])
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("a", 98)
    # The limit on length hides nothing.
    (output,), _ = start(tokenizer).process([update("ab", FinishReason.LENGTH)])
    assert output.outputs[0].text == "ab"


def test_several_sequences_finish_separately(tokenizer: Tokenizer) -> None:
    processor = start(tokenizer, n=3, stop=("!",))
    outputs, aborts = processor.process([update("a!", index=0), update("b", index=2)])
    assert len(outputs) == 1
    assert [c.text for c in outputs[0].outputs] == ["a", "", "b"]
    assert [c.finish_reason for c in outputs[0].outputs] == ["stop", None, None]
    assert aborts == [Abort(["r"], 0)]  # the engine does not know of the stop string
    assert processor.process([update("more", index=0)]) == ([], [])
    outputs, aborts = processor.process(
        [update("c", FinishReason.LENGTH, index=1), update("d", FinishReason.LENGTH, index=2)]
    )
    assert outputs[0].finished
    assert [c.text for c in outputs[0].outputs] == ["a", "c", "bd"]
    assert aborts == []


def test_each_sequence_is_aborted_once(tokenizer: Tokenizer) -> None:
    processor = start(tokenizer, n=2, stop=("!",))
    _, aborts = processor.process([update("a!", index=0)])
    assert aborts == [Abort(["r"], 0)]
    assert processor.process([update("", FinishReason.LENGTH, index=0)]) == ([], [])
    (output,), aborts = processor.process([update("b", FinishReason.LENGTH, index=1)])
    assert output.finished
    assert aborts == []


def entry(token: int, top: list[tuple[int, float]] | None = None) -> TokenLogprobs:
    return TokenLogprobs(token_id=token, logprob=-token / 100, rank=3, top=top or [])


def test_logprobs_in_vllm_form(tokenizer: Tokenizer) -> None:
    processor = start(tokenizer, logprobs=2, prompt_logprobs=1, stop=("bc",))
    (output,), _ = processor.process(
        [
            update(
                "abcd",
                logprobs=[
                    entry(97, [(120, -0.1), (97, -0.97)]),
                    entry(98),
                    entry(99),
                    entry(100),
                ],
                prompt_logprobs=[None, entry(98, [(97, -0.5)])],
            )
        ]
    )
    completion = output.outputs[0]
    assert bytes(completion.token_ids) == b"abc"  # up to the token that completed the stop
    assert completion.logprobs is not None
    assert [next(iter(position)) for position in completion.logprobs] == [97, 98, 99]
    assert completion.logprobs[0] == {97: Logprob(-0.97, 3, "a"), 120: Logprob(-0.1, 1, "x")}
    assert completion.cumulative_logprob == pytest.approx(-(97 + 98 + 99) / 100)
    assert output.prompt_logprobs == [None, {98: Logprob(-0.98, 3, "b"), 97: Logprob(-0.5, 1, "a")}]
    assert completion.since(None).logprobs == completion.logprobs
    assert start(tokenizer).process([update("a")])[0][0].outputs[0].logprobs is None


def test_errors_end_a_request(tokenizer: Tokenizer) -> None:
    processor = start(tokenizer)
    processor.process([update("a")])
    (output,), aborts = processor.process([update("", FinishReason.ERROR, error="NaN logits")])
    assert output.finished
    assert output.error == "NaN logits"
    assert output.outputs[0].finish_reason == "error"
    assert output.outputs[0].text == "a"
    assert aborts == []


def test_abort_shows_what_was_held_back(tokenizer: Tokenizer) -> None:
    processor = start(tokenizer, stop=("STOP",))
    processor.process([update("xST")])
    (output,) = processor.abort(["r", "unknown"])
    assert output.finished
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("xST", "abort")
    assert processor.abort(["r"]) == []
    assert processor.process([update("OP")]) == ([], [])


def test_outputs_bear_the_public_id(tokenizer: Tokenizer) -> None:
    processor = start(tokenizer, stop=("!",))
    processor.add_request("7", None, [1], SamplingParams(stop=("!",)), "public")
    (output,), aborts = processor.process([update("a!", request_id="7")])
    assert (output.request_id, aborts) == ("public", [Abort(["7"], 0)])


def test_requests_do_not_mix(tokenizer: Tokenizer) -> None:
    processor = start(tokenizer)
    processor.add_request("s", None, [1, 2], SamplingParams())
    with pytest.raises(RequestError, match="in use"):
        processor.add_request("s", None, [1, 2], SamplingParams())
    outputs, _ = processor.process(
        [update("a"), update("b", request_id="s"), update("c", request_id="gone"), update("d")]
    )
    assert [(o.request_id, o.outputs[0].text) for o in outputs] == [("r", "ad"), ("s", "b")]
    assert len(processor) == 2


def test_without_a_tokenizer_there_are_tokens_only() -> None:
    processor = start(None, logprobs=0)
    (output,), _ = processor.process([update([5, 900], logprobs=[entry(5), entry(900)])])
    assert output.outputs[0].token_ids == [5, 900]
    assert output.outputs[0].text == ""
    assert output.outputs[0].logprobs is not None
    assert output.outputs[0].logprobs[0][5].decoded_token is None
    with pytest.raises(RequestError, match="need a tokenizer"):
        start(None, stop=("x",))


def test_cost_does_not_grow_with_the_text(tokenizer: Tokenizer) -> None:
    """Counted, not timed: the pieces of a long text are joined only when it is read."""
    processor = start(tokenizer, stop=("\x00" * 50,))
    for _ in range(2000):
        (output,), _ = processor.process([update("ab")])
    record = output.outputs[0]._record
    assert len(record.parts) == 2000 * 2
    assert all(len(part) == 1 for part in record.parts)
    assert output.outputs[0].text == "ab" * 2000
