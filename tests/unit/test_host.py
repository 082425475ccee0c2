import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocbake import gpu, host
from rocbake.errors import NoGpuError, TargetError
from rocbake.host import Libc, Rocm

LIB = "/usr/lib/x86_64-linux-gnu"
LEVELS = [" ".join(host._LEVELS[:level]).split() for level in range(5)]  # each with those below
GLIBC = b"GNU C Library (Debian GLIBC 2.31-13+deb11u14) stable release version 2.31.\n"


def library(*versions, text=b""):
    """Write a library for x86-64 that gives versions, and has a text somewhere."""
    names, table = b"\0", b""
    for number, name in enumerate(versions):
        following = 28 if number < len(versions) - 1 else 0
        table += struct.pack("<HHHHIIIII", 1, 0, number + 2, 1, 0, 20, following, len(names), 0)
        names += name.encode() + b"\0"
    content = table + names
    kinds = [(0, 0, 0, 0), (0x6FFFFFFD, 64, len(table), 2), (3, 64 + len(table), len(names), 0)]
    if not versions:
        kinds = []
    headers = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 2, 0, place, size, link, 0, 1, 0)
        for kind, place, size, link in kinds
    )
    start = 64 + len(content)
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQ", 3, 62, 1, 0, 0, start)
    head += struct.pack("<IHHHHHH", 0, 64, 0, 0, 64, len(kinds), 0)
    return head + content + headers + text


def cpuinfo(*flags):
    return "".join(
        f"processor\t: {number}\nflags\t\t: {' '.join(one)}\nvmx flags\t: ept\n\n"
        for number, one in enumerate(flags)
    )


@pytest.fixture
def machine(make_tree):
    """A Debian 11 without ROCm and GPU, and without a cache of its loader."""
    made = make_tree()
    made.file(f"{LIB}/libc.so.6", library("GLIBC_2.2.5", "GLIBC_2.30", text=GLIBC))
    names = ("GLIBCXX_3.4.9", "GLIBCXX_3.4.28", "CXXABI_1.3.12", "CXXABI_FLOAT128")
    made.file(f"{LIB}/libstdc++.so.6", library(*names))
    made.file("proc/cpuinfo", cpuinfo(LEVELS[2]))
    return made


# --- the C library and others


def test_glibc_is_known_by_what_it_says_of_itself(machine):
    assert host.read(machine.root).libc == Libc("glibc", "2.31", f"{LIB}/libc.so.6")


def test_a_glibc_that_says_nothing_has_no_version(machine):
    machine.file(f"{LIB}/libc.so.6", library())

    assert host.read(machine.root).libc == Libc("glibc", None, f"{LIB}/libc.so.6")


def test_musl_is_recognised(make_tree):
    machine = make_tree()
    machine.file("lib/ld-musl-x86_64.so.1", library(text=b"\x001.2.3\0Dynamic Program Loader"))

    assert host.read(machine.root).libc == Libc("musl", "1.2.3", "/lib/ld-musl-x86_64.so.1")


def test_musl_beside_glibc_changes_nothing(machine):
    machine.file("lib/ld-musl-x86_64.so.1", library(text=b"\x001.2.3\0"))

    assert host.read(machine.root).libc.kind == "glibc"


def test_an_empty_root_has_nothing(make_tree):
    found = host.read(make_tree().root)

    assert found.libc is None
    assert (dict(found.libraries), dict(found.versions), found.rocms) == ({}, {}, ())
    assert found.cpu_level is None
    assert found.gpus.absence.reason == "no-driver"


def test_the_highest_version_of_each_kind_is_known(machine):
    assert host.read(machine.root).versions["libstdc++.so.6"] == {
        "CXXABI": "1.3.12",
        "GLIBCXX": "3.4.28",
    }


def test_a_damaged_library_gives_no_versions(machine):
    machine.file(f"{LIB}/libstdc++.so.6", library("GLIBCXX_3.4.28")[:-1])

    found = host.read(machine.root)

    assert "libstdc++.so.6" in found.libraries
    assert "libstdc++.so.6" not in found.versions


# --- the processor


@pytest.mark.parametrize("level", range(5))
def test_a_level_is_all_its_features_and_those_below(level):
    features = LEVELS[level]

    assert host.cpu_level(features) == level
    assert host.missing_features(features, level) == ()
    for one in features:
        rest = [name for name in features if name != one]
        assert host.cpu_level(rest) == next(at for at in range(level) if one in LEVELS[at + 1])
        assert host.missing_features(rest, level) == (one,)


def test_what_one_processor_lacks_none_has(machine):
    machine.file("proc/cpuinfo", cpuinfo(LEVELS[4], LEVELS[3]))

    assert host.read(machine.root).cpu_level == 3


def test_other_processors_have_no_level(machine):
    machine.file("proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd\n")

    assert host.read(machine.root).cpu_level is None


FLAGS = st.frozensets(st.from_regex(r"[a-z0-9_]{1,8}", fullmatch=True), max_size=6)


@given(st.lists(FLAGS, min_size=1, max_size=5))
def test_features_are_those_of_every_processor(each):
    assert host.parse_cpuinfo(cpuinfo(*each)) == frozenset.intersection(*each)


