import io
import json
import types

import pytest

from rocbake import clean, command, digest, engine, store
from rocbake.cache import Cache
from rocbake.errors import EngineError
from rocbake.store import Store


@pytest.fixture
def kept(checkout):
    return Store(checkout.root / "artifacts")


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture
def held(monkeypatch):
    """An engine that holds what a test puts there, and forgets what is taken away."""
    holds = types.SimpleNamespace(containers=[], images=[], untagged=[], busy=set())
    monkeypatch.setattr(engine, "leftovers", lambda: list(holds.containers))
    monkeypatch.setattr(engine, "images", lambda: list(holds.images))
    monkeypatch.setattr(engine, "untag", holds.untagged.append)
    monkeypatch.setattr(engine, "remove_container", holds.containers.remove)
    monkeypatch.setattr(engine, "is_in_use", lambda name: name in holds.busy)
    return holds


@pytest.fixture
def find(checkout, kept, cache, held):
    def find(*, everything=False):
        return clean.find(checkout.load(), kept, cache, everything=everything)

    return find


def told(found):
    return [(one.what, one.why) for one in found]


def remove(found):
    for one in found:
        one.remove()


def source(checkout, cache, text):
    content = checkout.content(text)
    cache.put(io.BytesIO(content))
    return digest.sha256_bytes(content)


def test_nothing_is_left_of_nothing(find):
    assert find() == []
    assert find(everything=True) == []


def test_artifacts_that_todays_locks_name_stay(find, kept, put, checkout):
    now = checkout.plan()
    put(kept, key=now.key)
    put(kept, key="b" * 64)
    put(kept, name="sdk", tag="7.2.4", key=now.layers[-1].key, content=None)
    put(kept, name="sdk", tag="7.2.4", key="c" * 64, content=None)

    found = find()
    assert told(found) == [
        ("artifact sdk/7.2.4-cccccccccccc", "its recipe or lock has changed since"),
        ("artifact tool/gfx1201-bbbbbbbbbbbb", "its recipe or lock has changed since"),
    ]
    assert all(one.size for one in found)
    assert len(kept.entries()) == 4

    remove(found)
    assert {one.artifact.key for one in kept.entries()} == {now.key, now.layers[-1].key}
    assert find() == []


def test_nothing_of_value_goes_while_a_lock_is_stale(find, kept, put, cache, checkout):
    put(kept, key="b" * 64)
    source(checkout, cache, "in no lock")
    (checkout.root / "recipes/tool/lock.json").unlink()

    assert find() == []


def test_everything_is_everything(find, put, cache, checkout, held):
    kept, now = Store(checkout.root / "artifacts"), checkout.plan()
    put(kept, key=now.key)
    source(checkout, cache, "apt 3.0 (amd64)")
    rootfs = cache.root / "rootfs"
    rootfs.mkdir(parents=True)
    (rootfs / "x.tar").write_bytes(b"12345")
    held.images = [engine.Image("sha256:1", ("rocbake/tool:gfx1201",), 5, now.key)]

    assert find() == []
    found = find(everything=True)
    assert [one.what for one in found] == [
        f"artifact tool/gfx1201-{now.key[:12]}",
        "image rocbake/tool:gfx1201",
        "1 cached sources",
        "root file systems",
    ]
    assert {one.why for one in found} == {"all was asked for"}

    remove(found)
    assert (kept.entries(), held.untagged) == ([], ["rocbake/tool:gfx1201"])
    assert not rootfs.exists()
    assert cache.usage().files == 0


def test_rest_of_a_build_goes(find, kept):
    work = kept.work("tool-gfx1201")
    (work / "product").mkdir(parents=True)
    (work / "product/file").write_bytes(b"12345")

    (found,) = find()
    assert (found.what, found.size) == ("work tool-gfx1201", 5)

    found.remove()
    assert not work.exists()


@pytest.mark.parametrize(
    ("work", "guard"),
    [
        ("tool-gfx1201", "tool-gfx1201"),
        ("verify-tool-gfx1201", "verify-tool-gfx1201"),
        ("old-tool-gfx1201-bbbbbbbbbbbb", "b" * 64),
    ],
)
def test_work_of_a_running_build_stays(find, kept, work, guard):
    kept.work(work).mkdir()
    (early,) = find()

    with kept.only_one(guard):
        assert find() == []
        # It began after the list was made.
        early.remove()
        assert kept.root.joinpath(".work", work).exists()

    (late,) = find()
    late.remove()
    late.remove()
    assert not kept.root.joinpath(".work", work).exists()


