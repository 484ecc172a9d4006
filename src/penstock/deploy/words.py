"""Options of ``penstock serve`` as a table has them, and as words of its command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.errors import ConfigError

_ELSEWHERE: Final = {
    "admin-key-file": "each server has an admin key of its own, which the router is told",
    "allowed-host": "use routing.allowed_hosts",
    "grace": "use replicas.grace",
    "host": "use routing.host",
    "log-format": "servers write texts",
    "max-restarts": "an engine that dies again and again ends its replica, which Ray replaces",
    "no-access-log": "use routing.access_log",
    "page": "the page of the fleet is at /fleet",
    "no-page": "the page of the fleet is at /fleet",
    "port": "use routing.port",
    "slo": "use autoscaling.slo",
    "tls-cert": "use routing.tls_cert",
    "tls-key": "use routing.tls_key",
}
"""What is set for each server, and by what users set it."""


class SetElsewhereError(ConfigError):
    """An option that is not given to servers in this way."""

    def __init__(self, option: str, why: str) -> None:
        super().__init__(why)
        self.option = option


def serve_words(model: str | None, options: Mapping[str, Any]) -> list[str]:
    """The words behind ``penstock serve`` that spell these options.

    Names have dashes or underscores. True is the option alone, False its ``--no-`` form, a list the
    option for each element. Raises SetElsewhereError for options that are none of a replica's, and
    for values that are no option's.
    """
    words = [] if model is None else [model]
    for key, value in options.items():
        name = key.replace("_", "-")
        if name in _ELSEWHERE and name != "slo":
            raise SetElsewhereError(key, _ELSEWHERE[name])
        words += option_words(key, value)
    return words


def option_words(key: str, value: Any) -> list[str]:
    """The words of one option. Raises SetElsewhereError for a value that is no option's."""
    option = "--" + key.replace("_", "-")
    if isinstance(value, bool):
        return [option if value else "--no-" + option[2:]]
    if isinstance(value, str | int | float):
        return [f"{option}={value}"]
    if isinstance(value, list | tuple):
        return [word for each in value for word in option_words(key, each)]
    raise SetElsewhereError(key, "write a text, a number, true, false, or a list of them")
