import contextlib
import gzip
import hashlib
import io
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rocbake import archive
from rocbake import unpack as unpacking
from rocbake.archive import TarDigest, write_archive, write_tar
from rocbake.errors import BuildError
from rocbake.member import Member, MemberType
from rocbake.unpack import read_members, unpack

EPOCH = 1_700_000_000
LONG = "a/" + "very-" * 30 + "long"


def make_tree(root, order=1):
    """Make one of everything that an archive may hold; order and dates change nothing."""
    entries = [
        ("bin/tool", b"#!/bin/sh\n", 0o755),
        ("lib/libx.so.1", b"\x7fELF" + bytes(70_000), 0o644),
        ("lib-extra/x", b"", 0o640),
        ("share/ünï/κόσμος.txt", "привет".encode(), 0o600),
        (f"share/{LONG}", b"long", 0o444),
        ("share/with\nnewline", b"n", 0o644),
    ]
    (root / "empty").mkdir(parents=True)
    for name, content, mode in entries[::order]:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
    (root / "lib/libx.so").symlink_to("libx.so.1")
    (root / "lib/long").symlink_to(f"../share/{LONG}")
    (root / "share/to").symlink_to("ünï")
    (root / "up").symlink_to("lib/../bin/./tool")
    (root / "nowhere").symlink_to("empty/missing")
    (root / "zz").hardlink_to(root / "bin/tool")
    (root / "lib/tool").hardlink_to(root / "bin/tool")
    return root


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree")


def tar_of(root, prefix="p-1.0"):
    stream = io.BytesIO()
    digest = write_tar(root, stream, prefix=prefix, epoch=EPOCH)
    data = stream.getvalue()
    assert digest == archive.TarDigest(hashlib.sha256(data).hexdigest(), len(data))
    return data


