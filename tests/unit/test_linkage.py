import contextlib
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocbake import linkage
from rocbake.errors import BuildError

PROGBITS, NOTE, STRTAB, VERDEF = 1, 7, 3, 0x6FFFFFFD
ALLOCATED, CODE = 2, 4
USED, NEEDED = 0xC0010002, 0xC0008002


def elf(*sections, machine=62, bits=2):
    """Write a library: (kind, flags, content, linked section) of each, the first being number 1."""
    body, headers = b"", [bytes(64)]
    for kind, flags, content, link in sections:
        place = 64 + len(body)
        headers.append(
            struct.pack("<IIQQQQIIQQ", 0, kind, flags, 0, place, len(content), link, 0, 1, 0)
        )
        body += content
    start = 64 + len(body)
    head = b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, start, 0, 64, 0, 0, 64, 0, 0)
    head = head[:0x3A] + struct.pack("<HHH", 64, len(headers), 0)
    return head + body + b"".join(headers)


def definitions(*names, next_of_last=0):
    """Write a table of version definitions and its names; the first is the file's own."""
    texts, table = b"\0", b""
    for number, name in enumerate(names):
        is_last = number == len(names) - 1
        following = next_of_last if is_last else 28
        table += struct.pack("<HHHHIII", 1, number == 0, number + 1, 1, 0, 20, following)
        table += struct.pack("<II", len(texts), 0)
        texts += name.encode() + b"\0"
    return (VERDEF, ALLOCATED, table, 2), (STRTAB, ALLOCATED, texts, 0)


def note(*properties, name=b"GNU\0", kind=5):
    content = b"".join(
        struct.pack("<III", number, 4, value) + bytes(4) for number, value in properties
    )
    return struct.pack("<III", len(name), len(content), kind) + name + content


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "libmade.so"
        path.write_bytes(content)
        return path

    return write


def test_a_library_tells_which_versions_it_gives(write):
    path = write(elf(*definitions("libmade.so.1", "MADE_1.0", "MADE_1.1", "MADE_PRIVATE")))

    assert linkage.defined_versions(path) == ("MADE_1.0", "MADE_1.1", "MADE_PRIVATE")


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF", elf(machine=183), elf(bits=1)])
def test_what_is_no_file_for_x86_64_tells_nothing(write, content):
    path = write(content)

    assert linkage.defined_versions(path) == ()
    assert linkage.isa_level(path) == 0
    assert linkage.opened(path) == ()
    assert not linkage.is_x86_64(path)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(BuildError, match=r"libgone\.so: No such file"):
        linkage.opened(tmp_path / "libgone.so")
    assert not linkage.is_x86_64(tmp_path / "libgone.so")


def test_a_table_that_points_at_itself_ends(write):
    loop = elf(*definitions("libmade.so.1", "MADE_1.0", next_of_last=2**32 - 28))

    with pytest.raises(BuildError, match=r"libmade\.so is damaged: .* is cut off"):
        linkage.defined_versions(write(loop))


def test_a_table_without_an_end_ends(write):
    table = struct.pack("<HHHHIIIII", 1, 0, 1, 1, 0, 20, 28, 0, 0) * 20_000
    long = elf((VERDEF, ALLOCATED, table, 2), (STRTAB, ALLOCATED, b"\0", 0))

    with pytest.raises(BuildError, match="its table of versions has no end"):
        linkage.defined_versions(write(long))


@pytest.mark.parametrize(
    ("properties", "level"),
    [
        ([(NEEDED, 0b0001)], 1),
        ([(NEEDED, 0b0111)], 3),
        ([(USED, 0b1111), (NEEDED, 0b0011)], 2),
        ([(NEEDED, 0b10001)], 1),
        ([(USED, 0b1111)], 0),
        ([], 0),
    ],
)
def test_the_level_that_a_file_needs_is_read(write, properties, level):
    build_id = note((NEEDED, 0b1111), kind=3)
    of_others = note((NEEDED, 0b1111), name=b"ABC\0")
    notes = build_id + of_others + note(*properties)

    assert linkage.isa_level(write(elf((NOTE, ALLOCATED, notes, 0)))) == level


def test_names_in_data_are_what_may_be_opened(write):
    data = b"libfirst.so.1\0/opt/libpath.so.2\0librocblas.so.5\0libz.so\0xlib.so.1\0lib c.so\0"
    data += bytes(1000) + b"liblast.so.1\0"
    code = b"\0libcode.so.1\0"
    names = b"\0libneeded.so.1\0"
    path = write(
        elf(
            (PROGBITS, ALLOCATED, data, 0),
            (PROGBITS, ALLOCATED | CODE, code, 0),
            (STRTAB, ALLOCATED, names, 0),
            (PROGBITS, 0, b"\0libcomment.so.1\0", 0),
        )
    )

    assert linkage.opened(path) == ("libfirst.so.1", "liblast.so.1", "librocblas.so.5", "libz.so")


def test_sections_beyond_the_end_are_damage(write):
    whole = elf((PROGBITS, ALLOCATED, b"\0liba.so\0", 0))

    with pytest.raises(BuildError, match="2 section headers at byte 73 are not there"):
        linkage.opened(write(whole[:-1]))
    with pytest.raises(BuildError, match="2 section headers at byte 73 are not there"):
        linkage.opened(write(whole[:0x3A] + b"\x38" + whole[0x3B:]))
    size = whole.rindex(struct.pack("<Q", 9))
    with pytest.raises(BuildError, match="its section 1 of 1000 bytes is not there"):
        linkage.opened(write(whole[:size] + struct.pack("<Q", 1000) + whole[size + 8 :]))
    with pytest.raises(BuildError, match="its header is cut off"):
        linkage.opened(write(whole[:40]))


WHOLE = elf(
    *definitions("libmade.so.1", "MADE_1.0"),
    (NOTE, 2, note((NEEDED, 3)), 0),
    (PROGBITS, 2, b"a", 0),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.integers(18, len(WHOLE)), st.binary(max_size=16))
def test_damage_ends_in_no_other_error(write, place, damage):
    path = write(WHOLE[:place] + damage + WHOLE[place + len(damage) :])

    for look in (linkage.defined_versions, linkage.isa_level, linkage.opened):
        with contextlib.suppress(BuildError):
            look(path)
