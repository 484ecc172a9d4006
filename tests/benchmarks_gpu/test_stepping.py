from __future__ import annotations

from itertools import count

import pytest
from gpu.stepping import decode_window, run_all
from msgspec import structs
from support.fake_core import FakeCore

from penstock.bench.workload import fixed_lengths, random_requests
from penstock.errors import EngineDeadError
from penstock.interface.messages import EngineRequest, SequenceUpdate


class OneByOne(FakeCore):
    """Reads one prompt a step, as where a prompt fills the token budget."""

    def step(self) -> list[SequenceUpdate]:
        begun = [key for key, output in self.outputs.items() if output]
        hidden = dict(list(self.outputs.items())[len(begun) + 1 :])
        self.outputs = {k: v for k, v in self.outputs.items() if k not in hidden}
        updates = super().step()
        self.outputs |= hidden
        return updates


def requests(number: int, output: int) -> list[EngineRequest]:
    return random_requests(fixed_lengths(number, 4, output), 256, 0)


def test_only_steps_that_decode_everyone_count() -> None:
    """Read at steps 1, 2 and 3; all decode at 4, 5 and 6, at which the first one ends."""
    seconds, processor = count(0.0, 2.0), count(0.0, 0.5)
    window = decode_window(
        OneByOne(), requests(3, 6), lambda: next(seconds), lambda: next(processor)
    )
    assert window.step_s == [2.0] * 3
    assert (window.mean_s, window.median_s, window.processor_s) == (2.0, 2.0, 0.5)


def test_outputs_too_short_for_all_to_decode_are_an_error() -> None:
    with pytest.raises(ValueError, match="no step decoded all 3 requests"):
        decode_window(OneByOne(), requests(3, 2))


def test_all_tokens_of_a_run_count() -> None:
    seconds = iter([10.0, 14.0])
    assert run_all(FakeCore(), requests(3, 5), lambda: next(seconds)) == (4.0, 15)


def test_a_request_that_fails_ends_the_measurement() -> None:
    (request,) = requests(1, 6)
    request = structs.replace(request, cache_salt="fail")
    with pytest.raises(EngineDeadError, match="the logits are not numbers"):
        run_all(FakeCore(), [request])
