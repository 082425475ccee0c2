import hashlib
import os
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rocbake import elf
from rocbake.elf import CodeObject, ElfFacts, SymbolVersion, code_objects, newest_versions, read
from rocbake.errors import BuildError

DATA = Path(__file__).parent.parent / "data" / "elf"
TRIPLE = "hipv4-amdgcn-amd-amdhsa--"


# Files made by hand, by the books: the ELF standard and Clang's offload bundler


def bundle(*entries, align=64):
    """Return an offload bundle with one entry for each (entry id, code)."""
    header = struct.pack("<24sQ", b"__CLANG_OFFLOAD_BUNDLE__", len(entries))
    offset = len(header) + sum(24 + len(entry_id) for entry_id, _ in entries)
    table, codes = b"", b""
    for entry_id, code in entries:
        codes += bytes(-(offset + len(codes)) % align)
        table += struct.pack("<QQQ", offset + len(codes), len(code), len(entry_id))
        table += entry_id.encode()
        codes += code
    return header + table + codes


def host_and(*targets, code=b"code"):
    return bundle(("host-x86_64-unknown-linux-gnu-", b""), *((TRIPLE + t, code) for t in targets))


def compressed(plain, version=3, method=1, packed=None, **wrong):
    packed = packed or (zstandard.compress(plain) if method else zlib.compress(plain))
    sizes = {1: "<I", 2: "<II", 3: "<QQ"}[version]
    whole = 8 + struct.calcsize(sizes) + 8 + len(packed)
    fields = [wrong.get("whole", whole), wrong.get("unpacked", len(plain))][-len(sizes) + 1 :]
    digest = hashlib.md5(plain, usedforsecurity=False).digest()[:8]
    return (
        b"CCOB"
        + struct.pack("<HH", version, method)
        + struct.pack(sizes, *fields)
        + digest
        + packed
    )


def strings(*texts):
    """Return a string table and where each text is in it."""
    table, offsets = b"\0", {}
    for text in texts:
        offsets[text] = len(table)
        table += text.encode() + b"\0"
    return table, offsets


def elf_file(sections=(), *, machine=62, kind=3, flags=0, abi=0, segments=()):
    """Return a 64-bit ELF file.

    Args:
        sections: (name, type, link, info, entry size, content) each; the link is a number.
        segments: (type, number of a section) each.
    """
    names, offsets = strings(*(section[0] for section in sections), ".shstrtab")
    sections = [*sections, (".shstrtab", 3, 0, 0, 0, names)]
    body, headers, places = b"", bytes(64), [(0, 0)]
    start = 64 + 56 * len(segments)
    for name, section_type, link, info, entry_size, content in sections:
        body += bytes(-(start + len(body)) % 8)
        place = start + len(body)
        places.append((place, len(content)))
        body += content
        headers += struct.pack(
            "<IIQQQQIIQQ",
            offsets[name],
            section_type,
            2,
            place,
            place,
            len(content),
            link,
            info,
            8,
            entry_size,
        )
    body += bytes(-(start + len(body)) % 8)
    programs = b"".join(
        struct.pack("<IIQQQQQQ", segment, 4, *[places[number][0]] * 3, *[places[number][1]] * 2, 8)
        for segment, number in segments
    )
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\2\1\1" + bytes([64 if machine == 224 else 0, abi]) + bytes(7),
        kind,
        machine,
        1,
        0,
        64 if segments else 0,
        start + len(body),
        flags,
        64,
        56,
        len(segments),
        64,
        len(sections) + 1,
        len(sections),
    )
    return header + programs + body + headers


