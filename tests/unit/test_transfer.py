"""Push and pull: whole artifacts, vouched for by the lock, that fit; or nothing."""

import json
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocbake import build, fit, golden, oci, remote, store, transfer
from rocbake.archive import write_archive
from rocbake.cache import Cache
from rocbake.errors import BuildError, FetchError, FitError, TrustError, UsageError
from rocbake.fit import Misfit, Verdict
from rocbake.remote import Remote
from rocbake.store import Store
from rocbake.workshop import Workshop
from tests.unit.conftest import described

FILES = {"bin/x": b"program"}


@pytest.fixture(autouse=True)
def fits(monkeypatch):
    """A machine that everything fits, unless a test says otherwise."""
    verdicts = []
    monkeypatch.setattr(fit, "check", lambda *_: verdicts.pop(0) if verdicts else Verdict())
    return verdicts


@pytest.fixture
def kept(checkout):
    return Store(checkout.root / "artifacts")


@pytest.fixture
def entry(checkout, kept, put, tmp_path):
    """An artifact as a build leaves it, recorded in its lock."""
    made = checkout.plan()
    folder = tmp_path / "dist"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/x").write_bytes(FILES["bin/x"])
    (folder / store.MANIFEST).write_bytes(described(FILES))
    write_archive(folder, tmp_path / "packed.tar.zst", prefix="tool", epoch=0)
    content = (tmp_path / "packed.tar.zst").read_bytes()
    entry = put(kept, key=made.key, content=content, files=FILES, with_image=True)
    image = oci.read(entry.folder / store.IMAGE)
    record = entry.artifact.image.model_copy(
        update={"config": image.config.digest, "layers": image.diff_ids}
    )
    entry = store.Entry(entry.folder, entry.artifact.model_copy(update={"image": record}))
    (entry.folder / store.RECORD).write_text(entry.artifact.model_dump_json(by_alias=True))
    (entry.folder / store.LOG).write_text("of this machine\n")
    golden.record(checkout.load(), [entry])
    return entry


@pytest.fixture
def there(tmp_path):
    return Remote(f"file://{tmp_path}/there")


@pytest.fixture
def other(tmp_path):
    """The store of somebody else, who has the same checkout."""
    return Store(tmp_path / "other")


@pytest.fixture
def pull(checkout, other, tmp_path):
    def pull(origin, **more):
        return transfer.pull(
            checkout.plan(),
            origin,
            project=checkout.load(),
            store=other,
            cache=Cache(tmp_path / "cache"),
            **more,
        )

    return pull


def tree(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (store.LOG, store.RECORD)
    }


def index(there, entry):
    one = entry.artifact
    return there.folder / one.name / store.key_folder(one.tag, one.key) / remote.INDEX


def blobs(there):
    return sorted((there.folder / "blobs/sha256").iterdir())


def test_what_was_pushed_and_pulled_is_the_same(entry, there, other, pull):
    transfer.push(entry, there)

    got = pull(there)

    assert tree(got.folder) == tree(entry.folder)
    assert got.artifact == entry.artifact
    assert [one.artifact.key for one in other.entries()] == [entry.artifact.key]
    assert not (got.folder / store.LOG).exists()


def test_second_push_writes_nothing(entry, there):
    first, second = transfer.push(entry, there), transfer.push(entry, there)

    assert first.written == sum(path.stat().st_size for path in blobs(there))
    assert (second.files, second.written) == (first.files, 0)


def test_second_pull_asks_nobody(entry, there, pull):
    transfer.push(entry, there)
    first = pull(there)
    shutil.rmtree(there.folder)

    assert pull(there).folder == first.folder


def test_damaged_artifact_is_not_pushed(entry, there):
    entry.archive_path.write_bytes(b"other")

    with pytest.raises(BuildError, match="damaged since it was stored"):
        transfer.push(entry, there)
    assert not there.folder.exists()


