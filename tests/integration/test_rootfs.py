"""The root file system: the same bytes whatever surrounds mmdebstrap, and a host left as it was."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import pytest

from rocbake import container, digest, fetch, lock, mirror, plan, project, rootfs
from rocbake.cache import Cache

EPOCH = 1_700_000_000
# Of an ACL: owner, group, others, and what each may do.
RIGHTS = [(0x01, 7), (0x04, 0), (0x20, 0)]
CAPABILITY = "SCHILY.xattr.security.capability"


def tar(path, members, **options):
    """Write a tar of (name, type, content, more) and return its path."""
    with tarfile.open(path, "w", **options) as stream:
        for name, kind, content, more in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.mode = kind, len(content), 0o755
            for key, value in more.items():
                setattr(member, key, value)
            stream.addfile(member, io.BytesIO(content))
    return path


def rewritten(path):
    """Return the members that are left of a tar, by name, and the tar's digest."""
    rootfs._rewrite(path, path.with_suffix(".new"), EPOCH)
    with tarfile.open(path.with_suffix(".new")) as stream:
        return {one.name: one for one in stream}, digest.sha256_file(path.with_suffix(".new"))


def test_the_form_of_a_tar_does_not_count(tmp_path):
    names = [
        "./",
        "./etc/",
        "./etc/" + "long" * 50,
        "./etc/\N{LATIN SMALL LETTER A WITH DIAERESIS}",
    ]
    plain = [(name, tarfile.REGTYPE, name.encode(), {"mtime": 5}) for name in names[2:]]
    folders = [(name, tarfile.DIRTYPE, b"", {"mtime": 5}) for name in names[:2]]
    fancy = [
        (name, kind, content, {"mtime": 5.25, "uname": "root", "gname": "wheel"})
        for name, kind, content, _ in folders + plain
    ]
    for _, kind, _, more in fancy:
        if kind == tarfile.REGTYPE:
            more["pax_headers"] = {"SCHILY.xattr.security.selinux": "here_t"}

    _, first = rewritten(tar(tmp_path / "first.tar", folders + plain, format=tarfile.GNU_FORMAT))
    _, second = rewritten(tar(tmp_path / "second.tar", fancy, format=tarfile.PAX_FORMAT))

    assert first == second


def test_what_packages_made_is_kept(tmp_path):
    own = {"uid": 3, "gid": 8, "mode": 0o4750, "pax_headers": {CAPABILITY: "\x01"}}
    members, _ = rewritten(
        tar(
            tmp_path / "made.tar",
            [
                ("./usr/bin/ping", tarfile.REGTYPE, b"x", own),
                ("./usr/bin/ping6", tarfile.LNKTYPE, b"", {"linkname": "./usr/bin/ping"}),
                ("./bin", tarfile.SYMTYPE, b"", {"linkname": "usr/bin"}),
            ],
        )
    )

    ping = members["./usr/bin/ping"]
    assert (ping.uid, ping.gid, ping.mode, ping.pax_headers[CAPABILITY]) == (3, 8, 0o4750, "\x01")
    assert members["./usr/bin/ping6"].linkname == "./usr/bin/ping"
    assert members["./bin"].linkname == "usr/bin"


def test_no_date_is_the_builders(tmp_path):
    members, _ = rewritten(
        tar(
            tmp_path / "made.tar",
            [
                ("./old", tarfile.REGTYPE, b"", {"mtime": 5}),
                ("./new", tarfile.REGTYPE, b"", {"mtime": EPOCH + 5}),
                ("./folder", tarfile.DIRTYPE, b"", {"mtime": 5}),
            ],
        )
    )

    assert {name: one.mtime for name, one in members.items()} == {
        "./old": 5,
        "./new": EPOCH,
        "./folder": EPOCH,
    }


def test_nothing_of_the_host_is_kept(tmp_path):
    kept = ["./dev", "./etc/apt/sources.list.d", "./run", "./tmp", "./var/cache/apt/archives"]
    kept += ["./var/lib/apt/lists/partial", "./var/log/apt"]
    gone = ["./dev/pts", "./run/lock", "./var/lib/apt/lists/auxfiles"]
    files = ["./etc/resolv.conf", "./etc/hostname", "./etc/apt/sources.list.d/a.list", "./run/a/b"]
    files += ["./var/log/apt/term.log", "./var/cache/apt/pkgcache.bin", "./var/lib/dpkg/status-old"]

    members, _ = rewritten(
        tar(
            tmp_path / "made.tar",
            [(name, tarfile.DIRTYPE, b"", {}) for name in kept + gone]
            + [(name, tarfile.REGTYPE, b"x", {}) for name in files]
            + [("./dev/null", tarfile.CHRTYPE, b"", {"devmajor": 1, "devminor": 3})],
        )
    )

    assert list(members) == kept