def library():
    """Return a shared library that says something about everything."""
    table, at = strings(
        "libself.so.1",
        "liba.so",
        "libc.so.6",
        "$ORIGIN:/opt/lib",
        "$ORIGIN/../lib",
        "GLIBC_2.9",
        "GLIBC_2.10",
        "GLIBC_PRIVATE",
        "GLIBCXX_3.4.9",
        "GLIBCXX_3.4.32",
    )
    tags = [
        (1, at["libc.so.6"]),
        (1, at["liba.so"]),
        (14, at["libself.so.1"]),
        (15, at["$ORIGIN:/opt/lib"]),
        (29, at["$ORIGIN/../lib"]),
        (0, 0),
    ]
    needs = [
        ("libc.so.6", ["GLIBC_2.9", "GLIBC_2.10", "GLIBC_PRIVATE"]),
        ("liba.so", ["GLIBCXX_3.4.9", "GLIBCXX_3.4.32"]),
    ]
    versions = b""
    for number, (name, wanted) in enumerate(needs):
        size = 16 + 16 * len(wanted)
        last = number == len(needs) - 1
        versions += struct.pack("<HHIII", 1, len(wanted), at[name], 16, 0 if last else size)
        for place, version in enumerate(wanted):
            following = 0 if place == len(wanted) - 1 else 16
            versions += struct.pack("<IHHII", 0, 0, 2, at[version], following)
    note = struct.pack("<III4s", 4, 4, 3, b"GNU\0") + b"\xde\xad\xbe\xef"
    return elf_file(
        [
            (".dynstr", 3, 0, 0, 0, table),
            (".dynamic", 6, 1, 0, 16, b"".join(struct.pack("<QQ", *tag) for tag in tags)),
            (".gnu.version_r", 0x6FFFFFFE, 1, len(needs), 0, versions),
            (".note.gnu.build-id", 7, 0, 0, 0, note),
            (".interp", 1, 0, 0, 0, b"/lib64/ld-linux-x86-64.so.2\0"),
            (".debug_info", 1, 0, 0, 0, b"debug"),
        ],
        segments=[(3, 5), (2, 2), (4, 4)],
    )


def fat(content, section_type=1):
    return elf_file(
        [(".text", 1, 0, 0, 0, b"\xc3"), (".hip_fatbin", section_type, 0, 0, 0, content)]
    )


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "file.so"
        path.write_bytes(content)
        return path

    return write


# Facts


def test_facts_of_a_library(file):
    facts = read(file(library()))

    assert facts == ElfFacts(
        kind="DYN",
        machine="X86_64",
        bits=64,
        soname="libself.so.1",
        needed=("libc.so.6", "liba.so"),
        rpath=("$ORIGIN", "/opt/lib"),
        runpath=("$ORIGIN/../lib",),
        interpreter="/lib64/ld-linux-x86-64.so.2",
        versions=(
            SymbolVersion("liba.so", "GLIBCXX_3.4.32"),
            SymbolVersion("liba.so", "GLIBCXX_3.4.9"),
            SymbolVersion("libc.so.6", "GLIBC_2.10"),
            SymbolVersion("libc.so.6", "GLIBC_2.9"),
            SymbolVersion("libc.so.6", "GLIBC_PRIVATE"),
        ),
        build_id="deadbeef",
        has_debug=True,
    )


def test_what_a_file_does_not_say_is_absent(file):
    assert read(file(elf_file())) == ElfFacts("DYN", "X86_64", 64)


def test_facts_without_section_headers_come_from_the_segments(file):
    stripped = bytearray(library())
    struct.pack_into("<QIHHHHHH", stripped, 40, 0, 0, 64, 56, 3, 64, 0, 0)
    # Without sections the string table is found by a tag, so one tag is made to say where it is.
    table = stripped.index(b"\0libself.so.1\0")
    end = stripped.index(struct.pack("<Q", 29))
    struct.pack_into("<QQ", stripped, end, 5, table)
    struct.pack_into("<I", stripped, 64, 1)  # the first segment maps the file, as it must
    struct.pack_into("<QQQQQ", stripped, 72, 0, 0, 0, len(stripped), len(stripped))

    facts = read(file(bytes(stripped)))

    assert facts.soname == "libself.so.1"
    assert facts.needed == ("libc.so.6", "liba.so")
    assert facts.build_id == "deadbeef"


