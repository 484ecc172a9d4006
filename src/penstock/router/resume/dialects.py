"""Which paths have streams that another replica may go on with, and how these are asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.router.asked import Body
from penstock.router.resume.choices import ChoiceStream
from penstock.router.resume.fields import LlamaStream, OllamaStream, TextStream, TokenStream
from penstock.router.resume.messages import MessageStream
from penstock.router.resume.responses import ResponseStream
from penstock.router.resume.seeds import SeedPlace, TextSeedPlace
from penstock.router.resume.stream import Stream
from penstock.server.anthropic.paths import MESSAGES
from penstock.server.llama import paths as llama
from penstock.server.ollama import paths as ollama
from penstock.server.openai import paths as openai
from penstock.server.tgi import paths as tgi

_IN_BODY: Final = SeedPlace()


@dataclass(frozen=True)
class Streaming:
    """The streams of a path."""

    stream: Callable[[], Stream]
    seed: SeedPlace = _IN_BODY
    by_default: bool = False
    """Whether a request is for a stream that does not say ``stream``."""
    always: bool = False
    """Whether it is, whatever it says."""

    def asked_by(self, body: Body) -> bool:
        """Whether a body asks for a stream."""
        said = bytes(body.stream)
        return self.always or said == b"true" or (self.by_default and said in (b"", b"null"))


_CHOICES: Final = Streaming(ChoiceStream)
_OLLAMA: Final = Streaming(OllamaStream, SeedPlace("options"), by_default=True)
_LLAMA: Final = Streaming(LlamaStream, SeedPlace(drawn=b"-1"))
_TGI: Final = SeedPlace("parameters")
_BY_PATH: Final[Mapping[str, Streaming]] = {
    openai.COMPLETIONS: _CHOICES,
    openai.CHAT: _CHOICES,
    openai.RESPONSES: Streaming(ResponseStream),
    MESSAGES: Streaming(MessageStream),
    ollama.GENERATE: _OLLAMA,
    ollama.CHAT: _OLLAMA,
    llama.COMPLETION: _LLAMA,
    llama.COMPLETIONS: _LLAMA,
    llama.INFILL: _LLAMA,
    tgi.STREAM: Streaming(TokenStream, _TGI, always=True),
    tgi.EITHER: Streaming(TokenStream, _TGI),
}
_KSERVE: Final = Streaming(TextStream, TextSeedPlace(), always=True)
_KSERVE_PATH: Final = re.compile(r"/v2/models/.+/generate_stream")


def streaming_at(path: str) -> Streaming | None:
    """What the streams of a path are; None where they cannot be gone on with."""
    found = _BY_PATH.get(path)
    if found is None and _KSERVE_PATH.fullmatch(path) is not None:
        return _KSERVE
    return found
