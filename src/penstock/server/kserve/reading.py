"""Reading the bodies of clients that do not say what they send, as Triton's own."""

from __future__ import annotations

from starlette.requests import Request

from penstock.server.body_memory import Share
from penstock.server.errors import ApiError
from penstock.server.read_body import read_any_body, read_body

_BYTES = "application/octet-stream"


async def read_tensors(request: Request, limit: int, seconds: float, share: Share) -> bytes:
    """As ``read_body``, for a body that may also have no type, or that of bytes.

    A page of another site could make a browser send one without our consent; but where pages could
    do harm, which is where no key is needed, their ``Origin`` is refused (``sites.py``). Raises
    ApiError 415, 413, 408 or 503.
    """
    if request.headers.getlist("content-type") not in ([], [_BYTES]):
        return await read_body(request, limit, seconds, share)
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise ApiError(
            415,
            f"the body must not be compressed, and its Content-Encoding is {encoding!r}",
            code="unsupported_media_type",
        )
    return await read_any_body(request, limit, seconds, share)
