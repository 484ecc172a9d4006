"""What is read from the metrics of servers."""

from __future__ import annotations

import pytest

from penstock.errors import PenstockError
from penstock.workload.metrics import MetricsSummary, summarize_metrics

PROMPTS = """
# TYPE vllm:request_prompt_tokens histogram
vllm:request_prompt_tokens_bucket{le="100.0"} 5
vllm:request_prompt_tokens_bucket{le="+Inf"} 10
vllm:request_prompt_tokens_count 10
vllm:request_prompt_tokens_sum 1500
"""


def counters(**values: float) -> str:
    named = {f"vllm:{name}_total": value for name, value in values.items()}
    return "".join(f"# TYPE {name} counter\n{name} {value}\n" for name, value in named.items())


def read(text: str) -> MetricsSummary:
    found = summarize_metrics(text)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["external_", "gpu_"])
def test_lookups_in_one_cache_are_not_added_to_those_in_another(kind: str) -> None:
    own = counters(prefix_cache_queries=100, prefix_cache_hits=20)
    other = counters(**{f"{kind}prefix_cache_queries": 80, f"{kind}prefix_cache_hits": 72})
    assert read(PROMPTS + own + other).found_in_cache == 0.2
    assert read(PROMPTS + other).found_in_cache == (0.9 if kind == "gpu_" else None)


@pytest.mark.parametrize("space", ["vllm:", "penstock:", "vllm_", "ray_vllm_", "tgi_", ""])
def test_a_metric_is_known_in_any_namespace(space: str) -> None:
    assert read(PROMPTS.replace("vllm:", space)).prompt_tokens == read(PROMPTS).prompt_tokens


def test_a_longer_name_is_another_metric() -> None:
    longer = PROMPTS.replace("vllm:request", "vllm:failed_vllm_request")
    assert summarize_metrics(longer) is None


@pytest.mark.parametrize(
    ("was", "wrong", "message"),
    [
        ("_count 10", "_count NaN", "request_prompt_tokens_count is nan"),
        ("_count 10", "_count +Inf", "request_prompt_tokens_count is inf"),
        ("_sum 1500", "_sum NaN", "request_prompt_tokens_sum is nan"),
        ('+Inf"} 10', '+Inf"} -1', "request_prompt_tokens_bucket is -1"),
        ('le="100.0"', 'le="many"', "ends at le='many'"),
        ('{le="100.0"}', "", "ends at le=''"),
    ],
)
def test_what_is_no_count_is_refused(was: str, wrong: str, message: str) -> None:
    with pytest.raises(PenstockError, match=message):
        summarize_metrics(PROMPTS.replace(was, wrong))


def test_other_metrics_may_be_anything() -> None:
    idle = "# TYPE vllm:time_to_first_token_seconds summary\n"
    idle += 'vllm:time_to_first_token_seconds{quantile="0.5"} NaN\nother NaN\n'
    assert read(PROMPTS + idle) == read(PROMPTS)
    ends = "# TYPE vllm:request_success_total counter\n"
    ends += 'vllm:request_success_total{finished_reason="stop"} 3\n'
    assert read(PROMPTS + ends).ends == {"stop": 3}
    with pytest.raises(PenstockError, match="request_success_total is nan"):
        read(PROMPTS + ends.replace("} 3", "} NaN"))
