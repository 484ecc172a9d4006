"""Reads the pickle in a file of ``torch.save`` without running it: tensors by name, or an error.

A pickle is a program that may call anything. This is an interpreter of our own for the few
instructions that a dictionary of tensors needs, which builds dictionaries, tuples, texts, numbers
and the records below and calls nothing. Every other instruction, and every name but those of
tensors, is refused by its name.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

_MAX_DIMENSIONS: Final = 8
_MAX_EXTENT: Final = 2**48


class UnreadablePickle(Exception):
    """The pickle is damaged, or holds something else than named tensors; the message says what."""


class Storage(NamedTuple):
    """Elements that tensors are views of; ``key`` names the archive's entry of them."""

    dtype: str
    """In the names of safetensors."""
    key: str
    elements: int


class StoredTensor(NamedTuple):
    """``shape`` elements of ``storage`` from ``offset`` on, without gaps, the last axis fastest."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Name:
    """Something that the pickle refers to by module and name."""

    module: str
    name: str


_DTYPES: Final[Mapping[str, str]] = {
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "DoubleStorage": "F64",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
_TENSOR = _Name("torch._utils", "_rebuild_tensor_v2")
_PARAMETER = _Name("torch._utils", "_rebuild_parameter")
_DICTIONARY = _Name("collections", "OrderedDict")
_KNOWN: Final = {_TENSOR, _PARAMETER, _DICTIONARY, *(_Name("torch", n) for n in _DTYPES)}

_IGNORED: Final = frozenset({"PROTO", "FRAME"})
_CONSTANTS: Final[Mapping[str, object]] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS: Final = frozenset(
    {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BININT", "BININT1", "BININT2", "LONG1"}
)
_TUPLES: Final = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_tensors(data: bytes) -> dict[str, StoredTensor]:
    """The tensors that a pickled dictionary names; raises UnreadablePickle."""
    found = _Machine().run(data)
    if not isinstance(found, dict):
        raise UnreadablePickle(f"holds {_shown(found)} and not tensors by name")
    for name, value in found.items():
        if not isinstance(value, StoredTensor):
            raise UnreadablePickle(f"holds {_shown(value)} under {name!r:.80}, not a tensor")
    return found


class _Machine:
    """One run of the interpreter."""

    def __init__(self) -> None:
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}
        self._do: Mapping[str, Callable[[], None]] = {
            "MARK": lambda: self._marks.append(len(self._stack)),
            "EMPTY_DICT": lambda: self._stack.append({}),
            "TUPLE": lambda: self._stack.append(tuple(self._above_mark())),
            "MEMOIZE": lambda: self._put(len(self._memo)),
            "SETITEM": lambda: self._set_items([*reversed((self._pop(), self._pop()))]),
            "SETITEMS": lambda: self._set_items(self._above_mark()),
            "STACK_GLOBAL": self._stack_global,
            "BINPERSID": lambda: self._stack.append(_storage(self._pop())),
            "REDUCE": self._reduce,
            "BUILD": self._build,
        }

    def run(self, data: bytes) -> object:
        try:
            for opcode, argument, _ in pickletools.genops(data):
                if opcode.name == "STOP":
                    return self._pop()
                self._step(opcode.name, argument)
        # What genops raises where it cannot go on; of odd escapes in texts it warns.
        except (ValueError, OverflowError, Warning) as e:
            raise UnreadablePickle(f"is damaged: {e}") from e
        raise UnreadablePickle("is damaged: it does not end")

    def _step(self, opcode: str, argument: object) -> None:
        if opcode in self._do:
            self._do[opcode]()
        elif opcode in _LITERALS:
            self._stack.append(argument)
        elif opcode in _CONSTANTS:
            self._stack.append(_CONSTANTS[opcode])
        elif opcode in _TUPLES:
            items = [self._pop() for _ in range(_TUPLES[opcode])]
            self._stack.append(tuple(reversed(items)))
        elif opcode in ("BINPUT", "LONG_BINPUT") and isinstance(argument, int):
            self._put(argument)
        elif opcode in ("BINGET", "LONG_BINGET") and isinstance(argument, int):
            if argument not in self._memo:
                raise UnreadablePickle("is damaged: it reads what it has not remembered")
            self._stack.append(self._memo[argument])
        elif opcode == "GLOBAL":
            module, _, name = str(argument).partition(" ")
            self._stack.append(_known(module, name))
        elif opcode not in _IGNORED:
            raise UnreadablePickle(f"has the instruction {opcode}, which no tensor needs")

    def _pop(self) -> object:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise UnreadablePickle("is damaged: it takes what it has not put")
        return self._stack.pop()

    def _above_mark(self) -> list[object]:
        if not self._marks:
            raise UnreadablePickle("is damaged: it has no mark")
        mark = self._marks.pop()
        items = self._stack[mark:]
        del self._stack[mark:]
        return items

    def _put(self, index: int) -> None:
        value = self._pop()
        self._stack.append(value)
        self._memo[index] = value

    def _set_items(self, items: list[object]) -> None:
        target = self._pop()
        if not isinstance(target, dict) or len(items) % 2:
            raise UnreadablePickle(f"sets items of {_shown(target)}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                raise UnreadablePickle(f"names something by {_shown(key)}, not by a text")
            if key in target:
                raise UnreadablePickle(f"names {key!r:.80} twice")
            target[key] = value
        self._stack.append(target)

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        self._stack.append(_known(str(module), str(name)))

    def _reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        if not isinstance(arguments, tuple):
            raise UnreadablePickle("is damaged: arguments are not a tuple")
        if function == _DICTIONARY and not arguments:
            self._stack.append({})
        elif function == _TENSOR:
            self._stack.append(_tensor(arguments))
        elif function == _PARAMETER and arguments and isinstance(arguments[0], StoredTensor):
            self._stack.append(arguments[0])
        else:
            raise UnreadablePickle(f"calls {_shown(function)} with what it does not take")

    def _build(self) -> None:
        """A state dictionary's own attributes are versions of modules, which no weight needs."""
        self._pop()
        target = self._pop()
        if not isinstance(target, dict):
            raise UnreadablePickle(f"sets attributes of {_shown(target)}")
        self._stack.append(target)


