"""Libraries with the code for other GPUs taken out of them.

The libraries are made by hand, so small that a test takes milliseconds, and so complete that the
loader of this machine takes them.
"""

import hashlib
import importlib
import io
import json
import struct
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
import zstandard
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from rocbake import elf
from rocbake.target import PROCESSORS

TOOLS = Path(__file__).parents[2] / "containers" / "ggml" / "tools"
DATA = Path(__file__).parents[1] / "data" / "elf"
HOST = "host-x86_64-unknown-linux-gnu-"
TRIPLE = "hipv4-amdgcn-amd-amdhsa--"
PAGE = 4096


class Unpacker:
    """What Python 3.14 has for zstd, by the library that older ones have."""

    needs_input = True

    def __init__(self):
        self._frame = zstandard.ZstdDecompressor().decompressobj()

    def decompress(self, data, max_length=-1):
        return self._frame.decompress(data)

    @property
    def eof(self):
        return self._frame.eof

    @property
    def unused_data(self):
        return self._frame.unused_data


def zstd():
    module = types.ModuleType("compression.zstd")
    module.ZstdDecompressor = Unpacker
    module.ZstdError = zstandard.ZstdError
    module.CompressionParameter = types.SimpleNamespace(
        compression_level="level", enable_long_distance_matching="far"
    )
    module.compress = lambda data, options: zstandard.ZstdCompressor(
        level=options["level"]
    ).compress(data)
    return module


@pytest.fixture(scope="module")
def thin():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TOOLS)
        if sys.version_info < (3, 14):
            package = types.ModuleType("compression")
            package.zstd = zstd()
            patch.setitem(sys.modules, "compression", package)
            patch.setitem(sys.modules, "compression.zstd", package.zstd)
        yield importlib.import_module("thin")


@pytest.fixture(scope="module")
def refused(thin):
    return importlib.import_module("toolchain").ToolError


# Bundles


def bundle(*entries, align=PAGE):
    """Return an offload bundle with one entry for each (entry id, code)."""
    offset = 32 + sum(24 + len(entry_id) for entry_id, _ in entries)
    table, codes = struct.pack("<24sQ", b"__CLANG_OFFLOAD_BUNDLE__", len(entries)), b""
    for entry_id, code in entries:
        codes += bytes(-(offset + len(codes)) % align)
        table += struct.pack("<QQQ", offset + len(codes), len(code), len(entry_id))
        table += entry_id.encode()
        codes += code
    return table + codes


def fat(*targets, code=b"code for", align=PAGE):
    """Return a bundle as HIP has them, whose code says what it is for."""
    entries = [(TRIPLE + target, code + b" " + target.encode()) for target in targets]
    return bundle((HOST, b""), *entries, align=align)


def compressed(plain, version=3, *, method=1, digest=None, **wrong):
    frame = zstandard.ZstdCompressor().compress(plain)
    form = {1: "<4sHHI8s", 2: "<4sHHII8s", 3: "<4sHHQQ8s"}[version]
    sizes = [
        wrong.get("whole", struct.calcsize(form) + len(frame)),
        wrong.get("unpacked", len(plain)),
    ]
    digest = digest or hashlib.md5(plain).digest()[:8]
    wanted = sizes[1:] if version == 1 else sizes
    return struct.pack(form, b"CCOB", version, method, *wanted, digest) + frame


def codes(content, tmp_path):
    """Return target and code of all that is in a bundle, as rocbake reads it."""
    path = tmp_path / "bundle.hipfb"
    path.write_bytes(content)
    targets = {one.target for one in elf.code_objects(path)}
    return list(elf.extract(path, targets))


def test_generic_processors_are_those_of_the_table(thin):
    known = {}
    for processor in PROCESSORS:
        if processor.generic:
            known[processor.generic] = (*known.get(processor.generic, ()), processor.name)

    assert known == thin.MEMBERS


@pytest.mark.parametrize(
    ("code", "target", "is_served"),
    [
        ("gfx1201", "gfx1201", True),
        ("gfx1200", "gfx1201", False),
        ("gfx120", "gfx1201", False),
        ("gfx12-generic", "gfx1201", True),
        ("gfx12-generic", "gfx1100", False),
        ("gfx1100", "gfx11-generic", True),
        ("gfx1200", "gfx11-generic", False),
        ("gfx9-generic", "gfx942", False),
        ("gfx9-4-generic", "gfx950", True),
        ("gfx10-1-generic", "gfx1030", False),
        ("gfx90a", "gfx90a:xnack+", True),
        ("gfx90a:xnack+", "gfx90a", True),
        ("gfx90a:xnack+", "gfx90a:xnack+", True),
        ("gfx90a:xnack-", "gfx90a:xnack+", False),
        ("gfx90a:sramecc+", "gfx90a:xnack+", True),
        ("gfx90a:sramecc+:xnack-", "gfx90a:sramecc+:xnack+", False),
        ("gfx9-generic:xnack-", "gfx906:xnack+", False),
        ("gfx9-generic:xnack-", "gfx906:xnack-", True),
    ],
)
def test_code_is_kept_for_what_it_runs_on(thin, code, target, is_served):
    assert thin.serves(code, target) is is_served


