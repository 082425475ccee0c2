import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from rocbake import fetch as fetch_module
from rocbake.cache import Cache
from rocbake.errors import FetchError
from rocbake.fetch import fetch
from rocbake.mirror import Mirrors
from rocbake.source import Deb, Git, Pypi, Url

pytestmark = pytest.mark.usefixtures("quick")

CONTENT = random.Random(1).randbytes(300_000)
OTHER = random.Random(2).randbytes(len(CONTENT))
# What another process does: fetch one address into a cache.
PROGRAM = """
import sys
from pathlib import Path
from rocbake.cache import Cache
from rocbake.fetch import fetch
from rocbake.mirror import Mirrors
from rocbake.source import Url
root, url, sha256, size = sys.argv[1:]
source = Url(sha256=sha256, size=int(size), url=url, file_name="file")
print("ready", flush=True)
input()
fetch([source], cache=Cache(Path(root)), mirrors=Mirrors())
"""


def facts(content):
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


def deb(name="lib", content=CONTENT, **changes):
    known = {"name": name, "version": "1", "architecture": "amd64", "path": f"pool/{name}.deb"}
    return Deb(**facts(content) | known | changes)


def url_of(server, path="/file", content=CONTENT):
    return Url(**facts(content), url=f"{server.url}{path}", file_name="file")


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture
def mirrors(server):
    return Mirrors(archives={"debian": (f"{server.url}/one", f"{server.url}/two")})


def refusal(sources, **options):
    with pytest.raises(FetchError) as caught:
        fetch(sources, **options)
    return caught.value


def asked(server):
    return [path for path, _ in server.requests]


def wait_until(claim, seconds=20):
    end = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < end
        time.sleep(0.005)


# Where from


def test_mirrors_are_tried_in_order(server, cache, mirrors):
    server.files["/two/pool/lib.deb"] = CONTENT

    paths = fetch([deb()], cache=cache, mirrors=mirrors)

    assert paths == {deb().sha256: cache.path(deb().sha256)}
    assert paths[deb().sha256].read_bytes() == CONTENT
    assert asked(server) == ["/one/pool/lib.deb", "/two/pool/lib.deb"]


def test_snapshot_takes_its_place(server, cache):
    server.files["/20261030T080801Z/pool/lib.deb"] = CONTENT
    mirrors = Mirrors(archives={"debian": (f"{server.url}/@SNAPSHOT@",)})

    fetch([deb()], cache=cache, mirrors=mirrors, snapshot="20261030T080801Z")

    assert cache.verify(deb().sha256)


@pytest.mark.parametrize(
    "source",
    [
        deb(),
        Url(**facts(CONTENT), url="http://gone.invalid/file", file_name="file"),
        Git(**facts(CONTENT), url="file:///gone", commit="0" * 40),
        Pypi(**facts(CONTENT), project="gone", version="1", file_name="gone-1.tar.gz"),
    ],
    ids=lambda source: source.kind,
)
def test_vault_serves_every_kind_and_is_asked_first(server, cache, source):
    server.files[f"/vault/{source.sha256}"] = CONTENT
    vaults = Mirrors(blobs=(f"{server.url}/none", f"{server.url}/vault"))

    fetch([source], cache=cache, mirrors=vaults)

    assert cache.verify(source.sha256)
    assert asked(server) == [f"/none/{source.sha256}", f"/vault/{source.sha256}"]


def test_wrong_bytes_lead_to_the_next_mirror_and_are_told(server, cache, mirrors, capsys):
    server.files["/one/pool/lib.deb"] = OTHER
    server.files["/two/pool/lib.deb"] = CONTENT

    fetch([deb()], cache=cache, mirrors=mirrors)

    assert cache.verify(deb().sha256)
    told = capsys.readouterr().err
    assert f"{server.url}/one/pool/lib.deb: is not the locked file" in told
    assert hashlib.sha256(OTHER).hexdigest() in told


def test_next_mirror_goes_on_where_one_broke_off(server, answer, cache, mirrors):
    server.files["/one/pool/lib.deb"] = server.files["/two/pool/lib.deb"] = CONTENT
    server.script["/one/pool/lib.deb"] = [answer(cut=200_000), answer(status=404)]

    fetch([deb()], cache=cache, mirrors=mirrors)

    assert cache.verify(deb().sha256)
    assert server.ranges() == [None, "bytes=200000-", "bytes=200000-"]


def test_same_bytes_come_once_from_any_of_their_places(server, cache, mirrors):
    server.files["/file"] = CONTENT

    paths = fetch([deb(), deb("same"), url_of(server)], cache=cache, mirrors=mirrors)

    assert list(paths) == [deb().sha256]
    assert asked(server).count("/file") == 1


