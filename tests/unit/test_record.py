import hashlib
import json
import subprocess
import sys

import pytest

from rocbake import index
from rocbake.cache import Cache
from rocbake.errors import FetchError, LockError
from rocbake.fetch import fetch, lock_pypi, lock_url
from rocbake.mirror import Mirrors
from rocbake.retry import DownloadError
from rocbake.source import Pypi, Url

pytestmark = pytest.mark.usefixtures("quick")

SDIST = b"source distribution"
WHEEL = b"wheel"
JSON = "application/vnd.pypi.simple.v1+json"


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture
def simple(server, answer, monkeypatch):
    """Run a package index with one project, and return what puts its page there."""
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple/")
    server.files["/files/my_project-1.0.tar.gz"] = SDIST
    server.files["/files/my_project-1.0-py3-none-any.whl"] = WHEEL

    def publish(kind="html", digest=None):
        listed = [
            (name.rpartition("/")[2], digest or hashlib.sha256(content).hexdigest())
            for name, content in sorted(server.files.items())
            if name.startswith("/files/")
        ]
        if kind == "html":
            body = "".join(
                f'<a href="../../files/{name}#sha256={sha256}">{name}</a>'
                for name, sha256 in listed
            ).encode()
            headers = {"Content-Type": "text/html"}
        else:
            files = [
                {"filename": name, "url": f"/files/{name}", "hashes": {"sha256": sha256}}
                for name, sha256 in listed
            ]
            page = {"meta": {"api-version": "1.0"}, "name": "my-project", "files": files}
            body, headers = json.dumps(page).encode(), {"Content-Type": JSON}
        server.files["/simple/my-project/"] = body
        server.script["/simple/my-project/"] = [answer(headers=headers)] * 9

    return publish


def sha256(content):
    return hashlib.sha256(content).hexdigest()


# Addresses


def test_url_is_recorded_and_kept(server, cache):
    server.files["/v1/the file.tar"] = SDIST

    with pytest.raises(LockError, match=r"'the file\.tar' is no file name"):
        lock_url(f"{server.url}/v1/the%20file.tar", cache=cache)
    source = lock_url(f"{server.url}/v1/the%20file.tar?x=1", cache=cache, file_name="file.tar")

    assert source == Url(
        sha256=sha256(SDIST),
        size=len(SDIST),
        url=f"{server.url}/v1/the%20file.tar?x=1",
        file_name="file.tar",
    )
    assert cache.path(source.sha256).read_bytes() == SDIST
    fetch([source], cache=cache, mirrors=Mirrors(), offline=True)


def test_url_names_the_file(server, cache):
    server.files["/v1/file+1.tar.zst"] = SDIST

    assert lock_url(f"{server.url}/v1/file%2B1.tar.zst?x=/y", cache=cache).file_name == (
        "file+1.tar.zst"
    )


@pytest.mark.parametrize("path", ["", "/", "/folder/", "/.hidden"])
def test_url_without_a_name_is_refused(server, cache, path):
    with pytest.raises(LockError, match="`file_name`"):
        lock_url(server.url + path, cache=cache)

    assert server.requests == []


def test_record_is_of_what_the_server_has_now(server, cache):
    server.files["/file"] = SDIST
    first = lock_url(f"{server.url}/file", cache=cache)
    server.files["/file"] = WHEEL

    assert first.sha256 == sha256(SDIST)
    assert lock_url(f"{server.url}/file", cache=cache).sha256 == sha256(WHEEL)
    assert cache.usage().files == 2


def test_generated_archive_is_warned_of(server, cache, capsys):
    server.files["/p/archive/v1.tar.gz"] = SDIST
    server.files["/p/v1.tar.gz"] = SDIST

    lock_url(f"{server.url}/p/v1.tar.gz", cache=cache)
    quiet = capsys.readouterr().err
    lock_url(f"{server.url}/p/archive/v1.tar.gz", cache=cache)

    assert quiet == ""
    assert "generated archive?" in capsys.readouterr().err


def test_missing_url_is_refused(server, cache):
    with pytest.raises(DownloadError, match="404 Not Found"):
        lock_url(f"{server.url}/file", cache=cache)

    assert cache.usage().files == 0


# The package index


@pytest.mark.parametrize("kind", ["html", "json"])
def test_source_distribution_is_recorded_and_comes_again(simple, cache, kind):
    simple(kind)

    source = lock_pypi("My_Project", "1.0", cache=cache)
    cache.prune(set())
    fetch([source], cache=cache, mirrors=Mirrors())

    assert source == Pypi(
        sha256=sha256(SDIST),
        size=len(SDIST),
        project="My_Project",
        version="1.0",
        file_name="my_project-1.0.tar.gz",
    )
    assert cache.path(source.sha256).read_bytes() == SDIST


