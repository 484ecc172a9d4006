"""An engine that notes its steps and requests, and the arrays that are read from its notes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.needs import needs_native

from penstock.cache.geometry import Chunk
from penstock.config import EngineConfig
from penstock.engine.ipc.core_loader import Startup
from penstock.engine.ipc.startup import Ledger
from penstock.errors import ConfigError, PenstockError
from penstock.interface.messages import EngineRequest
from penstock.sampling.params import SamplingParams
from penstock.simulate import recorded_core
from penstock.simulate.clock import seen_by
from penstock.simulate.engine_log import LoggedSteps, read_log

CONFIG = EngineConfig(threads="1", max_num_seqs=4, max_num_batched_tokens=32, max_model_len=256)


def startup() -> Startup:
    return Startup(Ledger(0.0), lambda message: None)


@needs_native
def test_steps_and_requests_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    monkeypatch.setenv(recorded_core.LOG_VARIABLE, str(path))
    core = recorded_core.load(CONFIG, startup()).core
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    for name, tokens in (("a", 40), ("b", 5)):
        ids = list(range(tokens))
        core.add_request(EngineRequest(request_id=name, prompt_token_ids=ids, params=params))
    while core.has_work:
        core.step()
    core.check_integrity()
    core.close()
    log = LoggedSteps(read_log(path))
    assert len(log.arrivals) == 2
    assert (log.prompts.tolist(), log.outputs.tolist()) == ([40, 5], [3, 3])
    # A chunk of 32; its rest of 8 beside the other prompt; then both decode.
    shapes = [log.shape(step, (None,)) for step in range(len(log))]
    assert [(s.tokens, s.logits, s.sequences, s.chunks) for s in shapes] == [
        (32, 0, 1, 1),
        (13, 2, 2, 2),
        (2, 2, 2, 0),
        (2, 2, 2, 0),
    ]
    assert [s.reads for s in shapes] == [(32,), (45,), (47,), (49,)]
    assert [s.pairs for s in shapes] == [(528,), (292 + 15,), (47,), (49,)]
    assert (log.first_step.tolist(), log.last_step.tolist()) == ([1, 1], [3, 3])
    assert (log.seconds > 0).all()
    assert (log.begins[1:] >= log.ends[:-1]).all()
    assert (log.arrivals <= log.begins[0]).all()
    for window in (8, Chunk(16)):
        parts = [((0, 32),), ((32, 40), (0, 5)), ((40, 41), (5, 6)), ((41, 42), (6, 7))]
        for step, rows in enumerate(parts):
            each = np.array([seen_by(window, start, end) for start, end in rows])
            found = log.shape(step, (window,))
            assert (*found.reads, *found.pairs) == tuple(each.sum(axis=0))


def test_an_engine_needs_a_file_for_its_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(recorded_core.LOG_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="PENSTOCK_ENGINE_LOG=FILE"):
        recorded_core.load(CONFIG, startup())


def test_an_engine_that_left_no_notes(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="left no record of its steps"):
        read_log(tmp_path / "none")
    (tmp_path / "cut off").write_bytes(b"\x86")
    with pytest.raises(PenstockError, match="calibrate again"):
        read_log(tmp_path / "cut off")
