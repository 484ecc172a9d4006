"""What was measured is kept with the weights, used where it holds and measured anew elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.artifact_engines import start

from penstock.artifact.format import MANIFEST, Artifact, Manifest, write_manifest
from penstock.artifact.lock import locked
from penstock.artifact.store import ArtifactStore
from penstock.artifact.tuned import MOST_TUNINGS, decode_tunings, encode_tunings
from penstock.errors import ArtifactError
from penstock.interface.tuning import Choice, Circumstances, TunedProduct, Tuning, put_among

PACKED = ["open weights", "pack weights", "tune products", "keep artifact"]
RESTORED = ["restore weights"]
MEASURED = ["restore weights", "tune products"]


@pytest.fixture(autouse=True)
def _every_product_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.backends.cpu.bind.LEAST_BYTES", 1)
    monkeypatch.setattr("penstock.backends.cpu.tune._LEAST_S", 0.1)
    monkeypatch.setattr("penstock.artifact.session.WORTHWHILE_S", 0.0)


def kept(root: Path) -> tuple[Tuning, ...]:
    (entry,) = ArtifactStore(root).entries()
    assert entry.manifest is not None, entry.problem
    return decode_tunings(entry.manifest.tuned)


def rewrite(root: Path, change: Callable[[Manifest], Manifest]) -> None:
    """Another manifest in place of the one that is there, sealed as any."""
    (entry,) = ArtifactStore(root).entries()
    with Artifact(root / entry.name) as artifact:
        manifest = change(artifact.manifest)
    (root / entry.name / MANIFEST).unlink()
    write_manifest(root / entry.name, manifest)


def retuned(root: Path, change: Callable[[Tuning], Tuning]) -> None:
    (tuning,) = kept(root)
    rewrite(root, lambda m: msgspec.structs.replace(m, tuned=encode_tunings([change(tuning)])))


@pytest.mark.parametrize(
    "kind", [{"dtype": "float32"}, {"quantization": "int8"}, {"quantization": "int4"}], ids=str
)
def test_measured_once(configure: Any, tmp_path: Path, kind: dict[str, Any]) -> None:
    model, root = configure(), tmp_path / "engines"
    first = start(model, root, **kind)
    assert first.phases == PACKED
    (tuning,) = kept(root)
    assert first.notes[0] == f"tuned {tuning.summary()}"
    assert tuning.circumstances.threads == 2
    # joined queries, keys and values; gate and up; two that lead back; the head
    assert len(tuning.products) == 5
    second = start(model, root, **kind)
    assert second.phases == RESTORED
    assert second.notes[-1] == f"tuned {tuning.summary()}, as kept"
    assert second.logits == first.logits
    assert kept(root) == (tuning,)


def test_what_was_kept_is_what_products_do(
    configure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every choice reaches every matrix of its product."""
    model, root = configure(), tmp_path / "engines"
    first = start(model, root, quantization="int4")
    # Whatever was measured here, say something that is no default.
    retuned(
        root,
        lambda t: msgspec.structs.replace(
            t,
            products=tuple(
                TunedProduct(p.product, (Choice("streamed_rows", 7, 1, 0.1),)) for p in t.products
            ),
        ),
    )
    seen = []

    def close(self: Any) -> None:
        tuner = self.tunable
        for product in tuner._products:
            for matrix in product.matrices:
                seen.append(self._native.parameters(matrix)["streamed_rows"][0])
        self._native.close()

    monkeypatch.setattr("penstock.backends.cpu.executor.CpuExecutor.close", close)
    second = start(model, root, quantization="int4")
    assert second.phases == RESTORED
    assert seen == [7] * (2 * 4 + 1)
    assert second.logits == first.logits


def test_each_number_of_threads_is_measured(configure: Any, tmp_path: Path) -> None:
    model, root = configure(), tmp_path / "engines"
    first = start(model, root)
    other = start(model, root, threads=1)
    assert other.phases == MEASURED
    assert any("was tuned for 2 threads of" in note for note in other.notes)
    assert other.logits == first.logits
    assert [t.circumstances.threads for t in kept(root)] == [2, 1]
    for threads in (1, 2):
        assert start(model, root, threads=threads).phases == RESTORED


def test_another_machine_measures_again(configure: Any, tmp_path: Path) -> None:
    model, root = configure(), tmp_path / "engines"
    start(model, root)
    elsewhere = Circumstances("another CPU", 2)
    retuned(root, lambda t: msgspec.structs.replace(t, circumstances=elsewhere))
    assert start(model, root).phases == MEASURED
    assert elsewhere in [t.circumstances for t in kept(root)]
    assert start(model, root).phases == RESTORED


@pytest.mark.parametrize(
    "section",
    [
        b"{}",
        b"null",
        b'{"draft_tokens": {"value": 4, "figure": 31.5, "unit": "tokens/s"}}',
        b'[{"circumstances": {"cpu": "x", "threads": "two"}, "seconds": 1, "products": []}]',
        b'[{"circumstances": {"cpu": "x", "threads": 2}, "seconds": 1, "products": [], "new": 1}]',
        b"[[[[]]]]",
    ],
)
def test_a_section_of_another_version(configure: Any, tmp_path: Path, section: bytes) -> None:
    model, root = configure(), tmp_path / "engines"
    first = start(model, root)
    rewrite(root, lambda m: msgspec.structs.replace(m, tuned=msgspec.Raw(section)))
    second = start(model, root)
    assert second.phases == MEASURED
    assert any("what it says of tuning is of another version" in note for note in second.notes)
    assert second.logits == first.logits
    assert start(model, root).phases == RESTORED