def test_artifact_whose_removal_is_cut_off_is_not_listed(find, kept, put, monkeypatch):
    def killed(_):
        raise KeyboardInterrupt

    put(kept, key="b" * 64)
    (found,) = find()
    with monkeypatch.context() as patch:
        patch.setattr(store.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            found.remove()

    assert kept.entries() == []
    (rest,) = find()
    assert rest.what == "work old-tool-gfx1201-bbbbbbbbbbbb"
    found.remove()
    rest.remove()
    assert find() == []


def test_files_that_containers_are_made_of_stay(find, cache, checkout):
    path = checkout.root / "containers/small/container.yaml"
    path.write_text(
        path.read_text()
        + "sources: [{url: 'https://x.invalid/rocm', targets: gfx1201}, {url: 'https://x.invalid/a'}]\n"
    )
    checkout.lock()
    for url in ("https://x.invalid/rocm", "https://x.invalid/a"):
        source(checkout, cache, url)

    assert find() == []


def test_artifact_for_a_target_that_no_file_is_for_any_more_goes(find, checkout, kept, put):
    path = checkout.root / "containers/small/container.yaml"
    path.write_text(path.read_text() + "sources: [{url: 'https://x.invalid/a', targets: gfx942}]\n")
    checkout.lock()
    put(kept)

    assert "its recipe or lock has changed since" in [why for _, why in told(find())]


def test_sources_in_no_lock_go(find, cache, checkout):
    locked = source(checkout, cache, "hipcc 1:7.2.4-1 (amd64)")
    stray = source(checkout, cache, "in no lock")

    (found,) = find()
    assert (found.what, found.why) == ("1 cached sources", "in no lock any more")

    found.remove()
    assert cache.has(locked)
    assert not cache.has(stray)


def test_of_the_engine_only_what_is_ours_and_of_no_use_goes(find, kept, put, checkout, held):
    now = checkout.plan()
    put(kept, key=now.key)
    held.containers.append("cut_off")
    held.images = [
        engine.Image("sha256:1", ("rocbake/tool:gfx1201",), 5, now.key),
        engine.Image("sha256:2", ("rocbake/tool:old", "rocbake/tool:older"), 7, "f" * 64),
        engine.Image("sha256:3", ("rocbake/staging-x:1", "rocbake/x:1"), 7, "f" * 64),
        engine.Image("sha256:4", (), 7, "f" * 64),
    ]
    held.busy = {"rocbake/staging-x:1"}

    found = find()
    remove(found)

    assert held.containers == []
    assert held.untagged == ["rocbake/tool:old", "rocbake/tool:older", "rocbake/x:1", "sha256:4"]


def test_engine_that_does_not_answer_holds_nothing(find, kept, put, monkeypatch):
    def silent():
        raise EngineError("none answers")

    put(kept, key="b" * 64)
    monkeypatch.setattr(engine, "images", silent)

    assert [one.what for one in find()] == ["artifact tool/gfx1201-bbbbbbbbbbbb"]


# The verb


@pytest.fixture
def verb(own_checkout, held, capsys):
    def verb(**options):
        command.clean(**{"everything": False, "yes": False, "as_json": False} | options)
        return capsys.readouterr()

    return verb


def test_clean_shows_and_removes_nothing(verb, kept, put):
    put(kept, key="b" * 64)

    out, err = verb()

    assert "could go" in out
    assert "artifact tool/gfx1201-bbbbbbbbbbbb" in out
    assert err == "nothing was removed; add --yes to remove it\n"
    assert len(kept.entries()) == 1


def test_clean_removes_when_told(verb, kept, put):
    put(kept, key="b" * 64)

    out, err = verb(yes=True)

    assert "removed" in out
    assert err == ""
    assert kept.entries() == []
    assert verb(yes=True).out == "nothing to remove\n"


def test_clean_tells_a_program(verb, kept, put):
    put(kept, key="b" * 64)

    ((told,), empty) = (json.loads(verb(as_json=True, yes=yes).out) for yes in (True, False))

    assert told["what"] == "artifact tool/gfx1201-bbbbbbbbbbbb"
    assert set(told) == {"what", "why", "bytes"}
    assert empty == []
