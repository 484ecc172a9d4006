"""A deterministic engine core without a model, for tests of what surrounds the core.

The next token is a function of all tokens before it, so that any lost, repeated or reordered token
changes everything after it. The vocabulary is the 256 bytes and a few special tokens; see
``byte_tokenizer.py``.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from penstock.cache.changes import CacheChanges
from penstock.config import EngineConfig
from penstock.engine.ipc.core_loader import LoadedCore, Startup
from penstock.engine.ipc.wire import ModelFacts
from penstock.errors import ConfigError, RequestError, WeightError
from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.messages import EngineRequest, EngineStats, FinishReason, SequenceUpdate
from penstock.length_limits import LengthLimits
from penstock.pooling.params import PoolingParams
from penstock.pooling.pooler import Pooler

NO_START = 13
"""A number of sequences that no engine starts with."""
WAIT = "wait"
"""While there is a file of that name beside the tokenizer, no engine gets ready."""
VOCAB = 260
BOS, EOS = 256, 257
MAX_MODEL_LEN = 512


def next_token(tokens: Sequence[int], index: int = 0) -> int:
    """A printable ASCII byte that depends on every token so far, and on which sequence asks."""
    state = 7 + index
    for token in tokens:
        state = (state * 31 + token + 1) % 1_000_003
    return 97 + state % 26


def completion(prompt: Sequence[int], count: int, index: int = 0) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, index))
    return tokens[len(prompt) :]


def said_by(request: EngineRequest) -> bytes | None:
    """What a request makes the core say, instead of tokens that depend on all: by its cache salt,
    or by the last ``SAY<<...>>`` of its prompt."""
    if request.cache_salt == "tell adapter":
        return request.adapter.encode()
    if request.cache_salt == "tell grammar":
        return msgspec.json.encode(request.params.grammar)
    if request.cache_salt.startswith("say "):
        return request.cache_salt[4:].encode()
    prompt = bytes(token for token in request.prompt_token_ids if token < 256)
    _, mark, text = prompt.rpartition(b"SAY<<")
    return text.partition(b">>")[0] if mark else None


def _shared(prediction: Sequence[int], output: Sequence[int]) -> int:
    """How many tokens both begin with."""
    count = 0
    while count < min(len(prediction), len(output)) and prediction[count] == output[count]:
        count += 1
    return count


def embedding(prompt: Sequence[int], pooling: PoolingParams) -> bytes:
    """Return the embedding of hidden states of 8 components that depend on every token up to
    theirs."""
    pooler = Pooler(pooling, len(prompt))
    rows = [
        np.random.default_rng(list(prompt[: i + 1])).standard_normal(8) for i in range(len(prompt))
    ]
    pooler.take(0, np.array(rows))
    return pooler.vector()


class FakeCore:
    """Advances every sequence of every request by one token a step."""

    def __init__(self, step_seconds: float = 0.0, lengths: LengthLimits | None = None) -> None:
        self.step_seconds = step_seconds
        self.lengths = lengths or LengthLimits(MAX_MODEL_LEN)
        self.live: dict[str, EngineRequest] = {}
        self.said: dict[str, bytes | None] = {}
        self.outputs: dict[tuple[str, int], list[int]] = {}
        self.sound = True
        self.adapters: dict[str, str] = {}
        self.steps = self.generated = self.aborted = self.prompted = self.resets = 0

    @property
    def has_work(self) -> bool:
        return bool(self.live)

    def add_request(self, request: EngineRequest) -> None:
        if request.pooling is None:
            request.params.validate(VOCAB)
        else:
            request.pooling.validate(hidden_size=8)
        if request.request_id in self.live:
            raise RequestError(f"request id {request.request_id!r} is in use", "request_id")
        if request.adapter and request.adapter not in self.adapters.values():
            raise RequestError("the adapter is not loaded any more", "model")
        if request.cache_salt == "refuse":
            raise RequestError("the engine refuses this salt", "cache_salt")
        self.sound = self.sound and request.cache_salt != "falsify"
        self.live[request.request_id] = request
        self.said[request.request_id] = said_by(request)
        self.prompted += len(request.prompt_token_ids)
        for index in range(request.params.n):
            self.outputs[request.request_id, index] = []

    def abort(self, request_ids: Iterable[str], index: int | None = None) -> list[SequenceUpdate]:
        updates = []
        for request_id in request_ids:
            keys = [k for k in self.outputs if k[0] == request_id and index in (None, k[1])]
            self.aborted += bool(keys)
            for key in keys:
                del self.outputs[key]
                updates.append(
                    SequenceUpdate(
                        request_id=request_id,
                        index=key[1],
                        token_ids=[],
                        finish_reason=FinishReason.ABORT,
                    )
                )
            if not any(key[0] == request_id for key in self.outputs):
                self.live.pop(request_id, None)
        return updates

    def step(self) -> list[SequenceUpdate]:
        time.sleep(self.step_seconds)
        self.steps += 1
        updates = []
        for (request_id, index), output in list(self.outputs.items()):
            request = self.live[request_id]
            if request.cache_salt == "crash":
                raise RuntimeError("the fake core was asked to crash")
            if request.cache_salt == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if request.cache_salt == "hang":
                time.sleep(3600)
            if request.pooling is not None and request.cache_salt != "fail":
                updates.append(self._embed(request, request.pooling))
                continue
            if request.cache_salt == "fail" and (request.pooling or len(output) == 3):
                updates += self._fail(request_id)
                continue
            if request.cache_salt == "late fault" and len(output) == 3 and len(self.live) == 1:
                continue  # until there is a second request
            if len(output) == {"early fault": 0, "fault": 3, "late fault": 3}.get(
                request.cache_salt
            ):
                for update in self._fail(request_id):
                    update.error, update.refused = "it asks for too much", True
                    updates.append(update)
                continue
            updates.append(self._advance(request, index, output))
            if updates[-1].finish_reason is not None:
                del self.outputs[request_id, index]
                if not any(key[0] == request_id for key in self.outputs):
                    del self.live[request_id]
        return updates

    def _embed(self, request: EngineRequest, pooling: PoolingParams) -> SequenceUpdate:
        del self.live[request.request_id], self.outputs[request.request_id, 0]
        return SequenceUpdate(
            request_id=request.request_id,
            index=0,
            token_ids=[],
            num_cached_tokens=1 if request.cache_salt == "cached" else 0,
            finish_reason=FinishReason.STOP,
            scheduled_at=time.monotonic(),
            embedding=embedding(request.prompt_token_ids, pooling),
        )

    def _fail(self, request_id: str) -> list[SequenceUpdate]:
        del self.live[request_id]
        keys = [key for key in self.outputs if key[0] == request_id]
        for key in keys:
            del self.outputs[key]
        return [
            SequenceUpdate(
                request_id=request_id,
                index=key[1],
                token_ids=[],
                finish_reason=FinishReason.ERROR,
                error="the logits are not numbers",
            )
            for key in keys
        ]

    def _advance(self, request: EngineRequest, index: int, output: list[int]) -> SequenceUpdate:
        prompt, params = request.prompt_token_ids, request.params
        said = self.said[request.request_id]
        if said is None:
            token = next_token([*prompt, *output], index)
        else:
            token = said[len(output)] if len(output) < len(said) else EOS
        output.append(token)
        self.generated += 1
        limit = self.lengths.room(len(prompt))
        reason: FinishReason | None = None
        stop: int | None = None
        if token in params.stop_token_ids and len(output) > params.min_tokens:
            reason, stop = FinishReason.STOP, token
        elif token == EOS:
            reason = FinishReason.STOP
        elif len(output) >= min(limit, params.max_tokens or limit):
            reason = FinishReason.LENGTH
        first = len(output) == 1
        rising = request.cache_salt == "rising"  # later sequences are likelier
        return SequenceUpdate(
            request_id=request.request_id,
            index=index,
            token_ids=[token],
            logprobs=(
                None
                if params.logprobs is None
                else [_logprobs(token, params.logprobs, -0.5 / (1 + index) if rising else -0.5)]
            ),
            prompt_logprobs=(
                [None, *(_logprobs(t, params.prompt_logprobs) for t in prompt[1:])]
                if params.prompt_logprobs is not None and first and index == 0
                else None
            ),
            num_cached_tokens=len(prompt) // 32 * 32 if request.cache_salt == "cached" else 0,
            finish_reason=reason,
            stop_reason=stop,
            scheduled_at=time.monotonic(),
            num_drafted=len(request.prediction),
            num_accepted=_shared(request.prediction, output),
        )

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self.live),
            waiting=0,
            kv_blocks_total=100,
            kv_blocks_used=len(self.live),
            prefix_queries=self.prompted,
            prefix_hits=0,
            preemptions=self.aborted,  # lets a test in another process count aborts
            steps=self.steps,
            tokens_computed=self.tokens_computed,
            tokens_generated=self.generated,
            running_adapters=sorted({each.adapter for each in self.live.values() if each.adapter}),
        )

    @property
    def tokens_computed(self) -> int:
        return self.prompted + self.generated

    def cache_changes(self, position: int | None) -> CacheChanges:
        """Nothing is ever cached."""
        return CacheChanges(position, 0, [], [])

    def reset_prefix_cache(self) -> None:
        self.resets += 1

    def load_adapter(self, path: str) -> str:
        """A folder is an adapter, known by its name."""
        if not Path(path).is_dir():
            raise WeightError(f"{path} is not a folder")
        return self.adapters.setdefault(Path(path).name, "digest of " + Path(path).name)

    def drop_adapter(self, digest: str) -> None:
        self.adapters = {n: each for n, each in self.adapters.items() if each != digest}

    def check_integrity(self) -> None:
        assert self.sound, "the books were falsified"
        assert {key[0] for key in self.outputs} == set(self.live), "a request has no sequences"

    def close(self) -> None: ...


def _logprobs(token: int, count: int, own: float = -0.5) -> TokenLogprobs:
    others = [(97 + (token + i) % 26, -1.0 - i) for i in range(1, count)]
    top = [(token, own), *others][:count]
    return TokenLogprobs(token, own, 1, top)


def load(config: EngineConfig, startup: Startup) -> LoadedCore:
    """``config.seed`` is the length of a step in milliseconds; ``config.tokenizer`` a folder."""
    tokenizer = config.tokenizer or "nowhere"
    startup.located(tokenizer)
    for quarter in range(5):
        startup.loading("weights", quarter / 4, 2**20)
    if config.max_num_seqs == NO_START:
        raise ConfigError(f"max_num_seqs is {NO_START}; lower it")
    core = FakeCore(config.seed / 1000)
    for word in config.lora_modules:
        core.load_adapter(word.partition("=")[2])
    while (Path(tokenizer) / WAIT).exists():
        time.sleep(0.01)
    startup.loading("tuning", 1.0, 0)
    startup.ledger.mark("weights")
    facts = ModelFacts(
        served_model_name=config.served_model_name or "fake",
        tokenizer_path=tokenizer,
        lengths=LengthLimits(
            config.max_model_len or MAX_MODEL_LEN, config.max_input_len, config.max_output_len
        ),
        vocab_size=VOCAB,
        bos_token_id=BOS,
        eos_token_ids=(EOS,),
        max_loras=config.max_loras or len(config.lora_modules),
    )
    core.lengths = facts.lengths
    return LoadedCore(core, facts)


def load_logging(config: EngineConfig, startup: Startup) -> LoadedCore:
    """What it logs is of a name that a file system may have, and of a failure."""
    log = logging.getLogger("penstock.kvstore")
    log.info("nobody asked for this")
    log.warning("no blocks are kept in %s", os.fsdecode(b"a folder\xff"))
    try:
        raise OSError("the disk is gone")
    except OSError:
        log.exception("a block was lost")
    return load(config, startup)


def load_fails(config: EngineConfig, startup: Startup) -> LoadedCore:
    raise WeightError("layer 3 is missing; download the checkpoint again")


def load_crashes(config: EngineConfig, startup: Startup) -> LoadedCore:
    raise ZeroDivisionError("a defect in a loader")


def load_dies(config: EngineConfig, startup: Startup) -> LoadedCore:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def load_hangs(config: EngineConfig, startup: Startup) -> LoadedCore:
    time.sleep(3600)
    raise AssertionError("unreachable")


def load_cycle(config: EngineConfig, startup: Startup) -> LoadedCore:
    """The core is part of a cycle, and reports on stderr when that is collected."""
    loaded = load(config, startup)
    loaded.core.cycle = _Reporting(loaded.core)  # type: ignore[attr-defined]
    return loaded


class _Reporting:
    def __init__(self, other: object) -> None:
        self._other = other
        self._write = os.write  # by then the names of the module may be gone

    def __del__(self) -> None:
        self._write(2, b"the core was collected\n")
