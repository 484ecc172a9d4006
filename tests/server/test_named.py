"""Which model a request is for, where a server has several."""

from __future__ import annotations

from support.http_client import Server

from penstock.server.models.named import BY_BODY, BY_QUERY, OBSERVING


def test_the_cache_of_each_of_several_models_can_be_asked(server: Server) -> None:
    paths = server.http.get("/openapi.json").json()["paths"]
    of_cache = {path for path in paths if path.startswith("/admin/cache/")}
    assert len(of_cache) > 5
    assert of_cache <= BY_BODY | BY_QUERY | OBSERVING
