"""Loading and unloading, of models that are none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from support.waiting import PATIENCE_S

from penstock.config import EngineConfig
from penstock.errors import ModelError, OverloadedError, PenstockError, UnavailableError
from penstock.interface.loading import ProgressCallback
from penstock.repository.books import Books
from penstock.repository.catalogue import Catalogue, ModelEntry
from penstock.repository.errors import (
    LoadFailedError,
    NoRoomError,
    RemovedError,
    UnknownModelError,
)
from penstock.repository.repository import Repository


@dataclass
class Fake:
    """A loaded model of so many bytes."""

    name: str
    takes_bytes: int
    closed: bool = False
    loss: asyncio.Event = field(default_factory=asyncio.Event)
    bad_end: bool = False

    async def lost(self) -> None:
        await self.loss.wait()
        raise PenstockError("its engine died")

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.closed = True
        if self.bad_end:
            raise ZeroDivisionError


class Fakes:
    """Loads them, once ``gate`` is open; those that are ``broken`` fail."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.broken: set[str] = set()
        self.error: Exception = ModelError("its file is cut off")
        self.extra = 0
        """Bytes that they take beyond what was said before."""
        self.loaded: list[str] = []
        self.most_held = 0
        self.models: list[Fake] = []

    async def size(self, entry: ModelEntry) -> int:
        await asyncio.sleep(0)
        return entry.memory_bytes or 1

    async def load(self, entry: ModelEntry, progress: ProgressCallback) -> Fake:
        progress("weights", 0.5, 100)
        await self.gate.wait()
        if entry.name in self.broken:
            raise self.error
        self.loaded.append(entry.name)
        self.models.append(Fake(entry.name, (entry.memory_bytes or 1) + self.extra))
        held = sum(each.takes_bytes for each in self.models if not each.closed)
        self.most_held = max(self.most_held, held)
        return self.models[-1]


def entry(name: str, size: int = 40, **others: object) -> ModelEntry:
    config = EngineConfig(model=name, served_model_name=name)
    return ModelEntry(config, memory_bytes=size, **others)  # type: ignore[arg-type]


