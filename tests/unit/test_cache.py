import hashlib
import io
import os
import resource
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from rocbake.cache import Cache, Usage, default_root, room
from rocbake.errors import FetchError

CONTENT = b"content"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NOBODY = 65534
OTHER = hashlib.sha256(b"other").hexdigest()


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def damage(cache, content):
    path = cache.path(SHA256)
    path.unlink()
    path.write_bytes(content)


def test_root_is_what_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("ROCBAKE_CACHE", str(tmp_path / "named"))

    assert default_root() == tmp_path / "named"
    assert Cache().root == tmp_path / "named"


def test_relative_root_is_below_the_working_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROCBAKE_CACHE", "named")

    assert default_root() == tmp_path / "named"


@pytest.mark.parametrize("value", [None, ""])
def test_root_is_the_users_cache_folder(monkeypatch, tmp_path, value):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("ROCBAKE_CACHE", "")
    if value is None:
        monkeypatch.delenv("ROCBAKE_CACHE")

    assert default_root() == tmp_path / "rocbake"


def test_path_is_named_by_the_digest(cache):
    assert cache.path(SHA256) == cache.root / "sha256" / SHA256[:2] / SHA256
    assert cache.part_path(SHA256) == cache.root / "part" / f"{SHA256}.part"


@pytest.mark.parametrize("name", ["", "../../etc/passwd", SHA256.upper(), SHA256[1:]])
def test_path_is_never_outside(cache, name):
    with pytest.raises(ValueError, match="not a SHA-256"):
        cache.path(name)


@pytest.mark.parametrize("kind", ["path", "stream"])
def test_what_is_put_is_there(cache, tmp_path, kind):
    (tmp_path / "file").write_bytes(CONTENT)
    source = tmp_path / "file" if kind == "path" else io.BytesIO(CONTENT)

    assert not cache.has(SHA256)
    assert cache.put(source, sha256=SHA256) == (SHA256, len(CONTENT))
    assert cache.has(SHA256)
    assert cache.has(SHA256, len(CONTENT))
    assert cache.verify(SHA256)
    assert cache.path(SHA256).read_bytes() == CONTENT
    assert cache.path(SHA256).stat().st_mode & 0o777 == 0o444
    assert list((cache.root / "part").iterdir()) == []


def test_other_bytes_are_not_put(cache):
    with pytest.raises(FetchError) as caught:
        cache.put(io.BytesIO(b"other"), sha256=SHA256)

    assert SHA256 in str(caught.value)
    assert OTHER in str(caught.value)
    assert cache.usage() == Usage()
    assert list((cache.root / "part").iterdir()) == []


def test_accept_moves_the_file(cache):
    part_path = cache.part_path(SHA256)
    part_path.parent.mkdir(parents=True)
    part_path.write_bytes(CONTENT)

    assert cache.accept(part_path, SHA256) == cache.path(SHA256)
    assert not part_path.exists()
    assert cache.verify(SHA256)


def test_truncation_is_seen_by_size_and_a_flipped_bit_by_reading(cache):
    cache.put(io.BytesIO(CONTENT))
    damage(cache, CONTENT[:-1])
    truncated = cache.has(SHA256, len(CONTENT))
    damage(cache, b"cOntent")

    assert not truncated
    assert cache.has(SHA256, len(CONTENT))
    assert not cache.verify(SHA256)
    assert not cache.verify(OTHER)


def test_damaged_file_is_kept_aside_and_named(cache, capsys):
    cache.put(io.BytesIO(CONTENT))
    damage(cache, b"cOntent")

    cache.quarantine(SHA256)
    cache.quarantine(SHA256)

    kept = cache.root / "quarantine" / SHA256
    assert kept.read_bytes() == b"cOntent"
    assert not cache.has(SHA256)
    assert capsys.readouterr().err.count(str(kept)) == 1


def test_usage_counts_whole_files_alone(cache):
    cache.put(io.BytesIO(CONTENT))
    cache.put(io.BytesIO(b"other"))
    cache.part_path(SHA256).write_bytes(b"beginning")

    assert cache.usage() == Usage(files=2, size=12)