def test_host_that_cannot_be_reached_is_asked_once(server, cache, capsys):
    server.files["/pool/liba.deb"], server.files["/pool/libb.deb"] = CONTENT, OTHER
    # Port 9 of this machine: discard, which nobody runs.
    mirrors = Mirrors(archives={"debian": ("http://127.0.0.1:9", server.url)})

    fetch([deb("liba"), deb("libb", OTHER)], cache=cache, mirrors=mirrors, jobs=1)

    assert cache.usage().files == 2
    assert capsys.readouterr().err.count("; attempt ") == 4


# What is already there


def test_cache_is_asked_first(server, cache, mirrors, capsys):
    server.files["/one/pool/lib.deb"] = CONTENT
    fetch([deb()], cache=cache, mirrors=mirrors)
    server.requests.clear()

    fetch([deb()], cache=cache, mirrors=mirrors)
    fetch([deb()], cache=cache, mirrors=mirrors, offline=True)

    assert server.requests == []
    told = capsys.readouterr().err
    assert "fetched 1 of 1 sources, 0.3 MB, " in told
    assert "fetched 0 of 1 sources, 0.0 MB, 0.0 s; 1 already in the cache" in told


def test_truncated_file_in_the_cache_recovers(server, cache, mirrors, capsys):
    server.files["/one/pool/lib.deb"] = CONTENT
    path = cache.path(deb().sha256)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:1000])

    fetch([deb()], cache=cache, mirrors=mirrors)

    assert path.read_bytes() == CONTENT
    kept = cache.root / "quarantine" / path.name
    assert kept.read_bytes() == CONTENT[:1000]
    assert str(kept) in capsys.readouterr().err


def test_damaged_file_of_the_right_size_is_found_by_a_thorough_fetch(server, cache, mirrors):
    server.files["/one/pool/lib.deb"] = CONTENT
    path = cache.path(deb().sha256)
    path.parent.mkdir(parents=True)
    path.write_bytes(OTHER)

    fetch([deb()], cache=cache, mirrors=mirrors)
    content_before = path.read_bytes()
    for _ in range(2):
        fetch([deb()], cache=cache, mirrors=mirrors, thorough=True)

    assert content_before == OTHER
    assert path.read_bytes() == CONTENT
    assert len(server.requests) == 1


# What goes wrong


def test_every_missing_source_is_in_one_error(server, cache, mirrors):
    server.files["/one/pool/libb.deb"] = OTHER
    sources = [
        deb("liba", b"a"),
        deb("libb", OTHER),
        deb("libc", b"c"),
        url_of(server, "/file", b"d"),
    ]

    error = refusal(sources, cache=cache, mirrors=mirrors)

    assert str(error) == (
        "3 of 4 sources could not be fetched:\n"
        f"  {server.url}/file: no place has it any more\n"
        f"    {server.url}/file: 404 Not Found\n"
        "  liba 1 (amd64): no place has it any more\n"
        f"    {server.url}/one/pool/liba.deb: 404 Not Found\n"
        f"    {server.url}/two/pool/liba.deb: 404 Not Found\n"
        "  libc 1 (amd64): no place has it any more\n"
        f"    {server.url}/one/pool/libc.deb: 404 Not Found\n"
        f"    {server.url}/two/pool/libc.deb: 404 Not Found"
    )
    assert error.hint == "invoke lock"
    assert error.exit_code == 4
    assert cache.verify(deb("libb", OTHER).sha256)


def test_source_that_may_come_back_is_not_called_gone(server, answer, cache, mirrors):
    server.script["/two/pool/lib.deb"] = [answer(status=500)] * 9

    error = refusal([deb()], cache=cache, mirrors=mirrors)

    assert "two/pool/lib.deb: 500 Internal Server Error" in str(error)
    assert "any more" not in str(error)
    assert error.hint == "invoke fetch"
    assert len(server.requests) == 6


def test_login_is_hinted_at(server, answer, cache):
    server.script["/file"] = [answer(status=401)]

    assert ".netrc" in refusal([url_of(server)], cache=cache, mirrors=Mirrors()).hint


def test_archive_without_a_mirror_is_explained(cache):
    error = refusal([deb()], cache=cache, mirrors=Mirrors())

    assert "lib 1 (amd64)\n    no mirror is known" in str(error)
    assert "ROCBAKE_MIRRORS" in str(error)


def test_offline_lists_what_is_missing(server, cache, mirrors):
    server.files["/one/pool/libb.deb"] = OTHER
    fetch([deb("libb", OTHER)], cache=cache, mirrors=mirrors)
    server.requests.clear()
    secret = Url(**facts(b"x"), url="https://me:hunter2@host.invalid/x", file_name="x")

    error = refusal([deb(), deb("libb", OTHER), secret], cache=cache, mirrors=mirrors, offline=True)

    assert str(error) == (
        f"offline, and 2 of 3 sources, 0.3 MB, are not in the cache {cache.root}:\n"
        "  lib 1 (amd64), 0.3 MB\n"
        "  https://***@host.invalid/x, 0.0 MB"
    )
    assert error.hint == "invoke fetch"
    assert server.requests == []