@pytest.mark.parametrize("content", [b"", b"\x7fEL", b"#!/bin/sh\n", b"CCOB", bytes(100)])
def test_file_of_another_kind_is_none(file, content):
    assert read(file(content)) is None


def test_facts_of_this_very_program():
    facts = read(Path(sys.executable).resolve())

    assert facts.kind in ("EXEC", "DYN")
    assert any(name.startswith("libc.") for name in facts.needed)
    assert facts.interpreter.startswith("/lib")


def test_facts_agree_with_readelf():
    path = Path("/bin/ls").resolve()
    try:
        printed = subprocess.run(
            ["readelf", "-dnlV", path],
            check=True,
            capture_output=True,
            text=True,
            env={"LC_ALL": "C"},
        ).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("readelf is not installed")

    facts = read(path)

    assert all(f"Shared library: [{name}]" in printed for name in facts.needed)
    assert printed.count("Shared library:") == len(facts.needed)
    assert f"interpreter: {facts.interpreter}]" in printed
    assert f"Build ID: {facts.build_id}" in printed
    assert all(f"Name: {needed.version} " in printed for needed in facts.versions)


@pytest.mark.parametrize(
    ("versions", "newest"),
    [
        (["GLIBC_2.9", "GLIBC_2.10", "GLIBC_2.2.5"], {"GLIBC": "2.10"}),
        (["GLIBCXX_3.4.9", "GLIBCXX_3.4.32"], {"GLIBCXX": "3.4.32"}),
        (["CXXABI_1.3", "CXXABI_1.3.15"], {"CXXABI": "1.3.15"}),
        (["GLIBC_PRIVATE", "Base"], {}),
        (["GLIBC_2.34", "GLIBC_ABI_DT_RELR"], {"GLIBC": "2.36"}),
        (["GLIBC_2.38", "GLIBC_ABI_DT_RELR"], {"GLIBC": "2.38"}),
        (["CXXABI_FLOAT128", "GLIBC_2.2.5"], {"GLIBC": "2.2.5"}),
        (["GLIBC_2.³", "OMP_1.0"], {"OMP": "1.0"}),
        (["GLIBC_2.4", "CXXABI_1.3"], {"CXXABI": "1.3", "GLIBC": "2.4"}),
    ],
)
def test_newest_version_is_so_by_number(versions, newest):
    files = [
        ElfFacts("DYN", "X86_64", 64, versions=(SymbolVersion("lib.so", version),))
        for version in versions
    ]

    assert newest_versions(files) == newest
    assert list(newest_versions(reversed(files))) == sorted(newest)


# GPU code


def test_bundles_one_after_the_other_are_all_found(file):
    first = host_and("gfx1100", "gfx1201")
    content = first.ljust(4096, b"\0") + host_and("gfx90a:xnack-", code=b"longer code") + bytes(99)

    path = file(fat(content))

    data = path.read_bytes()
    found = code_objects(path)
    assert [(one.target, one.size) for one in found] == [
        ("gfx1100", 4),
        ("gfx1201", 4),
        ("gfx90a:xnack-", 11),
    ]
    assert [data[one.offset : one.offset + one.size] for one in found] == [
        b"code",
        b"code",
        b"longer code",
    ]


@pytest.mark.parametrize(
    ("entry_id", "target"),
    [
        ("hipv4-amdgcn-amd-amdhsa--gfx1201", "gfx1201"),
        ("hip-amdgcn-amd-amdhsa-gfx906", "gfx906"),
        ("hip-amdgcn-amd-amdhsa-unknown-gfx906", "gfx906"),
        ("openmp-amdgcn-amd-amdhsa--gfx90a:xnack+:sramecc-", "gfx90a:sramecc-:xnack+"),
        ("hipv4-amdgcn-amd-amdhsa--gfx9-4-generic:xnack-", "gfx9-4-generic:xnack-"),
        ("hipv4-amdgcn-amd-amdhsa--gfx11-generic", "gfx11-generic"),
        ("hipv4-amdgcn-amd-amdhsa--gfx1999", "gfx1999"),
        ("hip-spirv64-amd-amdhsa--amdgcnspirv", "amdgcnspirv"),
        ("hip-amdgcn-amd-amdhsa", "hip-amdgcn-amd-amdhsa"),
    ],
)
def test_target_of_an_entry(file, entry_id, target):
    (found,) = code_objects(file(bundle((entry_id, b"x"))))

    assert found.target == target


