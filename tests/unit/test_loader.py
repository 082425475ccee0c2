import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocbake import loader

HERE = Path("/etc/ld.so.cache")
X86_64, I386 = 0x0303, 0x0003
LIB = "/usr/lib/x86_64-linux-gnu"
ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 3, 62)
ELF32 = b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack("<HH", 3, 3)


def cache(*entries, old=None):
    """Write what ldconfig writes: (soname, path, flags, processors) of each; old: its old table."""
    rows, texts = [], b""
    start = 48 + 24 * len(entries)
    for soname, path, flags, processors in entries:
        key = start + len(texts)
        texts += os.fsencode(soname) + b"\0"
        value = start + len(texts)
        texts += os.fsencode(path) + b"\0"
        rows.append(struct.pack("<iIIIQ", flags, key, value, 0, processors))
    header = struct.pack("<20sIIB3sI12x", b"glibc-ld.so.cache1.1", len(rows), len(texts), 2, b"", 0)
    before = b""
    if old is not None:
        before = b"ld.so-1.7.0\0" + struct.pack("<I", old) + bytes(12 * old)
        before += bytes(-len(before) % 8)
    return before + header + b"".join(rows) + texts


@pytest.fixture
def machine(make_tree):
    return make_tree()


# --- the cache


def test_a_cache_tells_where_libraries_for_x86_64_are():
    data = cache(
        ("libz.so.1", f"{LIB}/libz.so.1", X86_64, 0),
        ("libz.so.1", "/lib/i386-linux-gnu/libz.so.1", I386, 0),
        ("libonly32.so.1", "/lib/i386-linux-gnu/libonly32.so.1", I386, 0),
    )

    assert loader.parse_cache(data) == {"libz.so.1": f"{LIB}/libz.so.1"}


def test_the_old_table_in_front_is_passed_over():
    data = cache(("libz.so.1", f"{LIB}/libz.so.1", X86_64, 0), old=3)

    assert loader.parse_cache(data) == {"libz.so.1": f"{LIB}/libz.so.1"}


def test_a_copy_for_a_better_processor_comes_second():
    better = ("libz.so.1", f"{LIB}/glibc-hwcaps/x86-64-v3/libz.so.1", X86_64, 1 << 62 | 1)

    assert loader.parse_cache(cache(better, ("libz.so.1", f"{LIB}/libz.so.1", X86_64, 0))) == {
        "libz.so.1": f"{LIB}/libz.so.1"
    }


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 100,
        b"ld.so-1.7.0\0\x01\0\0\0" + bytes(12),
        cache(("libz.so.1", "/lib/libz.so.1", X86_64, 0))[:60],
        b"glibc-ld.so.cache1.1" + b"\xff" * 100,
    ],
)
def test_what_is_no_cache_is_none(data):
    assert loader.parse_cache(data) is None


def test_a_name_beyond_the_end_is_left_out():
    whole = cache(("libz.so.1", "/lib/libz.so.1", X86_64, 0))

    assert loader.parse_cache(whole[:-3]) == {}


NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)


@given(st.dictionaries(NAMES, NAMES, max_size=8), st.none() | st.integers(0, 5))
def test_what_is_written_is_read(entries, old):
    rows = [(soname, f"/{path}", X86_64, 0) for soname, path in entries.items()]

    assert loader.parse_cache(cache(*rows, old=old)) == {row[0]: row[1] for row in rows}


@given(st.binary(max_size=200), st.integers(0, 400), st.none() | st.integers(0, 3))
def test_damage_is_no_error(damage, place, old):
    data = bytearray(cache(("libz.so.1", "/lib/z", X86_64, 0), ("a", "/b", X86_64, 0), old=old))
    data[place : place + len(damage)] = damage

    for path in (loader.parse_cache(bytes(data)) or {}).values():
        assert path.startswith("/")


@pytest.mark.skipif(not HERE.is_file(), reason="this machine has no such cache")
def test_this_machines_own_cache_is_read():
    found = loader.parse_cache(HERE.read_bytes())

    assert found["libc.so.6"].endswith("/libc.so.6")
    assert Path(found["libc.so.6"]).is_file()


