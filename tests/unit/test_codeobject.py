import struct
import time
from pathlib import Path

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocbake import codeobject
from rocbake.codeobject import Argument, Relocation
from rocbake.errors import BuildError

DATA = Path(__file__).parent.parent / "data" / "emulate"
GFX1201 = (DATA / "gfx1201.co").read_bytes()


def read(data):
    return codeobject.read(bytes(data), "it")


def kernel(name, target="gfx1201"):
    program = read((DATA / f"{target}.co").read_bytes())
    return next(one for one in program.kernels if one.name == name)


# What compilers write


@pytest.mark.parametrize("target", ["gfx1201", "gfx942"])
def test_target_and_kernels_are_read(target):
    program = read((DATA / f"{target}.co").read_bytes())

    assert program.target == target
    assert [one.name for one in program.kernels] == ["add", "turn", "through", "by_value"]
    assert [one.symbol for one in program.kernels][:2] == ["add.kd", "turn.kd"]


def test_explicit_and_hidden_arguments_are_read():
    arguments = kernel("add").arguments

    assert arguments[:4] == (
        Argument("", 0, 8, "global_buffer", "global"),
        Argument("", 8, 8, "global_buffer", "global"),
        Argument("", 16, 4, "by_value", None),
        Argument("", 24, 4, "hidden_block_count_x", None),
    )
    assert [one.is_hidden for one in arguments[:4]] == [False, False, False, True]
    assert kernel("by_value").arguments[1] == Argument("", 8, 12, "by_value", None)
    assert (kernel("add").kernarg_size, kernel("by_value").kernarg_size) == (280, 20)
    assert kernel("add").kernarg_align == 8


@pytest.mark.parametrize(
    ("name", "target", "memory", "wave", "most"),
    [
        ("add", "gfx1201", (0, 0), 32, 1024),
        ("turn", "gfx1201", (256, 1216), 32, 64),
        ("turn", "gfx942", (256, 1216), 64, 64),
    ],
)
def test_what_a_kernel_needs_is_read(name, target, memory, wave, most):
    found = kernel(name, target)

    assert (found.lds_size, found.scratch_size) == memory
    assert (found.wavefront_size, found.most_work_items) == (wave, most)
    assert (found.descriptor.lds_size, found.descriptor.scratch_size) == memory
    assert found.sgpr_count > 0
    assert found.vgpr_count > 0


def test_the_descriptor_is_read():
    found = kernel("add").descriptor

    assert found.kernarg_size == 280
    assert found.resource1 >> 16 & 0xF == 0xF  # all denormal numbers are kept
    assert found.resource2 >> 1 & 0x1F == 2  # user registers, for the kernarg pointer
    assert found.properties == 1 << 3 | 1 << 10  # the kernarg pointer, waves of 32
    assert kernel("add", "gfx942").descriptor.properties == 1 << 3


def test_a_kernel_starts_in_the_code():
    program = read(GFX1201)
    code = program.segments[1]
    starts = [one.address - code.address for one in program.kernels]

    # A kernel starts on 256 bytes, and the first one at the start of the text.
    assert starts[0] == 0
    assert all(start % 256 == 0 and any(code.data[start : start + 4]) for start in starts)


def test_segments_hold_their_data_and_the_zeros_after_it():
    segments = read(GFX1201).segments

    assert segments[0].data.startswith(b"\x7fELF")
    assert segments[-1].data[:16] == struct.pack("<4I", 1, 2, 3, 4)
    assert segments[-1].size == len(segments[-1].data) + 1  # __hip_cuid_ is in .bss
    assert read(GFX1201).size == segments[-1].address + segments[-1].size


def test_relocations_point_into_the_program():
    data = read(GFX1201).segments[-1]

    # `third` stands behind the table of four numbers, and points to the last but one.
    assert read(GFX1201).relocations == (Relocation(data.address + 16, data.address + 8),)


# What could be wrong


def changed(offset, form, *values):
    data = bytearray(GFX1201)
    struct.pack_into(form, data, offset, *values)
    return data


def with_metadata(change):
    """Return the code object with its metadata changed, padded to the room that is there."""
    start = GFX1201.index(b"AMDGPU\0") + 8
    size = struct.unpack_from("<I", GFX1201, start - 16)[0]
    metadata = msgpack.unpackb(GFX1201[start : start + size])
    first(metadata).pop(".uses_dynamic_stack")  # room for longer numbers
    change(metadata)
    packed = msgpack.packb(metadata)
    assert len(packed) <= size
    data = bytearray(GFX1201)
    struct.pack_into("<I", data, start - 16, len(packed))
    data[start : start + len(packed)] = packed
    return data


def first(metadata):
    return metadata["amdhsa.kernels"][0]


SECTIONS = struct.unpack_from("<Q", GFX1201, 40)[0]


def section(kind):
    """Return where the header of the first section of a type stands."""
    headers = range(SECTIONS, len(GFX1201) - 63, 64)
    return next(one for one in headers if struct.unpack_from("<I", GFX1201, one + 4)[0] == kind)


