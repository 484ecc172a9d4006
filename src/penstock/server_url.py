"""URLs of servers, as commands are given them."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from penstock.errors import ConfigError


def split_server_url(url: str) -> SplitResult:
    """The parts of a URL, which begins with ``http://`` if it names no scheme.

    Raises ConfigError for what is no URL of a server, and for one with a password.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is no URL of a server: {error}") from None
    if port == 0:
        raise ConfigError(f"{url!r} is no URL of a server: no server is at port 0")
    strange = parts.query or parts.fragment or any(character.isspace() for character in url)
    if parts.scheme not in ("http", "https") or not parts.hostname or strange:
        raise ConfigError(f"{url!r} is no URL of a server; write http://HOST:PORT")
    if parts.username or parts.password:
        raise ConfigError(
            "a URL with a password shows it to others; leave it out (commands that send a key take "
            "--api-key-env)"
        )
    return parts
