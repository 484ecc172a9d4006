"""What a server keeps for its clients, whichever models and engines it has."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.server.bodies import Bodies
from penstock.server.openai.batches.batches import Batches
from penstock.server.openai.batches.handlers import BatchHandlers
from penstock.server.openai.responses.stored import StoredResponses
from penstock.server.openai.responses.stored_handlers import StoredHandlers
from penstock.server.openapi import Endpoint


@dataclass(frozen=True)
class Kept:
    """Responses, in its memory, and files and batches, on disk."""

    responses: StoredResponses = field(default_factory=StoredResponses)
    batches: Batches = field(default_factory=Batches)

    def endpoints(self, bodies: Bodies) -> list[Endpoint]:
        """Those that need no model; ``bodies`` reads what is uploaded."""
        return [
            *StoredHandlers(self.responses).endpoints(),
            *BatchHandlers(bodies, self.batches).endpoints(),
        ]
