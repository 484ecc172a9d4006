"""Files of torch.save: values equal torch's, nothing is ever run, damage only ever raises."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import WeightError
from penstock.weights.torch_file import TorchFile
from penstock.weights.torch_pickle import UnreadablePickle, read_tensors

torch = pytest.importorskip("torch", reason="writes the files")

# pickletools warns of odd escapes in texts.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")


@pytest.fixture(scope="module")
def state() -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = torch.nn.Sequential(
            torch.nn.Linear(5, 4), torch.nn.Linear(4, 3, dtype=torch.bfloat16)
        )
        state: dict[str, Any] = layers.state_dict()
        state["half"] = torch.randn(3, 2, 2).half()
        state["row"] = torch.randn(10, 4)[3]  # of a larger storage
        state["parameter"] = torch.nn.Parameter(torch.randn(2, 2))
        state["shared"] = state["parameter"]
        state["one"] = torch.randn(3, 1, 5)[:, :, :]
        state["scalar"] = torch.tensor(2.5)
        state["empty"] = torch.zeros(0, 3)
        state["ids"] = torch.arange(-2, 5)
        state["flags"] = torch.tensor([True, False])
    return state


def save(path: Path, value: Any, **options: Any) -> Path:
    torch.save(value, path, **options)
    return path


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_values_are_torchs(tmp_path: Path, state: dict[str, Any], protocol: int) -> None:
    file = TorchFile(save(tmp_path / "a.pt", state, pickle_protocol=protocol))
    assert list(file.tensors) == list(state)
    for name, tensor in state.items():
        if name in ("ids", "flags"):
            continue
        view = file.view(name)
        assert view.shape == tuple(tensor.shape)
        assert str(view.dtype) == str(tensor.dtype).removeprefix("torch.")
        assert not view.flags.writeable or view.size == 0
        expected = tensor.detach().float().numpy()
        np.testing.assert_array_equal(view.astype(np.float32), expected)
    np.testing.assert_array_equal(file.integers("ids"), state["ids"].numpy())
    with pytest.raises(WeightError, match="I64, which cannot be read"):
        file.view("ids")
    with pytest.raises(WeightError, match="F32; it must be"):
        file.integers("row")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"x": print}, "refers to __builtin__.print"),
        ({"x": OrderedDict(a=1)}, "under 'x', not a tensor"),
        ({"x": [1]}, "EMPTY_LIST"),
        ({"x": 1.5}, "BINFLOAT"),
        ({3: 3}, "by a int"),
        ("text", "a str and not tensors"),
        ({"x": Path("a")}, "pathlib"),
    ],
)
def test_what_is_no_tensor_is_refused(tmp_path: Path, value: Any, problem: str) -> None:
    with pytest.raises(WeightError, match=problem):
        TorchFile(save(tmp_path / "a.pt", value))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: {"x": torch.randn(3, 4).T}, r"save it as \.contiguous\(\)"),
        (lambda: {"x": torch.randn(6)[::2]}, r"save it as \.contiguous\(\)"),
        (lambda: {"x": torch.randn(3, 4).to_sparse()}, "_rebuild_sparse_tensor"),
        (lambda: {"x": torch.randn(3, dtype=torch.complex64)}, "ComplexFloatStorage"),
        (lambda: torch.randn(3), "holds a tensor and not tensors by name"),
    ],
)
def test_other_tensors_are_refused(tmp_path: Path, make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(WeightError, match=problem):
        TorchFile(save(tmp_path / "a.pt", make()))


class Runs:
    """A pickle that touches a file when it is run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_run(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    data = pickle.dumps({"x": Runs(touched)}, protocol=2)
    pickle.loads(data)
    assert touched.exists()
    touched.unlink()
    with pytest.raises(UnreadablePickle, match="refers to"):
        read_tensors(data)
    with pytest.raises(WeightError, match="refers to"):
        TorchFile(save(tmp_path / "a.pt", {"x": Runs(touched)}))
    assert not touched.exists()


def test_old_and_foreign_files_are_refused(tmp_path: Path, state: dict[str, Any]) -> None:
    path = save(tmp_path / "old.pt", state, _use_new_zipfile_serialization=False)
    with pytest.raises(WeightError, match=r"since torch 1\.6"):
        TorchFile(path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(WeightError, match="git lfs pull"):
        TorchFile(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "hello")
    with pytest.raises(WeightError, match="0 pickles"):
        TorchFile(path)
    with pytest.raises(WeightError, match="cannot read"):
        TorchFile(tmp_path / "none.pt")


def repacked(path: Path, change: Callable[[zipfile.ZipInfo, bytes], bytes | None]) -> Path:
    """The archive with some entries' bytes changed, or left out, stored as torch stores them."""
    changed = path.with_name("changed.pt")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(changed, "w") as new:
        for info in old.infolist():
            content = change(info, old.read(info))
            if content is not None:
                new.writestr(info, content)
    return changed


def test_archives_that_disagree_are_refused(tmp_path: Path, state: dict[str, Any]) -> None:
    path = save(tmp_path / "a.pt", state)

    def check(problem: str, change: Callable[[zipfile.ZipInfo, bytes], bytes | None]) -> None:
        with pytest.raises(WeightError, match=problem):
            TorchFile(repacked(path, change))

    TorchFile(repacked(path, lambda info, content: content))
    first = "/data/0"
    check("lacks the bytes", lambda i, c: None if i.filename.endswith(first) else c)
    check("lacks the bytes", lambda i, c: c[:-4] if i.filename.endswith(first) else c)
    check("big-endian", lambda i, c: b"big" if i.filename.endswith("byteorder") else c)

    def compress(info: zipfile.ZipInfo, content: bytes) -> bytes:
        info.compress_type = zipfile.ZIP_DEFLATED
        return content

    check("compressed", compress)


@pytest.fixture(scope="module")
def saved(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def pickled(saved: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        return archive.read("archive/data.pkl")


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_damaged_pickles_raise_or_read(pickled: bytes, data: st.DataObject) -> None:
    """Whatever bytes are changed, cut or put in."""
    content = bytearray(pickled)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 1))
        kind = data.draw(st.sampled_from(["change", "cut", "insert"]))
        if kind == "change":
            content[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del content[at : at + data.draw(st.integers(1, 8))]
        else:
            content[at:at] = data.draw(st.binary(min_size=1, max_size=8))
        if not content:
            break
    try:
        tensors = read_tensors(bytes(content))
    except UnreadablePickle:
        return
    for tensor in tensors.values():
        count = int(np.prod(tensor.shape, dtype=object))
        assert 0 <= tensor.offset <= tensor.offset + count <= tensor.storage.elements


@settings(deadline=None, max_examples=300)
@given(content=st.binary(max_size=60))
def test_any_bytes_raise_or_read(content: bytes) -> None:
    try:
        tensors = read_tensors(content)
    except UnreadablePickle:
        return
    assert tensors == {}  # a tensor takes more bytes than these


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_damaged_files_raise_or_read(folder: Path, saved: bytes, data: st.DataObject) -> None:
    """Any byte of an archive may be damaged, the directory's included; what is read lies in the
    file."""
    path = folder / "damaged.pt"
    content = bytearray(saved)
    # The directory is at the end, and the pickle at the start.
    far = data.draw(st.booleans())
    for _ in range(data.draw(st.integers(1, 4))):
        distance = data.draw(st.integers(0, len(content) // 2 - 1))
        content[-1 - distance if far else distance] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.sampled_from([len(content), len(content) - 7]))])
    try:
        file = TorchFile(path)
    except WeightError:
        return
    for name, tensor in file.tensors.items():
        assert 0 <= tensor.start <= tensor.stop <= len(content)
        if tensor.element is not None:
            assert file.view(name).shape == tensor.shape


def code(*parts: bytes | str) -> bytes:
    """A pickle of instructions; texts are pushed."""
    whole = [b"\x80\x04"]
    for part in parts:
        if isinstance(part, str):
            part = b"X" + struct.pack("<I", len(part.encode())) + part.encode()
        whole.append(part)
    return b"".join(whole) + b"."


def laughs(levels: int) -> bytes:
    """A tuple of two references to a tuple of two references to ..."""
    out = b")q\x00"
    for i in range(levels):
        out += b"h%ch%c\x86q%c" % (i, i, i + 1)
    return out


DEEP = b")" + b"\x85" * 900_000

BOMBS: dict[str, bytes] = {
    "name of doubled tuples": code(laughs(60), "x", b"\x93"),
    "module of doubled tuples": code("x", laughs(60), b"\x93"),
    "doubled tuples": code(laughs(60)),
    "key of doubled tuples": code(b"}", laughs(60), "x", b"s"),
    "keys of doubled tuples": code(b"}(", laughs(60), "x", b"u"),
    "value of doubled tuples": code(b"}", "x", laughs(60), b"s"),
    "storage of doubled tuples": code(laughs(60), b"Q"),
    "called doubled tuples": code(laughs(60), b")R"),
    "arguments of doubled tuples": code(b"ctorch._utils\n_rebuild_tensor_v2\n", laughs(60), b"R"),
    "attributes of doubled tuples": code(b"}", laughs(60), b"b"),
    "deep tuples": code(DEEP),
    "key of deep tuples": code(b"}", DEEP, "x", b"s"),
    "value of deep tuples": code(b"}", "x", DEEP, b"s"),
    "name of deep tuples": code("x", DEEP, b"\x93"),
    "storage of deep tuples": code(DEEP, b"Q"),
    "called deep tuples": code(DEEP, b")R"),
    "arguments of deep tuples": code(b"ctorch._utils\n_rebuild_tensor_v2\n", DEEP, b"R"),
    "marks": code(b"(" * 900_000),
    "long text": code(b"X\xff\xff\xff\xff"),
    "longer text": code(b"\x8d" + b"\xff" * 7 + b"\x7f"),
    "longest text": code(b"\x8d" + b"\xff" * 8),
    "long bytes": code(b"B\xff\xff\xff\xff"),
    "longest bytes": code(b"\x8e" + b"\xff" * 7 + b"\x7f"),
    "long number": code(b"\x8b\xff\xff\xff\x7f"),
    "negative number": code(b"\x8b\xff\xff\xff\xff"),
    "decimal": code(b"I" + b"9" * 900_000 + b"\n"),
    "longest frame": code(b"\x95" + b"\xff" * 8 + b"}"),
    "protocol": b"\x80\xff}.",
    "dictionary in itself": code(b"}q\x00", "x", b"h\x00s"),
    "many pushes": code(b"N" * 900_000),
    "too large": code(b"N" * 3_000_000),
    "no end": code(b"}")[:-1],
    "two values": code(b"}", "x", "y", b"R"),
    "calls a text": code("x", b")R"),
    "calls a storage": code(b"ctorch\nFloatStorage\n)R"),
    "calls a dictionary with texts": code(b"ccollections\nOrderedDict\n", "xy", b"\x85R"),
    "sets an item of a text": code("x", "y", b"Ns"),
    "an odd number of items": code(b"}(", "x", b"u"),
    "a name with dots": code("collections", "OrderedDict.__init__.__globals__", b"\x93"),
    "a lone surrogate": code(b"}X\x03\x00\x00\x00\xed\xa0\x80Ns"),
    "text that is none": code(b"}X\x02\x00\x00\x00\xff\xfeNs"),
}


@pytest.mark.thinned(11)
@pytest.mark.parametrize("case", BOMBS)
def test_bombs_end(case: str) -> None:
    with pytest.raises(UnreadablePickle) as caught:
        read_tensors(BOMBS[case])
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("odd", [b"r\xff\xff\xff\xff", b"\x95" + b"\xff" * 7 + b"\x7f"])
def test_numbers_that_ask_for_memory(odd: bytes) -> None:
    """A place in the memo, and a frame that is longer than the file."""
    assert read_tensors(code(b"}", odd)) == {}


OPCODES = st.sampled_from(
    [bytes([b]) for b in b"}()t\x85\x86\x87suRbQ\x93N\x88\x89\x94"]
    + [b"h\x00", b"h\x01", b"q\x00", b"q\x01", b"K\x07", b"ccollections\nOrderedDict\n"]
    + [b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch._utils\n_rebuild_parameter\n"]
    + [b"ctorch\nFloatStorage\n", b"\x8c\x07storage", b"\x8c\x010", b"\x8c\x03cpu", b"\x8a\x00"]
)


@settings(deadline=None, max_examples=500)
@given(parts=st.lists(OPCODES, max_size=40))
def test_any_program_raises_or_reads(parts: list[bytes]) -> None:
    try:
        tensors = read_tensors(code(*parts))
    except UnreadablePickle:
        return
    assert all(type(name) is str for name in tensors)


def test_large_directories_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(90):
            info = zipfile.ZipInfo(f"{i}")
            info.extra = b"\0\0\xf0\xff" + b"\0" * 65520
            archive.writestr(info, b"")
    with pytest.raises(WeightError, match="directory has"):
        TorchFile(path)


def test_an_empty_pickle_is_reported_by_the_name_of_its_error() -> None:
    with pytest.raises(UnreadablePickle, match=r"is damaged: \w+"):
        read_tensors(b"")
