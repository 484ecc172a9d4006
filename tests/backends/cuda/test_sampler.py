"""The sampler of GPUs against NumPy's definition: the same tokens, errors and floats, by ``==``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sampling_strategies import constrained, masks, options, rows

from penstock.errors import RequestError
from penstock.interface.mask import TokenMask, mask_of
from penstock.interface.sampler import NewSequence, Sampled, Sampler
from penstock.interface.step import StepResult
from penstock.sampling.draw_arrays import draws64
from penstock.sampling.draws import draw64, sequence_key
from penstock.sampling.params import SamplingParams
from penstock.sampling.reference import NumpySampler
from penstock.sampling.select import token_weights

torch = pytest.importorskip("torch", reason="the GPU backend needs torch")
triton = pytest.importorskip("triton", reason="the GPU backend needs Triton")
tl = pytest.importorskip("triton.language", reason="the GPU backend needs Triton")

from penstock.backends.cuda.kernels.sample_weights import weights_of  # noqa: E402
from penstock.backends.cuda.sample_buffers import Sizes  # noqa: E402
from penstock.backends.cuda.sampler import DeviceSampler, Drawn  # noqa: E402

EOS = 0
# The interpreter computes in NumPy, which warns of what options are meant to bring about.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|divide|invalid value):RuntimeWarning")


def device() -> Any:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_sampler(vocab: int, rows: int = 16, batch: int = 3, chunk: int = 64) -> DeviceSampler:
    return DeviceSampler(Sizes(vocab, rows, batch, chunk), device())


def result_of(logits: np.ndarray) -> StepResult:
    logits = np.ascontiguousarray(logits, np.float32)
    return StepResult(logits, logits.argmax(axis=1).astype(np.int32))


def states_of(
    sampler: Sampler[Any], params: list[SamplingParams], vocab: int, prompt: list[int]
) -> list[Any]:
    return [
        sampler.state(NewSequence(each, sequence_key(i, 0), prompt, vocab, [EOS]))
        for i, each in enumerate(params)
    ]


def run(
    sampler: Sampler[Any],
    logits: np.ndarray,
    params: list[SamplingParams],
    prompt: list[int],
    output: list[int],
    allowed: list[TokenMask | None] | None = None,
) -> Sampled:
    states = states_of(sampler, params, logits.shape[1], prompt)
    for state in states:
        for token in output:
            state.append(token)
    return sampler.sample(result_of(logits), list(range(len(params))), states, allowed)


def check(
    logits: np.ndarray,
    params: list[SamplingParams],
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    chunk: int = 64,
    allowed: list[TokenMask | None] | None = None,
) -> Sampled:
    if allowed is not None:
        params = constrained(params, allowed)
    expected = run(NumpySampler(), logits, params, prompt or [], output or [], allowed)
    sampler = device_sampler(logits.shape[1], chunk=chunk)
    found = run(sampler, logits, params, prompt or [], output or [], allowed)
    assert_equal(found, expected)
    assert found.particular == expected.particular
    return expected


def assert_equal(found: Sampled, expected: Sampled) -> None:
    assert found.errors == expected.errors
    assert found.logprobs == expected.logprobs
    for i, token in enumerate(expected.token_ids):
        assert i in expected.errors or found.token_ids[i] == token, i


def queue(sampler: DeviceSampler, logits: np.ndarray, states: list[Any]) -> Drawn:
    """A launch that is not waited for."""
    result = result_of(logits)
    on_device = torch.from_numpy(result.logits).to(device())
    argmax = torch.from_numpy(result.argmax).to(device())
    return sampler.launch(on_device, argmax, list(range(len(states))), states)


@pytest.mark.slow
@given(data=st.data(), vocab=st.sampled_from([1, 2, 63, 64, 65, 130, 300]))
@settings(max_examples=25, deadline=None)
def test_any_options_on_any_rows(data: st.DataObject, vocab: int) -> None:
    count = data.draw(st.integers(1, 3))
    logits = data.draw(rows(vocab, count))
    params = [data.draw(options(vocab)) for _ in range(count)]
    tokens = st.lists(st.integers(0, vocab - 1), max_size=20)
    check(
        logits,
        params,
        data.draw(tokens),
        data.draw(tokens),
        allowed=data.draw(masks(vocab, count)),
    )


def test_grammars_leave_what_their_masks_allow() -> None:
    """Chunks that are allowed whole, in part and not at all; greedy, drawn and cut; with bias."""
    rng = np.random.default_rng(8)
    logits = rng.standard_normal((6, 200)).astype(np.float32)
    permitted = rng.random((6, 200)) < 0.2
    permitted[:, 64:128], permitted[:, 128:192] = False, True
    permitted[4:] = np.arange(200) == 199
    params = [
        SamplingParams(temperature=0),
        SamplingParams(top_k=3, logprobs=2),
        SamplingParams(top_p=0.5, repetition_penalty=1.3),
        SamplingParams(temperature=2.0),
        SamplingParams(temperature=0, logit_bias={199: -100.0}),
        SamplingParams(logit_bias={199: -100.0}),
    ]
    found = check(logits, params, allowed=[mask_of(each) for each in permitted])
    assert not found.errors
    assert found.token_ids[4:] == [199, 199]
    none = check(logits[:2], params[:2], allowed=[mask_of(np.zeros(200, np.bool_)), None])
    assert list(none.errors) == [0]


def test_masks_of_another_vocabulary_are_refused() -> None:
    sampler = device_sampler(200)
    state = sampler.state(NewSequence(SamplingParams(), 1, [], 200))
    result = result_of(np.zeros((1, 200)))
    with pytest.raises(ValueError, match="another vocabulary"):
        sampler.sample(result, [0], [state], [np.zeros(6, np.uint32)])
    with pytest.raises(ValueError, match="one a row"):
        sampler.sample(result, [0], [state], [])


@given(data=st.data(), vocab=st.sampled_from([2048, 2049, 3000]))
@settings(max_examples=6, deadline=None)
def test_any_options_on_rows_of_several_tiles(data: st.DataObject, vocab: int) -> None:
    """More candidates than one tile of registers holds."""
    logits = data.draw(rows(vocab, 2))
    params = [data.draw(options(vocab)) for _ in range(2)]
    check(logits, params, [1, 5], [5, 5, vocab - 1], chunk=1024)


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_flat_rows_whose_ties_span_tiles(spread: float) -> None:
    logits = np.round(np.random.default_rng(1).standard_normal((5, 5000)) * spread, 1)
    params = [
        SamplingParams(top_p=0.9),
        SamplingParams(top_k=4000, logprobs=20),
        SamplingParams(top_k=4500, top_p=0.8),
        SamplingParams(top_p=0.7, min_p=0.9),
        SamplingParams(min_p=0.99),
    ]
    check(logits.astype(np.float32), params, chunk=1024)


def test_nuclei_that_end_among_the_smallest_weights() -> None:
    """Weights of 1, 2, 3, ... beside one of 2**40, the last of which top-p must tell apart."""
    logits = np.full((4, 3000), -27.8)
    logits[:, 1:] += np.random.default_rng(2).uniform(-0.5, 2.5, (4, 2999))
    logits[:, 0] = 0.0
    params = [SamplingParams(top_p=1 - i * 1e-9, seed=i) for i in range(1, 5)]
    check(logits.astype(np.float32), params, chunk=1024)


def test_every_draw_of_a_small_row_agrees() -> None:
    """Many keys, so that draws fall near the borders between tokens too."""
    logits = np.random.default_rng(3).standard_normal((75, 70)).astype(np.float32)
    check(logits, [SamplingParams(temperature=2.0)] * 60 + [SamplingParams(top_k=7)] * 15)


@triton.jit  # type: ignore[misc]
def _write_weights(x, out, peak, inverse, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, weights_of(tl.load(x + at), peak, inverse).to(tl.int64))


def test_weights_are_those_of_the_definition() -> None:
    """Densely over all that has a weight, and its ends."""
    x = np.linspace(-31, 0, 1 << 16, dtype=np.float32)
    x[:4] = -np.inf, -3e38, -0.0, -1e-45
    for peak, inverse in ((0.0, 1.0), (0.3, 1 / 0.7), (0.0, 1e-3), (5.0, 8.5e37)):
        factors = np.float32(peak), np.float32(inverse)
        with np.errstate(over="ignore"):
            expected = token_weights(x.copy(), *factors)
        out = torch.empty(len(x), dtype=torch.int64, device=device())
        logits = torch.from_numpy(x).to(device())
        _write_weights[(16,)](
            logits, out, *(float(f) for f in factors), BLOCK=4096, enable_fp_fusion=False
        )
        assert np.array_equal(out.cpu().numpy(), expected)


EVERY_KIND = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, logprobs=5),
    SamplingParams(),
    SamplingParams(temperature=0.8, top_p=0.9, logprobs=2),
    SamplingParams(top_k=40),
    SamplingParams(top_k=20, top_p=0.5, min_p=0.02),
    SamplingParams(repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=-0.5),
    SamplingParams(temperature=0.0, min_tokens=3, logit_bias={4: 3.0, 9: -100.0}),
    SamplingParams(min_tokens=2, stop_token_ids=(3, 60), top_p=0.8),
    SamplingParams(temperature=0.0, repetition_penalty=2.0, frequency_penalty=1.0),
    SamplingParams(temperature=1.5, presence_penalty=2.0, top_k=5, logprobs=0),
]


def test_steps_queued_before_the_last_is_known() -> None:
    """Penalties, minimum length and draws go on from tokens that the host has not seen."""
    vocab, steps = 130, 5
    rng = np.random.default_rng(4)
    logits = rng.standard_normal((steps, len(EVERY_KIND), vocab)).astype(np.float32)
    definition, sampler = NumpySampler(), device_sampler(vocab)
    expected_states = states_of(definition, EVERY_KIND, vocab, [1, 2, 2])
    states = states_of(sampler, EVERY_KIND, vocab, [1, 2, 2])
    rows = list(range(len(EVERY_KIND)))
    found, waiting = [], []
    for step in range(steps):
        waiting.append(queue(sampler, logits[step], states))
        if step:
            found.append(waiting[step - 1].wait())
    found.append(waiting[-1].wait())
    for step in range(steps):
        expected = definition.sample(result_of(logits[step]), rows, expected_states)
        assert_equal(found[step], expected)
        assert not found[step].particular
        for state, token in zip(expected_states, expected.token_ids, strict=True):
            state.append(token)
    assert {state.num_output for state in states} == {steps}


def test_tokens_stay_on_the_device_until_two_launches_later() -> None:
    sampler = device_sampler(20)
    states = states_of(sampler, [SamplingParams(temperature=0.0), SamplingParams()], 20, [])
    first = queue(sampler, np.eye(2, 20) * 50, states)
    second = queue(sampler, np.eye(2, 20, 3) * 50, states)
    assert first.token_ids.tolist() == first.wait().token_ids == [0, 1]
    assert second.token_ids.tolist() == [3, 4]
    assert second.errors.tolist() == [0, 0]
    queue(sampler, np.zeros((2, 20)), states)
    queue(sampler, np.zeros((2, 20)), states)
    assert first.wait().token_ids == [0, 1]
    with pytest.raises(RuntimeError, match="within 2 launches"):
        second.wait()


def test_a_row_alone_equals_the_row_among_others() -> None:
    logits = (np.random.default_rng(5).standard_normal((11, 130)) * 3).astype(np.float32)
    params = EVERY_KIND
    sampler = device_sampler(130, rows=6)

    def states() -> list[Any]:
        made = states_of(sampler, params, 130, [7, 8])
        for state in made:
            state.append(9)
        return made

    order = list(range(11))
    together = sampler.sample(result_of(logits), order, states())
    reverse = sampler.sample(result_of(logits), order[::-1], states()[::-1])
    assert reverse.token_ids[::-1] == together.token_ids
    for i, state in enumerate(states()):
        alone = sampler.sample(result_of(logits[i : i + 1]), [0], [state])
        assert alone.token_ids == together.token_ids[i : i + 1]
        assert alone.logprobs.get(0) == together.logprobs.get(i)


def test_sequences_of_one_prompt_read_one_row_and_leave_it() -> None:
    logits = np.random.default_rng(6).standard_normal((1, 65)).astype(np.float32)
    params = [SamplingParams(temperature=1.5, logit_bias={64: 2.0}, top_p=0.9)] * 12
    found = []
    for sampler in (NumpySampler(), device_sampler(65)):
        result = result_of(logits.copy())
        states = states_of(sampler, params, 65, [1])
        found.append(sampler.sample(result, [0] * 12, states))
        assert np.array_equal(result.logits, logits)
    assert found[0] == found[1]
    assert len(set(found[0].token_ids)) > 4


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_without_finite_logits_fails_alone(bad: float) -> None:
    logits = np.random.default_rng(7).standard_normal((len(EVERY_KIND) * 2, 65))
    logits[::2] = bad
    params = [each for each in EVERY_KIND for _ in range(2)]
    assert len(check(logits.astype(np.float32), params).errors) == len(EVERY_KIND)


def test_options_that_leave_no_token() -> None:
    logits = np.full((4, 70), -np.inf, np.float32)
    logits[:, [EOS, 3]] = 1.0
    params = [
        SamplingParams(min_tokens=1, stop_token_ids=(3,)),
        SamplingParams(temperature=0.0, min_tokens=1, stop_token_ids=(3,), logprobs=1),
        SamplingParams(repetition_penalty=1e-50),  # zero in float32
        SamplingParams(min_tokens=1),
    ]
    expected = check(logits, params, prompt=[1, 3])
    assert sorted(expected.errors) == [0, 1, 2]


def test_long_lists_of_biases() -> None:
    """Longer than a tile of the list; biases near the borders of chunks."""
    rng = np.random.default_rng(8)
    logits = rng.standard_normal((3, 700)).astype(np.float32)
    tokens = rng.permutation(700)[:600].tolist()
    bias = {token: float(rng.uniform(-3, 3)) for token in tokens}
    params = [
        SamplingParams(logit_bias=bias, temperature=0.0),
        SamplingParams(logit_bias=bias, top_p=0.5),
        SamplingParams(min_tokens=4, stop_token_ids=tuple(range(60, 70)), logit_bias={64: 90.0}),
    ]
    check(logits, params, chunk=256)


def test_rows_that_are_not_aligned() -> None:
    wide = np.random.default_rng(9).standard_normal((len(EVERY_KIND), 131)).astype(np.float32)
    logits = torch.from_numpy(wide).to(device())[:, 1:]
    sampler, definition = device_sampler(130), NumpySampler()
    rows = list(range(len(EVERY_KIND)))
    argmax = logits.argmax(dim=1).to(torch.int32)
    found = sampler.launch(logits, argmax, rows, states_of(sampler, EVERY_KIND, 130, [1])).wait()
    states = states_of(definition, EVERY_KIND, 130, [1])
    assert_equal(found, definition.sample(result_of(wide[:, 1:]), rows, states))


def test_draw_needs_no_arg_max() -> None:
    logits = np.random.default_rng(10).standard_normal((len(EVERY_KIND), 65)).astype(np.float32)
    logits[2, 40] = np.nan
    sampler, definition = device_sampler(65), NumpySampler()
    rows = list(range(len(EVERY_KIND)))
    tokens, errors = sampler.draw(logits, rows, states_of(sampler, EVERY_KIND, 65, []))
    expected = definition.draw(logits, rows, states_of(definition, EVERY_KIND, 65, []))
    assert (tokens[:2] + tokens[3:], errors) == (expected[0][:2] + expected[0][3:], expected[1])
    assert list(errors) == [2]


@pytest.mark.parametrize("scale", [0.0, 3.0])
def test_logprobs_of_prompts(scale: float) -> None:
    logits = np.round(np.random.default_rng(11).standard_normal((18, 130)) * scale, 1)
    logits[3, :100] = -np.inf
    logits = logits.astype(np.float32)
    targets = list(range(0, 126, 7))
    sampler, definition = device_sampler(130), NumpySampler()
    for count in (0, 20):
        expected = definition.prompt_logprobs(logits, targets, count)
        assert sampler.prompt_logprobs(logits, targets, count) == expected
    rows, counts = [5, 5, 2], [3, 0, 7]
    expected = definition.token_logprobs(logits, rows, [1, 2, 3], counts)
    assert sampler.token_logprobs(logits, rows, [1, 2, 3], counts) == expected


def test_prompt_logprobs_refuse_nan_and_mismatched_rows() -> None:
    sampler = device_sampler(65)
    logits = np.zeros((2, 65), np.float32)
    with pytest.raises(ValueError, match="2 rows"):
        sampler.prompt_logprobs(logits, [1], 0)
    logits[1, 3] = np.nan
    with pytest.raises(RequestError, match="NaN"):
        sampler.prompt_logprobs(logits, [1, 2], 0)


def test_what_no_row_can_be_is_refused() -> None:
    sampler = device_sampler(20, rows=2)
    state, other = states_of(sampler, [SamplingParams()] * 2, 20, [])
    logits = np.zeros((2, 20), np.float32)
    with pytest.raises(ValueError, match="outside the logits"):
        sampler.draw(logits, [2], [state])
    with pytest.raises(ValueError, match="another vocabulary"):
        sampler.draw(np.zeros((2, 21), np.float32), [0], [state])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        sampler.token_logprobs(logits, [0], [20], [1])
    with pytest.raises(ValueError, match="at most 20"):
        sampler.token_logprobs(logits, [0], [1], [21])
    with pytest.raises(ValueError, match="state has another vocabulary"):
        sampler.draw(logits, [0], states_of(sampler, [SamplingParams()], 30, []))
    with pytest.raises(ValueError, match="one state a row"):
        sampler.draw(logits, [0, 1], [state])
    with pytest.raises(ValueError, match="advance by one"):
        queue(sampler, logits, [state, state])
    with pytest.raises(ValueError, match="at most 2 in a launch"):
        queue(sampler, np.zeros((3, 20)), [state, other, other])
    for token in (-1, 20):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            state.append(token)
    with pytest.raises(RequestError, match="outside the vocabulary"):
        states_of(sampler, [SamplingParams(repetition_penalty=1.1)], 20, [20])


def test_a_sequence_takes_device_memory_from_its_first_launch_on() -> None:
    sampler = device_sampler(20)
    plain, penalized = states_of(
        sampler, [SamplingParams(), SamplingParams(presence_penalty=1.0)], 20, []
    )
    assert penalized.counts is None
    tokens = queue(sampler, np.zeros((2, 20)), [plain, penalized]).wait().token_ids
    assert plain.counts is None
    assert penalized.counts.tolist() == [2 * (token == tokens[1]) for token in range(20)]


def test_warming_up_leaves_nothing_behind() -> None:
    logits = np.random.default_rng(13).standard_normal((3, 65)).astype(np.float32)
    params = [SamplingParams(), SamplingParams(top_k=3), SamplingParams(repetition_penalty=2.0)]
    cold, warm = device_sampler(65), device_sampler(65)
    warm.warm_up()
    assert run(warm, logits, params, [1], [2]) == run(cold, logits, params, [1], [2])


def test_a_step_may_choose_nothing() -> None:
    assert queue(device_sampler(20), np.zeros((1, 20)), []).wait() == Sampled([])


def test_memory_is_known_before_it_is_taken() -> None:
    sizes = Sizes(vocab=128_256, rows=256, batch=64, chunk=4096)
    assert sizes.bytes == pytest.approx(4 * 64 * 128_256 * 4, rel=0.05)


def test_draws_of_arrays() -> None:
    rng = np.random.default_rng(12)
    keys = rng.integers(0, 2**64, 100, np.uint64)
    positions = rng.integers(0, 10**6, 100).astype(np.uint64)
    expected = [draw64(int(k), int(p)) for k, p in zip(keys, positions, strict=True)]
    assert draws64(keys, positions).tolist() == expected
