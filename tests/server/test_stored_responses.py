"""Responses that are kept: asked for again, gone on from, deleted, and given up for newer ones."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.http_client import Server, refused

from penstock.server.errors import ApiError
from penstock.server.openai.responses.protocol import InputItem, OutputMessage, OutputText, Response
from penstock.server.openai.responses.stored import StoredResponses

PATH = "/v1/responses"


def asked(server: Server, **fields: Any) -> Any:
    answer = server.post(PATH, {"model": "fake", "max_output_tokens": 5, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_what_is_kept_is_what_was_answered(server: Server) -> None:
    client = server.client()
    made = client.responses.create(model="fake", input="Hi", max_output_tokens=5, store=True)
    assert made.store  # type: ignore[attr-defined]
    assert client.responses.retrieve(made.id) == made
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(made.id)


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on(server: Server, stream: bool) -> None:
    """The model is given what it would be given if the client had sent all items."""
    client = server.client()
    if stream:
        events = client.responses.create(
            model="fake", input="One", max_output_tokens=5, stream=True, instructions="Short."
        )
        first = list(events)[-1].response.to_dict()  # type: ignore[union-attr]
    else:
        first = asked(server, input="One", instructions="Short.")
    second = asked(server, input="Two", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    third = asked(server, input="Three", previous_response_id=second["id"])
    items: list[Any] = [{"role": "user", "content": "One"}, *first["output"]]
    items += [{"role": "user", "content": "Two"}, *second["output"]]
    whole = asked(server, input=[*items, {"role": "user", "content": "Three"}], store=False)
    assert not whole["store"]
    assert [item["content"] for item in third["output"]] == [
        item["content"] for item in whole["output"]
    ], "instructions are those of each request alone"
    assert third["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert refused(server.http.get(f"{PATH}/{whole['id']}"), 404)["param"] == "response_id"


def test_items_of_the_input(server: Server) -> None:
    first = asked(server, input="One")
    second = asked(
        server,
        input=[{"role": "user", "content": [{"type": "input_text", "text": "Two"}]}],
        previous_response_id=first["id"],
    )
    client = server.client()
    pages = client.responses.input_items.list(second["id"], order="asc", limit=2)
    items = [item.to_dict() for item in pages]
    assert [item["type"] for item in items] == ["message"] * 3
    assert [item["role"] for item in items] == ["user", "assistant", "user"]  # type: ignore[index]
    assert items[0]["content"] == [{"type": "input_text", "text": "One"}]
    assert len({item["id"] for item in items}) == 3
    url = f"{PATH}/{second['id']}/input_items"
    newest = server.http.get(url).json()
    assert [item["id"] for item in newest["data"]] == [item["id"] for item in items][::-1]
    assert not newest["has_more"]
    for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=x"):
        assert server.http.get(f"{url}?{query}").status_code == 400
    assert refused(server.http.get(f"{PATH}/{second['id']}?stream=true"))["param"] == "stream"


def test_what_cannot_be_gone_on_from(server: Server) -> None:
    kept = asked(server, input="One")
    for fields, param in (
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"previous_response_id": asked(server, input="a", store=False)["id"]}, "previous_"),
        ({"previous_response_id": 3}, "previous_response_id"),
        ({"previous_response_id": kept["id"], "input": []}, "input"),
        ({"previous_response_id": kept["id"], "input": [{"role": "user"}]}, "input[0].content"),
        ({"store": "yes"}, "store"),
    ):
        answer = server.post(PATH, {"model": "fake", "input": "Two", **fields})
        assert refused(answer)["param"].startswith(param)


def response(name: str, text: str) -> Response:
    return Response(
        id=name,
        created_at=1,
        status="completed",
        instructions=None,
        max_output_tokens=None,
        metadata={},
        model="m",
        output=[OutputMessage(id="msg_1", status="completed", content=[OutputText(text=text)])],
        store=True,
        temperature=1.0,
        top_logprobs=0,
        top_p=1.0,
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["keep", "get", "delete"]), st.integers(0, 9), st.integers(0, 4000)
        ),
        max_size=40,
    )
)
def test_the_books_of_what_is_kept(done: list[tuple[str, int, int]]) -> None:
    stored = StoredResponses(8000)
    order: list[str] = []  # the last used last
    for i, (what, number, size) in enumerate(done):
        name = f"{number}"
        if what == "keep":
            name = f"new {i}"
            item = InputItem(role="user", content="x" * size)
            stored.keep(response(name, "y"), [item], "me")
            order.append(name)
        elif order:
            name = order[number % len(order)]
            with pytest.raises(ApiError):
                stored.get(name, "another")
            try:
                stored.get(name, "me") if what == "get" else stored.delete(name, "me")
            except ApiError:
                assert what != "keep"
                order.remove(name)  # it gave way
            else:
                order.remove(name)
                if what == "get":
                    order.append(name)
        stored.check_integrity()
    kept = [name for name in order if name in stored._kept]
    assert order[len(order) - len(kept) :] == kept, "those used last are kept"


def test_what_is_larger_than_all_the_room_is_not_kept() -> None:
    stored = StoredResponses(2000)
    stored.keep(response("a", "y"), [], "me")
    stored.keep(response("b", "y" * 3000), [], "me")
    assert len(stored) == 1