def _known(module: str, name: str) -> _Name:
    found = _Name(module, name)
    if found not in _KNOWN:
        raise UnreadablePickle(f"refers to {f'{module}.{name}':.80}, which no tensor needs")
    return found


def _storage(identity: object) -> Storage:
    """Of ``("storage", class, key, device, elements)``."""
    match identity:
        case ("storage", _Name("torch", name), str(key), str(), int(count)) if (
            name in _DTYPES and _is_extent(count)
        ):
            return Storage(_DTYPES[name], key, count)
    raise UnreadablePickle("is damaged: a storage is not described as one")


def _tensor(arguments: tuple[object, ...]) -> StoredTensor:
    """Of ``(storage, offset, shape, strides, requires_grad, hooks[, metadata])``."""
    match arguments:
        case (Storage() as storage, int(offset), tuple() as shape, tuple() as strides, *_):
            sizes = [n for n in (offset, *shape, *strides) if _is_extent(n)]
            if len(sizes) == 1 + 2 * len(shape) and len(shape) == len(strides) <= _MAX_DIMENSIONS:
                count = 1
                for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
                    if extent != 1 and stride != count and 0 not in shape:
                        raise UnreadablePickle(
                            "has a tensor with gaps or turned axes; save it as .contiguous()"
                        )
                    count *= extent
                if offset + count <= storage.elements:
                    return StoredTensor(storage, offset, shape)
    raise UnreadablePickle("is damaged: a tensor does not fit its storage")


def _is_extent(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_EXTENT


def _shown(value: object) -> str:
    if isinstance(value, _Name):
        return f"{value.module}.{value.name}"
    return "a tensor" if isinstance(value, StoredTensor) else f"a {type(value).__name__}"