@given(st.text())
def test_any_text_is_a_cpuinfo(text):
    found = host.parse_cpuinfo(text)

    assert not found or "flags" in text


# --- ROCm


def rocm(machine, place, *names, version="7.2.4-81"):
    machine.file(f"{place}/.info/version", f"{version}\n")
    for name in names:
        machine.file(f"{place}/lib/{name}", library())


def test_rocm_says_its_version_in_a_file(machine):
    rocm(machine, "opt/rocm-6.4.1", "libamdhip64.so.6", version="6.4.1-83")
    machine.link("opt/rocm", "/opt/rocm-6.4.1")

    path = "/opt/rocm/lib/libamdhip64.so.6"
    assert host.read(machine.root).rocms == (
        Rocm("6.4.1", "/opt/rocm", {"libamdhip64.so.6": path}),
    )
    assert host.read(machine.root).rocms[0].major == 6


def test_rocm_says_its_version_in_a_header(machine):
    machine.file(
        "opt/rocm/include/rocm-core/rocm_version.h",
        "#define ROCM_VERSION_MAJOR   7\n#define ROCM_VERSION_MINOR   14\n"
        "#define ROCM_VERSION_PATCH   0\n",
    )

    assert host.read(machine.root).rocms == (Rocm("7.14.0", "/opt/rocm"),)


def test_several_rocms_are_all_found(machine):
    rocm(machine, "opt/rocm-6.4.1", version="6.4.1")
    rocm(machine, "opt/rocm/core-7.14", version="7.14.0")
    rocm(machine, "home/rocm", version="7.2.4")

    found = host.read(machine.root, {"ROCM_PATH": "/home/rocm"}).rocms

    assert [(one.version, one.place) for one in found] == [
        ("7.2.4", "/home/rocm"),
        ("6.4.1", "/opt/rocm-6.4.1"),
        ("7.14.0", "/opt/rocm/core-7.14"),
    ]


def test_a_distributions_own_rocm_is_known_by_its_runtime(machine):
    machine.file(f"{LIB}/libamdhip64.so.7", library("hip_4.2", "hip_7.2"))

    found = host.read(machine.root)

    assert found.rocms == (Rocm("7", f"{LIB}/libamdhip64.so.7"),)
    assert found.versions["libamdhip64.so.7"] == {"hip": "7.2"}


def test_one_rocm_is_not_two_where_the_loader_finds_it(machine):
    rocm(machine, "opt/rocm-7.2.4", "libamdhip64.so.7")
    machine.file("etc/ld.so.conf", "/opt/rocm/lib\n")
    machine.link("opt/rocm", "/opt/rocm-7.2.4")

    found = host.read(machine.root)

    assert [one.version for one in found.rocms] == ["7.2.4"]
    assert found.libraries["libamdhip64.so.7"] == "/opt/rocm/lib/libamdhip64.so.7"


def test_an_empty_folder_of_rocm_is_none(machine):
    (machine.root / "opt/rocm/lib").mkdir(parents=True)

    assert host.read(machine.root).rocms == ()


def test_kernel_files_lie_beside_the_library_itself(machine):
    rocm(machine, "opt/rocm", "librocblas.so.4.4", "libhipblaslt.so.0")
    machine.link("opt/rocm/lib/librocblas.so.4", "librocblas.so.4.4")
    kernels = "opt/rocm/lib/rocblas/library"
    machine.file(f"{kernels}/TensileLibrary_lazy_gfx1100.dat", "")
    machine.file(f"{kernels}/TensileLibrary_Type_SS_fallback_gfx1201.hsaco", "")
    machine.file("opt/rocm/lib/hipblaslt/library/TensileLibrary_lazy_gfx942.dat", "")
    machine.file(f"{LIB}/rocblas/library/TensileLibrary_lazy_gfx906.dat", "")

    found = host.read(machine.root).kernels

    assert (set(found.rocblas), set(found.hipblaslt)) == ({"gfx1100"}, {"gfx942"})


# --- the target of the card


def gpus(tree):
    return gpu.discover(tree.root, look=tree.stat)


def test_the_card_gives_the_target(make_tree):
    tree = make_tree()
    tree.kfd()
    tree.card()
    tree.card(render=129, pci="0000:04:00.0")

    assert str(host.card_target(gpus(tree))) == "gfx1201"


def test_without_a_card_there_is_no_target(make_tree):
    with pytest.raises(NoGpuError, match=r"none can be taken from a GPU: /dev/kfd") as refused:
        host.card_target(gpus(make_tree()))

    assert "--target" in refused.value.hint


def test_different_cards_leave_the_choice(workstation):
    with pytest.raises(TargetError, match=r"GPUs here differ: gfx1201 .*, gfx1103 ") as refused:
        host.card_target(gpus(workstation))

    assert refused.value.hint == "--target gfx1201, or --target gfx1201,gfx1103 for all of them"


def test_a_card_that_is_in_no_table_is_named(make_tree):
    tree = make_tree()
    tree.kfd()
    tree.card(139901)

    with pytest.raises(TargetError, match="gfx13"):
        host.card_target(gpus(tree))


# --- here


def test_this_machine_is_read():
    found = host.read(Path("/"))

    assert found.libc is not None
    if found.libc.kind == "glibc":
        assert found.libc.version
        assert found.libraries["libc.so.6"] == found.libc.path
