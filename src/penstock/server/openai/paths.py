"""The paths of the dialect's endpoints."""

from __future__ import annotations

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
TOKENIZE = "/tokenize"
CLASSIFY = "/v1/classify"
CLASSIFIES = (CLASSIFY, "/classify")
SCORE = "/v1/score"
SCORES = (SCORE, "/score")
RERANK = "/v1/rerank"
RERANKS = (RERANK, "/rerank", "/v2/rerank")
"""The same request, as vLLM, Jina and Cohere have it."""
POOLING = "/pooling"
