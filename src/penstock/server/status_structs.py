"""The structs of the endpoints that report on the server itself."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.sampling.defaults import SamplingDefaults

Capability = Literal["completion", "chat", "tools", "reasoning", "classify", "score"]
"""What a model can be asked for here: chats need a chat template, tools and reasoning a style in
which the model writes them."""
MadeFor = Literal["completion", "chat"]


class ModelCard(msgspec.Struct, frozen=True):
    """One entry of ``GET /v1/models``."""

    id: str
    created: int
    max_model_len: int
    """Tokens that prompt and answer may have together."""
    max_input_len: int
    """Tokens that a prompt may have."""
    max_output_len: int
    """Tokens that an answer may have."""
    capabilities: list[Capability] = []
    tool_style: str | None = None
    """How the model writes calls of tools, as ``--tool-call-parser`` names it; None where it takes
    none. ``generic`` says that its chat template shows no tools: they are described in the system
    message, in a form that the model has not learned."""
    made_for: MadeFor = "completion"
    """Which of its capabilities to offer a person first."""
    sampling_defaults: SamplingDefaults = SamplingDefaults()
    """What holds for sampling options that a request leaves out; OpenAI's defaults for those that
    are missing here."""
    interactive_defaults: SamplingDefaults = SamplingDefaults()
    """What the page and ``penstock chat`` ask for where a person sets nothing; empty where the
    model has defaults of its own. Requests that leave options out do not get it."""
    chat_template_kwargs: tuple[str, ...] = ()
    """The variables that the model's chat template reads and a chat's ``chat_template_kwargs`` may
    set."""
    object: str = "model"
    owned_by: str = "penstock"
    root: str | None = None
    """The folder of an adapter; null for the model itself."""
    parent: str | None = None
    """The model that an adapter belongs to; null for the model itself."""


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: str = "list"


SwitchPhase = Literal["waiting", "holding", "starting"]
"""What a switch of profiles does: it waits for a moment in which no request is open; it holds new
requests, until those that are open have ended; it starts the next engine."""


class SwitchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A switch to another profile that is pending."""

    made: str
    """When the profile was made."""
    phase: SwitchPhase
    seconds: float
    """How long it has been pending."""
    held: int
    """Requests that it holds now."""


class ProfileStatus(msgspec.Struct, frozen=True, kw_only=True):
    made: str | None
    """When the profile in force was made; null without one."""
    pending: SwitchStatus | None
    failed: str | None
    """Why the last switch failed; null once one has not."""


class Switched(msgspec.Struct, frozen=True, kw_only=True):
    """A switch to another profile that is done."""

    made: str
    """When the profile was made."""
    seconds: float = 0.0
    """How long there was no engine; 0 where the same one goes on, since only limits of the server
    differ."""
    waited_s: float = 0.0
    """How long it took before until no request was open."""
    held: int = 0
    """Requests that were held."""
    longest_held_s: float = 0.0
    """The longest time that one of them was."""
    notes: list[str] = []
    """What there is to say of the configuration, such as options of the command line that win over
    the profile's."""


class Alive(msgspec.Struct, frozen=True):
    status: Literal["alive"] = "alive"


class Ready(msgspec.Struct, frozen=True):
    status: Literal["ready"] = "ready"


class Version(msgspec.Struct, frozen=True):
    version: str


class OpenApi(msgspec.Struct, frozen=True):
    """This document; see the OpenAPI specification."""

    openapi: str
    info: dict[str, object]
    paths: dict[str, object]
    components: dict[str, object]
