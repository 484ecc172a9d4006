"""Reads an uploaded form: ``multipart/form-data`` (RFC 7578)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.message import Message
from itertools import pairwise
from typing import Final

from penstock.server.errors import ApiError

_MOST_PARTS: Final = 16
_BOUNDARY: Final = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]{1,70}")


@dataclass(frozen=True)
class Part:
    data: bytes
    filename: str | None


def read_form(content_type: str, body: bytes) -> dict[str, Part]:
    """The parts of a form by their names. Raises ApiError."""
    header = Message()
    header["content-type"] = content_type
    if header.get_content_type() != "multipart/form-data":
        raise ApiError(
            415,
            f"a file is uploaded as multipart/form-data, not as {content_type[:80]!r}; "
            "curl: -F purpose=batch -F file=@requests.jsonl",
            code="unsupported_media_type",
        )
    boundary = header.get_boundary("")
    assert boundary is not None
    if not _BOUNDARY.fullmatch(boundary):
        raise _malformed("its boundary is missing or not one")
    line = rb"\r\n--%s(--)?[ \t]*(?=\r\n|\Z)" % re.escape(boundary.encode("ascii"))
    body = b"\r\n" + body
    marks: list[re.Match[bytes]] = []
    for mark in re.finditer(line, body):
        marks.append(mark)
        if mark[1] is not None or len(marks) > _MOST_PARTS:
            break
    if not marks or marks[-1][1] is None:
        more = len(marks) > _MOST_PARTS
        raise _malformed(f"it has more than {_MOST_PARTS} parts" if more else "its end is missing")
    parts: dict[str, Part] = {}
    for mark, following in pairwise(marks):
        head, blank, data = body[mark.end() : following.start()].partition(b"\r\n\r\n")
        if not blank or not head.startswith(b"\r\n"):
            raise _malformed("a part has no header")
        name, filename = _names(head)
        if name in parts:
            raise ApiError(400, f"{name} is given twice", param=name)
        parts[name] = Part(data, filename)
    return parts


def _names(head: bytes) -> tuple[str, str | None]:
    for line in head.decode("utf-8", "replace").split("\r\n"):
        field, _, value = line.partition(":")
        if field.lower() != "content-disposition":
            continue
        header = Message()
        header["content-disposition"] = value.strip()
        name = header.get_param("name", header="content-disposition")
        if isinstance(name, str) and header.get_content_disposition() == "form-data":
            return name, header.get_filename()
    raise _malformed("a part has no name")


def _malformed(why: str) -> ApiError:
    return ApiError(400, f"the form of the body is malformed: {why}", param="file")