def contents(root):
    """Return what is in a folder as far as an archive keeps it."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))  # noqa: PTH115 - a Path drops "./"
        elif path.is_dir():
            found[name] = ("folder", path.stat().st_mode & 0o7777)
        else:
            found[name] = (path.read_bytes(), path.stat().st_mode & 0o100, path.stat().st_nlink)
    return found


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# The same bytes


def test_order_dates_owners_and_place_do_not_count(tmp_path, tree):
    other = make_tree(tmp_path / "elsewhere" / "deeper", order=-1)
    for path in other.rglob("*"):
        os.utime(path, (5, 5.5), follow_symlinks=False)
        if os.geteuid() == 0:
            os.chown(path, 1234, 5678, follow_symlinks=False)
    other.chmod(0o700)

    assert tar_of(other) == tar_of(tree)


def test_umask_zone_and_locale_do_not_count(tmp_path, tree):
    out = tmp_path / "out.tar.zst"
    code = (
        "import os, sys, pathlib; os.umask(int(sys.argv[1], 8)); from rocbake import archive; "
        "print(archive.write_archive(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), "
        f"prefix='p', epoch={EPOCH}).sha256)"
    )

    digests = {
        subprocess.run(
            [sys.executable, "-c", code, umask, tree, out],
            check=True,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(Path.cwd()), "TZ": zone, "LC_ALL": locale},
        ).stdout
        for umask, zone, locale in [("022", "UTC", "C"), ("077", "Asia/Tokyo", "C.UTF-8")]
    }

    assert len(digests) == 1
    assert out.stat().st_mode & 0o777 == 0o644


def test_threads_do_not_count(tmp_path):
    # Larger than two jobs, and not compressible to nothing.
    root = tmp_path / "big"
    root.mkdir()
    noise = random.Random(1)
    (root / "data").write_bytes(b"".join(noise.randbytes(700) + bytes(300) for _ in range(2_300)))

    digests = {
        write_archive(root, tmp_path / f"{threads}.tar.zst", prefix="", epoch=1, threads=threads)
        for threads in (1, 3, None)
    }

    assert len(digests) == 1
    assert len({path.read_bytes() for path in tmp_path.glob("*.zst")}) == 1


def test_known_bytes(tmp_path):
    """A change of these digests breaks every archive that was ever recorded."""
    digest = write_archive(
        make_tree(tmp_path / "tree"), tmp_path / "x.tar.zst", prefix="p-1.0", epoch=EPOCH
    )

    assert digest.tar_sha256 == "eda37b5ecb058c9da911a9181f128c0df4d2467d448931d5de7477d2b65b45b8"
    if zstandard.ZSTD_VERSION == (1, 5, 7):
        assert digest.sha256 == "543bbc2af486d76c67256c3f22ca70a0df8d1a65f3b196088b482d3f1533d687"


def test_epoch_prefix_content_and_mode_count(tree):
    before = tar_of(tree)
    digests = {before, tar_of(tree, prefix="q")}
    stream = io.BytesIO()
    write_tar(tree, stream, prefix="p-1.0", epoch=EPOCH + 1)
    digests.add(stream.getvalue())
    (tree / "lib-extra/x").chmod(0o700)
    digests.add(tar_of(tree))
    (tree / "lib-extra/x").write_text("y")
    digests.add(tar_of(tree))

    assert len(digests) == 5


# What is in it


def test_members_are_sorted_normalised_and_dated(tmp_path, tree):
    path = tmp_path / "x.tar.zst"
    write_archive(tree, path, prefix="opt/p", epoch=EPOCH)

    members = list(read_members(path))

    in_order = [member.name for member in members]
    assert in_order[:3] == ["opt", "opt/p", "opt/p/bin"]
    assert in_order == sorted(in_order, key=str.encode)
    assert {member.mtime for member in members} == {EPOCH}
    by_name = {member.name.removeprefix("opt/p/"): member for member in members}
    assert by_name["empty"].type is MemberType.FOLDER
    assert by_name["empty"].mode == 0o755
    assert by_name["bin/tool"] == Member(
        "opt/p/bin/tool",
        MemberType.FILE,
        0o755,
        10,
        EPOCH,
        sha256=hashlib.sha256(b"#!/bin/sh\n").hexdigest(),
    )
    assert by_name["lib-extra/x"].mode == 0o644
    assert by_name[f"share/{LONG}"].size == 4
    assert by_name["lib/libx.so"].linkname == "libx.so.1"
    assert by_name["up"].linkname == "lib/../bin/./tool"
    assert by_name["share/to"].linkname == "ünï"
    assert by_name["zz"].type is MemberType.HARDLINK
    assert by_name["zz"].linkname == by_name["lib/tool"].linkname == "opt/p/bin/tool"


def test_python_and_gnu_tar_agree(tmp_path, tree):
    path = tmp_path / "x.tar.zst"
    write_archive(tree, path, prefix="p", epoch=EPOCH)
    plain = tmp_path / "x.tar"
    write_tar(tree, plain, prefix="p", epoch=EPOCH)

    subprocess.run(["tar", "--zstd", "-xpf", path, "-C", tmp_path], check=True)

    assert contents(tmp_path / "p") == contents(tree)
    files = [path for path in (tmp_path / "p").rglob("*") if path.is_file()]
    assert {path.stat().st_mtime for path in files} == {EPOCH}
    listing = subprocess.run(
        ["tar", "--zstd", "--numeric-owner", "--full-time", "-tvf", path],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"TZ": "UTC", "LC_ALL": "C.UTF-8"},
    )
    assert listing.stderr == ""
    assert all(
        "0/0" in line and "2023-11-14 22:13:20" in line for line in listing.stdout.splitlines()
    )
    with tarfile.open(plain) as tar:
        assert {(info.uid, info.gid, info.uname, info.gname) for info in tar} == {(0, 0, "", "")}
        assert [info.name for info in tar] == [member.name for member in read_members(path)]


def test_extended_headers_are_only_where_needed(tmp_path):
    (tmp_path / ("x" * 100)).write_text("")
    assert b"PaxHeader" not in tar_of(tmp_path, prefix="")

    (tmp_path / ("x" * 101)).write_text("")
    (tmp_path / "link").symlink_to("ü")
    data = tar_of(tmp_path, prefix="")
    assert data.count(b"PaxHeader") == 2
    assert data.count(b"15 linkpath=\xc3\xbc\n") == 1


@pytest.mark.parametrize("size", [8**11 - 1, 8**11, 2**63 - 1])
def test_sizes_beyond_the_header_are_kept(size):
    member = Member("big", MemberType.FILE, 0o644, size)

    header = archive._header(member, EPOCH)

    info = tarfile.TarFile.open(fileobj=io.BytesIO(header), mode="r|").next()
    assert info.size == size
    source = unpacking._Source(Path("x"), iter([header]), 1 << 20)
    assert unpacking._next_member(source).size == size


@pytest.mark.parametrize(
    "length", [*range(1, 12), *range(85, 110), *range(980, 1010), 9_990, 9_991]
)
def test_length_of_a_record_counts_itself(length):
    record = archive._record(b"path", b"x" * length)

    assert int(record.partition(b" ")[0]) == len(record)


def test_progress_adds_up_to_the_tar(tmp_path, tree):
    steps = []

    digest = write_archive(tree, tmp_path / "x", prefix="", epoch=0, progress=steps.append)

    assert sum(steps) == digest.tar_size == len(tar_of(tree, prefix=""))


def test_frame_says_size_and_checksum(tmp_path, tree):
    digest = write_archive(tree, tmp_path / "x", prefix="", epoch=0)

    frame = zstandard.get_frame_parameters((tmp_path / "x").read_bytes())
    assert frame.content_size == digest.tar_size
    assert frame.has_checksum
    assert digest.size == (tmp_path / "x").stat().st_size
    assert digest.sha256 == hashlib.sha256((tmp_path / "x").read_bytes()).hexdigest()


def test_memory_does_not_grow_with_the_content(tmp_path):
    (tmp_path / "tree").mkdir()
    with (tmp_path / "tree/big").open("wb") as stream:
        stream.truncate(24 << 20)

    tracemalloc.start()
    try:
        write_archive(tmp_path / "tree", tmp_path / "x", prefix="", epoch=0)
        unpack(tmp_path / "x", tmp_path / "out")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    # The frame is a few hundred bytes: what it unpacks to at once is the worst case.
    assert peak < 12 << 20


# What is refused


def refusal(call, *arguments, **options):
    with pytest.raises(BuildError) as caught:
        call(*arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("pipe", os.mkfifo, "pipe is neither a file, a folder nor a link"),
        (
            "absolute",
            lambda path: path.symlink_to("/etc"),
            "absolute is an absolute link, to '/etc'",
        ),
        ("out", lambda path: path.symlink_to(".."), "out is a link out of the archive, to '..'"),
        ("d/out", lambda path: path.symlink_to("../../x"), "d/out is a link out of the archive"),
        ("setuid", lambda path: (path.touch(), path.chmod(0o4755)), "setuid is setuid, setgid or"),
        ("setgid", lambda path: (path.mkdir(), path.chmod(0o2755)), "sticky: mode 2755"),
        ("sticky", lambda path: (path.mkdir(), path.chmod(0o1755)), "sticky: mode 1755"),
        ("a\nb", os.mkfifo, "'a\\nb' is neither"),
        ("\udcff", lambda path: path.touch(), "'\\udcff' has a name that is not UTF-8"),
        ("to", lambda path: path.symlink_to("\udcff"), "to is a link to a name that is not UTF-8"),
    ],
)
def test_member_that_cannot_be_kept_is_named(tmp_path, name, make, message):
    path = tmp_path / "tree" / name
    path.parent.mkdir(parents=True)
    make(path)

    assert message in refusal(tar_of, tmp_path / "tree")


def test_socket_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")

        assert "socket is neither a file" in refusal(tar_of, tmp_path)


def test_links_that_leave_together_are_refused(tmp_path):
    """Each of them stays inside when the others are taken for folders."""
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/up").symlink_to("../..")
    (tmp_path / "a/b/out").symlink_to("up/../x")

    assert "a/b/out is a link out of the archive" in refusal(tar_of, tmp_path)


def test_links_in_a_circle_are_kept(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    assert b"ustar" in tar_of(tmp_path)


@pytest.mark.parametrize("prefix", ["/x", "x/", "../x", "a//b", "."])
def test_prefix_must_be_plain(tmp_path, prefix):
    assert repr(prefix) in refusal(tar_of, tmp_path, prefix)


@pytest.mark.parametrize("epoch", [-1, 8**11])
def test_date_must_fit(tmp_path, epoch):
    assert str(epoch) in refusal(write_tar, tmp_path, io.BytesIO(), prefix="", epoch=epoch)


def test_folder_that_is_none_is_named(tmp_path):
    missing = tmp_path / "missing"

    assert str(missing) in refusal(tar_of, missing)


def test_archive_inside_its_own_folder_is_refused(tree):
    message = refusal(write_archive, tree, tree / "x.tar.zst", prefix="", epoch=0)

    assert "inside the folder" in message


@pytest.mark.parametrize(("change", "word"), [(b"", "shrank"), (b"longer than it was", "grew")])
def test_file_that_changes_meanwhile_is_named(tmp_path, monkeypatch, change, word):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/log").write_text("before")
    plan = archive._plan

    def plan_and_change(*arguments):
        planned = plan(*arguments)
        (tmp_path / "tree/log").write_bytes(change)
        return planned

    monkeypatch.setattr(archive, "_plan", plan_and_change)

    message = refusal(write_archive, tmp_path / "tree", tmp_path / "x", prefix="", epoch=0)

    assert f"log {word} while" in message
    assert names(tmp_path) == ["tree"]


def test_file_swapped_for_a_link_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "tree").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "tree/file").write_text("public")
    plan = archive._plan

    def plan_and_swap(*arguments):
        planned = plan(*arguments)
        (tmp_path / "tree/file").unlink()
        (tmp_path / "tree/file").symlink_to("../secret")
        return planned

    monkeypatch.setattr(archive, "_plan", plan_and_swap)

    assert "tree/file" in refusal(tar_of, tmp_path / "tree")


# Whole or absent


def test_what_was_there_stays_until_the_new_is_whole(tmp_path, tree):
    path = tmp_path / "x.tar.zst"
    path.write_text("old")

    def interrupt(_):
        assert path.read_text() == "old"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_archive(tree, path, prefix="", epoch=0, progress=interrupt)

    assert path.read_text() == "old"
    assert names(tmp_path) == ["tree", "x.tar.zst"]
    write_archive(tree, path, prefix="", epoch=0)
    assert path.read_bytes()[:4] == b"\x28\xb5\x2f\xfd"
    assert names(tmp_path) == ["tree", "x.tar.zst"]


def test_signal_leaves_nothing(tmp_path, tree):
    def interrupt(_):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        write_tar(tree, tmp_path / "x.tar", prefix="", epoch=0, progress=interrupt)

    assert names(tmp_path) == ["tree"]


def test_missing_destination_folder_is_named(tmp_path, tree):
    message = refusal(write_tar, tree, tmp_path / "no/x.tar", prefix="", epoch=0)

    assert str(tmp_path / "no/x.tar") in message


# Unpacking


def test_unpacking_gives_back_what_was_packed(tmp_path, tree):
    path = tmp_path / "x.tar.zst"
    write_archive(tree, path, prefix="p", epoch=EPOCH)

    unpack(path, tmp_path / "out")

    assert contents(tmp_path / "out/p") == contents(tree)
    assert {entry.lstat().st_mtime for entry in (tmp_path / "out").rglob("*")} == {EPOCH}
    assert (tmp_path / "out/p/lib/tool").samefile(tmp_path / "out/p/bin/tool")
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755
    assert tar_of(tmp_path / "out/p") == tar_of(tree)


def test_gzip_holds_the_same_tar_and_no_trace_of_the_moment(tmp_path, tree):
    packed = write_archive(tree, tmp_path / "a.tar.gz", prefix="p", epoch=EPOCH)
    other = write_archive(tree, tmp_path / "a.tar.zst", prefix="p", epoch=EPOCH)
    content = (tmp_path / "a.tar.gz").read_bytes()

    assert (packed.tar_sha256, packed.tar_size) == (other.tar_sha256, other.tar_size)
    assert packed.sha256 == hashlib.sha256(content).hexdigest()
    assert hashlib.sha256(gzip.decompress(content)).hexdigest() == packed.tar_sha256
    # RFC 1952: no name, no date; Unix.
    assert content[:10] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"
    assert list(read_members(tmp_path / "a.tar.gz")) == list(read_members(tmp_path / "a.tar.zst"))
    unpack(tmp_path / "a.tar.gz", tmp_path / "out")
    assert write_tar(tmp_path / "out/p", io.BytesIO(), prefix="p", epoch=EPOCH) == TarDigest(
        packed.tar_sha256, packed.tar_size
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "ends too early"),
        (lambda data: data + b"x", "has something after its gzip member"),
        (lambda data: data + data, "has something after its gzip member"),
        (lambda data: data[:-8] + b"\0\0\0\0" + data[-4:], "incorrect data check"),
        (lambda data: data[:-4] + b"\0\0\0\0", "incorrect length check"),
        (lambda data: data[:12] + b"\xff\xff" + data[14:], "while decompressing data"),
    ],
)
def test_damaged_gzip_is_refused(tmp_path, tree, damage, message):
    write_archive(tree, tmp_path / "a.tar.gz", prefix="p", epoch=EPOCH)
    data = (tmp_path / "a.tar.gz").read_bytes()
    (tmp_path / "a.tar.gz").write_bytes(damage(data))

    with pytest.raises(BuildError, match=message):
        list(read_members(tmp_path / "a.tar.gz"))


def test_gzip_of_a_huge_tar_is_refused_in_flat_memory(tmp_path):
    with gzip.open(tmp_path / "a.tar.gz", "wb") as stream:
        for _ in range(64):
            stream.write(bytes(1 << 20))

    with pytest.raises(BuildError):
        list(read_members(tmp_path / "a.tar.gz", limit=1 << 20))


def test_plain_tar_is_read_too(tmp_path, tree):
    path = tmp_path / "x.tar"
    write_tar(tree, path, prefix="", epoch=EPOCH)

    unpack(path, tmp_path / "out")

    assert contents(tmp_path / "out") == contents(tree)


def test_nothing_is_unpacked_over_something(tmp_path, tree):
    write_tar(tree, tmp_path / "x.tar", prefix="", epoch=0)
    (tmp_path / "out").mkdir()

    assert "out exists" in refusal(unpack, tmp_path / "x.tar", tmp_path / "out")


def info(name, kind=tarfile.REGTYPE, mode=0o644, linkname="", size=0, **fields):
    made = tarfile.TarInfo(name)
    made.type, made.mode, made.linkname, made.size = kind, mode, linkname, size
    for key, value in fields.items():
        setattr(made, key, value)
    return made


def hostile(*infos):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member in infos:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return stream.getvalue()


FOLDER = info("d", tarfile.DIRTYPE, 0o755)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (hostile(info("/etc/passwd")), "/etc/passwd is not a relative path"),
        (hostile(FOLDER, info("d/../../x")), "d/../../x is not a relative path"),
        (hostile(info("./x")), "./x is not a relative path"),
        (hostile(info("x/y")), "x/y does not come after its folder"),
        (hostile(info("x"), info("x/y")), "x/y does not come after its folder"),
        (hostile(info("x"), info("x")), "x comes twice"),
        (hostile(FOLDER, info("d", tarfile.SYMTYPE, linkname="e")), "d comes twice"),
        (
            hostile(FOLDER, info("s", tarfile.SYMTYPE, linkname="d"), info("s/x")),
            "s/x does not come after its folder",
        ),
        (hostile(info("s", tarfile.SYMTYPE, linkname="/etc")), "s is an absolute link"),
        (hostile(info("s", tarfile.SYMTYPE, linkname="../x")), "s is a link out of the archive"),
        (hostile(info("s", tarfile.SYMTYPE)), "s is a symlink to ''"),
        (hostile(info("h", tarfile.LNKTYPE, linkname="/etc/passwd")), "h is a hardlink to /etc/"),
        (hostile(info("h", tarfile.LNKTYPE, linkname="h")), "which is not a file before it"),
        (hostile(FOLDER, info("h", tarfile.LNKTYPE, linkname="d")), "which is not a file before"),
        (hostile(info("d", tarfile.DIRTYPE, 0o755, size=5)), "d is a folder with content"),
        (hostile(info("n", tarfile.CHRTYPE)), "n is neither a file, a folder nor a link"),
        (hostile(info("n", tarfile.FIFOTYPE)), "n is neither a file, a folder nor a link"),
        (hostile(info("u", mode=0o4755)), "u is setuid, setgid or sticky: mode 4755"),
        (hostile(info("d", tarfile.DIRTYPE, 0o1777)), "d is setuid, setgid or sticky"),
        (hostile(info("../\x1b[2J")), "'../\\x1b[2J' is not a relative path"),
        (hostile(info("x", pax_headers={"GNU.sparse.realsize": "9"})), "was not written here"),
        (hostile(info("x", pax_headers={"comment": "y" * 70_000})), "extended header of 70"),
        (hostile(info("x"))[:1024] + b"x" * 512, "one block of zeros"),
        (hostile(info("x")) + b"x", "has something after its end"),
        (hostile(info("x", size=600))[:1000], "ends too early"),
        (b"", "ends too early"),
        (b"not a tar at all" * 100, "has no tar header"),
        (bytes(511), "ends too early"),
    ],
)
def test_hostile_archive_is_refused_and_nothing_is_left(tmp_path, data, message):
    path = tmp_path / "x.tar"
    path.write_bytes(data)

    for call in (lambda: unpack(path, tmp_path / "out"), lambda: list(read_members(path))):
        said = refusal(call)
        assert message in said
        assert said.startswith(str(path))
    assert names(tmp_path) == ["x.tar"]


@pytest.mark.parametrize(
    ("start", "field", "message"),
    [
        (0, b"\xff", "b'\\xffyz' is not UTF-8"),
        (100, b"9", "has b'9000644' where a number must be"),
        (124, b"\x80", "where a number must be"),
        (136, bytes(12), "has b'' where a number must be"),
    ],
)
def test_field_that_cannot_be_read_is_refused(tmp_path, start, field, message):
    block = bytearray(hostile(info("xyz"))[:512])
    block[start : start + len(field)] = field
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    (tmp_path / "x.tar").write_bytes(block + bytes(1024))

    assert message in refusal(unpack, tmp_path / "x.tar", tmp_path / "out")


def test_header_with_a_wrong_checksum_is_refused(tmp_path):
    data = bytearray(hostile(info("xyz")))
    data[0] ^= 1
    (tmp_path / "x.tar").write_bytes(data)

    assert "wrong checksum" in refusal(unpack, tmp_path / "x.tar", tmp_path / "out")


def test_padding_that_hides_something_is_refused(tmp_path):
    data = bytearray(hostile(info("x", size=1)))
    data[600] = 1
    (tmp_path / "x.tar").write_bytes(data)

    assert "x is padded with something" in refusal(unpack, tmp_path / "x.tar", tmp_path / "out")


def test_archive_that_unpacks_to_too_much_is_refused(tmp_path):
    frame = zstandard.ZstdCompressor().compress(hostile(info("bomb", size=8 << 20)))
    (tmp_path / "x").write_bytes(frame)
    zeros = zstandard.ZstdCompressor().compress(bytes(8 << 20))
    (tmp_path / "zeros").write_bytes(zeros)

    for name in ("x", "zeros"):
        message = refusal(unpack, tmp_path / name, tmp_path / "out", limit=1 << 20)
        assert "is larger than 1048576 bytes when unpacked" in message
    assert not (tmp_path / "out").exists()


def test_damaged_frame_is_refused(tmp_path, tree):
    path = tmp_path / "x"
    write_archive(tree, path, prefix="", epoch=0)
    good = path.read_bytes()

    for damaged, message in [
        (good[:-1], "ends too early"),
        (good[:-5], "ends too early"),
        (good + b"x", "something after its zstd frame"),
        (good + bytes(1000), "something after its zstd frame"),
        (good[:-1] + bytes([good[-1] ^ 1]), "checksum"),
        (good[:4], "ends too early"),
    ]:
        path.write_bytes(damaged)
        assert message in refusal(list, read_members(path))


def test_frame_with_a_huge_window_is_refused(tmp_path):
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    (tmp_path / "x").write_bytes(compressor.compress(bytes(1000)) + compressor.flush())

    assert "too much memory" in refusal(unpack, tmp_path / "x", tmp_path / "out")


def test_interrupted_unpacking_leaves_nothing(tmp_path, tree, monkeypatch):
    write_tar(tree, tmp_path / "x.tar", prefix="", epoch=0)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(unpacking, "_unpack_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        unpack(tmp_path / "x.tar", tmp_path / "out")

    assert names(tmp_path) == ["tree", "x.tar"]


def test_missing_archive_is_named(tmp_path):
    assert str(tmp_path / "x") in refusal(unpack, tmp_path / "x", tmp_path / "out")


# Whatever is packed or read

NAMES = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12
).filter(lambda name: name not in (".", "..")) | st.just("n" * 120)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(tuple)
TREES = st.dictionaries(
    PATHS,
    st.tuples(st.just("file"), st.binary(max_size=1100), st.booleans())
    | st.tuples(st.just("folder"))
    | st.tuples(st.just("hardlink"), st.integers(0, 9))
    | st.tuples(st.just("symlink"), PATHS),
    max_size=8,
)


def grow(root, tree, *, backwards):
    """Make a tree, leaving out what cannot be made where something else already is."""
    root.mkdir()
    files = []
    for parts, (kind, *details) in sorted(tree.items()):
        # Taken, below a file, too long, or below links in a circle.
        with contextlib.suppress(OSError):
            path = root.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            make_one(path, kind, details, files)
    if backwards:
        # Most file systems list what was made last in another place.
        for path in sorted(root.iterdir(), reverse=True):
            path.rename(root / "_moved")
            (root / "_moved").rename(path)


def make_one(path, kind, details, files):
    if kind == "folder":
        path.mkdir()
    elif kind == "symlink":
        path.symlink_to("/".join(details[0]))
    elif kind == "hardlink" and files:
        path.hardlink_to(files[details[0] % len(files)])
    elif kind == "file":
        with path.open("xb") as stream:
            stream.write(details[0])
        path.chmod(0o700 if details[1] else 0o600)
        files.append(path)


@settings(max_examples=15, deadline=None)
@given(TREES)
def test_packed_read_unpacked_and_packed_again_is_the_same(tmp_path_factory, tree):
    top = tmp_path_factory.mktemp("top")
    grow(top / "a", tree, backwards=False)
    grow(top / "b", tree, backwards=True)

    first = write_archive(top / "a", top / "a.zst", prefix="p", epoch=EPOCH, threads=1)
    assert write_archive(top / "b", top / "b.zst", prefix="p", epoch=EPOCH, threads=2) == first
    unpack(top / "a.zst", top / "c")
    assert write_archive(top / "c/p", top / "c.zst", prefix="p", epoch=EPOCH) == first

    assert contents(top / "a").keys() == contents(top / "c/p").keys()
    members = [member for member in read_members(top / "a.zst") if member.name != "p"]
    assert {member.name for member in members} == {f"p/{name}" for name in contents(top / "a")}
    shutil.rmtree(top)


GOOD = hostile(FOLDER, info("d/x", size=3), info("d/ü", size=600), info("l", b"2", linkname="d"))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_bytes_are_read_or_refused(tmp_path_factory, data):
    damaged = bytearray(GOOD[: data.draw(st.integers(0, 4096))] or data.draw(st.binary()))
    for _ in range(data.draw(st.integers(0, 3))):
        position = data.draw(st.integers(0, max(len(damaged) - 1, 0)))
        damaged[position : position + 1] = data.draw(st.binary(max_size=2))
    if data.draw(st.booleans()):
        damaged = bytearray(zstandard.ZstdCompressor().compress(bytes(damaged)))
        position = data.draw(st.integers(0, len(damaged) - 1))
        damaged[position] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(damaged)

    try:
        said = [str(path), *(member.name for member in read_members(path, limit=1 << 20))]
    except BuildError as error:
        said = str(error)

    assert str(path) in said
