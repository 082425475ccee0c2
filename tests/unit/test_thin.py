"""thin.py: libraries without the device code of other GPUs, and nothing else changed."""

import contextlib
import importlib
import itertools
import os
import random
import struct
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st

from rocbake import elf

TOOLS = Path(__file__).parents[2] / "containers" / "ggml" / "tools"
BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
PAGE = 0x1000


@pytest.fixture(scope="module")
def thin():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TOOLS)
        return importlib.import_module("thin")


def code(target, size=3 * PAGE):
    """A code object as far as rocbake looks at one: an ELF header with the machine's number."""
    number = {"gfx1100": 0x41, "gfx1200": 0x48, "gfx1201": 0x4E, "gfx90a": 0x3F}[target]
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01\x40\x04", 3, 224, 1, 0, 64, 0,
                         number | 0x500 * (target == "gfx90a"), 64, 56, 0, 64, 0, 0)  # fmt: skip
    return header + random.Random(target).randbytes(size - len(header))  # as little to compress


def bundle(*targets, size=3 * PAGE):
    names = [
        "host-x86_64-unknown-linux-gnu-",
        *(f"hipv4-amdgcn-amd-amdhsa--{one}" for one in targets),
    ]
    codes = [b"", *(code(one.partition(":")[0], size) for one in targets)]
    place = PAGE
    head, body = b"", b""
    for name, one in zip(names, codes, strict=True):
        head += struct.pack("<QQQ", place, len(one), len(name)) + name.encode()
        body += one + bytes(-len(one) % PAGE)
        place += len(one) + -len(one) % PAGE
    head = BUNDLE + struct.pack("<Q", len(names)) + head
    return head + bytes(PAGE - len(head)) + body


def library(thin, *bundles, compressed=False, **change):
    """A shared library: text, .hip_fatbin and what follows in one segment, then what is written."""
    fat = b""
    places = []
    for one in bundles:
        data = thin._compress(one) if compressed else one
        places.append(len(fat))
        fat += data + bytes(-len(data) % PAGE)
    names = b"\0.rela.dyn\0.rodata\0.hip_fatbin\0.eh_frame\0.hipFatBinSegment\0.shstrtab\0"
    rodata, eh_frame = b"read only " * 50, b"unwind " * 100
    head = PAGE
    fat_at = head + PAGE
    eh_at = fat_at + len(fat)
    written_at = eh_at + len(eh_frame) + -(eh_at + len(eh_frame)) % PAGE
    base = 0x10000  # addresses of what is written are further on than places in the file
    wrappers = b"".join(
        struct.pack("<IIQQ", change.get("magic", 0x48495046), 1, 0, 0) for _ in bundles
    )
    relocations = b"".join(
        struct.pack("<QQq", base + written_at + 24 * i + 8, change.get("kind", 8),
                    fat_at + places[change.get("same", i)] + change.get("beyond", 0))
        for i in range(change.get("relocated", len(bundles)))
    )  # fmt: skip
    relocations += change.get("more", b"")
    strings_at = written_at + len(wrappers)
    sections_at = strings_at + len(names) + -(strings_at + len(names)) % 8
    place = names.index
    sections = [
        (0,) * 10,
        (place(b".rela.dyn"), change.get("rela", 4), 2, 512, 512, len(relocations), 0, 0, 8, 24),
        (place(b".rodata"), 1, 2, head, head, len(rodata), 0, 0, 16, 0),
        (place(b".hip_fatbin"), 1, 2, fat_at, fat_at, len(fat), 0, 0, PAGE, 0),
        (place(b".eh_frame"), 1, 2, eh_at, eh_at, len(eh_frame), 0, 0, 8, 0),
        (place(b".hipFatBinSegment"), 1, 3, base + written_at, written_at, len(wrappers),
         0, 0, 8, 0),
        (place(b".shstrtab"), 3, 0, 0, strings_at, len(names), 0, 0, 1, 0),
    ]  # fmt: skip
    segments = [
        (1, 4, 0, 0, 0, 512 + len(relocations), 512 + len(relocations), PAGE),
        (1, 4, head, head, head, eh_at + len(eh_frame) - head, eh_at + len(eh_frame) - head, PAGE),
        (
            1,
            6,
            written_at,
            base + written_at,
            base + written_at,
            len(wrappers),
            len(wrappers),
            PAGE,
        ),
        (0x6474E550, 4, eh_at, eh_at, eh_at, len(eh_frame), len(eh_frame), 4),
    ]
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, change.get("machine", 62),
                         1, 0, 64, sections_at, 0, 64, 56, len(segments), 64, len(sections),
                         6)  # fmt: skip
    data = bytearray(sections_at)
    for at, part in ((0, header + b"".join(struct.pack("<IIQQQQQQ", *one) for one in segments)),
                     (512, relocations), (head, rodata), (fat_at, fat), (eh_at, eh_frame),
                     (written_at, wrappers), (strings_at, names)):  # fmt: skip
        data[at : at + len(part)] = part
    return bytes(data) + b"".join(struct.pack("<IIQQQQIIQQ", *one) for one in sections)


