"""Reference counts of blocks, and the order in which free blocks are handed out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable


class BlockPool:
    """Reference counts over block ids ``0 .. num_blocks - 1``; every operation on a block is O(1).

    Free blocks wait in two lines. *Blank* ones hold nothing worth finding and go first, the most
    recently freed before the others, since its memory is likelier to be warm. *Kept* ones
    hold content that may be asked for again, and go in the order in which they were freed: the
    least recently used first.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a block pool needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self.ref_counts: list[int] = [0] * num_blocks
        """Owners of each block. For reading; only the pool's methods change it."""
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._kept)

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def take(self) -> int:
        """The next free block, now with one owner. The caller drops what it knew of its content.

        Raises IndexError when no block is free; callers ask ``num_free`` first.
        """
        if self._blank:
            block = self._blank.pop()
        elif self._kept:
            block, _ = self._kept.popitem(last=False)
        else:
            raise IndexError("no free block")
        self.ref_counts[block] = 1
        return block

    def take_several(self, count: int) -> list[int]:
        """What so many calls of :meth:`take` would return."""
        blank, kept = self._blank, self._kept
        if count > len(blank) + len(kept):
            raise IndexError("not so many blocks are free")
        taken = blank[: -count - 1 : -1]
        del blank[len(blank) - len(taken) :]
        next_kept = kept.popitem
        taken += [next_kept(last=False)[0] for _ in range(count - len(taken))]
        counts = self.ref_counts
        for block in taken:
            counts[block] = 1
        return taken

    def share(self, block: int) -> None:
        """Add an owner to a block that is in use or kept."""
        if self.ref_counts[block] == 0:
            del self._kept[block]  # KeyError: a blank block has no content to share
        self.ref_counts[block] += 1

    def release(self, block: int, keep: bool) -> None:
        """Remove an owner; the last one frees the block. ``keep``: its content can be found."""
        count = self.ref_counts[block]
        if count == 0:
            raise ValueError(f"block {block} is free already")
        self.ref_counts[block] = count - 1
        if count == 1:
            if keep:
                self._kept[block] = None
            else:
                self._blank.append(block)

    def release_several(self, blocks: Iterable[int], known: Container[int]) -> None:
        """Release one block after the other; those that are ``known`` are kept."""
        counts, kept, blank = self.ref_counts, self._kept, self._blank
        for block in blocks:
            if counts[block] != 1:
                self.release(block, keep=block in known)
                continue
            counts[block] = 0
            if block in known:
                kept[block] = None
            else:
                blank.append(block)

    def blank(self, block: int) -> None:
        """Let a kept block go first: nobody wants its content any more."""
        del self._kept[block]
        self._blank.append(block)

    def renew(self, block: int) -> None:
        """Let a kept block go last; one that is in use is left as it is."""
        if self.ref_counts[block] == 0:
            self._kept.move_to_end(block)

    def forget_kept(self) -> None:
        """Make every kept block blank: nobody can find their content any more."""
        self._blank.extend(reversed(self._kept))
        self._kept.clear()

    def kept(self) -> tuple[int, ...]:
        """Free blocks with content, next to be reused first."""
        return tuple(self._kept)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is free once, or owned, and never both."""
        free = [*self._blank, *self._kept]
        assert len(set(free)) == len(free), "a block is free twice"
        assert all(count >= 0 for count in self.ref_counts), "a reference count is negative"
        owned = {b for b, count in enumerate(self.ref_counts) if count}
        assert owned.isdisjoint(free), f"blocks both free and owned: {owned & set(free)}"
        leaked = self.num_blocks - len(owned) - len(free)
        assert leaked == 0, f"{leaked} blocks are neither free nor owned"