def test_only_code_for_the_targets_stays_on_pages_of_its_own(thin, tmp_path):
    plain = fat("gfx1100", "gfx1201", "gfx90a:xnack+", "gfx12-generic", align=64)

    found = thin.thin_bundle(memoryview(plain), ["gfx1201"])

    assert found.removed == {"gfx1100", "gfx90a:xnack+"}
    assert found.size == len(plain)
    assert found.content == bundle(
        (HOST, b""),
        (TRIPLE + "gfx1201", b"code for gfx1201"),
        (TRIPLE + "gfx12-generic", b"code for gfx12-generic"),
    )
    assert codes(found.content, tmp_path)[0] == ("gfx1201", b"code for gfx1201")


@pytest.mark.parametrize("version", [2, 3])
def test_compressed_bundle_stays_one_of_its_version(thin, tmp_path, version):
    packed = compressed(fat("gfx1100", "gfx1201", code=bytes(200_000)), version)

    found = thin.thin_bundle(memoryview(packed + bytes(99)), ["gfx1100"])

    form = {2: "<4sHHII8s", 3: "<4sHHQQ8s"}[version]
    plain = fat("gfx1100", code=bytes(200_000))
    assert found.size == len(packed)
    assert struct.unpack_from(form, found.content) == (
        b"CCOB",
        version,
        1,
        len(found.content),
        len(plain),
        hashlib.md5(plain).digest()[:8],
    )
    frame = found.content[struct.calcsize(form) :]
    assert zstandard.ZstdDecompressor().decompress(frame) == plain
    assert [target for target, _ in codes(found.content, tmp_path)] == ["gfx1100"]


@pytest.mark.parametrize("name", ["compressed-v2.hipfb", "compressed-v3.hipfb"])
def test_bundle_of_clang_is_thinned(thin, tmp_path, name):
    found = thin.thin_bundle(memoryview((DATA / name).read_bytes()), ["gfx1201"])

    assert found.removed == {"gfx1100", "gfx90a:xnack+"}
    assert codes(found.content, tmp_path) == list(elf.extract(DATA / name, {"gfx1201"}))


@pytest.mark.parametrize("pack", [bytes, compressed])
@pytest.mark.parametrize(
    "content",
    [
        fat("gfx1201"),
        fat("gfx12-generic", "gfx1201"),
        fat("gfx12-generic"),
        bundle((HOST, b"host"), (TRIPLE + "gfx1201", b"code")),
        bundle((TRIPLE + "gfx1201", b""), (HOST, b"host")),
    ],
)
def test_nothing_to_remove_is_nothing_to_write(thin, pack, content):
    packed = pack(content)

    found = thin.thin_bundle(memoryview(packed + bytes(50)), ["gfx1201"])

    assert found == thin.Bundle(len(packed), None, frozenset(), frozenset())


@pytest.mark.parametrize("pack", [bytes, compressed])
def test_bundle_without_device_code_lacks_nothing(thin, pack):
    found = thin.thin_bundle(memoryview(pack(fat())), ["gfx1201"])

    assert (found.content, found.removed, found.lacking) == (None, frozenset(), frozenset())


@pytest.mark.parametrize(
    ("content", "lacking"),
    [
        (fat("gfx1100"), {"gfx1201"}),
        (fat("gfx1100", "gfx1201"), set()),
        (fat("gfx12-generic"), {"gfx1100"}),
        (bundle((TRIPLE + "gfx1100", b"x"), (TRIPLE + "gfx1201", b"")), {"gfx1201"}),
        (fat("gfx900"), {"gfx1100", "gfx1201"}),
    ],
)
def test_target_without_code_is_told(thin, content, lacking):
    assert thin.thin_bundle(memoryview(content), ["gfx1100", "gfx1201"]).lacking == lacking


GOOD = fat("gfx1100", "gfx1201")


def with_entry(offset, size):
    """Return GOOD with its last entry moved."""
    place = GOOD.index(TRIPLE.encode() + b"gfx1201") - 24
    return GOOD[:place] + struct.pack("<QQ", offset, size) + GOOD[place + 16 :]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a bundle ends at byte 0, too early"),
        (b"\x7fELF" * 50, "what a wrapper points to is no offload bundle"),
        (GOOD[:50], "a bundle ends at byte 50, too early"),
        (GOOD[:-1], "a bundle of 8208 bytes has room for 8207"),
        (GOOD[:24] + b"\xff" * 8, "a bundle has 18446744073709551615 entries"),
        (GOOD[:48] + b"\xff" * 8, "with a name of 18446744073709551615 bytes"),
        (with_entry(1 << 63, 1 << 63), "a bundle of 18446744073709551616 bytes"),
        (with_entry(0, 9), "gfx1201' of a bundle lies over what is before it"),
        (with_entry(4100, 9), "gfx1201' of a bundle lies over what is before it"),
        (bundle(("openmp-amdgcn-amd-amdhsa--gfx906", b"x")), "is of no known kind"),
        (bundle(("hip-spirv64-amd-amdhsa--amdgcnspirv", b"x")), "is of no known kind"),
        (bundle((TRIPLE + "gfx12\n", b"x")), "is of no known kind"),
        (bundle(("", b"x")), "is of no known kind"),
        (b"CCOB", "8 bytes should be at byte 0, of 4"),
        (compressed(GOOD, 1), "of version 1, method 1: known are the versions 2 and 3"),
        (compressed(GOOD)[:4] + b"\4\0\1\0", "of version 4, method 1: known"),
        (compressed(GOOD, method=0), "of version 3, method 0: known"),
        (compressed(GOOD)[:20], "32 bytes should be at byte 0, of 20"),
        (compressed(GOOD, 2)[:-1], "has room for"),
        (compressed(GOOD, whole=31), "a compressed bundle of 31 bytes has room for"),
        (compressed(GOOD, unpacked=9), "does not unpack to 9 bytes"),
        (compressed(GOOD, unpacked=9_000), "does not unpack to 9000 bytes"),
        (compressed(GOOD, digest=b"12345678"), "damaged: its hash is another"),
        (compressed(GOOD)[:32] + b"x" * len(compressed(GOOD)[32:]), "bundle is damaged: "),
        (compressed(with_entry(5 << 20, 3)), "a bundle of 8208 bytes has code behind its end"),
        (compressed(b"text" * 99), "what a wrapper points to is no offload bundle"),
    ],
)
def test_bundle_that_is_not_understood_is_refused(thin, refused, content, message):
    with pytest.raises(refused) as told:
        thin.thin_bundle(memoryview(content), ["gfx1100"])

    assert message in str(told.value)


