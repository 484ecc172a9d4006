"""The requests of Open WebUI, version 0.12.4, replayed with its HTTP library: to the URL of an
Ollama and to one of OpenAI's API, and what it reads of the answers.

Its own process is left out (an interface with users and a database): what it would send is written
down here, field by field, as its routers and its web page make it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import aiohttp
from aiohttp import ClientSession as Session
from checks import KEY, MODEL, TOKENS, TOOL, URL, attempt

HOST = URL.removesuffix("/v1")
USER_HEADERS = {
    "X-OpenWebUI-User-Name": "A%20User",
    "X-OpenWebUI-User-Id": "5b2a0c9e",
    "X-OpenWebUI-User-Email": "user@example.org",
    "X-OpenWebUI-User-Role": "admin",
    "X-OpenWebUI-Chat-Id": "3f1d",
}
"""Sent where it is configured to forward them."""
HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
OPENAI_HEADERS = {**HEADERS, "HTTP-Referer": "https://openwebui.com/", "X-Title": "Open WebUI"}
SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "import os"}
CALL = {
    "index": 0,
    "id": "call_1",
    "type": "function",
    "function": {"name": "book_trip", "arguments": '{"city": "Oslo", "days": 2}'},
}
TITLE = (
    "### Task:\nGenerate a concise title summarizing the chat history.\n### Output:\n"
    'JSON format: { "title": "your concise title here" }\n### Chat History:\n'
    "<chat_history>\nUSER: import os\nASSISTANT: import sys\n</chat_history>"
)


async def got(session: Session, url: str, headers: dict[str, str] = HEADERS) -> Any:
    async with session.get(url, headers=headers) as answer:
        assert answer.status == 200, f"{url}: {answer.status} {await answer.text()}"
        return await answer.json()


async def posted(
    session: Session, url: str, body: Any, headers: dict[str, str] = HEADERS, status: int = 200
) -> Any:
    async with session.post(url, data=json.dumps(body), headers=headers) as answer:
        text = await answer.text()
        assert answer.status == status, f"{url}: {answer.status} {text}"
        return json.loads(text)


async def lines(session: Session, url: str, body: Any) -> list[Any]:
    """The lines of a stream of Ollama's."""
    async with session.post(url, data=json.dumps(body), headers=HEADERS) as answer:
        assert answer.status == 200, f"{url}: {answer.status} {await answer.text()}"
        assert "application/x-ndjson" in answer.headers["Content-Type"]
        return [json.loads(line) async for line in answer.content if line.strip()]


async def events(session: Session, url: str, body: Any) -> list[Any]:
    """The events of a stream of OpenAI's, to ``[DONE]``."""
    found = []
    async with session.post(url, data=json.dumps(body), headers=OPENAI_HEADERS) as answer:
        assert answer.status == 200, f"{url}: {answer.status} {await answer.text()}"
        assert "text/event-stream" in answer.headers["Content-Type"]
        async for line in answer.content:
            if line.startswith(b"data: "):
                found.append(line[6:].strip())
    assert found[-1] in (b"[DONE]",) or b"response.completed" in found[-1] or b"inc" in found[-1]
    return [json.loads(each) for each in found if each != b"[DONE]"]


# The URL of an Ollama.


async def ollama_connection(session: Session) -> None:
    version = (await got(session, f"{HOST}/api/version"))["version"]
    assert all(part.isdigit() for part in version.split("-")[0].split("."))
    (model,) = (await got(session, f"{HOST}/api/tags"))["models"]
    assert model["model"] == MODEL
    assert model["name"]
    assert {"family", "parameter_size", "quantization_level"} <= set(model["details"])
    (loaded,) = (await got(session, f"{HOST}/api/ps"))["models"]
    assert {"model", "expires_at"} <= set(loaded)
    shown = await posted(session, f"{HOST}/api/show", {"name": MODEL, "model": MODEL})
    assert shown["details"]
    assert "model_info" in shown


def ollama_body(**fields: Any) -> dict[str, Any]:
    options = {"temperature": 0.0, "num_predict": TOKENS}
    return {"model": MODEL, "messages": [SYSTEM, ASKED], "options": options, **fields}


async def ollama_chat(session: Session) -> None:
    whole = await posted(session, f"{HOST}/api/chat", ollama_body(stream=False))
    parts = await lines(session, f"{HOST}/api/chat", ollama_body(stream=True))
    assert "".join(part["message"]["content"] for part in parts) == whole["message"]["content"]
    end = parts[-1]
    # What the page shows below a message.
    for name in ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration"):
        assert end[name] >= 0, name
    assert end["eval_count"] == TOKENS
    assert end["done_reason"] == "length"