def test_other_file_may_be_named(simple, cache):
    simple()
    name = "my_project-1.0-py3-none-any.whl"

    assert lock_pypi("my-project", "1.0", name, cache=cache).sha256 == sha256(WHEEL)


@pytest.mark.parametrize(
    ("version", "file_name", "message"),
    [
        ("2.0", None, "my-project 2.0 is not on the index, which has 1.0"),
        ("1.0", "x.whl", "my-project 1.0 has no x.whl on the index, only\n  my_project-1.0"),
    ],
)
def test_what_the_index_has_is_said(simple, cache, version, file_name, message):
    simple()

    with pytest.raises(LockError) as caught:
        lock_pypi("my-project", version, file_name, cache=cache)

    assert message in str(caught.value)


def test_release_without_a_source_distribution_is_refused(server, simple, cache):
    del server.files["/files/my_project-1.0.tar.gz"]
    simple()

    with pytest.raises(LockError, match="no source distribution"):
        lock_pypi("my-project", "1.0", cache=cache)


def test_index_and_file_must_agree(simple, cache):
    simple(digest=sha256(b"other"))

    with pytest.raises(DownloadError, match="is not the locked file"):
        lock_pypi("my-project", "1.0", cache=cache)

    assert cache.usage().files == 0


def test_replaced_file_is_refused(server, simple, cache):
    simple()
    source = lock_pypi("my-project", "1.0", cache=cache)
    cache.prune(set())
    server.files["/files/my_project-1.0.tar.gz"] = b"replaced"
    simple()
    server.requests.clear()

    with pytest.raises(FetchError) as caught:
        fetch([source], cache=cache, mirrors=Mirrors())

    assert f"got      sha256 {sha256(b'replaced')}" in str(caught.value)
    assert [path for path, _ in server.requests] == ["/simple/my-project/"]


def test_removed_file_is_gone(server, simple, cache):
    simple()
    source = lock_pypi("my-project", "1.0", cache=cache)
    cache.prune(set())
    del server.files["/files/my_project-1.0.tar.gz"]
    simple()

    with pytest.raises(FetchError, match=r"does not list my_project-1\.0\.tar\.gz") as caught:
        fetch([source], cache=cache, mirrors=Mirrors())

    assert caught.value.hint == "invoke lock"


def test_unknown_project_is_gone(simple, cache):
    with pytest.raises(DownloadError, match="no such project") as caught:
        lock_pypi("unknown", "1", cache=cache)

    assert caught.value.is_gone


@pytest.mark.parametrize(
    "headers", [{"Content-Type": "image/png"}, {"Content-Type": JSON}], ids=["png", "json"]
)
def test_page_that_is_no_index_is_refused(server, simple, answer, cache, headers):
    server.script["/simple/my-project/"] = [answer(content=b"<a", headers=headers)]

    with pytest.raises(DownloadError):
        lock_pypi("my-project", "1.0", cache=cache)

    assert len(server.requests) == 1


def test_index_that_stumbles_is_asked_again(server, simple, answer, cache):
    simple()
    server.script["/simple/my-project/"].insert(0, answer(status=503))

    assert lock_pypi("my-project", "1.0", cache=cache).size == len(SDIST)


def test_index_may_be_a_folder(simple, cache, tmp_path, monkeypatch):
    page = tmp_path / "simple" / "my-project" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text('<a href="my_project-1.0.tar.gz">my_project-1.0.tar.gz</a>')
    (page.parent / "my_project-1.0.tar.gz").write_bytes(SDIST)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())

    assert lock_pypi("My.Project", "1.0", cache=cache).sha256 == sha256(SDIST)
    with pytest.raises(DownloadError, match="no such project"):
        lock_pypi("other", "1.0", cache=cache)


def test_withdrawn_file_is_warned_of(server, simple, answer, cache, capsys):
    simple()
    link = b'<a href="/files/my_project-1.0.tar.gz" data-yanked="broken">my_project-1.0.tar.gz</a>'
    headers = {"Content-Type": "text/html"}
    server.script["/simple/my-project/"] = [answer(content=link, headers=headers)]

    lock_pypi("my-project", "1.0", cache=cache)

    assert "my_project-1.0.tar.gz was withdrawn by its authors: broken" in capsys.readouterr().err


def test_index_is_the_one_of_pip(monkeypatch):
    def run(command, **options):
        assert command[:3] == [sys.executable, "-m", "pip"]
        return subprocess.CompletedProcess(command, 0, stdout="https://own.invalid/simple\n")

    monkeypatch.setattr(index, "run", run)
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    index._from_pip.cache_clear()
    from_pip = index.address()
    monkeypatch.setenv("PIP_INDEX_URL", "https://named.invalid/simple")
    index._from_pip.cache_clear()

    assert from_pip == "https://own.invalid/simple"
    assert index.address() == "https://named.invalid/simple"
