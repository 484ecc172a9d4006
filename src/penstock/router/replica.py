"""One server behind the router."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from penstock.router.target import Target
from penstock.router.upstream import Pool

State = Literal["unknown", "ready", "draining", "down"]
"""Not looked at yet; takes requests; answers, and takes no new ones; does not answer."""


@dataclass
class ReplicaCounts:
    """What came of its requests."""

    requests: int = 0
    """That were sent to it."""
    failures: int = 0
    """That it did not answer, or not to the end."""
    retried: int = 0
    """That another replica then answered, nothing of an answer having been sent."""
    resumed: int = 0
    """Streams that another replica then continued."""
    prompt_tokens: int = 0
    """Tokens of the requests that were sent to it, as far as they are known, else estimated."""
    cached_tokens: int = 0
    """Those of them that were expected to be in its cache."""


@dataclass(eq=False)
class Replica:
    target: Target
    pool: Pool
    state: State = "unknown"
    trouble: str = ""
    """Why it is not ready."""
    is_ours: bool = False
    """Whether it is a server of Penstock's, whose answers are the same for the same seed."""
    models: frozenset[str] | None = None
    """The models that it serves; None where it does not say, so that it is asked for any."""
    number: int | None = None
    """Its number in ``routing.Router``; None until it was first ready."""
    reports: bool = False
    """Whether it reports what its cache holds."""
    synchronized: bool = False
    """Whether all that it has reported is known."""
    block_size: int = 0
    counts: ReplicaCounts = field(default_factory=ReplicaCounts)

    @classmethod
    def of(cls, url: str) -> Replica:
        """Raises ConfigError for what is no URL of a server."""
        target = Target.of(url)
        return cls(target, Pool(target))

    @property
    def url(self) -> str:
        return self.target.url

    def serves(self, model: str | None) -> bool:
        """Whether it may be asked for a model; None: whatever it has."""
        return model is None or self.models is None or model in self.models
