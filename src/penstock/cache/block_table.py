"""The blocks of one sequence."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from penstock.cache.prefix import Key, root_key
from penstock.cache.state_slots import StateHold


class BlockTable:
    """The blocks of one sequence, first to last, in each group of layers, and the keys of the full
    ones.

    Block i of every group has tokens ``i * block_size .. (i + 1) * block_size - 1``. All groups
    have equally many places; of a group with a window the first may be forgotten: their ids are
    those of blocks that are somebody else's, or nobody's, and nothing is read there.

    Emptied by ``KvCache.free`` and usable again; keys survive, since tokens do not change.
    Exporting the buffer of ``blocks`` (``memoryview``, ``np.frombuffer``) blocks its growth.
    """

    __slots__ = (
        "blocks",
        "due_at",
        "forgotten",
        "keys",
        "num_committed",
        "num_published",
        "private",
        "root",
        "state",
        "writable",
    )

    def __init__(self, salt: str = "", adapter: str = "") -> None:
        """Only sequences of equal salt, and of one adapter, share blocks."""
        self.root: Key = root_key(salt, adapter)
        self.keys: list[Key] = []
        self.blocks: tuple[array[int], ...] = ()
        """Block ids of each group; empty while the table holds none."""
        self.forgotten: list[int] = []
        """Number of first places that are not held, for each group."""
        self.num_committed = 0  # tokens whose K and V are in the blocks, or will be: in flight
        self.num_published = 0  # leading places that were offered to the index
        self.state: StateHold | None = None
        """Its state slot, where layers keep states."""
        self.private = False  # the cache was reset under it: nothing more is published
        # What the two calls of every step need to see that there is nothing to do:
        self.writable = 0  # slots below this are its own, as far as is known without looking
        self.due_at = 0  # fewer committed tokens fill no block that was not offered yet, nor leave
        # one behind a window

    @classmethod
    def of_root(cls, root: Key) -> BlockTable:
        """An empty table that shares blocks with those of this root."""
        table = cls()
        table.root = root
        return table

    @property
    def num_places(self) -> int:
        """Blocks of each group, forgotten ones included."""
        return len(self.blocks[0]) if self.blocks else 0

    @property
    def num_held(self) -> int:
        """Blocks of all groups that the table holds."""
        return sum(map(len, self.blocks)) - sum(self.forgotten)

    def held_backwards(self) -> Iterator[int]:
        """The blocks that it holds, those of the last place first, of all groups."""
        if len(self.blocks) == 1:
            return reversed(self.blocks[0][self.forgotten[0] :])
        held = list(zip(self.blocks, self.forgotten, strict=True))
        places = range(self.num_places - 1, -1, -1)
        return (blocks[i] for i in places for blocks, forgotten in held if i >= forgotten)