def test_host_and_empty_entries_are_no_code(file):
    content = bundle(("host-x86_64-unknown-linux--", b"x"), (TRIPLE + "gfx1201", b""))

    assert code_objects(file(content)) == ()


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("method", [0, 1])
def test_compressed_bundles_of_every_version_are_found(file, version, method):
    one = compressed(host_and("gfx1201", code=bytes(5_000)), version, method)
    content = one.ljust(4096, b"\0") + one + bytes(7) + host_and("gfx1100")

    path = file(fat(content))

    start = path.read_bytes().index(b"CCOB")
    assert code_objects(path) == (
        CodeObject("gfx1201", start, 5_000),
        CodeObject("gfx1201", start + 4096, 5_000),
        CodeObject("gfx1100", path.read_bytes().rindex(b"code"), 4),
    )


# Made with LLVM 22 from code objects that hold one number:
#   clang-offload-bundler -compress -bundle-align=4096, COMPRESSED_BUNDLE_FORMAT_VERSION=2 and =3
@pytest.mark.parametrize("name", ["compressed-v2.hipfb", "compressed-v3.hipfb"])
def test_bundle_of_clang_is_read(name):
    assert code_objects(DATA / name) == (
        CodeObject("gfx1100", 0, 992),
        CodeObject("gfx1201", 0, 992),
        CodeObject("gfx90a:xnack+", 0, 1000),
    )


# The flags that Clang 22 writes for each.
@pytest.mark.parametrize(
    ("flags", "target"),
    [
        (0x4E, "gfx1201"),
        (0x41, "gfx1100"),
        (0x12C, "gfx900"),
        (0x53F, "gfx90a"),
        (0xB3F, "gfx90a:sramecc-:xnack+"),
        (0xE3F, "gfx90a:sramecc+:xnack-"),
        (0x549, "gfx1250"),
        (0x1000054, "gfx11-generic"),
        (0xFE, "unknown-0xfe"),
    ],
)
def test_code_object_outside_a_bundle_is_for_its_machine(file, flags, target):
    path = file(elf_file(machine=224, flags=flags, abi=4))

    assert code_objects(path) == (CodeObject(target, 0, path.stat().st_size),)
    assert read(path).machine == "AMDGPU"


def test_features_of_old_code_objects_are_not_guessed(file):
    assert code_objects(file(elf_file(machine=224, flags=0x32C, abi=1)))[0].target == "gfx900"


@pytest.mark.parametrize("content", [b"", b"text", elf_file(), bytes(5000)])
def test_file_without_gpu_code_has_none(file, content):
    assert code_objects(file(content)) == ()


# Damage


def refusal(call, path):
    with pytest.raises(BuildError) as caught:
        call(path)
    return str(caught.value)


def unfinished(plain):
    """Return a frame in which everything is but its end."""
    frame = zstandard.ZstdCompressor().compressobj()
    return frame.compress(plain) + frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