@pytest.fixture(scope="module")
def base():
    """The root layer of this project, and where its packages are."""
    if not shutil.which("mmdebstrap"):
        pytest.skip("mmdebstrap is not installed")
    root = container.load_all(project.ROOT)["base"]
    layer = plan._layer(root, lock.read_container(root), None, [])
    files = fetch.fetch(
        layer.packages, cache=Cache(), mirrors=mirror.load(), snapshot=layer.snapshot
    )
    return layer, files


@pytest.fixture(scope="module")
def room():
    """A folder that mmdebstrap's user reaches where it is not root; that of pytest is closed."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def apts_own():
    """Return what the host's apt keeps, with dates."""
    folders = [Path("/var/lib/apt/lists"), Path("/var/cache/apt")]
    return {
        path: path.stat().st_mtime_ns
        for folder in folders
        for path in [folder, *folder.rglob("*")]
        if path.exists()
    }


@pytest.fixture(scope="module")
def made(base, room):
    """A root file system, and what the host's apt kept before and after it was made."""
    layer, files = base
    before = apts_own()
    rootfs.make(layer, room / "made.tar", files=files, log_path=room / "made.log")
    return room / "made.tar", before, apts_own()


def test_the_hosts_apt_is_left_alone(made):
    _, before, after = made

    assert after == before


def test_the_root_file_system_is_whole(made):
    with tarfile.open(made[0]) as stream:
        members = {one.name: one for one in stream}

    assert members["./usr/bin/apt-get"].mode == 0o755
    assert members["./etc/machine-id"].size == 0
    assert {one.uname + one.gname for one in members.values()} == {""}


def test_what_surrounds_it_does_not_count(base, made, room, monkeypatch):
    layer, files = base
    here = room / "here"
    here.mkdir()
    here.chmod(0o2775)
    with contextlib.suppress(OSError):  # a file system without
        entries = b"".join(struct.pack("<HHI", tag, rights, 2**32 - 1) for tag, rights in RIGHTS)
        os.setxattr(here, "system.posix_acl_default", struct.pack("<I", 2) + entries)
    monkeypatch.setattr(tempfile, "tempdir", str(here))
    for name, value in {
        "HOME": "/nonexistent",
        "LANG": "de_DE.UTF-8",
        "LC_ALL": "tr_TR.UTF-8",
        "TZ": "Asia/Kathmandu",
        "TMPDIR": str(here),
        "SOURCE_DATE_EPOCH": "1",
    }.items():
        monkeypatch.setenv(name, value)
    umask, cores = os.umask(0o077), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        rootfs.make(layer, room / "other.tar", files=files, log_path=room / "other.log")
    finally:
        os.umask(umask)
        os.sched_setaffinity(0, cores)

    assert digest.sha256_file(room / "other.tar") == digest.sha256_file(made[0])


def test_a_kill_leaves_no_mount_and_no_process(base, tmp_path):
    """What a mount left behind would be deleted with, or instead of, what lies over it."""
    layer, files = base
    words = (
        "import pickle, sys; from pathlib import Path; from rocbake import rootfs; "
        "layer, files, place = pickle.load(sys.stdin.buffer); "
        "rootfs.keep(layer, place, files=files, log_path=place / 'log')"
    )
    kept = tmp_path / "kept"
    kept.mkdir()
    running = subprocess.Popen(
        [sys.executable, "-c", words], cwd=project.ROOT, stdin=subprocess.PIPE
    )
    running.stdin.write(pickle.dumps((layer, files, kept)))
    running.stdin.close()
    log = kept / "log"
    deadline = time.monotonic() + 120
    while not (log.exists() and "installing" in log.read_text()):
        assert time.monotonic() < deadline
        assert running.poll() is None
        time.sleep(0.05)

    running.kill()
    running.wait()
    time.sleep(1)

    assert str(kept) not in Path("/proc/mounts").read_text()
    assert processes_below(kept) == []
    assert list(kept.glob(f"{rootfs._PREFIX}*")) != []
    path = rootfs.keep(layer, kept, files=files, log_path=log)
    assert rootfs.find(layer, kept) == path
    assert list(kept.glob(f"{rootfs._PREFIX}*")) == []


def processes_below(folder):
    """Return the processes whose command line or root is in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes().decode("utf-8", "replace")
            root = str((process / "root").readlink())
            if str(folder) in line or root.startswith(str(folder)):
                found.append(line)
    return found
