"""llama.cpp through its C API, as llama-cpp-python exposes it, batching in flight.

The loop is that of llama-server: every iteration takes one token of each sequence that decodes
and fills the rest of the batch with prompt tokens of those that wait.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import llama_cpp
import numpy as np

from comparison.protocol import Load, Request
from workers.loop import TokenTimes, serve

BATCH, UBATCH = 2048, 512  # llama.cpp's own defaults
KV_TYPES = {
    "16": (llama_cpp.GGML_TYPE_F16, "f16"),
    "8": (llama_cpp.GGML_TYPE_Q8_0, "q8_0"),
}
CELLS = 256  # a sequence's cache is a multiple of this


def kv_type(options: Load) -> tuple[int, str]:
    """The type of keys and values, by number and as llama-server's options name it."""
    return KV_TYPES[options.settings.get("kv_bits", "16")]


def isa() -> str:
    """Return what the library was compiled for and finds here."""
    text: bytes = llama_cpp.llama_print_system_info()
    return text.decode().strip()


@dataclass
class Sequence:
    """One request in a slot of the cache."""

    request: int
    prompt: list[int]
    left: int  # tokens still to generate
    computed: int = 0
    last: int = -1  # the newest token, not yet computed


class LlamaCpp:
    def load(self, options: Load) -> dict[str, str]:
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        model = llama_cpp.llama_model_load_from_file(options.model.encode(), params)
        if not model:
            raise RuntimeError(f"llama.cpp cannot load {options.model}")
        self.model, self.options = model, options
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.context, self.shape = None, (0, 0)
        self.kv_type, kv_name = kv_type(options)
        self.unified = options.settings.get("kv_unified", "0") == "1"
        return {
            "isa": isa(),
            "n_batch": str(BATCH),
            "n_ubatch": str(UBATCH),
            "kv_unified": str(self.unified),
            "flash_attn": "auto",
            "kv cache": kv_name,
        }

    def run(self, requests: list[Request], clients: int | None, times: TokenTimes) -> None:
        if clients is not None:
            raise RuntimeError("HTTP is served by llama_server")
        slots = min(len(requests), self.options.max_sequences)
        self.prepare(slots, max(len(r.prompt) + r.output for r in requests))
        batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        try:
            self.generate(requests, slots, batch, times)
        finally:
            llama_cpp.llama_batch_free(batch)

    def prepare(self, slots: int, length: int) -> None:
        """A context with a cache of that size and no more, empty."""
        length = -(-length // CELLS) * CELLS
        if self.shape != (slots, length):
            self.close()
            params = llama_cpp.llama_context_default_params()
            params.n_ctx = slots * length
            params.n_batch, params.n_ubatch = BATCH, UBATCH
            params.n_seq_max = slots
            params.n_threads = params.n_threads_batch = self.options.threads
            params.kv_unified = self.unified
            params.type_k = params.type_v = self.kv_type
            context = llama_cpp.llama_init_from_model(self.model, params)
            if not context:
                raise RuntimeError(f"llama.cpp has no context for {slots} x {length} tokens")
            self.context, self.shape = context, (slots, length)
            warm = llama_cpp.llama_batch_get_one((ctypes.c_int32 * 1)(0), 1)
            llama_cpp.llama_decode(self.context, warm)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def generate(
        self,
        requests: list[Request],
        slots: int,
        batch: llama_cpp.llama_batch,
        times: TokenTimes,
    ) -> None:
        memory = llama_cpp.llama_get_memory(self.context)
        waiting = [Sequence(i, r.prompt, r.output) for i, r in enumerate(requests)][::-1]
        running: dict[int, Sequence] = {}
        times.start()
        while waiting or running:
            for slot in range(slots):
                if slot not in running and waiting:
                    running[slot] = waiting.pop()
            sampled = self.fill(batch, running)
            code = llama_cpp.llama_decode(self.context, batch)
            if code:
                raise RuntimeError(f"llama_decode returned {code}")
            for slot, row in sampled:
                sequence = running[slot]
                logits = llama_cpp.llama_get_logits_ith(self.context, row)
                values = np.ctypeslib.as_array(logits, (self.vocab_size,))
                sequence.last = int(values.argmax())
                sequence.left -= 1
                times.add(sequence.request)
                if sequence.left == 0:
                    del running[slot]
                    llama_cpp.llama_memory_seq_rm(memory, slot, -1, -1)

    def fill(
        self, batch: llama_cpp.llama_batch, running: dict[int, Sequence]
    ) -> list[tuple[int, int]]:
        """Put the next tokens into the batch; returns (slot, row) where a token is sampled."""
        rows, sampled = 0, []

        def add(token: int, position: int, slot: int, wanted: bool) -> None:
            nonlocal rows
            batch.token[rows], batch.pos[rows] = token, position
            batch.n_seq_id[rows], batch.seq_id[rows][0] = 1, slot
            batch.logits[rows] = wanted
            if wanted:
                sampled.append((slot, rows))
            rows += 1

        for slot, sequence in running.items():
            if sequence.computed >= len(sequence.prompt):
                add(sequence.last, sequence.computed, slot, True)
                sequence.computed += 1
        for slot, sequence in running.items():
            start = sequence.computed
            if start < len(sequence.prompt):
                stop = min(len(sequence.prompt), start + BATCH - rows)
                for position in range(start, stop):
                    last = position + 1 == len(sequence.prompt)
                    add(sequence.prompt[position], position, slot, last)
                sequence.computed = stop
        batch.n_tokens = rows
        return sampled

    def score(self, windows: list[list[int]], first: int) -> float:
        self.prepare(1, max(map(len, windows)))
        batch = llama_cpp.llama_batch_init(UBATCH, 0, 1)
        try:
            return sum(self.loss(batch, window, first) for window in windows)
        finally:
            llama_cpp.llama_batch_free(batch)

    def loss(self, batch: llama_cpp.llama_batch, window: list[int], first: int) -> float:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        loss = 0.0
        for start in range(0, len(window) - 1, UBATCH):
            tokens = window[start : min(start + UBATCH, len(window) - 1)]
            for row, token in enumerate(tokens):
                batch.token[row], batch.pos[row] = token, start + row
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
                batch.logits[row] = start + row + 1 >= first
            batch.n_tokens = len(tokens)
            code = llama_cpp.llama_decode(self.context, batch)
            if code:
                raise RuntimeError(f"llama_decode returned {code}")
            for row in range(max(first - 1 - start, 0), len(tokens)):
                logits = llama_cpp.llama_get_logits_ith(self.context, row)
                values = np.ctypeslib.as_array(logits, (self.vocab_size,)).astype(np.float64)
                most = values.max()
                loss += most + np.log(np.exp(values - most).sum()) - values[window[start + row + 1]]
        return float(loss)

    def close(self) -> None:
        if getattr(self, "context", None):
            llama_cpp.llama_free(self.context)
            self.context = None


if __name__ == "__main__":
    serve(LlamaCpp())