GOOD = host_and("gfx1201")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD[:-1], "a bundle of 196 bytes does not fit in"),
        (GOOD[:40], "ends within its table"),
        (GOOD + b"rest", "something that is no offload bundle"),
        (GOOD[:24] + b"\xff" * 8 + GOOD[32:], "a bundle of 18446744073709551615 entries"),
        (GOOD[:48] + b"\xff" * 8 + GOOD[56:], "an entry without a name"),
        (bundle((TRIPLE + "gfx12\n01", b"x")), "an entry without a name"),
        (bundle((TRIPLE + "x" * 2_000, b"x")), "an entry without a name"),
        (bundle(("", b"x")), "an entry without a name"),
        (bundle((TRIPLE + "gfx1201", b"x"))[:32] + bytes(8) + bytes(90), "without a name"),
        (GOOD[:32].replace(b"\2", b"\1") + struct.pack("<QQQ", 8, 4, 3) + b"hip", "overlaps"),
        (compressed(GOOD, 4 - 1)[:-1], "does not fit in"),
        (compressed(GOOD, 1)[:-1], "unpacks to 0"),
        (compressed(GOOD, unpacked=9), "a bundle of 9 bytes unpacks to"),
        (compressed(GOOD, unpacked=999), "a bundle of 999 bytes unpacks to"),
        (compressed(GOOD, unpacked=1 << 40), "says that it unpacks to 1099511627776 bytes"),
        (compressed(GOOD, whole=31), "a compressed bundle of 31 bytes does not fit in"),
        (compressed(GOOD, whole=1 << 63), "does not fit in"),
        (compressed(GOOD, 2)[:14], "ends within its table"),
        (compressed(GOOD, packed=unfinished(GOOD)), "a bundle of 196 bytes unpacks to 196"),
        (compressed(b"not a bundle"), "what was compressed is no offload bundle"),
        (compressed(GOOD[:-1]), "a bundle of 196 bytes is only 195 long"),
        (compressed(GOOD, whole=len(compressed(GOOD)) + 1) + b"x", "unpacks to"),
        (b"CCOB" + struct.pack("<HH", 4, 1) + bytes(50), "version 4, method 1"),
        (b"CCOB" + struct.pack("<HH", 3, 2) + bytes(50), "version 3, method 2"),
        (b"CCOB" + struct.pack("<HHQQQ", 3, 1, 64, 9, 0) + b"x" * 32, "compressed bundle: "),
        (b"CCOB" + struct.pack("<HHQQQ", 3, 0, 64, 9, 0) + b"x" * 32, "compressed bundle: "),
    ],
)
def test_damaged_bundle_is_refused_with_file_and_byte(file, content, message):
    for path in (file(content), file(fat(content))):
        said = refusal(code_objects, path)
        assert message in said
        assert f"{path} is damaged at byte " in said


def test_section_that_is_not_in_the_file_is_refused(file):
    beyond = fat(GOOD).replace(
        struct.pack("<QIIQ", len(GOOD), 0, 0, 8), struct.pack("<QIIQ", 9_999, 0, 0, 8)
    )

    assert "9999 bytes is not there" in refusal(code_objects, file(beyond))
    assert "is not there" in refusal(code_objects, file(fat(GOOD, section_type=8)))


@pytest.mark.parametrize("size", [4, 16, 63, 64, 500])
def test_truncated_elf_is_refused(file, size):
    path = file(library()[:size])

    assert f"{path} is damaged at byte " in refusal(read, path)


def test_tables_without_end_are_refused_soon(file):
    data = bytearray(library())
    place = data.index(struct.pack("<HHIII", 1, 3, 14 + 8, 16, 64))
    struct.pack_into("<I", data, place + 12, 0)  # the next entry is this one
    headers = struct.unpack_from("<Q", data, 40)[0]
    struct.pack_into("<I", data, headers + 3 * 64 + 44, 0xFFFFFFFF)  # and there are so many
    start = time.thread_time()

    assert "its tables have no end" in refusal(read, file(bytes(data)))
    assert time.thread_time() - start < 5