def test_data_behind_a_compressed_frame_is_refused(thin, refused):
    packed = compressed(GOOD)
    longer = packed[:8] + struct.pack("<Q", len(packed) + 3) + packed[16:] + b"abc"

    with pytest.raises(refused, match="does not unpack to"):
        thin.thin_bundle(memoryview(longer), ["gfx1100"])


NAMES = st.sampled_from(
    ["gfx906:xnack+", "gfx906:xnack-", "gfx9-generic", "gfx1100", "gfx1200", "gfx1201"]
)


@given(
    entries=st.lists(st.tuples(NAMES, st.binary(max_size=20)), max_size=6),
    targets=st.sets(NAMES, min_size=1),
    is_compressed=st.booleans(),
)
def test_exactly_what_serves_no_target_is_removed(thin, entries, targets, is_compressed):
    plain = bundle((HOST, b""), *((TRIPLE + target, code) for target, code in entries))
    content = compressed(plain) if is_compressed else plain
    kept = [
        (target, code)
        for target, code in entries
        if any(thin.serves(target, one) for one in targets)
    ]

    found = thin.thin_bundle(memoryview(content), sorted(targets))

    assert found.removed == {target for target, _ in entries} - {target for target, _ in kept}
    left = bundle((HOST, b""), *((TRIPLE + target, code) for target, code in kept))
    if not found.removed:
        assert found.content is None
    elif is_compressed:
        assert zstandard.ZstdDecompressor().decompress(found.content[32:]) == left
    else:
        assert found.content == left


@given(
    good=st.sampled_from([GOOD, compressed(GOOD), compressed(GOOD, 2)]),
    change=st.tuples(st.integers(0, 400), st.integers(0, 255)),
    end=st.integers(0, 9_000),
)
def test_damaged_bundle_is_refused_or_read(thin, refused, good, change, end):
    content, (place, value) = bytearray(good), change
    content[min(place, len(content) - 1)] = value

    try:
        found = thin.thin_bundle(memoryview(content)[:end], ["gfx1100"])
    except refused:
        return
    assert found.size <= end


@pytest.mark.parametrize("place", range(24, len(compressed(GOOD))))
def test_wrong_byte_in_a_compressed_bundle_is_refused_or_of_no_matter(thin, refused, place):
    content = bytearray(compressed(GOOD))
    whole = thin.thin_bundle(memoryview(content), ["gfx1100"])
    content[place] ^= 0x10

    try:
        assert thin.thin_bundle(memoryview(content), ["gfx1100"]) == whole
    except refused:
        return
    assert place == 36  # a bit of the frame's header that means nothing


# Libraries


@dataclass
class Library:
    """An ELF file, and where in it things are."""

    data: bytearray
    address: dict
    offset: dict
    header: dict

    def patch(self, form, place, *values):
        struct.pack_into(form, self.data, place, *values)
        return self


READ, WRITE = 4, 6
ALLOC, ALLOC_WRITE = 2, 3


def padded(bundles):
    """Return bundles as a linker puts them together, and where each of them is."""
    content, places = b"", []
    for one in bundles:
        content += bytes(-len(content) % PAGE)
        places.append(len(content))
        content += one
    return content, places


