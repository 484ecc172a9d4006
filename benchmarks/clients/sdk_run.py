"""Clients of people's programs: libraries that are tried by a program of ``programs/`` each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from client import Client, ClientError, Figures, Job, Outcome

PROGRAMS = Path(__file__).parent / "programs"
ORIGIN = "https://app.example"
GRPC_PORT = 8701
"""The programs know it, too."""


@dataclass(frozen=True)
class Sdk(Client):
    """One library; its program prints a line of JSON for each thing that it has tried."""

    name: str
    requirements: tuple[str, ...]
    reported: tuple[str, ...]
    program: str
    why_not_more: str = "the demo model's texts mean nothing; what is checked is their form"
    serve: tuple[str, ...] = ()
    tools: bool = True
    npm: bool = False
    offline: bool = True
    """Whether it is told to ask nobody but the server; the hub's own client then asks not even
    that."""

    def run(self, job: Job) -> Outcome:
        runner = "node" if self.npm else "python"
        file = PROGRAMS / self.program
        if self.npm:  # node looks for packages beside the program
            file = job.environment.folder / self.program
            file.write_text((PROGRAMS / self.program).read_text())
        text = job.call(
            runner,
            str(file),
            job.server.url,
            job.model,
            ORIGIN,
            may_fail=True,
            offline=self.offline,
        )
        rows: list[Figures] = []
        for line in text.splitlines():
            if line.startswith('{"what"'):
                case = json.loads(line)
                row: Figures = {
                    "what": case["what"],
                    "passed": "yes" if case["passed"] else "NO",
                }
                if "why" in case:
                    row["why"] = job.plain(case["why"])[:300].replace("\n", " ").replace("|", "/")
                rows.append(row)
        if not rows:
            raise ClientError(f"{self.program} tried nothing: {text[-300:]}")
        return Outcome(rows, all(row["passed"] == "yes" for row in rows))


SDKS = (
    # Without mcp this version of litellm cannot be asked with tools.
    Sdk("litellm", ("litellm<1.109", "mcp"), ("litellm", "openai"), "litellm_program.py"),
    Sdk("instructor", ("instructor", "openai"), ("instructor", "openai"), "instructor_program.py"),
    Sdk(
        "langchain",
        ("langchain", "langchain-openai"),
        ("langchain", "langchain-core", "langchain-openai", "openai"),
        "langchain_program.py",
    ),
    Sdk(
        "llama-index",
        ("llama-index-core==0.14.*", "llama-index-llms-openai-like"),
        ("llama-index-core", "llama-index-llms-openai", "openai"),
        "llama_index_program.py",
    ),
    Sdk(
        "litellm-dialects",
        ("litellm<1.109",),
        ("litellm",),
        "litellm_dialects_program.py",
    ),
    Sdk(
        "langchain-anthropic",
        ("langchain-anthropic",),
        ("langchain-anthropic", "langchain-core", "anthropic"),
        "langchain_anthropic_program.py",
    ),
    Sdk(
        "langchain-ollama",
        ("langchain-ollama",),
        ("langchain-ollama", "langchain-core", "ollama"),
        "langchain_ollama_program.py",
    ),
    # Later versions of Anthropic's client have not the arguments that this integration gives them.
    Sdk(
        "llama-index-anthropic",
        ("llama-index-core==0.14.*", "llama-index-llms-anthropic", "anthropic<1"),
        ("llama-index-core", "llama-index-llms-anthropic", "anthropic"),
        "llama_index_anthropic_program.py",
        serve=("--served-model-name", "claude-3-haiku-20240307"),
    ),
    Sdk(
        "llama-index-ollama",
        ("llama-index-core==0.14.*", "llama-index-llms-ollama", "llama-index-embeddings-ollama"),
        ("llama-index-core", "llama-index-llms-ollama", "llama-index-embeddings-ollama", "ollama"),
        "llama_index_ollama_program.py",
    ),
    Sdk(
        "llamacpp-client",
        ("llamacpp-client",),
        ("llamacpp-client", "requests", "httpx"),
        "llamacpp_client_program.py",
    ),
    Sdk(
        "open-webui",
        ("aiohttp", "pydantic"),
        ("aiohttp",),
        "open_webui_program.py",
        why_not_more="the requests of Open WebUI 0.12.4 are replayed: it itself is not run",
    ),
    Sdk("aider", ("aider-chat",), ("aider-chat", "litellm", "openai"), "aider_program.py"),
    Sdk("anthropic", ("anthropic",), ("anthropic",), "anthropic_program.py"),
    Sdk("ollama", ("ollama",), ("ollama",), "ollama_program.py"),
    Sdk("ollama-node", ("ollama",), ("ollama",), "ollama_program.mjs", npm=True),
    Sdk(
        "tritonclient",
        ("tritonclient[http]", "pydantic"),
        ("tritonclient", "geventhttpclient"),
        "tritonclient_program.py",
    ),
    Sdk(
        "tritonclient-grpc",
        ("tritonclient[grpc]", "pydantic"),
        ("tritonclient", "grpcio"),
        "tritonclient_grpc_program.py",
        serve=("--grpc-port", str(GRPC_PORT)),
    ),
    Sdk(
        "tgi-hub",
        ("huggingface_hub", "pydantic"),
        ("huggingface_hub",),
        "tgi_hub_program.py",
        offline=False,
    ),
    Sdk("tgi", ("text-generation",), ("text-generation",), "tgi_program.py"),
    Sdk(
        "openai-node",
        ("openai",),
        ("openai",),
        "openai_program.mjs",
        serve=("--cors-origin", ORIGIN),
        npm=True,
    ),
)