RELOCATIONS = struct.unpack_from("<Q", GFX1201, section(4) + 24)[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "damaged at byte 0: it ends within a table, after 0 bytes"),
        (b"text" * 30, "damaged at byte 0: no code object: expected a 64-bit little-endian ELF"),
        (changed(18, "<H", 62), "no code object"),
        (GFX1201[:300], "after 300 bytes"),
        (GFX1201[:-1], "it ends within a table"),
        (changed(56, "<H", 2), "no note with AMDHSA metadata"),
        (changed(64 + 56 + 40, "<Q", 1 << 40), "a segment of 1099511627776 bytes at address 0x0"),
        (changed(64 + 56 * 2 + 16, "<Q", 8), "a segment of"),
        (changed(64 + 56 + 8, "<Q", 1 << 60), "bytes are not there"),
        (changed(section(11) + 4, "<I", 3), "no dynamic symbols"),
        (changed(section(11) + 40, "<I", 77), "named in section 77, which is not there"),
        (changed(RELOCATIONS + 8, "<Q", 1 << 32 | 9), "a relocation of type 9 for symbol 1"),
        (changed(RELOCATIONS + 8, "<Q", 3), "it needs the symbol '', which is not in it"),
        (changed(RELOCATIONS, "<Q", 1 << 40), "a relocation at address 0x10000000000, outside"),
        (with_metadata(lambda all_: all_.pop("amdhsa.target")), "amdhsa.target: expected text"),
        (with_metadata(lambda all_: all_.update({"amdhsa.kernels": 5})), "expected a list, got 5"),
        (
            with_metadata(lambda all_: first(all_).pop(".symbol")),
            ".symbol: expected text, got None",
        ),
        (with_metadata(lambda all_: first(all_).update({".symbol": "x"})), "no symbol 'x'"),
        (
            with_metadata(lambda all_: first(all_).update({".vgpr_count": -1})),
            ".vgpr_count: expected a number of 32 bits, got -1",
        ),
        (
            with_metadata(lambda all_: first(all_).update({".kernarg_segment_size": 10})),
            "an argument at 8 of 8 bytes, of 10",
        ),
        (
            with_metadata(lambda all_: first(all_).update({".kernarg_segment_size": 1 << 20})),
            "add.kd has 1048576 bytes of arguments",
        ),
        (
            with_metadata(lambda all_: first(all_)[".args"].__setitem__(0, "x")),
            "an argument: expected a map, got 'x'",
        ),
    ],
)
def test_what_is_wrong_is_told(data, message):
    with pytest.raises(BuildError, match=r"it is damaged at byte \d+: ") as told:
        read(data)

    assert message in str(told.value)


def test_a_descriptor_outside_of_the_program_is_refused():
    symbols = struct.unpack_from("<Q", GFX1201, section(11) + 24)[0]
    names = struct.unpack_from("<Q", GFX1201, section(3) + 24)[0]
    wanted = GFX1201.index(b"add.kd\0", names) - names
    entry = next(
        at for at in range(symbols, names, 24) if struct.unpack_from("<I", GFX1201, at)[0] == wanted
    )

    address = struct.unpack_from("<Q", GFX1201, entry + 8)[0]

    with pytest.raises(BuildError, match=r"add\.kd is at address 0x989680, which holds nothing"):
        read(changed(entry + 8, "<Q", 10_000_000))
    with pytest.raises(BuildError, match=r"add\.kd starts at address -0x.*, outside of it"):
        read(changed(address + 16, "<q", -10_000_000))


def test_a_relocation_to_a_symbol_that_is_there_is_read():
    data = changed(RELOCATIONS + 8, "<Qq", 5 << 32 | 3, 4)
    symbols = struct.unpack_from("<Q", GFX1201, section(11) + 24)[0]
    value = struct.unpack_from("<Q", GFX1201, symbols + 24 * 5 + 8)[0]

    assert read(data).relocations[0].points_to == value + 4


def test_a_target_that_is_not_known_is_given_as_it_stands():
    data = with_metadata(lambda all_: all_.update({"amdhsa.target": "amdgcn-amd-amdhsa--gfx9999"}))

    assert read(data).target == "gfx9999"


def test_metadata_that_is_no_message_is_told():
    start = GFX1201.index(b"AMDGPU\0") + 8

    with pytest.raises(BuildError, match=rf"at byte {start}: its metadata is no MessagePack"):
        read(changed(start, "<I", 0xC1C1C1C1))


@pytest.mark.parametrize("kind", [2, 4, 11])
def test_tables_that_come_again_and_again_end_soon(kind):
    # 65,535 headers that are one and the same, of a table that covers the whole file.
    data = changed(section(kind) + 24, "<QQ", 0, len(GFX1201)) if kind != 2 else bytearray(GFX1201)
    at = section(kind) if kind != 2 else SECTIONS
    struct.pack_into("<Q", data, 40, at)
    struct.pack_into("<HH", data, 58, 0, 0xFFFF)
    start = time.thread_time()

    with pytest.raises(BuildError):
        read(data)
    assert time.thread_time() - start < 1


edits = st.lists(
    st.tuples(
        st.one_of(
            st.integers(0, 0x240),
            st.integers(0, len(GFX1201) - 1),
            st.integers(SECTIONS, len(GFX1201) - 1),
        ),
        st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255),
    ),
    max_size=12,
)


@given(edits, st.integers(0, len(GFX1201)) | st.just(len(GFX1201)))
@settings(max_examples=300, deadline=None)
def test_whatever_is_in_it_is_a_value_or_one_error(changes, length):
    data = bytearray(GFX1201)
    for position, byte in changes:
        data[position] = byte

    try:
        program = read(data[:length])
    except BuildError as error:
        assert str(error).startswith("it is damaged at byte ")  # noqa: PT017 - either is right
    else:
        assert all(0 <= one.address < program.size for one in program.kernels)
