"""Recurrences and convolutions over state slots: near float64, and the same bits however a
sequence is cut into steps, beside whom, on how many threads, and with tokens taken back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.native_states import (
    F32,
    ConvShape,
    DeltaShape,
    Piece,
    Scan,
    SelectiveShape,
    StateRunner,
    conv,
    delta,
    rounded,
    selective,
)

from penstock.backends.reference.convolution import weighted

pytestmark = pytest.mark.thinned(5)

SCANS = {
    "delta": delta(DeltaShape()),
    "selective": selective(SelectiveShape()),
    "conv": conv(ConvShape()),
}
each_scan = pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS.keys())


def whole(module: Any, scan: Scan, rows: F32, **options: Any) -> F32:
    """What the op makes of a sequence in one step."""
    runner = StateRunner(module, scan, **options)
    (out,) = runner.run([Piece(rows, 0, len(rows), 3)])
    runner.close()
    return out


def drawn(scan: Scan, tokens: int, seed: int = 1) -> F32:
    return scan.draw(np.random.default_rng(seed), tokens)


@pytest.mark.parametrize(
    "shape",
    [
        DeltaShape(),
        DeltaShape(1, 1, 1, 1),
        DeltaShape(1, 3, 5, 7),
        DeltaShape(2, 2, 16, 16),
        DeltaShape(1, 2, 128, 128),
        DeltaShape(3, 3, 17, 33, steep=30.0),
        DeltaShape(2, 4, 130, 8, steep=0.0),
        DeltaShape(2, 6, 24, 40, tiled=True),
    ],
    ids=str,
)
def test_gated_delta(module: Any, shape: DeltaShape) -> None:
    scan = delta(shape)
    rows = drawn(scan, 50)
    np.testing.assert_allclose(whole(module, scan, rows), scan.wide(rows), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "shape",
    [
        SelectiveShape(),
        SelectiveShape(1, 1, 1, 1),
        SelectiveShape(3, 7, 1, 5),
        SelectiveShape(2, 16, 2, 16),
        SelectiveShape(2, 64, 1, 128),
        SelectiveShape(4, 33, 4, 257, steep=30.0),
        SelectiveShape(4, 8, 2, 6, limits=(0.3, 0.9)),
        SelectiveShape(1, 48, 1, 3, limits=(0.0, 0.0)),
    ],
    ids=str,
)
def test_selective_scan(module: Any, shape: SelectiveShape) -> None:
    scan = selective(shape)
    rows = drawn(scan, 50)
    expected = scan.wide(rows)
    atol = 2e-6 * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(whole(module, scan, rows), expected, rtol=2e-5, atol=atol)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("channels", "kernel"), [(1, 2), (40, 4), (64, 3), (201, 5), (130, 16)])
@pytest.mark.parametrize(("bias", "silu"), [(True, True), (False, False)])
def test_convolution(
    module: Any, channels: int, kernel: int, bias: bool, silu: bool, dtype: Any
) -> None:
    scan = conv(ConvShape(channels, kernel, bias, silu, dtype))
    rows = drawn(scan, 30)
    out = whole(module, scan, rows, dtype=dtype)
    np.testing.assert_allclose(out, scan.wide(rows), rtol=1e-5, atol=2e-6)
    if not silu and module.isa != "baseline":  # which may round products by themselves
        u = np.concatenate([np.zeros((kernel - 1, channels), np.float32), rounded(rows, dtype)])
        seen = [u[j : j + len(rows)] for j in range(kernel)]
        np.testing.assert_array_equal(out, weighted(seen, scan.weights[0], scan.weights[1]))


@each_scan
def test_steep_gates_leave_numbers(module: Any, scan: Scan) -> None:
    """Steps of time so large that nothing is left of the state, and so small that all is."""
    rows = drawn(scan, 20)
    gates = scan.inputs[-1] if len(scan.inputs) > 1 else 1
    rows[::2, -gates:], rows[1::2, -gates:] = 1e4, -1e4
    assert np.isfinite(whole(module, scan, rows)).all()


@each_scan
@pytest.mark.parametrize("threads", [1, 3])
def test_cuts_neighbours_and_threads_change_no_bit(module: Any, scan: Scan, threads: int) -> None:
    """Three sequences in pieces of random lengths, beside each other; they go on from snapshots
    that were taken in passing as from their own states."""
    rng = np.random.default_rng(5)
    sequences = [drawn(scan, n, n) for n in (61, 40, 7)]
    expected = [whole(module, scan, rows) for rows in sequences]
    runner = StateRunner(module, scan, threads)
    slots, done = [5, 1, 6], [0, 0, 0]
    continued = 0
    while any(d < len(rows) for d, rows in zip(done, sequences, strict=True)):
        pieces, which, free = [], [], [0, 2, 3]
        for i in rng.permutation(3):
            left = len(sequences[i]) - done[i]
            if left == 0:
                continue
            end = done[i] + int(rng.integers(1, min(left, 24) + 1))
            inner = sorted(rng.choice(np.arange(done[i] + 1, end + 1), 1).tolist())
            snapshots = tuple((n, free.pop()) for n in inner)
            pieces.append(Piece(sequences[i], done[i], end, slots[i], snapshots=snapshots))
            which.append(i)
        outs = runner.run(pieces)
        for i, piece, out in zip(which, pieces, outs, strict=True):
            np.testing.assert_array_equal(out, expected[i][piece.first : piece.end])
            done[i] = piece.end
            for tokens, slot in piece.snapshots:
                end = min(tokens + 3, len(sequences[i]))
                if tokens < end:
                    (tail,) = runner.run([Piece(sequences[i], tokens, end, slot)])
                    np.testing.assert_array_equal(tail, expected[i][tokens:end])
                    continued += 1
    assert continued
    runner.close()


@each_scan
@pytest.mark.parametrize("log", [1, 2, 6])
def test_tokens_that_are_taken_back_leave_no_trace(module: Any, scan: Scan, log: int) -> None:
    """Steps end in rows that may be taken back; some are, and others run at their positions."""
    rng = np.random.default_rng(log)
    rows, wrong = drawn(scan, 80, 2), drawn(scan, 80, 3)
    other, other_wrong = drawn(scan, 80, 4), drawn(scan, 80, 5)
    expected = [whole(module, scan, each) for each in (rows, other)]
    runner = StateRunner(module, scan, 3, log)
    slots, known, seen = [4, 2], [0, 0], [0, 0]
    while min(known) < 60:
        pieces, ends, accepted = [], [], []
        for i, (good, bad) in enumerate([(rows, wrong), (other, other_wrong)]):
            sure, maybe = int(rng.integers(1, 4)), int(rng.integers(0, log + 1))
            kept = int(rng.integers(0, maybe + 1))
            end = known[i] + sure + maybe
            mixed = good.copy()
            mixed[end - maybe + kept : end] = bad[end - maybe + kept : end]
            border = int(rng.integers(seen[i] + 1, end - maybe + 1))
            snapshots = ((border, 6 + i),) if rng.integers(2) else ()
            pieces.append(Piece(mixed, known[i], end, slots[i], seen[i], maybe, snapshots))
            ends.append(end - maybe)
            accepted.append(end - maybe + kept)
        outs = runner.run(pieces)
        for i, (piece, out) in enumerate(zip(pieces, outs, strict=True)):
            good = accepted[i] - piece.first
            np.testing.assert_array_equal(out[:good], expected[i][piece.first : accepted[i]])
            known[i], seen[i] = accepted[i], ends[i]
            for tokens, slot in piece.snapshots:
                source = (rows, other)[i]
                (tail,) = runner.run([Piece(source, tokens, tokens + 3, slot)])
                np.testing.assert_array_equal(tail, expected[i][tokens : tokens + 3])
    runner.close()


@each_scan
def test_all_of_a_sequence_may_be_taken_back(module: Any, scan: Scan) -> None:
    rows = drawn(scan, 20)
    expected = whole(module, scan, rows)
    runner = StateRunner(module, scan, log=4)
    (out,) = runner.run([Piece(rows, 0, 3, 0, 0, 3)])
    np.testing.assert_array_equal(out, expected[:3])
    (out,) = runner.run([Piece(rows, 1, 2, 0, 0, 1)])
    np.testing.assert_array_equal(out, expected[1:2])
    (out,) = runner.run([Piece(rows, 2, 20, 0, 0)])
    np.testing.assert_array_equal(out, expected[2:])
    runner.close()


@each_scan
def test_slots_are_copied_in_order_before_they_are_read(module: Any, scan: Scan) -> None:
    rows = drawn(scan, 30)
    expected = whole(module, scan, rows)
    runner = StateRunner(module, scan, 3)
    runner.run([Piece(rows, 0, 10, 0)])
    pieces = [Piece(rows, 10, 30, slot) for slot in (0, 5, 7)]
    for out in runner.run(pieces, copies=[(0, 3), (3, 3), (3, 5), (5, 7)]):
        np.testing.assert_array_equal(out, expected[10:])
    np.testing.assert_array_equal(runner.slot(5), runner.slot(7))
    runner.close()


@each_scan
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"states": None}, "says of no sequence where its state is"),
        ({"slots": [1, 1]}, "state slot 1 is written for two"),
        ({"slots": [0, 8]}, "state slot 8 is not in"),
        ({"slots": [0, -1]}, "state slot -1 is not in"),
        ({"slots": [0]}, "disagree in length"),
        ({"seen": [0, 5]}, "5 tokens in its state and begins at position 4"),
        ({"seen": [0, -1]}, "-1 tokens in its state"),
        ({"seen": [0, 1]}, "at most 2"),
        ({"tentative": [3, 0]}, "3 rows that may be taken back"),
        ({"tentative": [0, -1]}, "-1 rows"),
        ({"copies": [[0, 8]]}, "copied state slot 8"),
        ({"snapshots": [[0, 5, 3]]}, r"not in \(0, 4\]"),
        ({"snapshots": [[1, 4, 3]]}, "not behind the one before"),
        ({"snapshots": [[0, 2, 3], [0, 2, 4]]}, "not behind the one before"),
        ({"snapshots": [[1, 6, 3], [0, 2, 4]]}, "ascend by its sequences"),
        ({"snapshots": [[2, 6, 3]]}, "ascend by its sequences"),
        ({"snapshots": [[0, 2, 1]]}, "state slot 1 is written for two"),
        ({"snapshots": [[0, 2, 8]]}, "state slot 8 is not in"),
        ({"tree_parents": [-1, 0, 1, 2, -1, 0]}, "draft trees cannot be verified"),
    ],
    ids=str,
)
def test_malformed_steps_are_refused(
    module: Any, scan: Scan, changes: dict[str, Any], message: str
) -> None:
    rows = drawn(scan, 10)
    runner = StateRunner(module, scan, log=2)
    runner.run([Piece(rows, 0, 4, 1)])
    before = runner.slot(1)
    arrays = {k: v if v is None else np.array(v, np.int32) for k, v in changes.items()}
    with pytest.raises(ValueError, match=message):
        runner.run([Piece(rows, 0, 4, 0), Piece(rows, 4, 6, 1)], **arrays)
    np.testing.assert_array_equal(runner.slot(1), before)
    runner.close()