# --- what the loader finds


def test_the_users_folders_come_before_the_cache(machine):
    machine.file("/home/lib/libz.so.1", ELF)
    machine.file("/relative/libother.so.1", ELF)
    machine.file(f"{LIB}/libz.so.1", ELF)
    machine.file("etc/ld.so.cache", cache(("libz.so.1", f"{LIB}/libz.so.1", X86_64, 0)))

    assert loader.find(machine.root) == {"libz.so.1": f"{LIB}/libz.so.1"}
    assert loader.find(machine.root, "relative:/nowhere:/home/lib") == {
        "libz.so.1": "/home/lib/libz.so.1"
    }


def test_a_cache_that_names_what_is_gone_is_not_believed(machine):
    machine.file("etc/ld.so.cache", cache(("libz.so.1", "/opt/gone/libz.so.1", X86_64, 0)))

    assert loader.find(machine.root) == {}


def test_without_a_cache_the_configured_folders_count(machine):
    machine.file("etc/ld.so.conf", "# folders\ninclude /etc/ld.so.conf.d/*.conf\n")
    machine.file("etc/ld.so.conf.d/rocm.conf", "/opt/rocm/lib  # all of it\n")
    machine.file("etc/ld.so.conf.d/other.txt", "/opt/other/lib\n")
    machine.file("opt/rocm/lib/libamdhip64.so.7", ELF)
    machine.file("opt/other/lib/libother.so.1", ELF)

    assert loader.find(machine.root) == {"libamdhip64.so.7": "/opt/rocm/lib/libamdhip64.so.7"}


def test_with_a_cache_the_configuration_is_ldconfigs_alone(machine):
    machine.file("etc/ld.so.conf", "/opt/rocm/lib\n")
    machine.file("etc/ld.so.cache", cache())
    machine.file("opt/rocm/lib/libamdhip64.so.7", ELF)

    assert loader.find(machine.root) == {}


def test_a_configuration_that_includes_itself_ends(machine):
    machine.file("etc/ld.so.conf", "include ld.so.conf\n/opt/lib\n")
    machine.file("opt/lib/liba.so.1", ELF)

    assert loader.find(machine.root) == {"liba.so.1": "/opt/lib/liba.so.1"}


def test_libraries_for_32_bits_are_not_found_in_folders(machine):
    machine.file("usr/lib/libz.so.1", ELF32)
    machine.file("usr/lib/libtext.so", "INPUT(libz.so.1)")
    machine.file("usr/lib/libx.so.1", ELF)

    assert loader.find(machine.root) == {"libx.so.1": "/usr/lib/libx.so.1"}


# --- links


def test_links_are_followed_below_the_root(machine):
    machine.file("opt/rocm-7.2.4/lib/libamdhip64.so.7.2", ELF)
    (machine.root / "opt/rocm-7.2.4/lib/libamdhip64.so.7").symlink_to("libamdhip64.so.7.2")
    (machine.root / "etc/alternatives").mkdir(parents=True)
    (machine.root / "etc/alternatives/rocm").symlink_to("/opt/rocm-7.2.4")
    (machine.root / "opt/rocm").symlink_to("/etc/alternatives/rocm")

    found = loader.inside(machine.root, "/opt/rocm/lib/libamdhip64.so.7")

    assert found == machine.root / "opt/rocm-7.2.4/lib/libamdhip64.so.7.2"


def test_no_link_leads_out_of_the_root(machine, tmp_path):
    (tmp_path / "outside").write_text("secret")
    (machine.root / "up").symlink_to("../../../../../../" + str(tmp_path / "outside"))

    assert loader.inside(machine.root, "/up").is_relative_to(machine.root)
    assert loader.read(machine.root, "/up") == b""
    assert loader.read(machine.root, "/../../outside") == b""


def test_links_that_lead_to_each_other_end(machine):
    (machine.root / "a").symlink_to("b")
    (machine.root / "b").symlink_to("a")

    assert loader.read(machine.root, "/a/file") == b""
