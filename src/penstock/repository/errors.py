"""Why a repository does not give a model."""

from __future__ import annotations

from penstock.errors import PenstockError


class UnknownModelError(PenstockError):
    """There is no model of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no model {name!r}")
        self.name = name


class NoRoomError(PenstockError):
    """The model alone takes more memory than all may have together."""

    def __init__(self, name: str, need: int, budget: int) -> None:
        super().__init__(
            f"the model {name!r} needs {need:,} bytes of memory, and all models together may take "
            f"{budget:,}; raise the budget, or lower the model's kv_cache_bytes"
        )


class LoadFailedError(PenstockError):
    """The model could not be loaded; it is tried again by whoever asks later."""

    def __init__(self, name: str, why: str, retry_s: float) -> None:
        super().__init__(f"the model {name!r} could not be loaded: {why}")
        self.why = why
        self.retry_s = retry_s
        """Seconds after which a request has it loaded again."""


class RemovedError(PenstockError):
    """The model is in the catalogue no more."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the model {name!r} was taken out of the catalogue")
