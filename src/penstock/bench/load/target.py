"""The server that is measured: where it is, and how it is asked."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from penstock.errors import ConfigError
from penstock.server_url import split_server_url

EndpointKind = Literal["chat", "completions"]


@dataclass(frozen=True)
class Target:
    """A server of OpenAI's API, and what every request to it has."""

    scheme: str
    host: str
    port: int
    base: str
    """The path that ``/chat/completions`` is below."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    kind: EndpointKind = "chat"
    model: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields that every body has besides; they come last, so they win."""
    exact_lengths: bool = True
    """Whether bodies have ``ignore_eos``, with which servers give all tokens that are asked for."""
    verify: bool = True
    """Whether the server's certificate is checked."""

    @classmethod
    def parse(cls, url: str) -> Target:
        """``http://HOST:PORT``, or a URL with the path of the API. Raises ConfigError."""
        parts = split_server_url(url)
        assert parts.hostname is not None
        port = parts.port or (443 if parts.scheme == "https" else 80)
        base = parts.path.rstrip("/")
        for end in ("/chat/completions", "/completions"):
            base = base.removesuffix(end)
        if not (base.isascii() and base.isprintable()) or " " in base:
            raise ConfigError(f"{url!r} is no URL of a server: its path has characters of no path")
        return cls(parts.scheme, parts.hostname, port, base or "/v1")

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def path(self) -> str:
        return self.base + ("/chat/completions" if self.kind == "chat" else "/completions")

    def ssl_context(self) -> ssl.SSLContext | None:
        if self.scheme != "https":
            return None
        context = ssl.create_default_context()
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def message(self, method: str, path: str, body: bytes = b"", accept: str = "*/*") -> bytes:
        """The bytes of a request."""
        host = self.url.partition("://")[2]
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Accept: {accept}"]
        if method == "POST":
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    def ask(self, said: Sequence[tuple[str, str]], output_tokens: int | None) -> bytes:
        """The bytes of a request to answer ``said``, which has roles and texts in turn."""
        body: dict[str, Any] = {"model": self.model}
        if self.kind == "chat":
            body["messages"] = [{"role": role, "content": text} for role, text in said]
        else:
            body["prompt"] = "".join(text for _, text in said)
        if output_tokens is not None:
            body["max_tokens"] = output_tokens
            if self.exact_lengths:
                body["ignore_eos"] = True
        body |= {"stream": True, "stream_options": {"include_usage": True}, **self.extra}
        return self.message("POST", self.path, msgspec.json.encode(body), "text/event-stream")


def checked_header(text: str) -> tuple[str, str]:
    """``NAME: VALUE`` of the command line. Raises ConfigError, which does not show the value."""
    name, colon, value = text.partition(":")
    name, value = name.strip(), value.strip()
    if not colon or not name or not _printable(name) or not _printable(value) or " " in name:
        raise ConfigError("--header: write 'NAME: VALUE', in printable ASCII, without line ends")
    if name.lower() in ("host", "content-length", "transfer-encoding", "connection"):
        raise ConfigError(f"--header: {name} is set by the client itself; leave it out")
    return name, value


def _printable(text: str) -> bool:
    return text.isascii() and text.isprintable()
