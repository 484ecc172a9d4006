"""Reads the pickle in a file of ``torch.save``: tensors by name, or an error.

A pickle is a program that may call anything. This is the standard library's unpickler with nearly
everything taken out: the few instructions that a dictionary of tensors needs, a handful of names,
which stand for functions of this file, and no dictionary but one that takes texts for keys. So
nothing is ever run, walked through or hashed that the pickle makes up, and the work is in
proportion to its bytes.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

MAX_PICKLE: Final = 1 << 20
"""Bytes. A tensor takes two hundred."""
_MAX_DIMENSIONS: Final = 8
_MAX_EXTENT: Final = 2**48


class UnreadablePickle(Exception):
    """The pickle is damaged, or holds something else than named tensors; the message says what."""


class Storage(NamedTuple):
    """Elements that tensors are views of; ``key`` names the archive's entry of them."""

    dtype: str
    """Type of its numbers, by the names of safetensors."""
    key: str
    elements: int


class StoredTensor(NamedTuple):
    """``shape`` elements of ``storage`` from ``offset`` on, without gaps, the last axis fastest."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]


class _StorageType(NamedTuple):
    dtype: str


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
_INSTRUCTIONS: Final = """
    PROTO FRAME MARK STOP EMPTY_DICT EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 SETITEM SETITEMS
    NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINUNICODE SHORT_BINUNICODE BINUNICODE8
    BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL BINPERSID REDUCE BUILD
"""
_CODES: Final[Mapping[int, str]] = {ord(code.code): code.name for code in pickletools.opcodes}


def read_tensors(data: bytes) -> dict[str, StoredTensor]:
    """The tensors that a pickled dictionary names; raises UnreadablePickle."""
    if len(data) > MAX_PICKLE:
        raise UnreadablePickle(f"has a pickle of {len(data)} bytes, at most {MAX_PICKLE} are read")
    try:
        found = _Unpickler(io.BytesIO(data)).load()
    except UnreadablePickle:
        raise
    # What the unpickler raises, depending on where in an instruction bytes are missing or wrong.
    except (pickle.UnpicklingError, struct.error, EOFError, LookupError, TypeError) as e:
        raise UnreadablePickle(f"is damaged: {_short(e)}") from e
    except (ValueError, AttributeError, OverflowError, AssertionError) as e:
        raise UnreadablePickle(f"is damaged: {_short(e)}") from e
    if not isinstance(found, _Named):
        raise UnreadablePickle(f"holds {_shown(found)} and not tensors by name")
    for name, value in found.items():
        if not isinstance(value, StoredTensor):
            raise UnreadablePickle(f"holds {_shown(value)} under {name!r:.80}, not a tensor")
    return dict(found)


class _Named(dict[str, Any]):
    """The only kind of dictionary that there is."""

    def __setitem__(self, key: object, value: object) -> None:
        if not isinstance(key, str):
            raise UnreadablePickle(f"names something by {_shown(key)}, not by a text")
        if key in self:
            raise UnreadablePickle(f"names {key!r:.80} twice")
        super().__setitem__(key, value)


class _Instructions(dict[int, Callable[[Any], None]]):
    """The unpickler's code for each instruction that is allowed."""

    def __missing__(self, code: int) -> Callable[[Any], None]:
        if code not in _CODES:
            raise UnreadablePickle(f"is damaged: {code:#04x} is no instruction")
        raise UnreadablePickle(f"has the instruction {_CODES[code]}, which no tensor needs")


# The one that is written in Python: the other puts items into dictionaries by itself, and to hash
# a key of nested tuples can take for ever, or end the process.
class _Unpickler(pickle._Unpickler):
    stack: list[Any]
    append: Callable[[object], None]
    dispatch = _Instructions(
        (code, pickle._Unpickler.dispatch[code])
        for code, name in _CODES.items()
        if name in _INSTRUCTIONS.split()
    )

    def find_class(self, module: str, name: str) -> object:
        match module, name:
            case "collections", "OrderedDict":
                return _Named
            case "torch._utils", "_rebuild_tensor_v2":
                return _tensor
            case "torch._utils", "_rebuild_parameter":
                return _parameter
            case "torch", str() if name in _DTYPES:
                return _StorageType(_DTYPES[name])
        raise UnreadablePickle(f"refers to {f'{module}.{name}':.80}, which no tensor needs")

    def persistent_load(self, pid: object) -> Storage:
        """Return the Storage that ``("storage", class, key, device, elements)`` describes."""
        match pid:
            case ("storage", _StorageType(dtype=dtype), str(key), str(), int(count)) if _is_extent(
                count
            ):
                return Storage(dtype, key, count)
        raise UnreadablePickle("is damaged: a storage is not described as one")

    def _empty_dict(self) -> None:
        self.append(_Named())

    def _reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack[-1]
        if not isinstance(arguments, tuple):
            raise UnreadablePickle("is damaged: arguments are not a tuple")
        if function not in _FUNCTIONS or (function is _Named and arguments):
            raise UnreadablePickle(f"calls {_shown(function)} with what it does not take")
        self.stack[-1] = function(*arguments)

    def _build(self) -> None:
        """A state dictionary's own attributes are versions of modules, which no weight needs."""
        self.stack.pop()
        if not isinstance(self.stack[-1], _Named):
            raise UnreadablePickle(f"sets attributes of {_shown(self.stack[-1])}")

    dispatch[pickle.EMPTY_DICT[0]] = _empty_dict
    dispatch[pickle.REDUCE[0]] = _reduce
    dispatch[pickle.BUILD[0]] = _build


def _tensor(*arguments: object) -> StoredTensor:
    """Return the tensor that torch's ``_rebuild_tensor_v2`` makes of these arguments.

    They are ``(storage, offset, shape, strides, requires_grad, hooks[, metadata])``.
    """
    match arguments:
        case (Storage() as storage, int(offset), tuple() as shape, tuple() as strides, *_) if len(
            shape
        ) == len(strides) <= _MAX_DIMENSIONS and all(map(_is_extent, (offset, *shape, *strides))):
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


def _parameter(*arguments: object) -> StoredTensor:
    if arguments and isinstance(arguments[0], StoredTensor):
        return arguments[0]
    raise UnreadablePickle("is damaged: a parameter is of no tensor")


_FUNCTIONS: Final = (_Named, _tensor, _parameter)


def _is_extent(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_EXTENT


def _short(error: BaseException) -> str:
    return f"{str(error) or type(error).__name__:.80}".replace("\n", " ")


def _shown(value: object) -> str:
    if isinstance(value, StoredTensor):
        return "a tensor"
    return f"a {getattr(value, '__name__', type(value).__name__).strip('_').lower()}"
