"""The sampler of a GPU: the package says what a token's path is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.backends.cuda.failure import one_error
from penstock.backends.cuda.result import DeviceResult
from penstock.backends.cuda.sampling.kernels import row
from penstock.backends.cuda.sampling.launch import Launcher, LaunchPlan, Span
from penstock.backends.cuda.sampling.memory import (
    MAX_IN_FLIGHT,
    LaunchBuffers,
    Sizes,
    device_copy,
    queue_copy,
)
from penstock.backends.cuda.sampling.pending import PendingSample, collect
from penstock.backends.cuda.sampling.state import DeviceSampleState
from penstock.interface.executor import PromptRows
from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.mask import TokenMask, words_for
from penstock.interface.sampler import NewSequence, Sampled, Sampler, largest
from penstock.interface.step import Float32s, StepResult
from penstock.sampling.draw_arrays import draws64
from penstock.sampling.params import SamplingParams
from penstock.sampling.ranges import MAX_LOGPROBS


class DeviceSampler(Sampler[DeviceSampleState]):
    """Computes what :class:`~penstock.sampling.reference.NumpySampler` does, bit by bit.

    :meth:`launch` queues a step's choices on the current stream and returns at once; the next
    step may be queued before their outcome is known. The methods of
    :class:`~penstock.interface.sampler.Sampler` wait. :meth:`sample` reads the logits of a
    :class:`DeviceResult` where they are, and other logits are copied to the device.
    """

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self._sizes = sizes
        self._device = device
        self._kernels: Launcher | None = Launcher(sizes, device)
        self._buffers = [LaunchBuffers(sizes, device) for _ in range(MAX_IN_FLIGHT)]
        self._num_launches = 0
        self._masks: Tensor | None = None  # of the last launch that had any

    def close(self) -> None:
        """Free memory of the device; nothing can be launched any more."""
        self._kernels = self._masks = None
        self._buffers.clear()

    @property
    def _launcher(self) -> Launcher:
        if self._kernels is None:
            raise RuntimeError("the sampler is closed")
        return self._kernels

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
    ) -> PendingSample:
        """Queue a choice for each of ``states``, from these ``rows`` of ``logits``.

        ``logits`` float32 ``[R, vocab]`` and ``argmax`` int32 of R elements (``plan.ops.Argmax``)
        are on the device and only read. With ``advance`` the tokens count as output of their
        states at once, for launches to come, and nobody must ``append`` them. ``masks`` are sent in
        one copy, an eighth of a byte a token each. Raises ValueError.
        """
        count, launcher = len(states), self._launcher
        self._check(logits, rows, states)
        if count > self._sizes.rows:
            raise ValueError(f"{count} rows, of at most {self._sizes.rows} in a launch")
        if any(state.vocab_size != self._sizes.vocab for state in states):
            raise ValueError("a state has another vocabulary than the logits")
        if max((state.logprobs or 0 for state in states), default=0) > MAX_LOGPROBS:
            raise ValueError(f"at most {MAX_LOGPROBS} of the largest logits can be reported")
        if advance and len({id(state) for state in states}) != count:
            raise ValueError("a sequence can only advance by one token a launch")
        for state in states:
            state.place(self._device)
        plan = LaunchPlan.of(states, self._sizes.batch)
        buffers = self._next_buffers()
        records = buffers.records[:count]
        if states:
            _fill(records, rows, states)
        if masks is not None:
            self._send_masks(records, masks)
        row_bytes = logits.stride(0) * logits.element_size()
        records[:, row.LOGITS.value] = logits.data_ptr() + records[:, row.ROW.value] * row_bytes
        for batch in plan.batches:
            changed = plan.jobs(batch.adjusted)
            records[changed, row.LOGITS.value] = launcher.adjusted_rows(len(changed))
        reported = {i: states[i].logprobs or 0 for i in plan.jobs(plan.reported)}
        buffers.send(count, plan.order)
        launcher.begin(buffers, logits, argmax.reshape(-1), count)
        launcher.choose(buffers, logits, plan.batches)
        if advance and plan.counted.size:
            launcher.count(buffers, plan.counted)
        if reported:
            launcher.report(buffers, logits, plan.reported, max(reported.values()))
        buffers.copy_back(len(reported))
        if advance:
            for state in states:
                state.num_output += 1
        return PendingSample(buffers, count, reported)

    def launch_prompt(
        self, logits: Tensor, argmax: Tensor, prompt: PromptRows
    ) -> list[PendingSample]:
        """Queue the log-probabilities of prompt tokens, as :meth:`launch` queues choices.

        ``argmax`` is that of all rows of ``logits``. (Slices of both would lie at addresses that
        kernels may not have been compiled for.) Raises ValueError.
        """
        rows = range(prompt.first_row, prompt.first_row + len(prompt.targets))
        counts = [prompt.num_top] * len(rows)
        return self._launch_reports(logits, argmax.reshape(-1), rows, prompt.targets, counts)

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
        not_plain = [i for i, state in enumerate(states) if not state.plain]
        if not not_plain:
            return Sampled(token_ids, errors)
        if isinstance(result, DeviceResult):
            logits, argmax = result.on_device.logits, result.on_device.argmax
        else:
            logits, argmax = self._on_device(result.logits)
        drawn = self._draw(
            logits,
            argmax,
            [rows[i] for i in not_plain],
            [states[i] for i in not_plain],
            None if masks is None else [masks[i] for i in not_plain],
        )
        for i, token in zip(not_plain, drawn.token_ids, strict=True):
            token_ids[i] = token
        errors |= {not_plain[at]: error for at, error in drawn.errors.items()}
        logprobs = {not_plain[at]: entry for at, entry in drawn.logprobs.items()}
        return Sampled(token_ids, errors, logprobs, not_plain)

    def draw(
        self,
        logits: Float32s,
        rows: Sequence[int],
        states: Sequence[DeviceSampleState],
        masks: Sequence[TokenMask | None] | None = None,
    ) -> tuple[list[int], dict[int, str]]:
        sampled = self._draw(*self._on_device(logits), rows, states, masks)
        return sampled.token_ids, sampled.errors

    def token_logprobs(
        self, logits: Float32s, rows: Sequence[int], token_ids: Sequence[int], counts: Sequence[int]
    ) -> list[TokenLogprobs]:
        with one_error():
            launches = self._launch_reports(*self._on_device(logits), rows, token_ids, counts)
            sampled = collect(launches)
        if sampled.errors:
            first = min(sampled.errors)
            raise ValueError(f"row {rows[first]}: {sampled.errors[first]}")
        return list(sampled.logprobs.values())

    def _draw(
        self,
        logits: Tensor,
        argmax: Tensor,
        rows: Sequence[int],
        states: Sequence[DeviceSampleState],
        masks: Sequence[TokenMask | None] | None,
    ) -> Sampled:
        """Draw in as many launches as it takes, each waited for. The states do not advance."""
        parts = [
            slice(start, start + self._sizes.rows)
            for start in range(0, len(states), self._sizes.rows)
        ]
        with one_error():
            return collect(
                self.launch(
                    logits,
                    argmax,
                    rows[part],
                    states[part],
                    None if masks is None else masks[part],
                    advance=False,
                )
                for part in parts
            )

    def _launch_reports(
        self,
        logits: Tensor,
        argmax: Tensor,
        rows: Sequence[int],
        token_ids: Sequence[int],
        counts: Sequence[int],
    ) -> list[PendingSample]:
        """Queue log-probabilities of given tokens, in as many launches as it takes."""
        self._check(logits, rows, token_ids)
        if len(token_ids) and not 0 <= min(token_ids) <= max(token_ids) < self._sizes.vocab:
            raise ValueError(f"a token lies outside the vocabulary of {self._sizes.vocab}")
        if max(counts, default=0) > MAX_LOGPROBS:
            raise ValueError(f"at most {MAX_LOGPROBS} of the largest logits can be reported")
        launches = []
        for start in range(0, len(token_ids), self._sizes.rows):
            part = slice(start, start + self._sizes.rows)
            tokens, wanted = token_ids[part], dict(enumerate(counts[part]))
            num = len(tokens)
            buffers = LaunchBuffers(self._sizes, self._device)
            buffers.records[:num, row.ROW.value] = rows[part]
            buffers.send(num, range(num))
            self._launcher.begin(buffers, logits, argmax, num)
            queue_copy(np.array(tokens, np.int32), buffers.tokens[:num])
            self._launcher.report(buffers, logits, Span(0, num), max(wanted.values()))
            buffers.copy_back(num)
            launches.append(PendingSample(buffers, num, wanted))
        return launches

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
        """Queue the copy of masks, and put their addresses into the records."""
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
        records[masked, row.MASK.value] = addresses

    def _next_buffers(self) -> LaunchBuffers:
        """Return the buffers of the launch before the last, which is over or nearly so."""
        buffers = self._buffers[self._num_launches % MAX_IN_FLIGHT]
        buffers.wait()
        buffers.launch = self._num_launches
        self._num_launches += 1
        return buffers

    def _on_device(self, logits: Float32s) -> tuple[Tensor, Tensor]:
        """Copy logits to the device, and find the arg max of each row there."""
        rows = torch.from_numpy(np.ascontiguousarray(logits)).to(self._device)
        return rows, rows.argmax(dim=1).to(torch.int32)


def _one_a_row(masks: Sequence[TokenMask | None], count: int) -> None:
    if len(masks) != count:
        raise ValueError(f"{len(masks)} masks for {count} choices: one a row, or None")


def _fill(
    records: NDArray[np.int64], rows: Sequence[int], states: Sequence[DeviceSampleState]
) -> None:
    """Fill all columns of ``records`` ``[n, WIDTH]`` but ``LOGITS`` and ``MASK``."""
    np.stack([state.record for state in states], out=records)
    records[:, row.ROW.value] = rows
    records[:, row.NUM_ENDING.value] = [state.num_ending for state in states]
    positions = np.array([state.num_output for state in states], np.uint64)
    bits = records.view(np.uint64)[:, row.BITS.value]  # the keys of the sequences
    bits[:] = draws64(bits, positions)