def run(
    body: Callable[[Repository[Fake], Fakes], Awaitable[None]],
    *entries: ModelEntry,
    most_waiting: int = 9,
    check: bool = True,
) -> None:
    """``check``: compare the books with what is loaded, unless the repository was closed."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            fakes = Fakes()
            books = Books(100, patience_s=0.01)
            catalogue = Catalogue(entries or (entry("a"), entry("b"), entry("c", 60)))
            repository = Repository(catalogue, fakes, 100, most_waiting, books)
            try:
                await body(repository, fakes)
                if check:
                    repository.check()
            finally:
                await repository.aclose()
            assert all(each.closed for each in fakes.models)

    asyncio.run(main())


def test_all_requests_get_their_models_within_the_budget() -> None:
    async def body(repository: Repository[Fake], fakes: Fakes) -> None:
        async def client(first: int) -> None:
            for i in range(first, first + 20):
                name = "abc"[i % 7 % 3]
                lease = await repository.enter(name)
                await asyncio.sleep(0.001 * (i % 3))
                assert (lease.model.name, lease.model.closed) == (name, False)
                lease.close()
                lease.close()

        await asyncio.gather(*(client(i) for i in range(10)))
        assert fakes.most_held <= 100
        assert len(fakes.loaded) > 3

    run(body, most_waiting=300)


def test_one_load_for_all_that_wait_and_what_it_does_meanwhile() -> None:
    async def body(repository: Repository[Fake], fakes: Fakes) -> None:
        fakes.gate.clear()
        waiting = [asyncio.ensure_future(repository.enter("a")) for _ in range(3)]
        while not repository.status("a").phase.startswith("weights"):
            await asyncio.sleep(0)
        status = repository.status("a")
        assert (status.state, status.phase, status.waiting) == ("loading", "weights (50%)", 3)
        waiting[0].cancel()
        fakes.gate.set()
        leases = await asyncio.gather(*waiting[1:])
        assert fakes.loaded == ["a"]
        assert repository.status("a").open == 2
        for lease in leases:
            lease.close()

    run(body)


def test_a_request_that_leaves_as_its_model_comes_uses_nothing() -> None:
    async def body(repository: Repository[Fake], fakes: Fakes) -> None:
        entering = asyncio.ensure_future(repository.enter("a"))
        while repository.status("a").state != "ready":
            await asyncio.sleep(0)
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)
        assert repository.status("a").open == 0

    run(body)


def test_a_failing_model_takes_no_others_with_it_and_is_tried_again() -> None:
    async def body(repository: Repository[Fake], fakes: Fakes) -> None:
        fakes.broken.add("a")
        failing, fine = await asyncio.gather(
            repository.enter("a"), repository.enter("b"), return_exceptions=True
        )
        assert isinstance(failing, LoadFailedError)
        assert str(failing) == "the model 'a' could not be loaded: its file is cut off"
        assert not isinstance(fine, BaseException)
        with pytest.raises(LoadFailedError, match="cut off"):
            await repository.enter("a")
        with pytest.raises(LoadFailedError, match="cut off"):
            await repository.load("a")
        fakes.broken.clear()
        await repository.load("a")
        (await repository.enter("a")).close()
        fine.close()

    run(body)


def test_a_defect_of_a_loader_is_a_load_that_failed() -> None:
    async def body(repository: Repository[Fake], fakes: Fakes) -> None:
        fakes.loaded = None  # type: ignore[assignment]
        with pytest.raises(LoadFailedError, match="has no attribute 'append'"):
            await repository.enter("a")

    run(body)


def test_an_engine_that_is_lost() -> None:
    async def body(repository: Repository[Fake], fakes: Fakes) -> None:
        lease = await repository.enter("a")
        fakes.models[0].loss.set()
        while repository.status("a").state != "failed":
            await asyncio.sleep(0)
        lease.close()
        await repository.load("a")
        assert fakes.loaded == ["a", "a"]

    run(body)


def test_what_nobody_expects_leaves_no_model_on_its_way() -> None:
    async def body(repository: Repository[Fake], fakes: Fakes) -> None:
        fakes.broken.add("a")
        fakes.error = ZeroDivisionError("by what")
        with pytest.raises(LoadFailedError, match="ZeroDivisionError: by what"):
            await repository.enter("a")
        lease = await repository.enter("b")
        lease.model.bad_end = True
        lease.close()
        await repository.unload("b")
        assert repository.status("b").state == "unloaded"
        (await repository.enter("b")).close()

    run(body)


def test_a_model_that_goes_before_its_size_is_known_can_come_again() -> None:
    async def body(repository: Repository[Fake], fakes: Fakes) -> None:
        waiting = asyncio.ensure_future(repository.enter("a"))
        asyncio.get_running_loop().call_soon(repository.reload, Catalogue((entry("b"),)))
        with pytest.raises(RemovedError):
            await waiting
        await asyncio.sleep(0.001)
        repository.reload(Catalogue((entry("a"), entry("b"))))
        (await repository.enter("a")).close()

    run(body)


def test_a_model_that_goes_while_it_waits_for_memory() -> None:
    async def body(repository: Repository[Fake], fakes: Fakes) -> None:
        lease = await repository.enter("c")
        waiting = asyncio.ensure_future(repository.enter("d"))
        while repository.status("d").state != "queued":
            await asyncio.sleep(0)
        assert repository.reload(Catalogue((entry("c", 60),))) == ["d"]
        with pytest.raises(RemovedError):
            await waiting
        lease.close()

    run(body, entry("c", 60), entry("d", 60))


def test_an_engine_that_is_lost_after_its_model_was_taken_out() -> None:
    async def body(repository: Repository[Fake], fakes: Fakes) -> None:
        lease = await repository.enter("a")
        repository.reload(Catalogue((entry("b"),)))
        lease.model.loss.set()
        while not lease.model.closed:
            await asyncio.sleep(0)
        lease.close()

    run(body)


def test_a_load_that_finds_no_room_in_the_end_says_so() -> None:
    async def body(repository: Repository[Fake], fakes: Fakes) -> None:
        fakes.extra = 70
        with pytest.raises(NoRoomError, match="needs 110 "):
            await repository.load("a")
        while repository.status("a").state != "unloaded":
            await asyncio.sleep(0)

    run(body)


def test_what_is_never_given() -> None:
    async def body(repository: Repository[Fake], fakes: Fakes) -> None:
        with pytest.raises(UnknownModelError):
            await repository.enter("nobody")
        for asked in (repository.enter("huge"), repository.load("huge")):
            with pytest.raises(NoRoomError, match=r"needs 101 .* take 100"):
                await asked
        fakes.gate.clear()
        waiting = asyncio.ensure_future(repository.enter("a"))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="1 requests wait"):
            await repository.enter("a")
        loading = asyncio.ensure_future(repository.load("a"))
        await asyncio.sleep(0)
        await repository.aclose()
        for each in (waiting, loading):
            with pytest.raises(UnavailableError):
                await each
        with pytest.raises(UnavailableError):
            await repository.enter("a")

    run(body, entry("a"), entry("huge", 101), most_waiting=1, check=False)


def test_unloading_waits_for_the_requests_that_are_open() -> None:
    async def body(repository: Repository[Fake], fakes: Fakes) -> None:
        lease = await repository.enter("a")
        unloading = asyncio.ensure_future(repository.unload("a"))
        await asyncio.sleep(0.001)
        assert not unloading.done()
        later = asyncio.ensure_future(repository.enter("a"))
        lease.close()
        await unloading
        assert fakes.models[0].closed
        (await later).close()
        assert fakes.loaded == ["a", "a"]

    run(body)


def test_a_model_that_is_kept_for_a_time() -> None:
    async def body(repository: Repository[Fake], fakes: Fakes) -> None:
        lease = await repository.enter("a")
        repository.keep("a", 0.0)
        assert repository.status("a").state == "ready"
        lease.close()
        while repository.status("a").state != "unloaded":
            await asyncio.sleep(0)

    run(body)


def test_another_catalogue() -> None:
    async def body(repository: Repository[Fake], fakes: Fakes) -> None:
        (await repository.enter("a")).close()
        lease = await repository.enter("b")
        changed = Catalogue((entry("a"), entry("c", 50, at_start=True)), memory_bytes=95)
        assert repository.reload(changed) == ["c", "b"]
        with pytest.raises(UnknownModelError):
            await repository.enter("b")
        assert not lease.model.closed
        lease.close()
        while repository.status("c").state != "ready":
            await asyncio.sleep(0)
        assert repository.budget == 95
        fakes.gate.clear()
        waiting = asyncio.ensure_future(repository.enter("d2"))
        with pytest.raises(UnknownModelError):
            await waiting
        repository.reload(Catalogue((entry("a"), entry("d2"))))
        waiting = asyncio.ensure_future(repository.enter("d2"))
        await asyncio.sleep(0.001)
        repository.reload(Catalogue((entry("a"),)))
        with pytest.raises(RemovedError):
            await waiting
        fakes.gate.set()
        assert repository.budget == 100

    run(body)


def test_a_model_may_be_taken_out_as_it_is_asked_for() -> None:
    async def body(repository: Repository[Fake], fakes: Fakes) -> None:
        asking = asyncio.ensure_future(repository.enter("a"))
        await asyncio.sleep(0)  # it is to be sized next
        repository.reload(Catalogue((entry("b"),)))
        with pytest.raises(RemovedError):
            await asking
        await asyncio.sleep(0.001)
        repository.reload(Catalogue((entry("a"), entry("b"))))
        (await repository.enter("a")).close()

    run(body)
