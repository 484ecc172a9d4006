"""/v1/score, /v1/rerank and /pooling: similarities of what /v1/embeddings answers."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from support.fake_core import MAX_MODEL_LEN
from support.http_client import Server


def answered(server: Server, path: str, **fields: Any) -> Any:
    answer = server.http.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def similarity(server: Server, one: str, other: str, **options: Any) -> float:
    found = answered(server, "/v1/embeddings", input=[one, other], **options)["data"]
    product = np.dot(*(np.array(each["embedding"]) for each in found))
    return float(min(max(product, -1.0), 1.0))


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_one_text_against_several(server: Server, path: str) -> None:
    found = answered(server, path, model="fake", text_1="abc", text_2=["d", "abc", "ef"])
    assert (found["object"], found["model"]) == ("list", "fake")
    assert found["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    assert [each["index"] for each in found["data"]] == [0, 1, 2]
    scores = [each["score"] for each in found["data"]]
    assert scores == [similarity(server, "abc", text) for text in ("d", "abc", "ef")]
    assert scores[1] == pytest.approx(1.0)


def test_pair_by_pair_and_by_other_names(server: Server) -> None:
    fields = {"pooling": "mean", "dimensions": 3}
    found = answered(server, "/score", queries=["a", "b"], documents=["c", "d"], **fields)
    scores = [each["score"] for each in found["data"]]
    assert scores == [similarity(server, *pair, **fields) for pair in ("ac", "bd")]
    (whole,) = answered(server, "/score", text_1="a", text_2="c", **fields)["data"]
    assert whole["score"] == scores[0]


DOCUMENTS = ["first", "second", "third", "second"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_the_best_come_first(server: Server, path: str) -> None:
    documents = [*DOCUMENTS[:2], {"text": "third"}, DOCUMENTS[3]]
    found = answered(server, path, query="secund", documents=documents)
    scores = [similarity(server, "secund", text) for text in DOCUMENTS]
    order = sorted(range(4), key=lambda i: (-scores[i], i))
    assert [each["index"] for each in found["results"]] == order
    for each in found["results"]:
        assert each["relevance_score"] == scores[each["index"]]
        assert each["document"] == {"text": DOCUMENTS[each["index"]]}
    assert found["usage"]["total_tokens"] == sum(map(len, ["secund", *DOCUMENTS]))


def test_some_of_the_best_without_their_texts(server: Server) -> None:
    fields = {"query": "secund", "documents": DOCUMENTS}
    all_of_them = answered(server, "/rerank", **fields, top_n=0)["results"]
    two = answered(server, "/rerank", **fields, top_n=2, return_documents=False)["results"]
    assert two == [{k: v for k, v in each.items() if k != "document"} for each in all_of_them[:2]]
    assert len(answered(server, "/rerank", **fields, top_n=9)["results"]) == 4


def test_vectors(server: Server) -> None:
    texts = ["abc", "d"]
    embedded = answered(server, "/v1/embeddings", input=texts)
    pooled = answered(server, "/pooling", input=texts, task="embed")
    assert [each["data"] for each in pooled["data"]] == [
        each["embedding"] for each in embedded["data"]
    ]
    (coded,) = answered(server, "/pooling", input=[97, 98, 99], encoding_format="base64")["data"]
    numbers = np.frombuffer(base64.b64decode(coded["data"]), "<f4")
    assert numbers.tolist() == embedded["data"][0]["embedding"]


PAIR = {"text_1": "a", "text_2": "b"}
RANKED = {"query": "a", "documents": ["b"]}


@pytest.mark.parametrize(
    ("path", "fields", "param", "said"),
    [
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1", "send one for all"),
        ("/score", {"text_1": ["a", "b"], "text_2": "c"}, "text_1", "send one for all"),
        ("/score", {"text_1": [], "text_2": "c"}, "text_1", "0 entries"),
        ("/score", {"text_1": "a", "text_2": []}, "text_2", "0 entries"),
        ("/score", {"text_1": "a", "text_2": ["b"] * 2048}, "text_2", "1 to 2047"),
        ("/score", {"text_1": "a", "text_2": ["b", ""]}, "text_2[1]", "empty"),
        ("/score", {"text_1": "a" * (MAX_MODEL_LEN + 1), "text_2": "b"}, "text_1", "tokens"),
        ("/score", {"text_1": [1, 2], "text_2": "b"}, "text_1", "text_1"),
        ("/score", {"text_1": "a"}, "text_2", "text_2"),
        ("/score", {**PAIR, "queries": "c"}, "queries", "disagree"),
        ("/score", {**PAIR, "dimensions": 0}, "dimensions", "at least 1"),
        ("/score", {**PAIR, "truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "no prompt"),
        ("/score", {**PAIR, "text_3": "c"}, "text_3", "did you mean"),
        ("/score", {**PAIR, "priority": -1}, "priority", "priority"),
        ("/rerank", {"query": "a", "documents": []}, "documents", "0 entries"),
        ("/rerank", {"query": "", "documents": ["b"]}, "query", "empty"),
        ("/rerank", {"query": "a", "documents": ["b", ""]}, "documents[1]", "empty"),
        ("/rerank", {"query": ["a"], "documents": ["b"]}, "query", "query"),
        ("/rerank", {"query": "a", "documents": [{"title": "b"}]}, "documents[0]", "title"),
        ("/rerank", {**RANKED, "top_n": -1}, "top_n", "0 for all"),
        ("/rerank", {**RANKED, "max_tokens_per_doc": 9}, "max_tokens_per_doc", "no document"),
        ("/rerank", {**RANKED, "rank_fields": ["title"]}, "rank_fields", "send texts"),
        ("/pooling", {"input": "a", "task": "token_embed"}, "task", "one vector"),
        ("/pooling", {"messages": [], "input": "a"}, "messages", "send 'input'"),
        ("/pooling", {"input": []}, "input", "empty"),
    ],
)
def test_bad_input(
    server: Server, path: str, fields: dict[str, Any], param: str, said: str
) -> None:
    answer = server.http.post(path, json=fields)
    assert answer.status_code in (400, 403), answer.text
    error = answer.json()["error"]
    assert (error["param"] or "").startswith(param)
    assert said in error["message"]


def test_another_model(server: Server) -> None:
    for path, fields in (("/score", PAIR), ("/rerank", RANKED), ("/pooling", {"input": "a"})):
        assert server.http.post(path, json={"model": "other", **fields}).status_code == 404


def test_what_is_for_models_that_judge_pairs(server: Server) -> None:
    assert answered(server, "/score", **PAIR, use_activation=True)["data"]
    for fields in ({"use_activation": False}, {"instruction": "Look."}):
        answer = server.http.post("/score", json={**PAIR, **fields})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == next(iter(fields))
    answer = server.http.post("/classify", json={"input": "a"})
    assert answer.status_code == 400
    assert "no labels" in answer.json()["error"]["message"]