def library(  # noqa: C901, PLR0912, PLR0915 - a whole file format, from front to back
    bundles,
    *,
    places=None,
    written=True,
    relocations=(),
    symbol=None,
    behind=((".eh_frame", 1, ALLOC, b"frames"),),
    pad=b"",
    flags=READ,
    has_phdr=False,
    more=(),
    in_first=False,
):
    """Return a library for x86-64 with device code, as linkers lay them out.

    Args:
        bundles: What is in .hip_fatbin.
        places: Where the wrappers point to, from the start of .hip_fatbin.
        written: Whether the linker wrote the pointers in their place, too.
        relocations: More of them: (address, kind, addend), from names of sections and numbers.
        symbol: Of which section there is a symbol.
        behind: Sections behind .hip_fatbin in its segment.
        pad: What is right behind .hip_fatbin.
        flags: Of the segment with .hip_fatbin.
        has_phdr: Whether the table of segments is a segment.
        more: More sections at the end: (name, type, flags, content).
        in_first: Whether .hip_fatbin is in the first segment, as lld has it.
    """
    fatbin, own = padded(bundles)
    places = own if places is None else places
    strings = b"\0wrappers\0tail\0"
    symbols = bytes(24 * 3)
    first = [
        (".note.gnu.build-id", 7, ALLOC, struct.pack("<III4sQ", 4, 8, 3, b"GNU\0", 0xBEEF)),
        (".hash", 5, ALLOC, struct.pack("<IIIIII", 1, 3, 1, 0, 2, 0)),
        (".dynsym", 11, ALLOC, symbols),
        (".dynstr", 3, ALLOC, strings),
        (".rela.dyn", 4, ALLOC, bytes(24 * (len(places) + 1 + len(relocations)))),
    ]
    fat_part = [(".rodata", 1, ALLOC, b"constants"), (".hip_fatbin", 1, ALLOC, fatbin), *behind]
    groups = [
        (READ, first),
        (flags, fat_part),
        (
            WRITE,
            [
                (".data", 1, ALLOC_WRITE, bytes(8)),
                (".dynamic", 6, ALLOC_WRITE, bytes(16 * 9)),
                (".hipFatBinSegment", 1, ALLOC_WRITE, bytes(24 * len(places))),
            ],
        ),
    ]
    if in_first:
        groups[:2] = [(flags, first + fat_part)]
    extra = ["note", "dynamic", "stack"] + ["phdr"] * has_phdr
    body, address, offset, sections, loads = bytearray(64), {}, {}, [], []
    body += bytes(56 * (len(groups) + len(extra)))
    for number, (rights, parts) in enumerate(groups):
        if number:
            body += bytes(-len(body) % PAGE + 16)
        shift = number * PAGE
        start = len(body) if number else 0
        for name, kind, rights_of_section, content in parts:
            body += bytes(-len(body) % (PAGE if name == ".hip_fatbin" else 8))
            address[name], offset[name] = len(body) + shift, len(body)
            sections.append((name, kind, rights_of_section, len(body) + shift, len(body), content))
            body += content
            if name == ".hip_fatbin":
                body += pad
        loads.append(
            (1, rights, start, start + shift, start + shift, *[len(body) - start] * 2, PAGE)
        )
    for name, kind, rights_of_section, content in (*more, (".comment", 1, 0, b"made by hand")):
        body += bytes(-len(body) % 8)
        sections.append((name, kind, rights_of_section, 0, len(body), content))
        body += content
    sizes = {name: len(content) for name, *_, content in sections}

    def segment(kind, name, rights):
        place, size = offset[name], sizes[name]
        return (kind, rights, place, address[name], address[name], size, size, 8)

    table = {
        "note": segment(4, ".note.gnu.build-id", READ),
        "dynamic": segment(2, ".dynamic", WRITE),
        "stack": (0x6474E551, WRITE, 0, 0, 0, 0, 0, 16),
        "phdr": (6, READ, 64, 64, 64, *[56 * (len(groups) + len(extra))] * 2, 8),
    }
    others = [table[name] for name in extra if name != "phdr"]
    segments = [table["phdr"]] * has_phdr + loads + others
    for number, one in enumerate(segments):
        struct.pack_into("<IIQQQQQQ", body, 64 + 56 * number, *one)

    numbers = {name: number for number, (name, *_) in enumerate(sections, 1)}
    last = ".eh_frame" if ".eh_frame" in address else ".rodata"
    named = [(1, 1, ".hipFatBinSegment", 0), (10, 1, last, 0)]
    if symbol:
        named[1] = (10, 1, symbol, 0)
    for number, (text, info, name, value) in enumerate(named, 1):
        struct.pack_into(
            "<IBBHQQ", body, offset[".dynsym"] + 24 * number, text, 16 | info, 0,
            numbers[name], address[name] + value, 8,
        )  # fmt: skip
    rows = [(address[".data"], 8, address[".rodata"])]
    for number, place in enumerate(places):
        target, field = address[".hip_fatbin"] + place, 24 * number
        rows.append((address[".hipFatBinSegment"] + field + 8, 8, target))
        struct.pack_into(
            "<IIQQ", body, offset[".hipFatBinSegment"] + field, 0x48495046, 1,
            target * written, 0,
        )  # fmt: skip
    rows += [
        (address[one] + ahead, kind, address[other] + addend)
        for (one, ahead), kind, (other, addend) in relocations
    ]
    for number, row in enumerate(rows):
        struct.pack_into("<QQQ", body, offset[".rela.dyn"] + 24 * number, *row)
    tags = [
        (4, address[".hash"]),
        (5, address[".dynstr"]),
        (6, address[".dynsym"]),
        (10, len(strings)),
        (11, 24),
        (7, address[".rela.dyn"]),
        (8, 24 * len(rows)),
        (9, 24),
    ]
    for number, tag in enumerate(tags):
        struct.pack_into("<QQ", body, offset[".dynamic"] + 16 * number, *tag)

    names = b"\0" + b"\0".join(name.encode() for name, *_ in sections) + b"\0.shstrtab\0"
    sections.append((".shstrtab", 3, 0, 0, len(body), names))
    body += names
    body += bytes(-len(body) % 8)
    header, start = {}, len(body)
    body += bytes(64)
    for name, kind, rights_of_section, place, where, content in sections:
        header[name] = len(body)
        align = PAGE if name == ".hip_fatbin" else 8
        entry = {11: 24, 4: 24, 6: 16}.get(kind, 0)
        link = {11: 4, 6: 4, 4: 3, 5: 3}.get(kind, 0)
        body += struct.pack(
            "<IIQQQQIIQQ", names.index(b"\0" + name.encode() + b"\0") + 1, kind,
            rights_of_section, place, where, len(content), link, int(kind == 11), align, entry,
        )  # fmt: skip
    struct.pack_into(
        "<16sHHIQQQIHHHHHH", body, 0, b"\x7fELF\2\1\1" + bytes(9), 3, 62, 1, 0, 64, start, 0,
        64, 56, len(segments), 64, len(sections) + 1, len(sections),
    )  # fmt: skip
    return Library(body, address, offset, header)


