"""The tuning results in a manifest, measured on machines that start from the artifact.

Several, since one artifact serves several numbers of threads, and several machines that share a
folder. It is read apart from the rest of the manifest: where it makes no sense the weights are as
good as ever, and what it said is measured again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.errors import ArtifactError
from penstock.interface.tuning import Tuning

MOST_TUNINGS: Final = 8
"""Maximum number of tunings kept in one artifact, the latest ones: enough for the machines and
thread counts in use."""

NOTHING_TUNED: Final = msgspec.Raw(b"[]")


def encode_tunings(tunings: Sequence[Tuning]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(tunings))


def decode_tunings(section: msgspec.Raw) -> tuple[Tuning, ...]:
    """Parse the section. Raises ArtifactError if it is not of this version."""
    try:
        return msgspec.json.decode(section, type=tuple[Tuning, ...])
    except (ValueError, RecursionError) as e:
        raise ArtifactError(f"what it says of tuning is of another version: {e}") from None
