import json
import types
from datetime import UTC, datetime

import pytest

from rocbake import apt, lock, record, resolve, target
from rocbake.apt import Release
from rocbake.cache import Cache
from rocbake.errors import EngineError, FetchError, LockError, UsageError
from rocbake.mirror import Mirrors
from rocbake.resolve import Resolver
from rocbake.source import Deb, Git, Url

WHEN = datetime(2026, 11, 1, 12, 0, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def archive(monkeypatch):
    """An archive that a test fills: name of a package, version."""
    held = types.SimpleNamespace(
        packages={"apt": "3.0", "libc6": "2.41", "hipcc": "7.2.4-1", "cmake": "4.0",
                  "libamdhip64-7": "7.2.4+dfsg-1"},
        needs={"apt": ["libc6"], "hipcc": ["libamdhip64-7"]},
        opened=[], asked=[],
    )  # fmt: skip

    class Indices:
        def __init__(self, one, *, keyring, mirrors):
            held.opened.append((one.name, keyring.name, list(mirrors)))

        def __enter__(self):
            return self

        def __exit__(self, *about):
            held.opened.append("closed")

        def releases(self):
            return [Release("sid", "sid", WHEN, "1" * 64)]

        def resolve(self, wishes, *, installed, essential):
            held.asked.append((sorted(wishes), [deb.name for deb in installed], essential))
            names = {*wishes, *(need for wish in wishes for need in held.needs.get(wish, []))}
            return [
                Deb(name=name, version=held.packages[name], architecture="amd64", size=1,
                    path=f"pool/{name}.deb", sha256=(held.packages[name].encode().hex() * 64)[:64])
                for name in sorted(names - {deb.name for deb in installed})
            ]  # fmt: skip

    monkeypatch.setattr(apt, "Indices", Indices)
    monkeypatch.setattr(apt, "version", lambda: "2.6.1")

    def silent():
        raise EngineError("none")

    monkeypatch.setattr(resolve.engine, "versions", silent)
    monkeypatch.setattr(
        record,
        "lock_url",
        lambda url, *, cache, sha256: Url(sha256="2" * 64, size=1, url=url, file_name="f"),
    )
    return held


@pytest.fixture
def make(checkout, tmp_path):
    def make(*names, write=True):
        mirrors = Mirrors(archives={"debian": ("http://m.invalid",)})
        with Resolver(checkout.load(), cache=Cache(tmp_path / "cache"), mirrors=mirrors) as one:
            return {change.name: change.lines for change in one.lock(names, write=write)}

    return make


def read(checkout, name):
    return lock.read_container(checkout.load().containers[name])


def remove_locks(checkout):
    for path in checkout.root.glob("*/*/lock.json"):
        path.unlink()


def test_locks_that_are_made_are_fresh(checkout, make, archive):
    remove_locks(checkout)

    changes = make()

    assert changes == {"base": ["new"], "small": ["new"], "sdk": ["new"], "tool": ["new"]}
    assert checkout.plan()
    assert [deb.name for deb in read(checkout, "base").packages] == ["apt", "libc6"]
    assert read(checkout, "sdk").snapshot == "20261101T120000Z"
    assert read(checkout, "sdk").made_with == {"apt": "2.6.1"}
    assert read(checkout, "base").suites[0].date == "2026-11-01T12:00:00Z"


def test_layer_is_resolved_on_those_below(make, archive):
    make()

    assert archive.asked == [
        (["apt"], [], True),
        (["cmake", "hipcc"], ["apt", "libc6"], False),
        (["libamdhip64-7"], ["apt", "libc6"], False),
    ]


def test_indices_are_fetched_once_and_let_go(make, archive):
    make()

    assert archive.opened == [("debian", "keyring.asc", ["http://m.invalid"]), "closed"]


def test_second_time_changes_nothing(checkout, make):
    make()
    before = {path: path.stat().st_mtime_ns for path in checkout.root.glob("*/*/lock.json")}

    assert make() == {"base": [], "small": [], "sdk": [], "tool": []}
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_archive_that_moved_on_is_told_and_nothing_written(checkout, make, archive):
    make()
    before = (checkout.root / "containers/sdk/lock.json").read_bytes()
    archive.packages["cmake"] = "4.1"

    changes = make(write=False)

    assert [line.split()[:3] for line in changes["sdk"]] == [["-", "cmake", "4.0"],
                                                             ["+", "cmake", "4.1"]]  # fmt: skip
    assert (checkout.root / "containers/sdk/lock.json").read_bytes() == before
    assert changes["tool"] == []


def test_only_what_is_named_is_made(checkout, make, archive):
    make()
    archive.packages |= {"cmake": "4.1", "libamdhip64-7": "7.2.4-9"}

    assert list(make("sdk")) == ["sdk"]

    assert {deb.version for deb in read(checkout, "small").packages} == {"7.2.4+dfsg-1"}
    assert read(checkout, "sdk").parent == read(checkout, "base").digest


def test_epoch_is_the_root_containers(checkout, make):
    make()
    base = read(checkout, "base")
    lock.write(base.model_copy(update={"epoch": 7}), checkout.root / "containers/base")

    make("sdk")

    assert read(checkout, "sdk").epoch == 7
    assert read(checkout, "base").epoch == 7


def test_wrong_rocm_is_refused(checkout, make, archive, monkeypatch):
    monkeypatch.chdir(checkout.root)
    archive.packages["libamdhip64-7"] = "7.2.40-1"

    with pytest.raises(LockError) as caught:
        make()

    assert str(caught.value) == (
        "containers/sdk/container.yaml: expected ROCm 7.2.4, and the archive gives 7.2.40-1"
    )


def test_wish_that_cannot_be_answered_leaves_every_lock(checkout, make, archive):
    make()
    before = {path: path.read_bytes() for path in checkout.root.glob("*/*/lock.json")}
    archive.packages |= {"apt": "3.1", "libamdhip64-7": "8.0-1"}

    with pytest.raises(LockError):
        make()

    assert before == {path: path.read_bytes() for path in before}


def test_missing_hip_runtime_is_refused(checkout, make, archive):
    checkout.edit("containers/small/container.yaml", "libamdhip64-7", "cmake")

    with pytest.raises(LockError, match="and the archive gives no HIP runtime"):
        make()


def test_unknown_name_is_refused_before_anything_is_asked(make, archive):
    with pytest.raises(UsageError, match="there is no container or recipe 'x', 'y'"):
        make("x", "sdk", "y")

    assert archive.opened == []


def test_unreadable_lock_is_made_anew(checkout, make):
    make()
    checkout.write("containers/sdk/lock.json", "{")

    assert make()["sdk"] == ["was unreadable"]
    assert json.loads((checkout.root / "containers/sdk/lock.json").read_text())


def test_digests_of_builds_stay_while_what_is_locked_does(checkout, make):
    make()
    sdk = read(checkout, "sdk")
    recorded = {"7.2.4": lock.Recorded(key="0" * 64, config="c", layers=())}
    lock.write(sdk.model_copy(update={"recorded": recorded}), checkout.root / "containers/sdk")

    make()

    assert read(checkout, "sdk").recorded == recorded


def test_sources_in_git_are_locked_from_mirrors_as_well(checkout, tmp_path, monkeypatch):
    path = checkout.root / "recipes" / "tool" / "recipe.yaml"
    text = path.read_text()
    start = text.index("sources:")
    commit = "c" * 40
    path.write_text(
        f"{text[:start]}sources:\n  - git: https://host.invalid/project\n    commit: {commit}\n"
    )
    asked = []

    def lock_git(url, commit, *, cache, mirrors):
        asked.append((url, commit, mirrors))
        return Git(sha256="3" * 64, size=1, url=url, commit=commit)

    monkeypatch.setattr(record, "lock_git", lock_git)
    mirrors = Mirrors(git={"https://host.invalid/": ("/srv/git",)})
    with Resolver(checkout.load(), cache=Cache(tmp_path / "cache"), mirrors=mirrors) as one:
        one.lock(["tool"], write=True)

    assert asked == [("https://host.invalid/project", commit, mirrors)]


# --- files of containers, and what cannot be had


FILES = """\
sources:
  - url: http://x.invalid/one
    targets: gfx120X-all
  - url: http://x.invalid/other
    targets: gfx1100
  - url: http://x.invalid/any
    sha256: {sha256}
"""


@pytest.fixture
def rich(checkout, monkeypatch):
    """The small project, whose runtime container is made of files; `reached` are those there."""
    path = checkout.root / "containers/small/container.yaml"
    path.write_text(path.read_text() + FILES.format(sha256="3" * 64))
    checkout.reached = {"http://x.invalid/any", "http://x.invalid/one", "http://x.invalid/other"}
    checkout.reached |= {"https://example.invalid/data.tar"}
    checkout.asked = []

    def lock_url(url, *, cache, sha256):
        checkout.asked.append((url, sha256))
        if url not in checkout.reached:
            raise FetchError(f"{url}: host not found")
        return Url(sha256=sha256 or "2" * 64, size=1, url=url, file_name=url.rpartition("/")[2])

    monkeypatch.setattr(record, "lock_url", lock_url)
    return checkout


@pytest.fixture
def record_for(rich, tmp_path):
    def record_for(*targets, names=("small", "tool")):
        sets = [target.parse_target_set([one]) for one in targets]
        with Resolver(
            rich.load(), cache=Cache(tmp_path / "cache"), mirrors=Mirrors(), targets=sets
        ) as one:
            one.lock(names, write=True)
            told = {name: [str(each) for each in errors] for name, errors in one.unreached.items()}
        return [source.url[17:] for source in read(rich, "small").sources], told

    return record_for


def test_files_for_target_sets_are_recorded_when_those_are_asked_for(rich, make, record_for):
    make("base")

    assert record_for() == (["any"], {})
    assert record_for("gfx1201") == (["one", "any"], {})
    # What was recorded before stays, and is not fetched again.
    rich.asked.clear()
    assert record_for("gfx1100") == (["one", "other", "any"], {})
    assert ("http://x.invalid/one", None) not in rich.asked
    assert ("http://x.invalid/any", "3" * 64) in rich.asked


def test_lock_is_made_without_what_cannot_be_had_and_that_is_told(rich, make, record_for):
    make("base")
    (rich.root / "recipes/tool/lock.json").unlink()
    rich.reached -= {"http://x.invalid/one", "https://example.invalid/data.tar"}

    recorded, told = record_for("gfx1201")

    assert recorded == ["any"]
    assert told == {
        "small": ["http://x.invalid/one: host not found"],
        "tool": ["https://example.invalid/data.tar: host not found"],
    }
    assert lock.read_recipe(rich.load().recipes["tool"]).sources == ()


def test_what_was_recorded_and_cannot_be_had_now_stays(rich, make, record_for):
    make("base")
    record_for("gfx1201")
    rich.reached.clear()

    recorded, told = record_for("gfx1201")

    assert recorded == ["one", "any"]
    assert told == {}


def test_record_of_a_file_that_is_no_longer_wished_for_goes(rich, make, record_for):
    make("base")
    record_for("gfx1201")
    rich.edit("containers/small/container.yaml", "x.invalid/one", "x.invalid/new")
    rich.reached.clear()

    recorded, told = record_for("gfx1201")

    assert recorded == ["any"]
    assert list(told) == ["small"]


def test_rocm_that_is_no_package_is_not_looked_for_among_them(rich, make, record_for):
    make("base")
    rich.edit("containers/small/container.yaml", "provider: debian", "provider: amd")
    rich.edit("containers/small/container.yaml", "libamdhip64-7", "cmake")
    rich.edit("containers/sdk/container.yaml", "provider: debian\nrocm: 7.2.4\n", "")

    assert record_for("gfx1201") == (["one", "any"], {})