async def ollama_options(session: Session) -> None:
    """All of the page's advanced parameters that turn nothing on which is not there."""
    options = {
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 42,
        "mirostat": 0,
        "mirostat_eta": 0.1,
        "mirostat_tau": 5.0,
        "num_ctx": 512,
        "num_batch": 512,
        "num_keep": 24,
        "num_predict": TOKENS,
        "repeat_last_n": -1,
        "top_k": 40,
        "min_p": 0.0,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": ["never said"],
        "num_gpu": 0,
        "use_mmap": True,
        "use_mlock": False,
        "num_thread": 2,
    }
    body = ollama_body(stream=False, options=options, keep_alive="5m", think=False)
    assert (await posted(session, f"{HOST}/api/chat", body))["message"]["content"]


async def ollama_tools(session: Session) -> None:
    function = {
        "name": "book_trip",
        "arguments": {"city": "Oslo", "days": 2},
    }
    messages = [
        SYSTEM,
        ASKED,
        {
            "role": "assistant",
            "tool_calls": [{"index": 0, "id": "call_1", "function": function}],
            "content": "",
        },
        {"role": "tool", "content": "booked", "tool_call_id": "call_1"},
        {"role": "user", "content": "import os"},
    ]
    body = ollama_body(stream=True, messages=messages, tools=[TOOL])
    assert (await lines(session, f"{HOST}/api/chat", body))[-1]["done"] is True


async def ollama_tasks(session: Session) -> None:
    """Titles, tags and follow-ups are chats of one message without a stream."""
    for asked in (TITLE, TITLE.replace("title", "tags"), TITLE.replace("title", "follow_ups")):
        messages = [{"role": "user", "content": asked}]
        body = {"model": MODEL, "messages": messages, "stream": False}
        body["options"] = {"num_predict": TOKENS}
        answer = await posted(session, f"{HOST}/api/chat", body, {**HEADERS, **USER_HEADERS})
        assert answer["message"]["role"] == "assistant"


async def ollama_prompt(session: Session) -> None:
    body = {"model": MODEL, "prompt": "import os", "options": {"num_predict": 3}, "stream": True}
    assert (await lines(session, f"{HOST}/api/generate", body))[-1]["done"] is True


async def ollama_unload(session: Session) -> None:
    """A server of one model keeps it, and says so in its answer\'s header."""
    body = {"model": MODEL, "keep_alive": 0, "prompt": ""}
    url = f"{HOST}/api/generate"
    async with session.post(url, data=json.dumps(body), headers=HEADERS) as answer:
        assert answer.status == 200, await answer.text()
        assert [json.loads(line) async for line in answer.content][-1]["done"] is True
        assert "keep_alive" in answer.headers["x-penstock-ignored"]


async def ollama_embeddings(session: Session) -> None:
    body = {"input": ["import os", "import sys"], "model": MODEL, "truncate": True}
    found = (await posted(session, f"{HOST}/api/embed", body))["embeddings"]
    assert len(found) == 2
    one = await posted(session, f"{HOST}/api/embeddings", {"model": MODEL, "prompt": "import os"})
    assert one["embedding"] == found[0]


async def ollama_others(session: Session) -> None:
    """What it sends to an Ollama in other dialects."""
    body = {"model": MODEL, "messages": [ASKED], "max_tokens": 3}
    for path in ("/v1/chat/completions", "/v1/messages"):
        assert await posted(session, HOST + path, body)
    body = {"model": MODEL, "prompt": "import os", "max_tokens": 3}
    assert (await posted(session, f"{HOST}/v1/completions", body))["choices"]


async def ollama_errors(session: Session) -> None:
    body = ollama_body(model="other", stream=True)
    answer = await posted(session, f"{HOST}/api/chat", body, status=404)
    assert isinstance(answer["error"], str)


# A URL of OpenAI\'s API.


async def openai_connection(session: Session) -> None:
    models = await got(session, f"{URL}/models", OPENAI_HEADERS)
    (model,) = models["data"]
    assert model["id"] == MODEL


def openai_body(**fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [SYSTEM, ASKED], "temperature": 0.0, "max_tokens": TOKENS}
    return {**body, **fields}