@pytest.fixture
def file(thin, tmp_path):
    def make(*bundles, **change):
        path = tmp_path / "libx.so.1"
        path.write_bytes(library(thin, *bundles, **change))
        path.chmod(0o755)
        return path

    return make


def targets(path):
    return sorted(one.target for one in elf.code_objects(path))


def parts(path):
    """What may not change: address and content of every section but the device code."""
    with path.open("rb") as stream:
        read = ELFFile(stream)
        return {
            one.name: (one["sh_addr"], one.data())
            for one in read.iter_sections()
            if one.name not in {".hip_fatbin", ".rela.dyn"}
        }


def mapped(path):
    """The file's content by address, as a loader maps it."""
    with path.open("rb") as stream:
        return [
            (one["p_vaddr"], one["p_filesz"], one["p_offset"] % PAGE == one["p_vaddr"] % PAGE)
            for one in ELFFile(stream).iter_segments("PT_LOAD")
        ]


@pytest.mark.parametrize("compressed", [False, True])
def test_only_wanted_code_is_left_and_the_file_is_smaller(thin, file, compressed):
    path = file(
        bundle("gfx1100", "gfx1201", "gfx90a"), bundle("gfx1201", "gfx1100"), compressed=compressed
    )
    before, whole = parts(path), path.stat().st_size

    done = thin.thin(path, ["gfx1201"])

    assert set(targets(path)) == {"gfx1201"}
    assert (done.removed, done.missing) == (("gfx1100", "gfx90a"), ())
    assert done.before == whole
    assert done.after == path.stat().st_size < whole
    assert parts(path) == before
    assert path.stat().st_mode & 0o777 == 0o755
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_segments_are_in_order_and_apart_and_on_their_pages(thin, file):
    path = file(*(bundle("gfx1100", "gfx1201") for _ in range(3)))

    thin.thin(path, ["gfx1100"])

    found = mapped(path)
    assert len(found) == 4
    assert all(fits for _, _, fits in found)
    for (start, size, _), (after, _, _) in itertools.pairwise(found):
        assert start + size <= after


def test_code_is_byte_for_byte_what_it_was(thin, file):
    path = file(bundle("gfx1100", "gfx1201"), bundle("gfx1201"))
    before = [content for _, content in elf.extract(path, {"gfx1201"})]

    thin.thin(path, ["gfx1201"])

    assert [
        content for name, content in elf.extract(path, {"gfx1201"}) if name == "gfx1201"
    ] == before
    assert len(before) == 2


def test_a_second_time_changes_nothing(thin, file):
    path = file(bundle("gfx1100", "gfx1201"), bundle("gfx1201", "gfx90a"))
    thin.thin(path, ["gfx1201"])
    once = path.read_bytes()
    changed = path.stat().st_mtime_ns

    done = thin.thin(path, ["gfx1201"])

    assert (path.read_bytes(), path.stat().st_mtime_ns) == (once, changed)
    assert done.removed == ()


def test_library_with_nothing_else_in_it_stays_byte_for_byte(thin, file):
    path = file(bundle("gfx1100", "gfx1201"))
    before = path.read_bytes()

    assert thin.thin(path, ["gfx1201", "gfx1100"]).removed == ()
    assert path.read_bytes() == before


def test_what_frees_no_page_goes_all_the_same(thin, file):
    path = file(bundle("gfx1200", "gfx1201", size=PAGE - 16))
    whole, before = path.stat().st_size, parts(path)

    done = thin.thin(path, ["gfx1201"])

    assert (done.removed, done.after) == (("gfx1200",), whole)
    assert targets(path) == ["gfx1201"]
    assert parts(path) == before


def test_target_without_code_is_a_fact_and_no_error(thin, file):
    path = file(bundle("gfx1100", "gfx1201"))

    done = thin.thin(path, ["gfx1201", "gfx1200"])

    assert done.missing == ("gfx1200",)
    assert targets(path) == ["gfx1201"]