def test_prune_keeps_what_it_is_told(cache):
    cache.put(io.BytesIO(CONTENT))
    cache.put(io.BytesIO(b"other"))
    for sha256 in (SHA256, OTHER):
        cache.part_path(sha256).write_bytes(b"beginning")
    (cache.root / "part" / "git-left").mkdir()
    (cache.root / "quarantine").mkdir()
    (cache.root / "quarantine" / OTHER).write_bytes(b"damaged")

    assert cache.prune({SHA256}) == Usage(files=1, size=5)

    assert cache.usage() == Usage(files=1, size=7)
    assert cache.has(SHA256)
    assert [item.name for item in (cache.root / "part").iterdir()] == [f"{SHA256}.part"]
    assert not (cache.root / "quarantine").exists()


def test_prune_leaves_what_is_being_written(cache):
    with cache.lock(SHA256), cache.lock(OTHER):
        cache.part_path(SHA256).parent.mkdir()
        cache.part_path(SHA256).write_bytes(b"beginning")
        cache.prune(set())
        kept = cache.part_path(SHA256).exists()
    cache.prune(set())

    assert kept
    assert not cache.part_path(SHA256).exists()


def test_prune_of_nothing(cache):
    assert cache.prune(set()) == Usage()
    assert cache.usage() == Usage()


def test_lock_is_for_one_thread_at_a_time(cache):
    inside = []
    most = []

    def work():
        with cache.lock(SHA256):
            inside.append(1)
            most.append(len(inside))
            threading.Event().wait(0.01)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == [1, 1, 1, 1]


def test_lock_of_a_killed_process_hinders_nobody(cache):
    program = (
        "import os, signal, sys; from pathlib import Path; from rocbake.cache import Cache\n"
        "with Cache(Path(sys.argv[1])).lock(sys.argv[2]): os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", program, cache.root, SHA256], check=False)
    left = list((cache.root / "lock").iterdir())

    with cache.lock(SHA256):
        pass

    assert killed.returncode == -9
    assert len(left) == 1


# Where nothing can be written


@pytest.fixture
def blocked(tmp_path):
    """Return a cache whose root cannot be made, for root and everyone."""
    (tmp_path / "file").write_bytes(b"")
    return Cache(tmp_path / "file" / "cache")


def test_unwritable_root_is_explained(blocked, tmp_path):
    (tmp_path / "source").write_bytes(CONTENT)
    attempts = [
        lambda: blocked.put(tmp_path / "source"),
        lambda: blocked.accept(tmp_path / "source", SHA256),
        lambda: blocked.lock(SHA256).__enter__(),
    ]

    for attempt in attempts:
        with pytest.raises(FetchError) as caught:
            attempt()
        assert f"cannot write {blocked.root}" in str(caught.value)
        assert "Not a directory" in str(caught.value)
        assert f"file system {room(tmp_path)[0]}, " in str(caught.value)
        assert " MB free" in str(caught.value)
        assert "set ROCBAKE_CACHE" in caught.value.hint
    assert not blocked.has(SHA256)
    assert blocked.usage() == Usage()


@pytest.fixture
def read_only():
    """Return a cache that holds one file and that we may not write, even if we are root."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder))
        cache.put(io.BytesIO(CONTENT))
        for path in (cache.root, *cache.root.rglob("*")):
            path.chmod(0o555)
        us = os.geteuid()
        if us == 0:
            os.seteuid(NOBODY)
        yield cache
        os.seteuid(us)
        for path in (cache.root, *cache.root.glob("**/")):
            path.chmod(0o755)


def test_read_only_cache_gives_what_it_has(read_only):
    assert read_only.has(SHA256, len(CONTENT))
    assert read_only.verify(SHA256)


@pytest.mark.parametrize(
    "attempt",
    [
        lambda cache: cache.put(io.BytesIO(b"other")),
        lambda cache: cache.lock(SHA256).__enter__(),
        lambda cache: cache.quarantine(SHA256),
        lambda cache: cache.prune(set()),
    ],
)
def test_read_only_cache_is_explained(read_only, attempt):
    with pytest.raises(FetchError, match="Permission denied") as caught:
        attempt(read_only)

    assert str(read_only.root) in str(caught.value)
    assert "MB free" in str(caught.value)


def test_full_file_system_is_explained(cache):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3, hard))
    try:
        with pytest.raises(FetchError, match="File too large") as caught:
            cache.put(io.BytesIO(CONTENT))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert "invoke clean" in caught.value.hint
    assert cache.usage() == Usage()
    assert list((cache.root / "part").iterdir()) == []


def test_room_is_that_of_the_nearest_folder(tmp_path):
    mount, free = room(tmp_path / "not" / "there")

    assert mount.is_mount()
    assert Path(tmp_path).is_relative_to(mount)
    assert free > 0
