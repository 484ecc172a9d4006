"""Labels of texts, scores and rankings of pairs, and the vectors themselves, at the paths that
clients of vLLM, Jina and Cohere ask."""