def test_room_is_asked_for_before_the_first_byte(server, cache, mirrors, monkeypatch):
    source = deb()
    cache.part_path(source.sha256).parent.mkdir(parents=True)
    cache.part_path(source.sha256).write_bytes(CONTENT[:100_000])
    server.files["/one/pool/lib.deb"] = CONTENT

    monkeypatch.setattr(fetch_module, "room", lambda path: (path, 199_999))
    error = refusal([source], cache=cache, mirrors=mirrors)
    asked_before = asked(server)
    monkeypatch.setattr(fetch_module, "room", lambda path: (path, 200_000))
    fetch([source], cache=cache, mirrors=mirrors)

    assert "no room for 0.2 MB" in str(error)
    assert asked_before == []
    assert cache.verify(source.sha256)


def test_cache_that_cannot_be_written_ends_the_run(server, tmp_path, mirrors):
    (tmp_path / "file").write_bytes(b"")
    sources = [deb("liba", b"a"), deb("libb", b"b")]

    error = refusal(sources, cache=Cache(tmp_path / "file" / "cache"), mirrors=mirrors)

    assert str(error).count("cannot write") == 1
    assert server.requests == []


def test_fault_in_a_thread_is_not_lost(server, cache, mirrors, monkeypatch):
    def fail(*args):
        raise RuntimeError("a bug")

    monkeypatch.setattr(Cache, "accept", fail)
    server.files["/one/pool/lib.deb"] = CONTENT

    with pytest.raises(RuntimeError, match="a bug"):
        fetch([deb()], cache=cache, mirrors=mirrors)


# Several at once, and ends of all kinds


def test_many_sources_come_at_the_same_time(server, answer, cache, mirrors):
    sources = [deb(f"lib{i}", b"%d" % i) for i in range(8)]
    all_of_them = threading.Barrier(8)
    for i, source in enumerate(sources):
        server.files[f"/one/{source.path}"] = b"%d" % i
        server.script[f"/one/{source.path}"] = [answer(company=all_of_them)]

    fetch(sources, cache=cache, mirrors=mirrors, jobs=8)

    assert cache.usage().files == 8
    assert not all_of_them.broken


@contextlib.contextmanager
def processes(count, source, cache):
    """Start processes that fetch a source, and let them all begin at the same time."""
    command = [sys.executable, "-c", PROGRAM, cache.root, source.url, source.sha256, "300000"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(subprocess.Popen(command, **pipes)) for _ in range(count)]
        for process in started:
            assert process.stdout.readline() == b"ready\n"
        for process in started:
            process.stdin.write(b"go\n")
            process.stdin.flush()
        yield started


def test_processes_that_want_the_same_download_it_once(server, answer, cache):
    server.files["/file"] = CONTENT
    server.script["/file"] = [answer(delay=0.4)] * 3
    source = url_of(server)

    with processes(2, source, cache) as started:
        fetch([source], cache=cache, mirrors=Mirrors())
        codes = [process.wait(30) for process in started]

    assert codes == [0, 0]
    assert len(server.requests) == 1
    assert cache.verify(source.sha256)
    assert not (cache.root / "quarantine").exists()


def test_killed_process_leaves_a_beginning_that_is_used(server, answer, cache):
    server.files["/file"] = CONTENT
    server.script["/file"] = [answer(cut=200_000, holds=True)]
    source = url_of(server)
    part_path = cache.part_path(source.sha256)

    with processes(1, source, cache) as started:
        wait_until(lambda: part_path.exists() and part_path.stat().st_size == 200_000)
        started[0].kill()
    was_there = cache.has(source.sha256)
    fetch([source], cache=cache, mirrors=Mirrors())

    assert not was_there
    assert cache.verify(source.sha256)
    assert server.ranges() == [None, "bytes=200000-"]


def test_interrupt_ends_at_once_and_keeps_the_beginning(server, answer, cache, capsys):
    server.files["/file"] = CONTENT
    server.script["/file"] = [answer(cut=200_000, holds=True)]
    source = url_of(server)
    part_path = cache.part_path(source.sha256)

    def interrupt():
        with contextlib.suppress(AssertionError):
            wait_until(lambda: part_path.exists() and part_path.stat().st_size == 200_000)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    others = set(threading.enumerate())
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fetch([source], cache=cache, mirrors=Mirrors())
    thread.join()

    # What still waits for the server does not keep the process alive.
    assert {left.daemon for left in set(threading.enumerate()) - others} == {True}
    assert time.monotonic() - start < 15
    assert part_path.read_bytes() == CONTENT[:200_000]
    server.ending.set()
    with cache.lock(source.sha256):  # the thread has ended
        assert "attempt" not in capsys.readouterr().err
    assert not cache.has(source.sha256)
