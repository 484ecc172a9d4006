"""The sampler of GPUs against NumPy's definition: the same tokens, errors and floats, by ``==``."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sampling_strategies import masks, options, rows

from penstock.errors import RequestError
from penstock.interface.mask import mask_of
from penstock.interface.sampler import NewSequence
from penstock.sampling.draw_arrays import draws64
from penstock.sampling.draws import draw64
from penstock.sampling.params import SamplingParams
from penstock.sampling.reference import NumpySampler
from penstock.sampling.select import token_weights

torch = pytest.importorskip("torch", reason="the GPU backend needs torch")
triton = pytest.importorskip("triton", reason="the GPU backend needs Triton")
tl = pytest.importorskip("triton.language", reason="the GPU backend needs Triton")

from support.cuda_sampler import check, device, device_sampler  # noqa: E402
from support.samplers import EOS, EVERY_KIND, result_of, states_of  # noqa: E402

from penstock.backends.cuda.sampling.kernels.row import weights_of  # noqa: E402

# The interpreter computes in NumPy, which warns of what options are meant to bring about.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|divide|invalid value):RuntimeWarning")


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


@pytest.mark.slow
@given(data=st.data(), vocab=st.sampled_from([2048, 2049, 3000]))
@settings(max_examples=6, deadline=None)
def test_any_options_on_rows_of_several_tiles(data: st.DataObject, vocab: int) -> None:
    """More candidates than one tile of registers holds."""
    logits = data.draw(rows(vocab, 2))
    params = [data.draw(options(vocab)) for _ in range(2)]
    check(logits, params, [1, 5], [5, 5, vocab - 1], chunk=1024)


@pytest.mark.thinned(2)
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


@pytest.mark.thinned(3)
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


def test_draw_needs_no_arg_max() -> None:
    logits = np.random.default_rng(10).standard_normal((len(EVERY_KIND), 65)).astype(np.float32)
    logits[2, 40] = np.nan
    sampler, definition = device_sampler(65), NumpySampler()
    rows = list(range(len(EVERY_KIND)))
    tokens, errors = sampler.draw(logits, rows, states_of(sampler, EVERY_KIND, 65, []))
    expected = definition.draw(logits, rows, states_of(definition, EVERY_KIND, 65, []))
    assert (tokens[:2] + tokens[3:], errors) == (expected[0][:2] + expected[0][3:], expected[1])
    assert list(errors) == [2]


@pytest.mark.thinned(2)
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


def test_draws_of_arrays() -> None:
    rng = np.random.default_rng(12)
    keys = rng.integers(0, 2**64, 100, np.uint64)
    positions = rng.integers(0, 10**6, 100).astype(np.uint64)
    expected = [draw64(int(k), int(p)) for k, p in zip(keys, positions, strict=True)]
    assert draws64(keys, positions).tolist() == expected
