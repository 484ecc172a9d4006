"""The adapters that an engine has loaded, whether or not they are in a slot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.engine.engine_plan import EnginePlan
from penstock.errors import ConfigError, RequestError, WeightError
from penstock.interface.adapters import Adapter
from penstock.plan.adapt import adapted_matrices


class AdapterStore:
    """Adapters by their digests, in the host's memory: as many as are loaded, of which the
    scheduler has those put into slots that sequences use.

    An adapter is known by what is in it. So the same folder loaded twice is one adapter, a folder
    whose files were changed is another, and whoever names adapters keeps names and digests. One
    that is dropped serves the requests that were added before, to their ends.
    """

    def __init__(self, engine_plan: EnginePlan) -> None:
        self._engine_plan = engine_plan
        self._adapters: dict[str, Adapter] = {}
        self.names: Mapping[str, str] = {}
        """The digests of those that were loaded at the start, by their names."""

    @classmethod
    def start(cls, engine_plan: EnginePlan) -> AdapterStore:
        """Load the adapters that the options name. Raises WeightError, naming the adapter."""
        store, names = cls(engine_plan), {}
        for name, path in engine_plan.config.lora_modules.items():
            try:
                names[name] = store.load(Path(path)).digest
            except WeightError as error:
                raise WeightError(f"the adapter {name!r}: {error}") from error
        store.names = names
        return store

    def load(self, folder: Path) -> Adapter:
        """Load an adapter, if it is not there. Raises ConfigError where none are served, and
        WeightError for one that is damaged, asks for what is not served or is for another base."""
        plan = self._engine_plan.plan
        if plan.adapters is None:
            raise ConfigError(
                "this engine has no room for adapters; start it with --max-loras (in Python, "
                "max_loras=) or --lora-modules"
            )
        from penstock.weights.adapters.folder import AdapterFolder  # of engines that serve any
        from penstock.weights.adapters.placement import placed

        found = AdapterFolder.read(folder)
        targets = {name: plan.weights[name] for name in adapted_matrices(plan)}
        adapter = placed(found, targets, self._engine_plan.spec.names, plan.adapters)
        return self._adapters.setdefault(found.digest, adapter)

    def drop(self, digest: str) -> None:
        """Forget an adapter; one that is not there is ignored."""
        self._adapters.pop(digest, None)

    def find(self, digest: str) -> Adapter | None:
        """The adapter that a request names, None for an empty digest. Raises RequestError for one
        that is not loaded."""
        if not digest:
            return None
        adapter = self._adapters.get(digest)
        if adapter is None:
            raise RequestError("the adapter that the request names is not loaded any more", "model")
        return adapter