def three(pack=compressed, **how):
    """Return a library of three bundles, each with code for three targets that takes pages."""
    # What says nothing new would be compressed to nothing.
    noise = [hashlib.shake_128(bytes([number])).digest(3 * PAGE) for number in range(3)]
    targets = ("gfx1100", "gfx1201", "gfx90a:xnack-")
    bundles = [
        bundle(
            (HOST, b""),
            *(
                (TRIPLE + name, hashlib.shake_128(one + name.encode()).digest(3 * PAGE))
                for name in targets
            ),
        )
        for one in noise
    ]
    return library([pack(one) for one in bundles], **how)


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "libfat.so.1"
        path.write_bytes(content.data if isinstance(content, Library) else content)
        return path

    return write


def image(content):
    """Return what is in memory once the loader has mapped a library, by address."""
    found = {}
    for one in ELFFile(io.BytesIO(content)).iter_segments("PT_LOAD"):
        start, size = one["p_vaddr"], one["p_filesz"]
        assert not found.keys() & set(range(start, start + size))
        found |= zip(range(start, start + size), one.data(), strict=True)
    return found


def section(path, name):
    return ELFFile(io.BytesIO(path.read_bytes())).get_section_by_name(name)


def pointers(content):
    """Return where the wrappers point to, by their relocations."""
    found = ELFFile(io.BytesIO(content))
    wrappers = found.get_section_by_name(".hipFatBinSegment")
    start, end = wrappers["sh_addr"], wrappers["sh_addr"] + wrappers["sh_size"]
    return [
        one["r_addend"]
        for one in found.get_section_by_name(".rela.dyn").iter_relocations()
        if start <= one["r_offset"] < end
    ]


def assert_well_formed(content):
    """Check what loaders and linkers want of any library."""
    found = ELFFile(io.BytesIO(content))
    segments = list(found.iter_segments())
    loads = [one for one in segments if one["p_type"] == "PT_LOAD"]
    ends = [0]
    for one in loads:
        assert one["p_offset"] % PAGE == one["p_vaddr"] % PAGE == one["p_paddr"] % PAGE
        assert one["p_vaddr"] // PAGE * PAGE >= ends[-1], "two segments share a page in memory"
        assert one["p_offset"] + one["p_filesz"] <= len(content)
        ends.append(one["p_vaddr"] + one["p_memsz"])
    for one in found.iter_sections():
        if one["sh_flags"] & ALLOC and one["sh_size"]:
            assert any(load.section_in_segment(one) for load in loads), one.name
    for one in segments:
        if one["p_type"] != "PT_LOAD" and one["p_filesz"]:
            assert any(
                load["p_offset"] <= one["p_offset"]
                and one["p_offset"] + one["p_filesz"] <= load["p_offset"] + load["p_filesz"]
                and one["p_vaddr"] - one["p_offset"] == load["p_vaddr"] - load["p_offset"]
                for load in loads
            ), one["p_type"]


LOADED = """\
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
count = int(sys.argv[2])
wrappers = (ctypes.c_uint64 * (3 * count)).in_dll(library, "wrappers")
tail = bytes((ctypes.c_char * 8).in_dll(library, "tail"))
print(json.dumps([tail.hex(), [ctypes.string_at(one, 32).hex() for one in wrappers[1::3]]]))
"""