def test_nothing_is_listed_before_all_of_it_is_there(entry, there, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Remote, "put_index", fail)

    with pytest.raises(KeyboardInterrupt):
        transfer.push(entry, there)
    assert not index(there, entry).exists()


def test_folder_that_cannot_be_written_is_told(entry, tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(UsageError, match="cannot be written"):
        transfer.push(entry, Remote(f"file://{tmp_path}/file"))


def test_web_server_cannot_be_pushed_to(entry):
    with pytest.raises(UsageError, match="can only be read") as caught:
        transfer.push(entry, Remote("https://x.invalid/a"))
    assert "invoke push --to file:///" in caught.value.hint


# --- over HTTP


@pytest.fixture
def served(entry, there, server):
    """The same remote store behind a web server."""
    transfer.push(entry, there)
    for path in there.folder.rglob("*"):
        if path.is_file():
            server.files[f"/a/{path.relative_to(there.folder).as_posix()}"] = path.read_bytes()
    return Remote(f"{server.url}/a")


def test_pulled_over_http_it_is_the_same(entry, served, pull):
    assert tree(pull(served).folder) == tree(entry.folder)


@pytest.mark.usefixtures("quick")
def test_transfer_that_breaks_off_is_gone_on_with(entry, served, pull, server, answer):
    name = f"/a/blobs/sha256/{entry.artifact.archive.sha256}"
    server.script[name] = [answer(cut=10), answer(status=503)]

    got = pull(served)

    assert tree(got.folder) == tree(entry.folder)
    asked = [headers.get("Range") for path, headers in server.requests if path == name]
    assert asked == [None, "bytes=10-", "bytes=10-"]


def test_missing_artifact_is_told(checkout, pull, server):
    with pytest.raises(FetchError, match="404"):
        pull(Remote(f"{server.url}/none"))


@pytest.mark.parametrize("number", range(5))
def test_flipped_byte_leaves_nothing(served, pull, server, other, number):
    names = sorted(name for name in server.files if "/blobs/" in name)
    data = bytearray(server.files[names[number % len(names)]])
    data[len(data) // 2] ^= 1
    server.files[names[number % len(names)]] = bytes(data)

    with pytest.raises(FetchError, match="is not the locked file"):
        pull(served)

    assert other.entries() == []
    assert other.works() == []


# --- trust


def change(there, entry, edit):
    path = index(there, entry)
    told = json.loads(path.read_text())
    edit(told)
    path.write_text(json.dumps(told))


def test_artifact_that_no_lock_recorded_is_refused(checkout, entry, there, pull, other):
    transfer.push(entry, there)
    lock = checkout.root / "recipes/tool/lock.json"
    told = json.loads(lock.read_text()) | {"recorded": {}}
    lock.write_text(json.dumps(told))

    with pytest.raises(TrustError, match="nobody vouches for what is there") as caught:
        pull(there)

    assert caught.value.exit_code == 12
    assert other.entries() == []


CHANGES = {
    "archive": lambda one: one["artifact"]["archive"].update(sha256="0" * 64),
    "image": lambda one: one["artifact"]["image"].update(config="sha256:" + "0" * 64),
    "key": lambda one: one["artifact"].update(key="0" * 64),
    "name": lambda one: one["artifact"].update(name="other"),
    "version": lambda one: one["artifact"].update(version="0"),
    "targets": lambda one: one["artifact"].update(targets=["gfx906"]),
    "options": lambda one: one["artifact"].update(options={"fast": "yes"}),
    "image's name": lambda one: one["artifact"]["image"].update(reference="debian:trixie"),
    "a bundle that is none": lambda one: one["artifact"].update(bundled=one["artifact"]["archive"]),
    "manifest": lambda one: one["artifact"]["archive"].update(manifest_sha256="0" * 64),
    "layers": lambda one: one["artifact"]["image"].update(layers=["sha256:" + "0" * 64]),
}


@pytest.mark.parametrize("edit", CHANGES.values(), ids=CHANGES)
def test_record_that_was_tampered_with_is_refused(entry, there, pull, other, edit):
    transfer.push(entry, there)
    change(there, entry, edit)

    with pytest.raises(TrustError):
        pull(there)

    assert other.entries() == []


def test_manifest_that_is_not_the_archives_is_refused(entry, there, pull, other):
    """It decides whether the archive fits, and no lock names it."""
    false = described(FILES, rocm="9.9.9")
    (entry.folder / store.MANIFEST).write_bytes(false)
    record = entry.artifact.archive.model_copy(
        update={"manifest_sha256": store.digest.sha256_bytes(false)}
    )
    lying = store.Entry(entry.folder, entry.artifact.model_copy(update={"archive": record}))
    transfer.push(lying, there)

    with pytest.raises(TrustError, match=r"manifest.json is not the one in tool.tar.zst"):
        pull(there)
    assert other.entries() == []


def swap(there, entry, path, data):
    """Have the remote store's index say that a file of the artifact is another one."""
    sha256 = store.digest.sha256_bytes(data)
    (there.folder / "blobs/sha256" / sha256).write_bytes(data)

    def edit(told):
        (row,) = [one for one in told["files"] if one["path"] == path]
        row.update(sha256=sha256, size=len(data))

    change(there, entry, edit)


def test_layer_that_is_not_what_its_name_says_is_refused(entry, there, pull, other):
    transfer.push(entry, there)
    layer = entry.artifact.image.layers[0].removeprefix("sha256:")
    path = f"image/blobs/sha256/{layer}"
    size = (entry.folder / path).stat().st_size
    swap(there, entry, path, bytes(size))

    with pytest.raises(TrustError, match="not what its own record says"):
        pull(there)
    assert other.entries() == []


def leave_out(there, entry, path):
    """Have the remote store's index not name a file of the artifact."""
    change(
        there,
        entry,
        lambda told: told.update(files=[one for one in told["files"] if one["path"] != path]),
    )


@pytest.mark.parametrize("path", ["image/index.json", "manifest.json", "tool.tar.zst"])
def test_artifact_that_lacks_a_file_is_refused(entry, there, pull, other, path):
    transfer.push(entry, there)
    leave_out(there, entry, path)

    with pytest.raises((TrustError, FetchError), match=r"not the manifest|not what its own|listed"):
        pull(there)
    assert other.entries() == []


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"schema": 1}'])
@pytest.mark.parametrize("path", ["image/index.json", "manifest.json"])
def test_file_that_cannot_be_read_is_refused(entry, there, pull, path, data):
    transfer.push(entry, there)
    swap(there, entry, path, data)

    with pytest.raises(TrustError):
        pull(there)


@pytest.mark.parametrize(
    "path", ["image", "manifest.json/x", "tool.tar.zst", "artifact.json", "smoke/0.json"]
)
def test_paths_that_no_artifact_has_are_refused(entry, there, pull, other, path):
    transfer.push(entry, there)
    change(
        there,
        entry,
        lambda told: told["files"].append(told["files"][0] | {"path": path}),
    )

    with pytest.raises(FetchError, match="not the index of an artifact"):
        pull(there)
    assert other.entries() == []


def test_whole_image_of_somebody_else_is_refused(entry, there, pull, other, make_image):
    transfer.push(entry, there)
    evil = make_image({"usr/bin/x": b"evil"}).folder

    def edit(told):
        told["files"] = [one for one in told["files"] if not one["path"].startswith("image/")]

    change(there, entry, edit)
    for path in (one for one in evil.rglob("*") if one.is_file()):
        name = f"image/{path.relative_to(evil).as_posix()}"
        change(
            there,
            entry,
            lambda told, name=name: told["files"].append({"path": name, "sha256": "", "size": 0}),
        )
        swap(there, entry, name, path.read_bytes())

    with pytest.raises(TrustError, match="expected the image sha256:"):
        pull(there)
    assert other.entries() == []


@pytest.mark.parametrize("path", ["../x", "/etc/x", ".ssh/x", "a/../../x", "a//b", "", "a\n"])
def test_path_that_leaves_the_folder_is_refused(entry, there, pull, path):
    transfer.push(entry, there)
    change(there, entry, lambda one: one["files"][0].update(path=path))

    with pytest.raises(FetchError, match="not the index of an artifact"):
        pull(there)


@given(st.binary(max_size=200))
def test_any_index_is_read_or_refused(data):
    with pytest.raises(FetchError):
        remote.parse_index(data, "https://x.invalid")


# --- fit

MISFIT = Verdict((Misfit("version", "GLIBC_2.43", "glibc 2.36", ("bin/x",), "a newer system"),))


def test_what_does_not_fit_is_refused_before_it_is_brought(entry, served, pull, server, fits):
    fits.append(MISFIT)

    with pytest.raises(FitError, match=r"GLIBC_2.43 is needed by bin/x; here is glibc 2.36"):
        pull(served)

    asked = {path for path, _ in server.requests}
    assert f"/a/blobs/sha256/{entry.artifact.archive.sha256}" not in asked


def test_it_is_taken_all_the_same_if_a_person_wants(entry, there, pull, fits, capsys):
    transfer.push(entry, there)
    fits.append(MISFIT)

    pull(there, skip_fit=True)

    assert "--no-fit-check passes over: GLIBC_2.43" in capsys.readouterr().err


# --- in place of building


@pytest.fixture
def workshop(checkout, other, tmp_path):
    return Workshop(project=checkout.load(), cache=Cache(tmp_path / "cache"), store=other)


def test_build_takes_what_the_remote_store_has(entry, there, checkout, workshop, fits):
    transfer.push(entry, there)
    fits.append(MISFIT)

    (first,) = build.build([checkout.plan()], workshop=workshop, origin=there)
    (again,) = build.build([checkout.plan()], workshop=workshop, origin=there)

    assert (first.state, again.state) == ("pulled", "reused")
    assert first.recorded == "reproduced"


def test_what_the_remote_store_has_not_is_built(checkout, there, workshop, monkeypatch, capsys):
    from rocbake import keep  # noqa: PLC0415 - what is replaced

    asked = []
    monkeypatch.setattr(keep, "make", lambda one, **_: asked.append(one.name) or [])

    assert build.build([checkout.plan()], workshop=workshop, origin=there) == []
    assert asked == ["tool"]
    assert "not pulled, so it is built: " in capsys.readouterr().err


# --- addresses


@pytest.mark.parametrize(
    "address", ["https://h.invalid/a/", "http://h.invalid:80", "file:///srv/a", "file:///srv/a/"]
)
def test_address_is_taken(address):
    assert remote.parse(address, {}, option="--from").address == address.rstrip("/")


@pytest.mark.parametrize(
    "address",
    [
        *("ftp://h.invalid", "h.invalid/a", "https://", "https://h.invalid/?a=1"),
        *("file://h.invalid/a", "https://[::1", "oci://h.invalid/a"),
    ],
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(UsageError, match=r"^--from: expected https://HOST/FOLDER"):
        remote.parse(address, {}, option="--from")


def test_variable_stands_in_for_the_option():
    environment = {"ROCBAKE_REMOTE": "file:///srv/a"}

    assert os.fspath(remote.parse("", environment, option="--to").folder) == "/srv/a"
    with pytest.raises(UsageError, match=r"^ROCBAKE_REMOTE: expected"):
        remote.parse("", {"ROCBAKE_REMOTE": "x"}, option="--to")
    with pytest.raises(UsageError, match="neither --to nor ROCBAKE_REMOTE"):
        remote.parse("", {}, option="--to")


def test_login_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(UsageError) as caught:
        remote.parse("https://me:hush@h.invalid/a", {}, option="--from")

    assert "hush" not in caught.value.for_humans()
