import json
import os
import shutil

import pytest

from rocbake import digest, store
from rocbake.errors import BuildError, UsageError
from rocbake.store import Store

KEY = "0123456789ab" + "c" * 52
OTHER = "0123456789ab" + "d" * 52


@pytest.fixture
def kept(tmp_path):
    return Store(tmp_path / "artifacts")


def names(kept):
    return [
        f"{one.artifact.name}/{one.artifact.tag}/{one.artifact.built_at}" for one in kept.entries()
    ]


def test_no_store_has_no_artifacts(kept):
    assert kept.entries() == []
    assert kept.find("tool", "gfx1201", KEY) is None


def test_what_is_put_is_found(kept, put):
    entry = put(kept, key=KEY)

    assert kept.find("tool", "gfx1201", KEY) == entry
    assert kept.entries() == [entry]
    assert entry.folder == kept.root / "tool" / "gfx1201-0123456789ab"
    assert entry.archive_path.read_bytes() == b"archive"
    assert json.loads((entry.folder / "artifact.json").read_text())["schema"] == 1
    entry.check()


def test_another_key_tag_or_name_is_not_it(kept, put):
    put(kept, key=KEY)

    assert kept.find("tool", "gfx1201", "f" * 64) is None
    assert kept.find("tool", "gfx1201", OTHER) is None
    assert kept.find("tool", "gfx1100", KEY) is None
    assert kept.find("other", "gfx1201", KEY) is None


def test_newest_is_last(kept, put):
    put(kept, name="a", built_at="2026-11-02T00:00:00Z")
    put(kept, name="b", built_at="2026-11-01T00:00:00Z")
    put(kept, name="c", built_at="2026-11-03T00:00:00Z")

    assert [name[0] for name in names(kept)] == ["b", "a", "c"]


def test_second_build_takes_the_place_of_the_first(kept, put):
    first = put(kept, key=KEY, content=b"first", built_at="2026-11-01T00:00:00Z")
    (first.folder / "of the first").touch()

    second = put(kept, key=KEY, content=b"second", built_at="2026-11-02T00:00:00Z")

    assert kept.entries() == [second]
    assert second.archive_path.read_bytes() == b"second"
    assert not (second.folder / "of the first").exists()
    assert list((kept.root / ".work").iterdir()) == []


def test_what_is_being_written_is_never_listed(kept, put):
    entry = put(kept, key=KEY)
    for place in (".work/tool-gfx1201", ".work/old-tool-x", "tool/.gfx1100-0", ".hidden/x"):
        shutil.copytree(entry.folder, kept.root / place)
    shutil.copytree(entry.folder, kept.root / ".work/tool-gfx1201/product/tool")
    unfinished = kept.root / "tool" / "gfx1100-ffffffffffff"
    shutil.copytree(entry.folder, unfinished)
    (unfinished / "artifact.json").unlink()

    assert kept.entries() == [entry]
    assert kept.find("tool", "gfx1100", "f" * 64) is None


@pytest.mark.parametrize("step", ["rename", "sync", "record"])
def test_put_that_is_cut_off_leaves_nothing_or_the_old_one(kept, put, monkeypatch, step):
    class KilledError(BaseException):
        pass

    def killed(*_):
        raise KilledError

    first = put(kept, key=KEY, content=b"first")
    if step == "rename":
        monkeypatch.setattr(type(kept.root), "replace", killed)
    elif step == "sync":
        monkeypatch.setattr(store, "_sync", killed)
    else:
        monkeypatch.setattr(json, "dumps", killed)
    for key in (KEY, "f" * 64):
        with pytest.raises(KilledError):
            put(kept, key=key, content=b"second")

    assert kept.entries() == [first]
    assert first.archive_path.read_bytes() == b"first"


def test_files_are_on_the_disk_before_the_rename(kept, put, monkeypatch):
    seen = []
    real_sync, real_replace = store._sync, type(kept.root).replace
    monkeypatch.setattr(store, "_sync", lambda path: (seen.append(path.name), real_sync(path)))
    monkeypatch.setattr(
        type(kept.root),
        "replace",
        lambda self, to: (seen.append("rename"), real_replace(self, to))[1],
    )

    put(kept, key=KEY)

    before, after = seen[: seen.index("rename")], seen[seen.index("rename") + 1 :]
    assert {"artifact.json", "manifest.json", "tool.tar.zst"} <= set(before)
    assert after == ["tool"]


