"""What the server says of its model: what it can be asked for, and what it was made for."""

from __future__ import annotations

from penstock.engine.ipc.wire import ModelFacts
from penstock.parsing.styles import Styles
from penstock.pooling.labels import Labels
from penstock.server.status_structs import Capability, MadeFor, ModelCard
from penstock.tokenizer import Tokenizer
from penstock.tokenizer.chat_variables import chat_template_kwargs


def model_card(model: ModelFacts, tokenizer: Tokenizer, styles: Styles, created: int) -> ModelCard:
    """The entry of ``GET /v1/models``; ``created`` is a Unix time in seconds."""
    templates, lengths = tokenizer.settings.chat_templates, model.lengths
    return ModelCard(
        id=model.served_model_name,
        created=created,
        max_model_len=lengths.max_model_len,
        max_input_len=lengths.longest_prompt,
        max_output_len=lengths.longest_output,
        capabilities=capabilities(bool(templates), styles, model.labels),
        tool_style=None if model.labels else tool_style(bool(templates), styles),
        made_for=made_for(model, bool(templates)),
        sampling_defaults=model.sampling_defaults,
        interactive_defaults=model.sampling_defaults.interactive,
        chat_template_kwargs=chat_template_kwargs(templates.values()),
    )


def capabilities(
    has_template: bool, styles: Styles, labels: Labels | None = None
) -> list[Capability]:
    """What a model can be asked for, with a chat template or without one, or with labels."""
    if labels is not None:
        return ["classify"] if labels.relevance is None else ["classify", "score"]
    found: list[Capability] = ["completion"]
    if has_template:
        found.append("chat")
        if styles.takes_tools:
            found.append("tools")
        if styles.reasoning is not None:
            found.append("reasoning")
    return found


def tool_style(has_template: bool, styles: Styles) -> str | None:
    """The name of the style in which calls of tools are written; None where none are taken."""
    if not has_template or styles.tools is None or not styles.takes_tools:
        return None
    return styles.tools.name


def made_for(model: ModelFacts, has_template: bool) -> MadeFor:
    """What to offer a person first. The demo model has a template, but was not made for chats."""
    return "chat" if has_template and not model.is_demo else "completion"
