"""Completes the OpenAPI document of the dialect's bodies, beyond their structs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from penstock.engine.ipc.wire import ModelFacts
from penstock.server.fields.schema import document_fields
from penstock.server.openai.bounds import bound
from penstock.server.openapi import Endpoint, Schema


def describe_bodies(
    endpoints: Sequence[Endpoint],
    components: Mapping[str, Schema],
    taken: Collection[str],
    model: ModelFacts,
    best_priority: int,
) -> None:
    """Add to the schemas ``components``, by name, what values ``model`` takes and what the field
    table accepts.

    ``taken``: the schemas that stand in bodies. ``best_priority``: the lowest that anyone may ask
    for.
    """
    bound({name: components[name] for name in taken}, model, best_priority)
    for endpoint in endpoints:
        if endpoint.body is not None:
            document_fields(endpoint.body, endpoint.rules, components)
