import pytest

from rocbake import golden, lock, store
from rocbake.errors import BuildError, LockError
from rocbake.store import Store

A, B = "a" * 64, "b" * 64


@pytest.fixture
def kept(tmp_path):
    return Store(tmp_path / "artifacts")


@pytest.fixture
def entry(kept, put):
    return put(kept, key=A, files={"bin/x": b"1", "lib/y": b"2"}, layers=("one", "two"))


def recorded(checkout, entry):
    loaded = checkout.load()
    golden.record(loaded, [entry])
    return golden.find(loaded, entry.artifact)


def test_what_is_recorded_is_reproduced(checkout, entry):
    assert golden.find(checkout.load(), entry.artifact) is None

    record = recorded(checkout, entry)

    assert record.key == A
    assert record.archive == entry.artifact.archive.sha256
    assert sorted(record.files) == ["bin/x", "lib/y"]
    assert golden.compare(entry, record) is None


def test_gzip_is_known_by_the_tar_inside(checkout, entry):
    """Every deflate writes other bytes of the same tar."""
    packed = entry.artifact.archive.model_copy(update={"file_name": "tool.tar.gz"})
    here = store.Entry(entry.folder, entry.artifact.model_copy(update={"archive": packed}))
    elsewhere = packed.model_copy(update={"sha256": "e" * 64})
    there = store.Entry(entry.folder, here.artifact.model_copy(update={"archive": elsewhere}))
    other = packed.model_copy(update={"tar_sha256": "f" * 64})
    changed = store.Entry(entry.folder, here.artifact.model_copy(update={"archive": other}))
    record = recorded(checkout, entry).model_copy(update={"archive": packed.tar_sha256})

    assert packed.identity == packed.tar_sha256
    assert golden.compare(here, record) is None
    assert golden.compare(there, record) is None
    assert "expected sha256" in golden.compare(changed, record)


def test_recording_changes_neither_plan_nor_the_rest_of_the_lock(checkout, entry):
    before = checkout.plan().key
    tool = checkout.load().recipes["tool"]
    sources = lock.read_recipe(tool).sources

    recorded(checkout, entry)

    assert checkout.plan().key == before
    assert lock.read_recipe(tool).sources == sources


def test_record_of_another_key_does_not_count(checkout, entry):
    recorded(checkout, entry)

    other = entry.artifact.model_copy(update={"key": B})

    assert golden.find(checkout.load(), other) is None


def test_each_tag_is_recorded_beside_the_others(checkout, kept, entry, put):
    put(kept, key=B, tag="gfx1100")
    put(kept, name="sdk", key=B, tag="7.2.4", content=None)

    changes = golden.record(checkout.load(), kept.entries())

    assert sorted(changes) == ["sdk", "tool"]
    assert [line.partition(":")[0] for line in changes["tool"]] == ["gfx1100", "gfx1201"]
    tool = checkout.load().recipes["tool"]
    assert set(lock.read_recipe(tool).recorded) == {"gfx1201", "gfx1100"}
    sdk = lock.read_container(checkout.load().containers["sdk"]).recorded["7.2.4"]
    assert (sdk.archive, sdk.files) == (None, {})


def test_artifact_of_no_recipe_is_left_out(checkout, kept, put):
    put(kept, name="gone")

    with pytest.raises(LockError, match="nothing that these locks name"):
        golden.record(checkout.load(), kept.entries())


def test_damaged_artifact_is_not_recorded(checkout, kept, entry):
    entry.archive_path.write_bytes(b"damaged")

    with pytest.raises(BuildError, match="damaged since"):
        golden.record(checkout.load(), kept.entries())

    assert lock.read_recipe(checkout.load().recipes["tool"]).recorded == {}


def test_first_file_that_differs_is_named(checkout, kept, entry, put):
    record = recorded(checkout, entry)

    def again(files):
        return golden.compare(put(kept, key=A, content=b"2", files=files, layers=("one", "two")),
                              record)  # fmt: skip

    assert again({"bin/x": b"1", "lib/y": b"9"}).startswith("archive: lib/y: expected sha256 ")
    assert again({"bin/x": b"9", "lib/y": b"9"}).startswith("archive: bin/x: expected sha256 ")
    assert again({"bin/x": b"1"}).endswith("got no such file")
    assert "expected sha256 no such file" in again({"a": b"", "bin/x": b"1", "lib/y": b"2"})
    assert again({"bin/x": b"1", "lib/y": b"2"}).startswith("archive: expected sha256 ")


def test_first_layer_that_differs_is_named(checkout, entry):
    record = recorded(checkout, entry)

    def with_(**image):
        changed = entry.artifact.image.model_copy(update=image)
        artifact = entry.artifact.model_copy(update={"image": changed})
        return golden.compare(type(entry)(entry.folder, artifact), record)

    assert with_(layers=("one", "2")) == "image, layer 1: expected two, got 2"
    assert with_(layers=("one",)) == "image, layer 1: expected two, got no such layer"
    assert with_(config="x").startswith("image configuration: expected ")
    assert with_(manifest="x", size=0) is None


@pytest.mark.parametrize("part", ["bundled", "tests"])
def test_what_is_packed_beside_the_archive_is_recorded_and_compared(checkout, kept, put, part):
    entry = put(kept, key=A, with_bundle=b"x")
    record = recorded(checkout, entry)
    assert getattr(record, part) == getattr(entry.artifact, part).sha256
    assert golden.compare(entry, record) is None

    other = record.model_copy(update={part: "0" * 64})
    gone = record.model_copy(update={part: None})

    word = {"bundled": "bundled archive", "tests": "tests"}[part]
    assert golden.compare(entry, other).startswith(f"{word}: expected sha256 {'0' * 64}, got ")
    assert golden.compare(entry, gone).startswith(f"{word}: expected sha256 None, got ")