def test_bundle_that_unpacks_to_a_lot_takes_little_memory(file):
    path = file(compressed(host_and("gfx1201", code=bytes(32 << 20))))

    tracemalloc.start()
    try:
        (found,) = code_objects(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert found.size == 32 << 20
    assert peak < 16 << 20


def test_bundle_is_not_unpacked_beyond_what_it_says(file):
    bomb = compressed(host_and("gfx1201", code=bytes(32 << 20)), unpacked=9)

    said = refusal(code_objects, file(bomb))

    assert int(said.rpartition(" ")[2]) < 8 << 20


def test_missing_file_and_folder_are_named(tmp_path):
    for call in (read, code_objects):
        assert str(tmp_path / "x") in refusal(call, tmp_path / "x")
        assert str(tmp_path) in refusal(call, tmp_path)


SAMPLES = [
    library(),
    fat(host_and("gfx1201", "gfx90a:xnack+") + bytes(64) + compressed(GOOD, 2)),
    elf_file(machine=224, flags=0x4E, abi=4),
    host_and("gfx1100", "gfx1201"),
    *(compressed(GOOD, version, method) for version in (1, 2, 3) for method in (0, 1)),
]


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_damage_is_refused_or_read(tmp_path_factory, data):
    sample = data.draw(st.sampled_from(SAMPLES) | st.binary(max_size=200))
    damaged = bytearray(sample[: data.draw(st.integers(0, len(sample)) | st.just(len(sample)))])
    for _ in range(data.draw(st.integers(0, 4))):
        position = data.draw(st.integers(0, max(len(damaged) - 1, 0)))
        damaged[position : position + 1] = data.draw(
            st.binary(max_size=2) | st.sampled_from([b"\0" * 8, b"\xff" * 8])
        )
    path = tmp_path_factory.getbasetemp() / "damaged.so"
    path.write_bytes(damaged)

    for call in (read, code_objects):
        try:
            call(path)
        except BuildError as error:
            said = str(error)
        else:
            said = str(path)
        assert str(path) in said


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["gfx1201", "gfx90a:xnack+"]), st.binary(max_size=50))),
        max_size=4,
    ),
    st.integers(0, 9),
)
def test_everything_that_is_bundled_is_found(tmp_path_factory, bundles, padding):
    pieces = [bundle(*((TRIPLE + target, code) for target, code in one)) for one in bundles]
    path = tmp_path_factory.getbasetemp() / "bundled.so"
    path.write_bytes(fat(b"".join(piece + bytes(padding) for piece in pieces)))

    found = code_objects(path)

    data = path.read_bytes()
    assert [(one.target, data[one.offset : one.offset + one.size]) for one in found] == [
        (target, code) for one in bundles for target, code in one if code
    ]


def test_elf_library_is_loaded_only_when_it_is_used():
    code = "import sys, rocbake.elf; print(sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(elf.__file__).parent.parent)},
    ).stdout

    assert "elftools" not in loaded
    assert "zstandard" not in loaded


# Taking code out


@pytest.mark.parametrize("version", [1, 2, 3])
def test_code_is_taken_out_of_plain_and_compressed_bundles(file, version):
    packed = bundle(
        (TRIPLE + "gfx1201", b"first"),
        (TRIPLE + "gfx1100", b"other"),
        (TRIPLE + "gfx1201", b"x" * 99),
    )
    content = compressed(packed, version).ljust(4096, b"\0") + host_and("gfx1201", code=b"plain")

    found = list(elf.extract(file(fat(content)), {"gfx1201"}))

    assert found == [("gfx1201", b"first"), ("gfx1201", b"x" * 99), ("gfx1201", b"plain")]


def test_code_is_taken_out_of_a_file_that_is_code(file):
    whole = elf_file(machine=224, flags=0x4E, abi=4)

    assert list(elf.extract(file(whole), {"gfx1201"})) == [("gfx1201", whole)]


@pytest.mark.parametrize("content", [b"", b"text"])
def test_nothing_is_taken_out_of_what_holds_no_code(file, content):
    assert list(elf.extract(file(content), {"gfx1201"})) == []


def test_only_what_was_kept_of_a_bundle_is_taken_out(file, monkeypatch):
    path = file(fat(compressed(host_and("gfx1201", code=bytes(5_000)))))
    monkeypatch.setattr(elf, "_EXTRACTED_LIMIT", 1_000)

    with pytest.raises(BuildError, match="5000 bytes of code"):
        list(elf.extract(path, {"gfx1201"}))