@pytest.mark.parametrize(
    ("products", "why"),
    [
        ((), "other products"),
        ((TunedProduct("int4 7x7", ()),), "other products"),
        (None, "colour 1 for"),
    ],
)
def test_a_tuning_of_other_products(
    configure: Any, tmp_path: Path, products: tuple[TunedProduct, ...] | None, why: str
) -> None:
    model, root = configure(), tmp_path / "engines"
    first = start(model, root)

    def change(tuning: Tuning) -> Tuning:
        strange = tuple(
            TunedProduct(p.product, (Choice("colour", 1, 1, 0.1),)) for p in tuning.products
        )
        return msgspec.structs.replace(tuning, products=strange if products is None else products)

    retuned(root, change)
    second = start(model, root)
    assert second.phases == MEASURED
    assert any("cannot be used: it" in note and why in note for note in second.notes)
    assert second.logits == first.logits
    assert start(model, root).phases == RESTORED


def test_a_changed_byte_is_damage(configure: Any, tmp_path: Path) -> None:
    """The manifest's digest covers what it says of tuning."""
    model, root = configure(), tmp_path / "engines"
    first = start(model, root)
    (entry,) = ArtifactStore(root).entries()
    manifest = root / entry.name / MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b'"threads": 2', b'"threads": 3'))
    second = start(model, root)
    assert second.phases == PACKED
    assert second.logits == first.logits


def test_starts_that_keep_nothing_measure_nothing(configure: Any, tmp_path: Path) -> None:
    model, root = configure(), tmp_path / "engines"
    assert "tune products" not in start(model, root, keeping="never").phases
    assert "tune products" not in start(model, None, artifact=False, keeping="never").phases
    start(model, root)
    assert start(model, root, threads=1, keeping="never").phases == RESTORED
    assert start(model, root, keeping="never").notes[-1].endswith(", as kept")
    assert len(kept(root)) == 1


def test_what_cannot_be_kept(
    configure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, root = configure(), tmp_path / "engines"
    first = start(model, root)
    (entry,) = ArtifactStore(root).entries()
    with locked(root / (entry.name + ".lock"), wait=True):
        busy = start(model, root, threads=1)
    assert busy.phases == MEASURED
    assert busy.notes[-1].startswith("what was measured is not kept: another process is at work")
    monkeypatch.setattr("penstock.artifact.session.os.access", lambda path, mode: False)
    closed = start(model, root, threads=1)
    assert closed.phases == RESTORED
    assert closed.notes[-1].startswith("not tuned, since ")
    assert busy.logits == closed.logits == first.logits
    with pytest.raises(ArtifactError, match="No such file"):
        ArtifactStore(root).add_tuning("absent", kept(root)[0])


def test_products_that_are_too_small(
    configure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.backends.cpu.bind.LEAST_BYTES", 1 << 20)
    model, root = configure(), tmp_path / "engines"
    assert start(model, root).phases == ["open weights", "pack weights", "keep artifact"]
    assert start(model, root).phases == RESTORED
    assert kept(root) == ()


def test_only_the_latest_are_kept() -> None:
    def tuning(threads: int, seconds: float = 1.0) -> Tuning:
        return Tuning(Circumstances("a CPU", threads), seconds, ())

    many: tuple[Tuning, ...] = ()
    for threads in range(1, MOST_TUNINGS + 4):
        many = put_among(many, tuning(threads), MOST_TUNINGS)
    assert [t.circumstances.threads for t in many] == list(range(4, MOST_TUNINGS + 4))
    again = put_among(many, tuning(6, 2.0), MOST_TUNINGS)
    assert again[-1] == tuning(6, 2.0)
    assert len(again) == MOST_TUNINGS
    assert decode_tunings(encode_tunings(again)) == again


def test_the_level_of_notes(
    configure: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What went as it should is no warning."""
    from penstock.config import EngineConfig
    from penstock.engine.loader import load, plan_engine

    caplog.set_level(logging.INFO, "penstock.artifact")
    options = {"load_format": "dummy", "artifact_dir": str(tmp_path / "engines"), "threads": 2}
    engine_plan = plan_engine(EngineConfig(model=str(configure()), **options))
    for _ in range(2):
        load(engine_plan, keeping="always").close()
    tuned = [r for r in caplog.records if r.message.startswith("tuned ")]
    assert [r.levelno for r in tuned] == [logging.INFO, logging.INFO]


@pytest.mark.parametrize(
    ("field", "number"),
    [("saved", "1e308"), ("value", "1e400"), ("rows", str(2**40)), ("threads", "0")],
)
def test_numbers_that_nothing_was_measured_in(field: str, number: str) -> None:
    words = {"saved": "0.5", "value": "1", "rows": "1", "threads": "2"} | {field: number}
    text = (
        '[{"circumstances": {"cpu": "x", "threads": %(threads)s}, "seconds": 1.0, "products": '
        '[{"product": "a", "choices": [{"parameter": "p", "value": %(value)s, "rows": %(rows)s, '
        '"saved": %(saved)s}]}]}]'
    )
    assert decode_tunings(msgspec.Raw((text % {**words, field: "1"}).encode()))
    with pytest.raises(ArtifactError, match="another version"):
        decode_tunings(msgspec.Raw((text % words).encode()))