def test_what_is_no_library_with_device_code_is_left_alone(thin, tmp_path):
    path = tmp_path / "text"
    path.write_text("text")

    assert thin.thin(path, ["gfx1201"]).removed == ()
    assert path.read_text() == "text"


def test_link_is_followed_and_stays_one(thin, file):
    path = file(bundle("gfx1100", "gfx1201"))
    link = path.with_name("libx.so")
    link.symlink_to(path.name)

    thin.thin(link, ["gfx1201"])

    assert link.is_symlink()
    assert targets(path) == ["gfx1201"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"magic": 1}, "no wrapper of version 1 at 0x"),
        ({"relocated": 1}, "the wrapper at 0x.* has no relocation"),
        ({"kind": 6}, "the wrapper at 0x.* has no relocation"),
        ({"beyond": 1 << 40}, "which is not in .hip_fatbin"),
        ({"same": 0}, "two wrappers share a bundle"),
        ({"beyond": 8}, "is no offload bundle"),
        ({"rela": 19}, "packed relocations"),
        ({"more": struct.pack("<QQq", 0x99, 8, 2 * PAGE)}, "something at 0x99 points into"),
        ({"machine": 183}, "not a 64-bit ELF file for x86-64"),
    ],
)
def test_what_is_not_understood_is_refused_and_left(thin, file, change, why):
    path = file(bundle("gfx1100", "gfx1201"), bundle("gfx1201"), **change)
    before = path.read_bytes()

    with pytest.raises(thin.ThinError, match=why):
        thin.thin(path, ["gfx1201"])

    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_unknown_version_of_compression_is_refused(thin, file):
    data = bytearray(thin._compress(bundle("gfx1100")))
    struct.pack_into("<H", data, 4, 9)

    with pytest.raises(thin.ThinError, match="of version 9, method 1: not known"):
        thin.rewrite(bytes(data), ["gfx1201"])


@pytest.mark.parametrize(
    ("name", "target", "does"),
    [
        ("gfx1201", "gfx1201", True),
        ("gfx1200", "gfx1201", False),
        ("gfx12-generic", "gfx1201", True),
        ("gfx11-generic", "gfx1201", False),
        ("gfx10-3-generic", "gfx1030", True),
        ("gfx10-3-generic", "gfx1010", False),
        ("gfx90a:xnack-", "gfx90a", True),
        ("gfx90a:xnack-", "gfx90a:xnack+", False),
        ("gfx90a", "gfx90a:xnack+", True),
        ("gfx90a:sramecc+:xnack+", "gfx90a:xnack+", True),
    ],
)
def test_code_serves_a_target_or_not(thin, name, target, does):
    assert thin.serves(name, target) is does


KNOWN = st.sampled_from(["gfx1100", "gfx1200", "gfx1201", "gfx90a"])
NAMES = st.lists(KNOWN, min_size=1, max_size=4, unique=True)


@settings(max_examples=40, deadline=None)
@given(there=NAMES, wanted=NAMES, compressed=st.booleans())
def test_what_goes_is_exactly_what_is_not_wanted(thin, there, wanted, compressed):
    data = bundle(*there)

    done = thin.rewrite(thin._compress(data) if compressed else data, wanted)

    assert set(done.kept) == set(there) & set(wanted)
    assert set(done.removed) == set(there) - set(wanted)
    again = thin.rewrite(done.data, wanted)
    assert (again.data, again.removed) == (done.data, ())


@settings(max_examples=80, deadline=None)
@given(place=st.integers(0, 300), byte=st.integers(0, 255), compressed=st.booleans())
def test_damaged_bundle_is_read_or_refused(thin, place, byte, compressed):
    data = bundle("gfx1100", "gfx1201")
    data = bytearray(thin._compress(data) if compressed else data)
    data[place % len(data)] = byte

    with contextlib.suppress(thin.ThinError, struct.error, UnicodeDecodeError):
        thin.rewrite(bytes(data), ["gfx1201"])


def test_program_tells_what_became_of_each_file(thin, file, capsys):
    path = file(bundle("gfx1100", "gfx1201"))

    assert thin.main(["--targets", "gfx1201,gfx1200", os.fspath(path)]) == 0

    told = capsys.readouterr().out
    assert "libx.so.1: 0.0 MB, now 0.0 MB; without gfx1100; no code for gfx1200" in told
    path.write_bytes(path.read_bytes()[:900])
    assert thin.main(["--targets", "gfx1200", os.fspath(path)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {path}: ")
