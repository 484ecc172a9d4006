"""The paths of the dialect's endpoints."""

from __future__ import annotations

GENERATE = "/api/generate"
CHAT = "/api/chat"
EMBED = "/api/embed"
OLD_EMBED = "/api/embeddings"
SHOW = "/api/show"
