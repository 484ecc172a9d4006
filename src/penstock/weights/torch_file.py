"""Reads files that ``torch.save`` writes: a zip of one pickle and of the tensors' bytes.

The standard library's unpickler reads the pickle with all but a few instructions taken out
(``weights/torch_pickle.py``); the bytes lie in the archive as they are and are mapped. Files from
before torch 1.6, which are no zips, are refused.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.errors import WeightError
from penstock.regular_file import open_regular
from penstock.weights.tensor_file import Tensor, TensorFile
from penstock.weights.torch_pickle import (
    MAX_PICKLE,
    StoredTensor,
    UnreadablePickle,
    read_tensors,
)

_MAX_READ: Final = 1 << 22
"""Bytes at a time, and so of the archive's directory, where a tensor takes a hundred."""
_LOCAL_HEADER: Final = 30  # bytes before name and extra field
_ITEM_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("BOOL", "U8", "I8"), 1),
    **dict.fromkeys(("F16", "BF16", "I16"), 2),
    **dict.fromkeys(("F32", "I32"), 4),
    **dict.fromkeys(("F64", "I64"), 8),
}


class _ZipBytes(io.FileIO):
    """A file of which zipfile reads no more at a time than an archive of tensors needs."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = max(os.fstat(self.fileno()).st_size - self.tell(), 0)
        if size > _MAX_READ:
            raise zipfile.BadZipFile(f"its directory has {size} bytes")
        return super().read(size)


class TorchFile(TensorFile):
    """One file: its tensors by name, and read-only views of them.

    Opening reads the pickle and the archive's directory alone.
    """

    def __init__(self, path: Path) -> None:
        try:
            with _ZipBytes(open_regular(path)) as file:
                super().__init__(path, os.fstat(file.fileno()).st_size)
                if file.read(8) == b"version ":
                    self._fail("is a Git LFS pointer, not the weights; run `git lfs pull`")
                with zipfile.ZipFile(file) as archive:
                    self.tensors = self._read(archive)
        except UnreadablePickle as e:
            raise WeightError(f"{path} {e}; convert it to safetensors, or download it again") from e
        except OSError as e:
            raise WeightError(f"cannot read {path}: {e.strerror or e}") from e
        except (
            zipfile.BadZipFile,
            zipfile.LargeZipFile,
            NotImplementedError,
            struct.error,
            ValueError,
            OverflowError,
            EOFError,
            LookupError,
        ) as e:
            raise WeightError(
                f"{path} is damaged, or not what torch.save has written since torch 1.6: {e}; "
                "convert it to safetensors, or download it again"
            ) from e

    def _read(self, archive: zipfile.ZipFile) -> dict[str, Tensor]:
        entries = {info.filename: info for info in archive.infolist()}
        pickles = [name for name in entries if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            self._fail(f"has {len(pickles)} pickles in its archive; torch.save writes one")
        folder = pickles[0].removesuffix("data.pkl")
        order = entries.get(f"{folder}byteorder")
        if order is not None and self._content(archive, order, 16) != b"little":
            self._fail("has big-endian tensors; save it again on a little-endian machine")
        stored = read_tensors(self._content(archive, entries[pickles[0]], MAX_PICKLE))
        return {
            name: self._tensor(
                archive, entries.get(f"{folder}data/{tensor.storage.key}"), name, tensor
            )
            for name, tensor in stored.items()
        }

    def _content(self, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes:
        self._start(archive, entry)
        if entry.file_size > most:
            self._fail(f"has {entry.file_size} bytes of {entry.filename!r:.80}, at most {most} are")
        return archive.read(entry)

    def _tensor(
        self,
        archive: zipfile.ZipFile,
        entry: zipfile.ZipInfo | None,
        name: str,
        tensor: StoredTensor,
    ) -> Tensor:
        storage = tensor.storage
        item = _ITEM_BYTES[storage.dtype]
        if entry is None or entry.file_size != storage.elements * item:
            self._fail(f"lacks the bytes of tensor {name!r:.80}; download it again")
        start = self._start(archive, entry) + tensor.offset * item
        count = item
        for extent in tensor.shape:
            count *= extent
        return Tensor(name, storage.dtype, tensor.shape, start, start + count)

    def _start(self, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
        """Where in the file the bytes of an entry begin."""
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            self._fail(f"has {entry.filename!r:.80} compressed; torch.save stores it as it is")
        assert archive.fp is not None
        archive.fp.seek(entry.header_offset)
        header = archive.fp.read(_LOCAL_HEADER)
        if len(header) < _LOCAL_HEADER or header[:4] != b"PK\3\4":
            raise zipfile.BadZipFile(
                f"entry {entry.filename!r:.80} is not where the directory says"
            )
        start: int = entry.header_offset + _LOCAL_HEADER + sum(struct.unpack("<HH", header[26:]))
        if start + entry.file_size > self._size:
            raise zipfile.BadZipFile(f"entry {entry.filename!r:.80} ends behind the file")
        return start