def loaded(path, count):
    """Return what the loader of this machine makes of a library: its tail, its bundles' starts."""
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        pytest.skip("needs the loader of a 64-bit Linux")
    done = subprocess.run(
        [sys.executable, "-c", LOADED, path, str(count)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SHAPES = {
    "compressed": {},
    "not-compressed": {"pack": bytes},
    "table-is-a-segment": {"has_phdr": True},
    "in-the-first-segment": {"in_first": True, "has_phdr": True},
    "last-in-its-segment": {"behind": ()},
    "pointers-not-written": {"written": False},
}


@pytest.mark.parametrize("how", SHAPES.values(), ids=SHAPES)
def test_library_is_smaller_and_all_else_is_as_it_was(thin, file, how):
    before = three(**how)
    path = file(before)

    report = thin.thin(path, ["gfx1201"])

    after = path.read_bytes()
    assert report == thin.Report(
        "libfat.so.1", len(before.data), len(after), ("gfx1100", "gfx90a:xnack-"), 3
    )
    assert len(after) <= len(before.data) - 4 * PAGE
    assert_well_formed(after)
    old, new = ELFFile(io.BytesIO(before.data)), ELFFile(io.BytesIO(after))
    for one in old.iter_sections():
        other = new.get_section_by_name(one.name) if one.name else new.get_section(0)
        same = ("sh_addr", "sh_type", "sh_flags", "sh_link", "sh_info", "sh_addralign")
        assert [other[key] for key in same] == [one[key] for key in same], one.name
        if one.name not in {".hip_fatbin", ".rela.dyn", ".hipFatBinSegment"}:
            assert other.data() == one.data(), one.name
    assert [one.target for one in elf.code_objects(path)] == ["gfx1201"] * 3
    assert elf.read(path).build_id == "efbe000000000000"


@pytest.mark.parametrize("how", SHAPES.values(), ids=SHAPES)
def test_each_wrapper_points_to_what_it_pointed_to(thin, file, tmp_path, how):
    before = three(**how)
    path = file(before)
    was, places = image(before.data), pointers(before.data)

    thin.thin(path, ["gfx1201"])

    after = path.read_bytes()
    now = image(after)
    for old, new in zip(places, pointers(after), strict=True):
        assert new % PAGE == 0
        kept = []
        for memory, start in ((was, old), (now, new)):
            end = start
            while end in memory and end - start < 12 * PAGE:
                end += 1
            content = bytes(memory[one] for one in range(start, end))
            whole = struct.unpack_from("<Q", content, 8)[0] if content[:4] == b"CCOB" else None
            kept.append(dict(codes(content[:whole] if whole else unfilled(content), tmp_path)))
        assert kept[1] == {"gfx1201": kept[0]["gfx1201"]}


def unfilled(content):
    """Return the bundle at the start of something."""
    (count,) = struct.unpack_from("<Q", content, 24)
    end = place = 32
    for _ in range(count):
        offset, size, length = struct.unpack_from("<QQQ", content, place)
        place += 24 + length
        end = max(end, place, offset + size)
    return content[:end]


@pytest.mark.parametrize("how", SHAPES.values(), ids=SHAPES)
def test_nothing_is_in_memory_but_what_was(thin, file, how):
    before = three(**how)
    path = file(before)
    was, start = image(before.data), before.address[".hip_fatbin"]
    end = start + section(path, ".hip_fatbin")["sh_size"]

    thin.thin(path, ["gfx1201"])

    after = path.read_bytes()
    new_end = start + section(path, ".hip_fatbin")["sh_size"]
    now = image(after)
    # Between the last bundle and what follows is the table of segments, and less than a page.
    left = {one for one in now if new_end <= one < end}
    assert len(left) < PAGE + 56 * 8
    assert now.keys() <= was.keys()
    changed = {one for one in now if now[one] != was[one]} - {*range(start, new_end)}
    headers = {*range(before.address[".note.gnu.build-id"])}
    known = {
        one
        for name in (".rela.dyn", ".hipFatBinSegment")
        for one in range(before.address[name], before.address[name] + 24 * 4)
    }
    assert changed <= headers | left | known


@pytest.mark.parametrize("how", SHAPES.values(), ids=SHAPES)
def test_the_loader_takes_it(thin, file, how):
    before = three(**how)
    path = file(before)
    tail, starts = loaded(path, 3)

    thin.thin(path, ["gfx1201"])

    new_tail, new_starts = loaded(path, 3)
    assert new_tail == tail
    # Size and hash are others; magic, version and method are not.
    size = 24 if "pack" in how else 8
    assert [one[: 2 * size] for one in new_starts] == [one[: 2 * size] for one in starts]


@pytest.mark.parametrize("how", SHAPES.values(), ids=SHAPES)
def test_pointers_are_written_in_their_place_where_they_were(thin, file, how):
    path = file(three(**how))

    thin.thin(path, ["gfx1201"])

    found = section(path, ".hipFatBinSegment").data()
    written = [struct.unpack_from("<IIQQ", found, 24 * number)[2] for number in range(3)]
    assert written == ([0, 0, 0] if "written" in how else pointers(path.read_bytes()))


@pytest.mark.parametrize("how", SHAPES.values(), ids=SHAPES)
def test_thinned_again_it_stays_byte_for_byte(thin, file, how):
    path = file(three(**how))
    thin.thin(path, ["gfx1201"])
    once, status = path.read_bytes(), path.stat()

    report = thin.thin(path, ["gfx1201", "gfx1200"])

    assert path.read_bytes() == once
    assert path.stat() == status
    assert report == thin.Report("libfat.so.1", len(once), len(once), (), 3, (("gfx1200", 3),))


@pytest.mark.parametrize("how", SHAPES.values(), ids=SHAPES)
def test_thinned_in_steps_it_is_as_thinned_at_once(thin, tmp_path, how):
    at_once, in_steps = tmp_path / "once.so", tmp_path / "steps.so"
    for path in (at_once, in_steps):
        path.write_bytes(three(**how).data)

    thin.thin(at_once, ["gfx1201"])
    thin.thin(in_steps, ["gfx1201", "gfx1100"])
    thin.thin(in_steps, ["gfx1201"])

    assert in_steps.read_bytes() == at_once.read_bytes()


def test_library_for_the_targets_alone_is_left_alone(thin, file):
    path = file(three())
    before, status = path.read_bytes(), path.stat()

    report = thin.thin(path, ["gfx1100", "gfx1201", "gfx90a"])

    assert (report.removed, report.lacking) == ((), ())
    assert (path.read_bytes(), path.stat()) == (before, status)
    assert list(path.parent.iterdir()) == [path]


def test_bundle_with_nothing_to_remove_is_copied_as_it_is(thin, file):
    mine = compressed(fat("gfx1201", code=bytes(9_000)))
    path = file(library([compressed(fat("gfx1100", "gfx1201")), mine]))

    thin.thin(path, ["gfx1201"])

    assert section(path, ".hip_fatbin").data()[PAGE:] == mine


def test_two_wrappers_may_share_a_bundle(thin, file):
    one, other = fat("gfx1100", "gfx1201", code=bytes(PAGE)), fat("gfx1201", "gfx906")
    _, places = padded([one, other])
    path = file(library([one, other], places=[places[1], places[0], places[1]]))

    report = thin.thin(path, ["gfx1201"])

    first, second, third = pointers(path.read_bytes())
    assert report.bundles == 2
    assert first == third == second + 3 * PAGE
    assert places[1] == 5 * PAGE


def test_too_little_to_give_back_a_page_is_removed_all_the_same(thin, file):
    before = library([compressed(fat("gfx1100", "gfx1201"))])
    path = file(before)

    report = thin.thin(path, ["gfx1201"])

    assert (report.before, report.after) == (len(before.data), len(before.data))
    assert [one.target for one in elf.code_objects(path)] == ["gfx1201"]
    assert_well_formed(path.read_bytes())
    assert ELFFile(io.BytesIO(path.read_bytes())).num_segments() == 6
    assert b"gfx1100" not in path.read_bytes()


def test_lacking_targets_are_counted_by_bundle(thin, file):
    path = file(library([fat("gfx1100", "gfx1201"), fat("gfx1100"), fat()]))

    report = thin.thin(path, ["gfx1201", "gfx1200"])

    assert report.lacking == (("gfx1201", 1), ("gfx1200", 2))
    assert str(report).endswith(
        "removed gfx1100; no code for gfx1201 in 1 of 3 bundles; "
        "no code for gfx1200 in 2 of 3 bundles"
    )


def test_link_is_followed_and_the_mode_is_kept(thin, file, tmp_path):
    path = file(three())
    path.chmod(0o751)
    link = tmp_path / "libfat.so"
    link.symlink_to("libfat.so.1")

    report = thin.thin(link, ["gfx1201"])

    assert report.name == "libfat.so"
    assert link.readlink() == Path("libfat.so.1")
    assert path.stat().st_mode & 0o7777 == 0o751
    assert path.stat().st_size == report.after < report.before
    assert sorted(tmp_path.iterdir()) == [link, path]


@pytest.mark.parametrize(
    "content",
    [b"", b"/* GNU ld script */", b"\x7fELF", compressed(GOOD), Path("/bin/sh").read_bytes()],
)
def test_other_files_are_left_alone(thin, file, content):
    path = file(content)
    status = path.stat()

    report = thin.thin(path, ["gfx1201"])

    assert report == thin.Report("libfat.so.1", len(content), len(content))
    assert (path.read_bytes(), path.stat()) == (content, status)


def moved_wrapper(places, bundles=None):
    return library(bundles or [fat("gfx1100"), fat("gfx1201")], places=places)


def changed(form, section, ahead, *values, **how):
    """Return a library with something in a section changed."""
    made = three(**how)
    return made.patch(form, made.offset[section] + ahead, *values)


def header(section, ahead, *values):
    """Return a library with something in the header of a section changed."""
    made = three()
    return made.patch("<Q", made.header[section] + ahead, *values)


def segment(number, ahead, form, value):
    return three().patch(form, 64 + 56 * number + ahead, value)


REFUSED = {
    "unknown version": (
        library([compressed(GOOD)[:4] + b"\4\0\1\0" + bytes(60)]),
        "a compressed bundle of version 4, method 1",
    ),
    "pointer behind the section": (moved_wrapper([0, 9 * PAGE]), "is not in .hip_fatbin"),
    "pointer before the section": (moved_wrapper([0, -1]), "is not in .hip_fatbin"),
    "pointer into a bundle": (moved_wrapper([0, 4000, 2 * PAGE]), "bytes has room for 4000"),
    "no wrapper for a bundle": (moved_wrapper([0]), "is of no bundle that a wrapper points to"),
    "nor for the first": (moved_wrapper([2 * PAGE]), "is of no bundle that a wrapper points to"),
    "packed relocations": (
        three(more=[(".relr.dyn", 19, ALLOC, bytes(8))]),
        "the relocations in .relr.dyn are of the kind RELR, not RELA",
    ),
    "pointer without relocation": (
        changed("<Q", ".rela.dyn", 24, 0),
        "not only wrappers point into .hip_fatbin",
    ),
    "pointer without relocation to there": (
        changed("<QQQ", ".rela.dyn", 24, 0, 8, 0),
        "1 wrappers have no relocation",
    ),
    "pointer with a symbol's relocation": (
        changed("<Q", ".rela.dyn", 32, 1),
        "is of kind 0x1",
    ),
    "two relocations of a pointer": (
        three(relocations=[((".hipFatBinSegment", 8), 8, (".hip_fatbin", 0))]),
        "is given two values",
    ),
    "another value in place": (changed("<Q", ".hipFatBinSegment", 8, 77), "is given two values"),
    "another pointer": (
        three(relocations=[((".data", 0), 8, (".hip_fatbin", 5))]),
        "not only wrappers point into .hip_fatbin",
    ),
    "relocation in the section": (
        three(relocations=[((".hip_fatbin", 8), 8, (".data", 0))]),
        "is of kind 0x8",
    ),
    "symbol": (three(symbol=".hip_fatbin"), ".dynsym names things in .hip_fatbin: strip it"),
    "wrapper's magic": (
        changed("<I", ".hipFatBinSegment", 24, 1),
        "wrapper 1 has the magic 0x1, version 1",
    ),
    "wrapper's version": (
        changed("<I", ".hipFatBinSegment", 28, 2),
        "wrapper 1 has the magic 0x48495046, version 2",
    ),
    "no wrappers": (library([], places=[]), "it has no .hipFatBinSegment"),
    "wrappers of another size": (header(".hipFatBinSegment", 32, 71), "a table of 71 bytes"),
    "something behind": (three(pad=b"x"), "behind .hip_fatbin is something"),
    "something over": (
        header(".eh_frame", 24, three().offset[".hip_fatbin"]),
        "something else lies over .hip_fatbin",
    ),
    "written to": (three(flags=WRITE), "is in is not only read"),
    "larger in memory": (segment(1, 40, "<Q", 1 << 20), "is in is not only read"),
    "in no segment": (segment(1, 0, "<I", 0), "is in 0 segments that are loaded"),
    "address of another": (header(".hip_fatbin", 16, 0), "is not the one that its segment gives"),
    "two sections": (
        three(more=[(".hip_fatbin", 1, 0, b"x")]),
        "it has 2 sections .hip_fatbin",
    ),
    "not loaded from the file": (
        three().patch("<I", three().header[".hip_fatbin"] + 4, 8),
        "segments that are loaded, not in one",
    ),
    "a program": (three().patch("<H", 16, 2), "but is no shared library for x86-64"),
    "another processor": (three().patch("<H", 18, 183), "but is no shared library for x86-64"),
    "size of segments": (three().patch("<H", 54, 32), "its table of segments is not understood"),
    "size of sections": (three().patch("<H", 58, 40), "its table of sections is not understood"),
    "too short": (library([GOOD]).data[:-64], "a table of"),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_library_that_is_not_understood_is_left_as_it_was(thin, refused, file, content, message):
    path = file(content)
    before, status = path.read_bytes(), path.stat()

    with pytest.raises(refused) as told:
        thin.thin(path, ["gfx1201"])

    assert str(told.value).startswith(f"{path}: ")
    assert message in str(told.value)
    assert str(told.value).endswith("; it is left as it was")
    assert (path.read_bytes(), path.stat()) == (before, status)
    assert list(path.parent.iterdir()) == [path]


def test_symbol_of_a_section_is_no_symbol(thin, file):
    made = three(symbol=".hip_fatbin")
    path = file(made.patch("<B", made.offset[".dynsym"] + 24 * 2 + 4, 3))

    assert thin.thin(path, ["gfx1201"]).removed


@given(place=st.integers(0, 1 << 20), value=st.integers(0, 255))
def test_damaged_library_is_refused_or_thinned(thin, refused, tmp_path_factory, place, value):
    made = library([compressed(GOOD), fat("gfx1100", "gfx1201", align=64)])
    content = bytes(made.data)
    # Where things are said rather than somewhere in the bundles.
    heads = [*range(64 + 56 * 6), *range(made.offset[".rela.dyn"], made.offset[".rela.dyn"] + 72)]
    heads += range(min(made.header.values()), len(content))
    place = heads[place % len(heads)]
    content = content[:place] + bytes([value]) + content[place + 1 :]
    path = tmp_path_factory.mktemp("damaged") / "lib.so"
    path.write_bytes(content)

    try:
        report = thin.thin(path, ["gfx1201"])
    except refused:
        assert path.read_bytes() == content
    else:
        assert path.stat().st_size == report.after
    assert list(path.parent.iterdir()) == [path]


def test_what_cannot_be_put_in_its_place_leaves_nothing_behind(thin, refused, file, monkeypatch):
    path = file(three())
    before = path.read_bytes()

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(refused, match=r"libfat\.so\.1: No space left on device"):
        thin.thin(path, ["gfx1201"])

    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_file_that_is_not_there_is_told(thin, refused, tmp_path):
    with pytest.raises(refused, match=r"lib\.so: No such file"):
        thin.thin(tmp_path / "lib.so", ["gfx1201"])


@pytest.mark.parametrize("targets", [[], [""], ["gfx1201", "navi48"], ["gfx1201:xnack"]])
def test_wrong_target_is_told(thin, refused, file, targets):
    with pytest.raises(refused, match="not a GPU target"):
        thin.thin(file(three()), targets)


def test_a_line_is_printed_for_each_file(thin, file, tmp_path, capsys):
    fatbin, other = file(three()), tmp_path / "other.so"
    other.write_bytes(b"text")

    assert thin.main(["--targets", "gfx1201,gfx906", str(fatbin), str(other)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        (
            "libfat.so.1: 0.1 MB -> 0.1 MB, removed gfx1100,gfx90a:xnack-; "
            "no code for gfx906 in 3 of 3 bundles"
        ),
        "other.so: 0.0 MB -> 0.0 MB, removed nothing",
    ]


def test_the_first_file_that_cannot_be_is_the_last(thin, file, tmp_path, capsys):
    good = file(three())
    before = good.read_bytes()
    bad = tmp_path / "bad.so"
    bad.write_bytes(three(flags=WRITE).data)

    assert thin.main(["--targets", "gfx1201", str(bad), str(good)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"error: {bad}: the segment that .hip_fatbin is in")
    assert good.read_bytes() == before
