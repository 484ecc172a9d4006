"""What a server tells of speculation."""

from __future__ import annotations

import msgspec

from penstock.frontend.outputs import (
    CompletionOutput,
    RequestMetrics,
    RequestOutput,
    SequenceRecord,
)
from penstock.interface.messages import EngineStats
from penstock.server.metric_families import MetricFamilies
from penstock.server.metrics import Counts, ServerState, render
from penstock.server.openai.answer_structs import usage
from penstock.speculate.figures import Figures


def stats(figures: Figures | None) -> EngineStats:
    return EngineStats(
        running=0,
        waiting=0,
        kv_blocks_total=1,
        kv_blocks_used=0,
        prefix_queries=0,
        prefix_hits=0,
        preemptions=0,
        steps=0,
        tokens_computed=0,
        tokens_generated=0,
        drafts=None if figures is None else figures.snapshot(),
    )


def metrics(figures: Figures | None) -> str:
    state = ServerState()
    state.engine = state.engines = msgspec.msgpack.decode(
        msgspec.msgpack.encode(stats(figures)), type=EngineStats
    )
    return render(MetricFamilies("m"), Counts(), state).decode()


def test_metrics_by_position() -> None:
    figures = Figures(3)
    for drafted, accepted in ((3, 3), (3, 1), (2, 2), (3, 0)):
        figures.add(drafted, drafted, accepted)
    figures.draft_seconds = 0.25
    text = metrics(figures)
    for line in (
        'spec_decode_num_drafts_total{model_name="m"} 4.0',
        'spec_decode_num_draft_tokens_total{model_name="m"} 11.0',
        'spec_decode_num_accepted_tokens_total{model_name="m"} 6.0',
        'spec_decode_draft_seconds_total{model_name="m"} 0.25',
        'spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="0"} 3.0',
        'spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="1"} 2.0',
        'spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="2"} 1.0',
    ):
        assert f"penstock:{line}\n" in text
    assert "spec_decode" not in metrics(None)


def output(*counts: tuple[int, int]) -> RequestOutput:
    records = [
        SequenceRecord(None, token_ids=[1, 2, 3], num_drafted=drafted, num_accepted=accepted)
        for drafted, accepted in counts
    ]
    choices = [CompletionOutput(i, record) for i, record in enumerate(records)]
    return RequestOutput("a", None, [1], choices, True, None, 0, RequestMetrics(0.0))


def test_usage() -> None:
    reported = msgspec.to_builtins(usage([output((5, 2), (4, 4))]))
    assert reported["completion_tokens_details"] == {
        "accepted_prediction_tokens": 6,
        "rejected_prediction_tokens": 3,
    }
    assert "completion_tokens_details" not in msgspec.to_builtins(usage([output((0, 0))]))