async def openai_chat(session: Session) -> None:
    url = f"{URL}/chat/completions"
    whole = await posted(session, url, openai_body(stream=False), OPENAI_HEADERS)
    usage = {"include_usage": True}
    parts = await events(session, url, openai_body(stream=True, stream_options=usage))
    said = "".join(c["delta"].get("content") or "" for part in parts for c in part["choices"])
    assert said == whole["choices"][0]["message"]["content"]
    assert parts[-1]["usage"]["completion_tokens"] == TOKENS


async def openai_options(session: Session) -> None:
    body = openai_body(
        stream=False,
        temperature=0.7,
        top_p=0.9,
        min_p=0.05,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        reasoning_effort="low",
        seed=42,
        stop=["never said"],
        logit_bias={"40": -5},
        top_k=40,
        # The page sends Ollama's options to any server.
        repeat_penalty=1.1,
        mirostat=0,
        num_ctx=512,
        num_gpu=0,
        use_mmap=True,
        keep_alive="5m",
        think=False,
    )
    assert await posted(session, f"{URL}/chat/completions", body, OPENAI_HEADERS)


async def openai_tools(session: Session) -> None:
    messages = [
        SYSTEM,
        ASKED,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "booked"},
    ]
    body = openai_body(stream=True, messages=messages, tools=[TOOL])
    assert await events(session, f"{URL}/chat/completions", body)
    pictured = {"role": "user", "content": [{"type": "text", "text": "import os"}]}
    assert await events(
        session, f"{URL}/chat/completions", openai_body(stream=True, messages=[SYSTEM, pictured])
    )


async def openai_continued(session: Session) -> None:
    """The button that lets an answer go on."""
    messages = [SYSTEM, ASKED, {"role": "assistant", "content": "import sys"}]
    body = openai_body(stream=True, messages=messages)
    assert await events(session, f"{URL}/chat/completions", body)
    body |= {"continue_final_message": True, "add_generation_prompt": False}
    assert await events(session, f"{URL}/chat/completions", body)


async def openai_tasks(session: Session) -> None:
    for asked in (TITLE, TITLE.replace("title", "tags"), TITLE.replace("title", "queries")):
        body = {"model": MODEL, "messages": [{"role": "user", "content": asked}], "stream": False}
        body["max_tokens"] = TOKENS
        headers = {**OPENAI_HEADERS, **USER_HEADERS}
        assert await posted(session, f"{URL}/chat/completions", body, headers)


async def openai_responses(session: Session) -> None:
    item = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "import os"}],
    }
    body = {"model": MODEL, "input": [item], "instructions": "Be brief.", "stream": True}
    body |= {"max_output_tokens": TOKENS, "temperature": 0.0}
    assert await events(session, f"{URL}/responses", body)


async def openai_embeddings(session: Session) -> None:
    body = {"input": ["import os", "import sys"], "model": MODEL}
    found = await posted(session, f"{URL}/embeddings", body)
    assert [each["index"] for each in found["data"]] == [0, 1]


async def rerank(session: Session) -> None:
    """Its retrieval asks an external reranker so."""
    documents = ["import sys", "import os"]
    body = {"model": MODEL, "query": "import os", "documents": documents, "top_n": 2}
    found = (await posted(session, f"{URL}/rerank", body))["results"]
    assert sorted(found, key=lambda each: each["index"])[1]["relevance_score"] > 0


def run(ask: Callable[[Session], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Session(timeout=aiohttp.ClientTimeout(total=300)) as session:
            await ask(session)

    asyncio.run(main())


for what, ask in (
    ("Ollama: version, tags, ps, show", ollama_connection),
    ("Ollama: chat, whole and streamed", ollama_chat),
    ("Ollama: advanced parameters", ollama_options),
    ("Ollama: tools", ollama_tools),
    ("Ollama: titles, tags, follow-ups", ollama_tasks),
    ("Ollama: prompt", ollama_prompt),
    ("Ollama: unload", ollama_unload),
    ("Ollama: embeddings, both ways", ollama_embeddings),
    ("Ollama: other dialects at its URL", ollama_others),
    ("Ollama: an error", ollama_errors),
    ("OpenAI: models", openai_connection),
    ("OpenAI: chat, whole and streamed", openai_chat),
    ("OpenAI: advanced parameters", openai_options),
    ("OpenAI: tools, parts", openai_tools),
    ("OpenAI: an answer that goes on", openai_continued),
    ("OpenAI: titles, tags, queries", openai_tasks),
    ("OpenAI: responses", openai_responses),
    ("OpenAI: embeddings", openai_embeddings),
    ("rerank", rerank),
):
    attempt(what, partial(run, ask))
