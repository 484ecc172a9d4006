"""A prefill engine and a decode engine in one process, and a decode engine with peers that tests
make up."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.handover.decode import DecodeCore
from penstock.engine.handover.handshake import Introduction
from penstock.engine.handover.prefill import PrefillCore
from penstock.engine.handover.station import Station
from penstock.engine.handover.visitors import Visitor
from penstock.engine.handover.wire import FromDecode
from penstock.engine.loader import load_models, open_model, plan_engine
from penstock.errors import PenstockError
from penstock.handover_config import DecodeRole, PrefillRole, Role
from penstock.interface.messages import EngineRequest, FinishReason
from penstock.peers.address import Address
from penstock.peers.channel import Channel, Inbound
from penstock.peers.listener import Listener
from penstock.sampling.params import SamplingParams
from support.bitwise import prompt
from support.waiting import PATIENCE_S

LOCAL = "127.0.0.1"
LLAMA: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 72,
    "intermediate_size": 104,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 0,
    "bos_token_id": 1,
}
PROMPT: Final = prompt(7, 200)
"""Token ids of a prompt of several blocks, the last of which is not full."""


def folder_of(path: Path, model: dict[str, Any]) -> Path:
    (path / "config.json").write_text(json.dumps(model))
    return path


def config(folder: Path, **options: Any) -> EngineConfig:
    """Options of a small engine with weights at random."""
    usual: dict[str, Any] = {
        "load_format": "dummy",
        "backend": "cpu",
        "threads": 1,
        "kv_cache_bytes": 4 << 20,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 1024,
        "artifact": False,
    }
    return EngineConfig(model=str(folder), **{**usual, **options})


def plain(config: EngineConfig) -> EngineCore:
    """An engine that does all by itself."""
    return EngineCore.start(config)


def apart(config: EngineConfig, role: Role) -> tuple[Any, Station]:
    """An engine with a role, and its place. It is closed by the caller."""
    files = open_model(config)
    engine_plan = plan_engine(config, files)
    station = Station.open(role, engine_plan)
    core = EngineCore.of(load_models(engine_plan, keeping="never", files=files))
    return station.begin(core, files), station


@contextmanager
def prefilling(
    config: EngineConfig, key: bytes = b""
) -> Iterator[tuple[PrefillCore[Visitor], Address]]:
    """A prefill engine that is stepped by a thread of its own."""
    core, station = apart(config, PrefillRole(listen=Address(LOCAL, 0), key=key))
    assert station.visitors is not None
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            if core.has_work:
                core.step()
            else:
                time.sleep(0.002)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield core, station.visitors.address
    finally:
        stop.set()
        thread.join()
        core.check_integrity()
        core.close()


@contextmanager
def decoding(config: EngineConfig, *peers: Address, **role: Any) -> Iterator[DecodeCore]:
    """A decode engine, which :func:`complete` steps."""
    asked = DecodeRole(prefill=peers, **{"least_tokens": 1, "timeout_s": PATIENCE_S, **role})
    core, _ = apart(config, asked)
    try:
        yield core
        core.check_integrity()
    finally:
        core.close()


def until(condition: Callable[[], object]) -> None:
    """Wait for something that threads do."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.005)


def connected(core: DecodeCore, peers: int = 1) -> None:
    until(lambda: handovers(core).peers == peers)


def handovers(core: Any) -> Any:
    """Figures of handovers."""
    found = core.stats().handover
    assert found is not None
    return found


def request(name: str, tokens: Sequence[int], salt: str = "", **params: Any) -> EngineRequest:
    usual = {"temperature": 0.0, "max_tokens": 5, "ignore_eos": True, "logprobs": 2}
    return EngineRequest(
        request_id=name,
        prompt_token_ids=list(tokens),
        params=SamplingParams(**{**usual, **params}),
        cache_salt=salt,
    )


Answers = dict[tuple[str, int], list[tuple[int, Any]]]
"""The tokens of each sequence, with what is reported of each."""


def complete(
    core: Any, requests: Sequence[EngineRequest], between: Callable[[], None] = lambda: None
) -> Answers:
    """Serve requests that come at once to their ends."""
    for each in requests:
        core.add_request(each)
    return served(core, sum(each.params.n for each in requests), between)


def served(core: Any, count: int, between: Callable[[], None] = lambda: None) -> Answers:
    """Step until so many sequences have ended, with a call ``between`` steps."""
    answers: Answers = {}
    ended, deadline = 0, time.monotonic() + PATIENCE_S
    while ended < count:
        assert time.monotonic() < deadline, "a request does not end"
        if not core.has_work:
            time.sleep(0.002)
            continue
        for update in core.step():
            assert update.finish_reason is not FinishReason.ERROR, update.error
            answer = answers.setdefault((update.request_id, update.index), [])
            answer += zip(update.token_ids, update.logprobs or [None] * 9, strict=False)
            ended += update.finish_reason is not None
        between()
    return answers


class FakePrefill:
    """A listener whose connections a test handles, each in a thread."""

    def __init__(
        self,
        handle: Callable[[Channel[Any]], None],
        introduction: Introduction,
    ) -> None:
        """``introduction``: how it introduces itself before ``handle``."""
        self._listener = Listener(Address(LOCAL, 0), "--handover-listen")
        self.address = self._listener.address
        self.visits = 0
        self._handle, self._introduction = handle, introduction
        self._channels: list[Channel[Any]] = []
        inbound = Inbound(FromDecode, 1 << 20)
        self._listener.start(introduction.party, inbound, self._serve, lambda line: None)

    def close(self) -> None:
        self._listener.close()
        for channel in self._channels:
            channel.close()

    def _serve(self, channel: Channel[Any], name: str) -> None:
        self._channels.append(channel)
        with contextlib.suppress(PenstockError, OSError):
            self._introduction.exchange(channel)
            self.visits += 1
            self._handle(channel)
        channel.close()
