"""Sampling on a GPU, without waiting for the host: what ``sampling/reference.py`` defines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.backends.cuda.failure import one_error
from penstock.backends.cuda.kernels import sample_jobs as jobs
from penstock.backends.cuda.result import DeviceResult
from penstock.backends.cuda.sample_buffers import LaunchBuffers, Sizes
from penstock.backends.cuda.sample_launch import Launcher
from penstock.backends.cuda.sample_outcome import MAX_IN_FLIGHT, Drawn, Reported
from penstock.backends.cuda.sample_plan import Span, plan_launch
from penstock.backends.cuda.sample_state import DeviceSampleState, device_copy, queue_copy
from penstock.errors import RequestError
from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.mask import TokenMask, words_for
from penstock.interface.sampler import NewSequence, Sampled, Sampler, largest
from penstock.interface.step import StepResult
from penstock.sampling.draw_arrays import draws64
from penstock.sampling.params import MAX_LOGPROBS, SamplingParams

Logits = NDArray[np.float32] | Tensor


class DeviceSampler(Sampler[DeviceSampleState]):
    """Computes what :class:`~penstock.sampling.reference.NumpySampler` does, bit by bit.

    :meth:`launch` queues a step's choices on the current stream and returns at once; the next
    step may be queued before their outcome is known. The methods of
    :class:`~penstock.interface.sampler.Sampler` wait. Logits may be NumPy arrays there, or tensors.
    Of a :class:`DeviceResult`, rows that are not plainly greedy are read where they are.
    """

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self._sizes = sizes
        self._device = device
        self._scratch: Launcher | None = Launcher(sizes, device)
        self._buffers = [LaunchBuffers(sizes, device) for _ in range(MAX_IN_FLIGHT)]
        self._num_launches = 0
        self._masks: Tensor | None = None  # of the last launch that had any

    def close(self) -> None:
        """Free memory of the device; nothing can be launched any more."""
        self._scratch = self._masks = None
        self._buffers.clear()

    @property
    def _launcher(self) -> Launcher:
        if self._scratch is None:
            raise RuntimeError("the sampler is closed")
        return self._scratch

    def state(self, sequence: NewSequence) -> DeviceSampleState:
        return DeviceSampleState(sequence)

    def launch(
        self,
        logits: Tensor,
        argmax: Tensor,
        rows: Sequence[int],
        states: Sequence[DeviceSampleState],
        masks: Sequence[TokenMask | None] | None = None,
        *,
        advance: bool = True,
    ) -> Drawn:
        """Queue a choice for each of ``states``, from these ``rows`` of ``logits``.

        ``logits`` float32 ``[R, vocab]`` and ``argmax`` int32 of R elements (``plan.ops.Argmax``)
        are on the device and only read. With ``advance`` the tokens count as output of their
        states at once, for launches to come, and nobody must ``append`` them. ``masks`` are sent in
        one copy, an eighth of a byte a token each. Raises ValueError.
        """
        self._check(logits, rows, states)
        if len(states) > self._sizes.rows:
            raise ValueError(f"{len(states)} rows, of at most {self._sizes.rows} in a launch")
        if any(state.vocab_size != self._sizes.vocab for state in states):
            raise ValueError("a state has another vocabulary than the logits")
        if advance and len({id(state) for state in states}) != len(states):
            raise ValueError("a sequence can only advance by one token a launch")
        for state in states:
            state.place(self._device)
        plan = plan_launch(states, self._sizes.batch)
        buffers = self._next_buffers()
        records = buffers.records[: len(states)]
        if states:
            _fill(records, rows, states)
        if masks is not None:
            self._send_masks(records, masks)
        row_bytes = logits.stride(0) * logits.element_size()
        records[:, jobs.LOGITS.value] = logits.data_ptr() + records[:, jobs.ROW.value] * row_bytes
        buffers.aligned = logits.data_ptr() % 16 == 0 and row_bytes % 16 == 0
        for batch in plan.batches:
            changed = plan.indices(batch.adjusted)
            records[changed, jobs.LOGITS.value] = self._launcher.adjusted_rows(len(changed))
        buffers.send(len(states), plan.order)
        self._launcher.run(buffers, logits, argmax.reshape(-1), len(states), plan.batches)
        if advance and plan.counted.size:
            self._launcher.count(buffers, plan.counted)
        reported = plan.indices(plan.reported)
        if reported:
            most = max(states[i].logprobs or 0 for i in reported)
            self._launcher.report(buffers, logits, plan.reported, most)
        buffers.fetch(len(reported))
        if advance:
            for state in states:
                state.num_output += 1
        return Drawn(buffers, list(states), reported, advance)

    def warm_up(self) -> None:
        """Launch every kernel, which compiles it, before there is a request that would wait."""
        vocab = self._sizes.vocab
        params = [
            SamplingParams(),
            SamplingParams(top_k=2, top_p=0.5, min_p=0.1),
            SamplingParams(presence_penalty=1.0, logit_bias={0: 1.0}, min_tokens=1, logprobs=1),
        ]
        logits = torch.zeros((1, vocab), dtype=torch.float32, device=self._device)
        argmax = torch.zeros(1, dtype=torch.int32, device=self._device)
        for each in params:
            self.launch(logits, argmax, [0], [self.state(NewSequence(each, 0, [0], vocab, [0]))])

    def sample(
        self,
        result: StepResult,
        rows: Sequence[int],
        states: Sequence[DeviceSampleState],
        masks: Sequence[TokenMask | None] | None = None,
    ) -> Sampled:
        if masks is not None:
            _one_a_row(masks, len(states))
        token_ids, errors = largest(result, rows)
        particular = [i for i, state in enumerate(states) if not state.plain]
        if not particular:
            return Sampled(token_ids, errors)
        if isinstance(result, DeviceResult):
            logits, argmax = result.on_device.logits, result.on_device.argmax
        else:
            logits, argmax = self._on_device(result.logits), self._on_device(result.argmax)
        drawn = self._draw(
            logits,
            argmax,
            [rows[i] for i in particular],
            [states[i] for i in particular],
            None if masks is None else [masks[i] for i in particular],
        )
        for i, token in zip(particular, drawn.token_ids, strict=True):
            token_ids[i] = token
        errors |= {particular[at]: error for at, error in drawn.errors.items()}
        logprobs = {particular[at]: entry for at, entry in drawn.logprobs.items()}
        return Sampled(token_ids, errors, logprobs, particular)

    def draw(
        self,
        logits: Logits,
        rows: Sequence[int],
        states: Sequence[DeviceSampleState],
        masks: Sequence[TokenMask | None] | None = None,
    ) -> tuple[list[int], dict[int, str]]:
        logits = self._on_device(logits)
        argmax = logits.argmax(dim=1).to(torch.int32)
        sampled = self._draw(logits, argmax, rows, states, masks)
        return sampled.token_ids, sampled.errors

    def token_logprobs(
        self,
        logits: Logits,
        rows: Sequence[int],
        token_ids: Sequence[int],
        counts: Sequence[int],
    ) -> list[TokenLogprobs]:
        on_device = self._on_device(logits)
        argmax = on_device.argmax(dim=1).to(torch.int32)
        with one_error():
            entries, errors = self._report(on_device, argmax, rows, token_ids, counts).wait()
        if errors:
            raise ValueError(f"row {rows[min(errors)]}: {errors[min(errors)]}")
        return entries

    def prompt_logprobs(
        self, logits: Logits, targets: Sequence[int], count: int
    ) -> list[TokenLogprobs]:
        if len(logits) != len(targets):
            raise ValueError(f"{len(logits)} rows of logits for {len(targets)} target tokens")
        on_device = self._on_device(logits)
        argmax = on_device.argmax(dim=1).to(torch.int32)
        with one_error():
            entries, errors = self.launch_prompt(on_device, argmax, targets, count).wait()
        if errors:
            raise RequestError(errors[min(errors)])
        return entries

    def launch_prompt(
        self,
        logits: Tensor,
        argmax: Tensor,
        targets: Sequence[int],
        count: int,
        first_row: int = 0,
    ) -> Reported:
        """Queue the log-probabilities of prompt tokens, as :meth:`launch` queues choices.

        Row ``first_row + i`` of ``logits`` predicts target ``i``; ``argmax`` is that of all rows.
        (Slices of both would lie at addresses that kernels may not have been compiled for.) Raises
        ValueError.
        """
        if first_row + len(targets) > len(logits):
            raise ValueError(f"{len(logits)} rows of logits for {len(targets)} target tokens")
        rows = range(first_row, first_row + len(targets))
        return self._report(logits, argmax.reshape(-1), rows, targets, [count] * len(targets))

    def _draw(
        self,
        logits: Tensor,
        argmax: Tensor,
        rows: Sequence[int],
        states: Sequence[DeviceSampleState],
        masks: Sequence[TokenMask | None] | None,
    ) -> Sampled:
        """As many launches as it takes, each waited for; nothing ``particular`` is returned."""
        outcome = Sampled([], {}, {})
        for start in range(0, len(states), self._sizes.rows):
            some = slice(start, start + self._sizes.rows)
            mine = None if masks is None else masks[some]
            with one_error():
                drawn = self.launch(logits, argmax, rows[some], states[some], mine, advance=False)
                part = drawn.wait()
            outcome.token_ids.extend(part.token_ids)
            outcome.errors.update({start + i: error for i, error in part.errors.items()})
            outcome.logprobs.update({start + i: each for i, each in part.logprobs.items()})
        return outcome

    def _report(
        self,
        logits: Tensor,
        argmax: Tensor,
        rows: Sequence[int],
        token_ids: Sequence[int],
        counts: Sequence[int],
    ) -> Reported:
        self._check(logits, rows, token_ids)
        if len(token_ids) and not 0 <= min(token_ids) <= max(token_ids) < self._sizes.vocab:
            raise ValueError(f"a token lies outside the vocabulary of {self._sizes.vocab}")
        if max(counts, default=0) > MAX_LOGPROBS:
            raise ValueError(f"at most {MAX_LOGPROBS} of the largest logits can be reported")
        reported = Reported(self._sizes.rows, list(token_ids), list(counts))
        for start in range(0, len(token_ids), self._sizes.rows):
            some = slice(start, start + self._sizes.rows)
            tokens = token_ids[some]
            num = len(tokens)
            buffers = LaunchBuffers(self._sizes, self._device)
            buffers.records[:num, jobs.ROW.value] = rows[some]
            buffers.send(num, range(num))
            self._launcher.begin(buffers, logits, argmax, num)
            queue_copy(np.array(tokens, np.int32), buffers.tokens[:num])
            self._launcher.report(buffers, logits, Span(0, num), max(counts[some]))
            buffers.fetch(num)
            reported.parts.append(buffers)
        return reported

    def _check(self, logits: Tensor, rows: Sequence[int], of_rows: Sequence[object]) -> None:
        if logits.dim() != 2 or logits.shape[1] != self._sizes.vocab:
            raise ValueError(
                f"logits are {tuple(logits.shape)}, not rows of {self._sizes.vocab}: they have "
                "another vocabulary"
            )
        if logits.dtype != torch.float32 or logits.stride(1) != 1:
            raise ValueError(f"logits must be dense float32 rows, not {logits.dtype}")
        if len(rows) != len(of_rows):
            raise ValueError(f"{len(rows)} rows for {len(of_rows)} choices: one state a row")
        if len(rows) and not 0 <= min(rows) <= max(rows) < len(logits):
            raise ValueError(f"a row lies outside the logits, which have {len(logits)} rows")

    def _send_masks(self, records: NDArray[np.int64], masks: Sequence[TokenMask | None]) -> None:
        """Queue the copy of masks, and tell records where they will be."""
        masked = [i for i, mask in enumerate(masks) if mask is not None]
        _one_a_row(masks, len(records))
        if not masked:
            return
        words = words_for(self._sizes.vocab)
        sent = np.stack([mask for mask in masks if mask is not None])
        if sent.shape[1] != words or sent.dtype != np.uint32:
            raise ValueError(f"a mask is not {words} words of 32 bits: it has another vocabulary")
        # Memory that is given back while kernels of this stream read it goes to later work of it.
        self._masks = device_copy(sent.view(np.int32), self._device)
        addresses = self._masks.data_ptr() + np.arange(len(masked), dtype=np.int64) * words * 4
        records[masked, jobs.MASK.value] = addresses

    def _next_buffers(self) -> LaunchBuffers:
        """Those of the launch before the last, which is over or nearly so."""
        buffers = self._buffers[self._num_launches % MAX_IN_FLIGHT]
        buffers.wait()
        buffers.launch = self._num_launches
        self._num_launches += 1
        return buffers

    def _on_device(self, array: NDArray[Any] | Tensor) -> Tensor:
        if isinstance(array, np.ndarray):
            array = torch.from_numpy(np.ascontiguousarray(array))
        return array.to(self._device)


def _one_a_row(masks: Sequence[TokenMask | None], count: int) -> None:
    if len(masks) != count:
        raise ValueError(f"{len(masks)} masks for {count} choices: one a row, or None")


def _fill(
    records: NDArray[np.int64], rows: Sequence[int], states: Sequence[DeviceSampleState]
) -> None:
    """All columns of ``records`` ``[n, WIDTH]`` but ``LOGITS``."""
    np.stack([state.record for state in states], out=records)
    records[:, jobs.ROW.value] = rows
    records[:, jobs.NUM_ENDING.value] = [state.num_ending for state in states]
    positions = np.array([state.num_output for state in states], np.uint64)
    bits = records.view(np.uint64)[:, jobs.BITS.value]  # the keys of the sequences
    bits[:] = draws64(bits, positions)