def test_damage_is_found(kept, put):
    entry = put(kept, key=KEY)
    for path in (entry.archive_path, entry.folder / "manifest.json"):
        good = path.read_bytes()
        path.write_bytes(b"x" + good[1:])
        with pytest.raises(BuildError, match="damaged since it was stored") as caught:
            entry.check()
        assert str(path) in str(caught.value)
        assert caught.value.hint == "invoke build --recipe tool --force"
        path.unlink()
        with pytest.raises(BuildError, match="got no file"):
            entry.check()
        path.write_bytes(good)
    entry.check()


def test_container_has_no_archive(kept, put):
    entry = put(kept, name="base", content=None)

    assert entry.archive_path is None
    entry.check()


@pytest.mark.parametrize("text", ["", "{}", "[", '{"schema": 2}', "\N{SNOWMAN}", "[" * 20000])
def test_damaged_record_is_told(kept, put, text, capsys):
    entry = put(kept, key=KEY)
    (entry.folder / "artifact.json").write_text(text)

    good = put(kept, name="other", key=OTHER)

    assert kept.entries() == [good], "one that is damaged hides no other"
    told = capsys.readouterr().err
    assert "not the record of an artifact" in told
    assert str(entry.folder) in told
    with pytest.raises(UsageError, match="not the record of an artifact") as caught:
        kept.find("tool", "gfx1201", KEY)
    assert str(entry.folder) in caught.value.hint
    assert "validation error" not in str(caught.value)


def test_what_a_record_lacks_is_spelled_out(kept, put):
    record = put(kept, key=KEY).folder / "artifact.json"
    value = json.loads(record.read_text())
    del value["image"]["config"]
    record.write_text(json.dumps(value))

    with pytest.raises(UsageError, match=r"artifact: image\.config: Field required$"):
        kept.find("tool", "gfx1201", KEY)


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", "[" * 20000, "\xff"])
def test_damaged_manifest_is_told(kept, put, text):
    entry = put(kept, key=KEY)
    path = entry.folder / "manifest.json"
    path.unlink()
    if text is not None:
        path.write_bytes(text.encode("latin-1"))

    for read in (store.read_manifest, store.file_digests):
        with pytest.raises(BuildError, match=r"manifest\.json: damaged since") as caught:
            read(entry.folder)
        assert caught.value.hint == "invoke build --force"


def test_manifest_without_digests_is_told(kept, put):
    entry = put(kept, key=KEY)
    (entry.folder / "manifest.json").write_text('{"files": [1], "needed": 0, "versions": 0}')

    with pytest.raises(BuildError, match="no list of files"):
        store.file_digests(entry.folder)


def test_log_that_is_gone_is_told(kept, put):
    entry = put(kept, key=KEY)
    assert store.read_log(entry.folder) == "log of the build\n"
    (entry.folder / "build.log").unlink()

    with pytest.raises(UsageError, match=r"build\.log: no log of the build"):
        store.read_log(entry.folder)


def test_work_starts_from_nothing(kept):
    work = kept.work("tool")
    assert not work.exists()
    work.mkdir()
    (work / "rest").touch()

    assert kept.work("tool") == work
    assert not work.exists()
    assert work.parent.parent == kept.root


def test_one_at_a_time_does_the_work_of_a_name(kept):
    with kept.only_one("a"), kept.only_one("b"):
        child = os.fork()
        if child == 0:
            from filelock import FileLock, Timeout  # noqa: PLC0415 - only here

            try:
                FileLock(kept.root / ".locks" / "a.lock", timeout=0).acquire()
            except Timeout:
                os._exit(7)
            os._exit(0)
        _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 7


def test_digests_of_files_come_from_the_manifest(kept, put):
    entry = put(kept, files={"bin/x": b"1", "lib/y": b"2"})

    assert store.file_digests(entry.folder) == {
        "bin/x": digest.sha256_bytes(b"1"),
        "lib/y": digest.sha256_bytes(b"2"),
    }


@pytest.mark.parametrize(
    "name", ["tool-bundled.tar.zst", "manifest-bundled.json", "tool-tests.tar.zst"]
)
def test_damage_beside_the_archive_is_found_as_well(put, kept, name):
    entry = put(kept, with_bundle=b"x")
    entry.check()
    path = entry.folder / name
    path.chmod(0o644)
    path.write_bytes(path.read_bytes() + b" ")

    with pytest.raises(BuildError, match=rf"{name}: damaged since it was stored"):
        entry.check()


def test_what_tests_need_lies_beside_the_archive(put, kept):
    assert put(kept, with_bundle=b"x").tests_path.read_bytes() == b"tests x"
    assert put(kept, tag="other").tests_path is None
