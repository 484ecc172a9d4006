"""What a tier below the pool of blocks would find."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.cache.kv_cache import KvCache
from penstock.cache.prefix import Key
from penstock.cache.retention import Lru, Retention


class TierBooks:
    """The books of a disk that takes every block as soon as the pool has it, without its times:
    whatever it would find is computed again, which leaves the pool as reading it would."""

    def __init__(self, cache: KvCache, most_blocks: int, now: Callable[[], float]) -> None:
        """``most_blocks``: places of a chain that it has room for; ``now``: the time in seconds."""
        self._news = cache.follow()
        self._most = most_blocks
        self._retention: Retention[Key] = Lru()
        self._now = now

    def __len__(self) -> int:
        self._take_news()
        return len(self._retention)

    def find(self, keys: Sequence[Key]) -> int:
        """How many of a chain's blocks are there, from the first on; they are used now."""
        self._take_news()
        held, found = self._retention, 0
        while found < len(keys) and keys[found] in held:
            found += 1
        now = self._now()
        for key in reversed(keys[:found]):
            held.use(key, now)
        return found

    def _take_news(self) -> None:
        held, news, now = self._retention, self._news, self._now()
        while news:
            each = news.popleft()
            parents = dict(zip(each.keys, (each.parent, *each.keys), strict=False))
            new = [key for key in each.keys if key not in held]
            staying = {each.parent, *each.keys}
            for victim in held.victims(len(held) + len(new) - self._most, now, staying):
                held.drop(victim)
            for key in reversed(new[: self._most - len(held)]):
                held.add(key, parents[key], now)
