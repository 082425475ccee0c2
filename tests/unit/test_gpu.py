import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocbake import gpu, target
from rocbake.gpu import DeviceNode, NodeKind

NODES = "sys/devices/virtual/kfd/kfd/topology/nodes"
PCI = "sys/bus/pci/devices"
NAVI48 = "0000:03:00.0"


def discover(tree):
    return gpu.discover(tree.root, look=tree.stat)


@pytest.fixture
def tree(make_tree):
    """A machine with a processor that KFD lists, and /dev/kfd; a card is still to be plugged in."""
    made = make_tree()
    made.kfd()
    made.cpu()
    return made


# --- what a card is


def test_card_and_igpu_are_found_in_order_of_kfd(workstation):
    found = discover(workstation)

    card, igpu = found.cards
    assert (card.index, card.kfd_node, card.target) == (0, 1, "gfx1201")
    assert card.product == "Radeon RX 9070, RX 9070 XT, RX 9070 GRE"
    assert (card.is_apu, card.memory, card.compute_units) == (False, 16 << 30, 64)
    assert card.pci == NAVI48
    assert card.by_path == "/dev/dri/by-path/pci-0000:03:00.0-render"
    assert card.uuid == "GPU-1d5e2c6b0f3a9c47"
    assert card.partition is None
    assert (igpu.index, igpu.kfd_node, igpu.target) == (1, 2, "gfx1103")
    assert (igpu.is_apu, igpu.memory, igpu.compute_units) == (True, 512 << 20, 12)
    assert igpu.uuid is None
    assert found.absence is None
    assert found.strangers == found.oddities == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")
def test_real_device_nodes_are_read(make_tree):
    tree = make_tree(real=True)
    tree.kfd(mode=0o640, uid=7, gid=44)
    tree.card(mode=0o660, gid=992)

    found = gpu.discover(tree.root)

    assert found.kfd == DeviceNode("/dev/kfd", NodeKind.CHARACTER, 0o640, 7, 44, 1, 3)
    render = DeviceNode("/dev/dri/renderD128", NodeKind.CHARACTER, 0o660, 0, 992, 1, 3)
    assert found.cards[0].render == render


def test_recorded_nodes_are_read_like_real_ones(make_tree):
    tree = make_tree(real=False)
    tree.kfd(mode=0o660, gid=44)
    tree.card(gid=992)

    found = discover(tree)

    assert found.kfd == DeviceNode("/dev/kfd", NodeKind.CHARACTER, 0o660, 0, 44, 1, 3)
    assert found.cards[0].render.gid == 992


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (90000, "gfx900"),
        (90010, "gfx90a"),
        (90012, "gfx90c"),
        (90402, "gfx942"),
        (90500, "gfx950"),
        (100306, "gfx1036"),
        (110003, "gfx1103"),
        (110501, "gfx1151"),
        (120001, "gfx1201"),
        (120500, "gfx1250"),
        (131511, "gfx13fb"),
    ],
)
def test_target_is_named_as_llvm_does(version, name):
    assert gpu.target_name(version) == name


def test_every_target_of_the_table_can_be_named():
    names = [one.name for one in target.PROCESSORS if "generic" not in one.name]

    for name in names:
        major, minor, step = name[3:-2], int(name[-2], 16), int(name[-1], 16)
        assert gpu.target_name(int(major) * 10000 + minor * 100 + step) == name


def test_card_of_a_target_outside_of_the_table_is_a_card(tree):
    tree.card(target_version=139915)

    (card,) = discover(tree).cards

    assert (card.target, card.product, card.is_apu) == ("gfx1363f", "gfx1363f", False)


@pytest.mark.parametrize(
    ("said", "product"),
    [
        ("AMD Instinct MI300X OAM", "AMD Instinct MI300X OAM"),
        ("\x1b[31mRed\x1b[0m\n", "[31mRed[0m"),
        (" \n", "Instinct MI300A, MI300X, MI325X"),
        (None, "Instinct MI300A, MI300X, MI325X"),
    ],
)
def test_product_is_what_the_card_says_or_else_the_table(tree, said, product):
    tree.card(target_version=90402, product=said)

    assert discover(tree).cards[0].product == product


@pytest.mark.parametrize(
    ("version", "vram", "banks", "cores", "is_apu", "memory"),
    [
        pytest.param(120001, 16, 16, 0, False, 16, id="a card"),
        pytest.param(110003, 1, 1, 0, True, 1, id="an APU by its target"),
        pytest.param(90402, 192, 192, 0, False, 192, id="MI300X"),
        pytest.param(90402, 192, 24, 0, False, 24, id="a part of MI300X"),
        pytest.param(90402, 0, 128, 0, True, 0, id="MI300A"),
        pytest.param(130000, 1, 31, 0, True, 1, id="an unknown APU whose banks count GTT"),
        pytest.param(130000, 1, 1, 8, True, 1, id="an unknown APU with cores in its node"),
        pytest.param(130000, 1, 1, 0, False, 1, id="an unknown card"),
        pytest.param(120001, 16, 0, 0, False, 16, id="banks that say nothing"),
        pytest.param(110003, None, 2, 0, True, 2, id="no sysfs of the APU"),
        pytest.param(90402, None, 2, 0, False, 2, id="no sysfs of the card"),
    ],
)
def test_apu_is_told_by_evidence_then_by_target(
    tree, *, version, vram, banks, cores, is_apu, memory
):
    tree.card(version, memory=banks << 30, cpu_cores_count=cores)
    told = tree.root / PCI / NAVI48 / "mem_info_vram_total"
    told.unlink()
    if vram is not None:
        told.write_text(f"{vram << 30}\n")

    (card,) = discover(tree).cards

    assert (card.is_apu, card.memory) == (is_apu, memory << 30)


def test_only_its_own_memory_banks_count(tree):
    tree.card(memory=1 << 30)
    tree.file(f"{NODES}/1/mem_banks/1/properties", "heap_type 2\nsize_in_bytes 5\n")
    tree.file(f"{NODES}/1/mem_banks/2/properties", "heap_type 0\nsize_in_bytes 700\n")
    tree.file(f"{PCI}/{NAVI48}/mem_info_vram_total", f"{64 << 30}\n")

    assert discover(tree).cards[0].memory == (1 << 30) + 5


def test_render_nodes_need_not_follow_pci_addresses(tree):
    tree.card(render=130, pci="0000:03:00.0", uuid=1)
    tree.card(render=128, pci="0000:c3:00.0", uuid=2)
    tree.card(render=129, pci="10000:83:1f.7", uuid=3)

    cards = discover(tree).cards

    assert [(card.pci, card.render.path, card.by_path) for card in cards] == [
        (
            "0000:03:00.0",
            "/dev/dri/renderD130",
            "/dev/dri/by-path/pci-0000:03:00.0-render",
        ),
        (
            "0000:c3:00.0",
            "/dev/dri/renderD128",
            "/dev/dri/by-path/pci-0000:c3:00.0-render",
        ),
        (
            "10000:83:1f.7",
            "/dev/dri/renderD129",
            "/dev/dri/by-path/pci-10000:83:1f.7-render",
        ),
    ]


def test_nodes_are_counted_as_numbers(tree):
    for number in (2, 10, 9):
        tree.card(node=number, render=128 + number, pci=f"0000:{number:02x}:00.0")

    assert [card.kfd_node for card in discover(tree).cards] == [2, 9, 10]
    assert [card.index for card in discover(tree).cards] == [0, 1, 2]


def test_partitions_of_a_device_are_told_apart(tree):
    for number in range(2):
        tree.card(
            90402,
            pci="0000:05:00.0",
            render=128 + number,
            partition=number,
            memory=24 << 30,
            simd_count=152,
            simd_per_cu=4,
        )
    tree.card(pci="0000:83:00.0", render=131)

    found = discover(tree)

    assert [card.partition for card in found.cards] == [0, 1, None]
    assert [card.pci for card in found.cards] == ["0000:05:00.0", "0000:05:00.0", "0000:83:00.0"]
    assert [card.by_path for card in found.cards[:2]] == [
        "/dev/dri/by-path/pci-0000:05:00.0-render",
        "/dev/dri/by-path/platform-amdgpu_xcp_0-render",
    ]
    assert found.cards[0].compute_units == 38
    assert found.strangers == found.oddities == ()


def test_card_without_links_by_path_has_none(tree):
    tree.card(by_path=False)
    tree.file("dev/dri/by-path/pci-0000:03:00.0-render", "no link")

    assert discover(tree).cards[0].by_path is None


def test_address_comes_from_the_render_node_where_kfd_gives_none(tree):
    tree.card(location_id=0)

    found = discover(tree)

    assert found.cards[0].pci == NAVI48
    assert found.strangers == found.oddities == ()


def test_address_comes_from_kfd_where_the_render_node_gives_none(tree):
    tree.card(pci="10000:83:1f.7")
    (tree.root / "sys/class/drm/renderD128").unlink()

    assert discover(tree).cards[0].pci == "10000:83:1f.7"


def test_render_node_of_another_device_than_kfd_says_is_odd(tree):
    tree.card(location_id=0x0500)

    found = discover(tree)

    assert found.cards[0].pci == NAVI48
    assert found.oddities == (
        "KFD's node 1 is at 0000:05:00.0, and its render node renderD128 at 0000:03:00.0",
    )


def test_second_card_without_its_node_hinders_not_the_first(tree):
    tree.card()
    tree.card(render=129, pci="0000:0d:00.0", has_node=False)

    found = discover(tree)

    assert found.absence is None
    assert len(found.cards) == 2
    assert found.oddities == (
        "gfx1201 at 0000:0d:00.0 cannot be used: /dev/dri/renderD129 is not here",
    )


# --- why nothing can compute


def absent(tree):
    found = discover(tree).absence
    assert found is not None
    return found.reason, found.message, found.remedy


def test_machine_without_any_gpu(make_tree):
    tree = make_tree()
    tree.file("sys/bus/pci/devices/0000:00:1f.3/vendor", "0x8086\n")

    assert absent(tree) == (
        "no-device",
        "/dev/kfd is not here, and no AMD GPU either",
        "run it on a machine with an AMD GPU",
    )


def test_other_amd_devices_are_no_gpu(make_tree):
    tree = make_tree()
    tree.file("sys/bus/pci/devices/0000:00:00.0/vendor", "0x1022\n")
    tree.file("sys/bus/pci/devices/0000:03:00.1/vendor", "0x1002\n")
    tree.file("sys/bus/pci/devices/0000:03:00.1/class", "0x040300\n")

    assert absent(tree)[0] == "no-device"
    assert discover(tree).strangers == ()


def test_machine_whose_devices_cannot_be_seen(make_tree):
    assert absent(make_tree()) == (
        "no-driver",
        "/dev/kfd is not here: this kernel has no AMD compute driver (amdgpu) loaded",
        "on a Linux host with an AMD GPU: modprobe amdgpu",
    )


def test_amdgpu_is_not_loaded(make_tree):
    tree = make_tree()
    tree.card(driver="", in_kfd=False, render=None)

    assert absent(tree) == (
        "no-driver",
        (
            "/dev/kfd is not here: this kernel has no AMD compute driver (amdgpu) loaded; "
            "0000:03:00.0 (1002:7550): no driver holds it: amdgpu is not loaded"
        ),
        "on a Linux host with an AMD GPU: modprobe amdgpu",
    )


def test_amdgpu_without_kfd(make_tree):
    tree = make_tree()
    tree.card(in_kfd=False)

    reason, message, remedy = absent(tree)

    assert reason == "kfd-missing"
    assert message == "/dev/kfd is not here: amdgpu is loaded, but was built without KFD"
    assert "CONFIG_HSA_AMD" in remedy
    assert discover(tree).strangers[0].why == "amdgpu drives it, but was built without KFD"


def test_neither_node_was_passed(make_tree):
    tree = make_tree()
    tree.card(render=129, has_node=False)

    assert absent(tree) == (
        "kfd-missing",
        "/dev/kfd is not here, although this kernel has the AMD compute driver",
        "pass it into the container: --device /dev/kfd --device /dev/dri/renderD129",
    )


def test_render_node_without_kfd(make_tree):
    tree = make_tree()
    tree.card()

    assert absent(tree) == (
        "kfd-missing",
        (
            "/dev/kfd is not here, although this kernel has the AMD compute driver "
            "and /dev/dri/renderD128 is here"
        ),
        "pass it into the container: --device /dev/kfd",
    )


def test_kfd_without_render_node(tree):
    tree.card(has_node=False)

    reason, message, remedy = absent(tree)

    assert reason == "render-missing"
    assert message == (
        "/dev/kfd is here, but /dev/dri/renderD128 is not, "
        "the render node of gfx1201 at 0000:03:00.0"
    )
    assert "--device /dev/dri/renderD128" in remedy


def test_kfd_lists_no_gpu(tree):
    reason, message, _ = absent(tree)

    assert reason == "no-device"
    assert message == "/dev/kfd is here, but KFD lists no GPU, and there is no AMD GPU"


def test_card_that_kfd_does_not_know(tree):
    tree.card(in_kfd=False)

    reason, message, remedy = absent(tree)

    assert reason == "unknown-card"
    assert message == (
        "/dev/kfd is here, but KFD lists no GPU; 0000:03:00.0 (1002:7550): amdgpu drives it, but "
        "KFD does not list it: it does not know 1002:7550, or the slot has no PCIe atomics"
    )
    assert "dmesg" in remedy
    (stranger,) = discover(tree).strangers
    assert (stranger.pci, stranger.product, stranger.driver) == (NAVI48, "1002:7550", "amdgpu")
    assert stranger.render.path == "/dev/dri/renderD128"


@pytest.mark.parametrize(
    ("driver", "why"),
    [
        ("vfio-pci", "vfio-pci holds it, and not amdgpu"),
        ("radeon", "radeon holds it, and not amdgpu"),
        ("", "amdgpu did not take it: it does not know 1002:7551, or lacks its firmware"),
    ],
)
def test_stranger_beside_a_card(tree, driver, why):
    tree.card()
    tree.card(pci="0000:0d:00.0", driver=driver, device_id=0x7551, in_kfd=False, render=None)

    found = discover(tree)

    assert found.absence is None
    (stranger,) = found.strangers
    assert (stranger.pci, stranger.why) == ("0000:0d:00.0", why)
    assert stranger.driver == (driver or None)
    assert stranger.render is None


@pytest.mark.parametrize(("kind", "is_gpu"), [("0x038000", True), ("0x120000", True), ("", False)])
def test_gpus_are_known_by_their_class(tree, kind, is_gpu):
    tree.card(in_kfd=False)
    tree.file(f"{PCI}/{NAVI48}/class", kind)

    assert bool(discover(tree).strangers) == is_gpu


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("proc/sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n"),
        ("proc/sys/kernel/osrelease", "4.4.0-19041-Microsoft\n"),
        ("dev/dxg", ""),
    ],
)
def test_wsl_is_told(make_tree, path, text):
    tree = make_tree()
    tree.file(path, text)

    reason, message, _ = absent(tree)

    assert reason == "wsl"
    assert message == "this is WSL, where the GPU is behind /dev/dxg: there is no /dev/kfd"


def test_folder_in_place_of_kfd(make_tree):
    tree = make_tree()
    tree.card()
    (tree.root / "dev/kfd").mkdir()

    reason, message, remedy = absent(tree)

    assert reason == "kfd-not-a-device"
    assert message == "/dev/kfd is not a device node but a folder"
    assert "rmdir /dev/kfd" in remedy
    assert "--device /dev/kfd" in remedy
    assert discover(tree).kfd.kind is NodeKind.FOLDER


def test_folder_in_place_of_a_render_node(tree):
    tree.card(has_node=False)
    (tree.root / "dev/dri/renderD128").mkdir(parents=True)

    reason, message, remedy = absent(tree)

    assert reason == "render-not-a-device"
    assert message == "/dev/dri/renderD128 is not a device node but a folder"
    assert "rmdir /dev/dri/renderD128" in remedy


def test_file_in_place_of_kfd(make_tree):
    tree = make_tree()
    tree.file("dev/kfd", "")

    reason, message, remedy = absent(tree)

    assert (reason, message) == (
        "kfd-not-a-device",
        "/dev/kfd is not a device node",
    )
    assert "rm /dev/kfd" in remedy


# --- what is closed or broken


@pytest.fixture
def closed(monkeypatch):
    """Let the kernel refuse to show some files, as it does in a container."""
    paths = set()
    opened = Path.open

    def refuse(self, *args, **kwargs):
        if self.resolve() in paths:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(self))
        return opened(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    return paths


def test_gpus_that_are_not_passed_are_closed(workstation, closed):
    closed.add(workstation.root / NODES / "2/properties")

    found = discover(workstation)

    assert [card.target for card in found.cards] == ["gfx1201"]
    assert found.absence is None
    assert found.oddities == ()
    assert found.strangers[0].why == (
        "it was not passed into this container, or KFD does not list it"
    )


def test_every_gpu_is_closed(workstation, closed):
    closed |= {workstation.root / NODES / number / "properties" for number in "12"}

    assert absent(workstation) == (
        "render-missing",
        (
            "/dev/kfd is here, but no GPU's render node was passed: "
            "KFD closes 2 of its nodes to this container"
        ),
        "pass it into the container: --device /dev/dri/renderD128",
    )


@pytest.mark.parametrize(
    ("text", "oddity"),
    [
        ("", "properties of KFD's node 1: nothing is in them"),
        (
            "gfx_target_version twelve\n",
            (
                "properties of KFD's node 1: expected a name and a number, "
                "got 'gfx_target_version twelve'"
            ),
        ),
        (
            b"\xff\xfe\x00\n",
            "properties of KFD's node 1: expected a name and a number, got '\ufffd\ufffd'",
        ),
        (
            "simd_count 128\n",
            "KFD's node 1 is a GPU of unknown target: gfx_target_version is 0",
        ),
        (
            "gfx_target_version 18446744073709551615\n",
            "KFD's node 1 is a GPU of unknown target: gfx_target_version is 18446744073709551615",
        ),
        (
            "gfx_target_version 120001\ndrm_render_minor 0\n",
            "KFD's node 1, gfx1201, names no render node: drm_render_minor is 0",
        ),
        (
            "gfx_target_version 120001\ndrm_render_minor 4294967295\n",
            "KFD's node 1, gfx1201, names no render node: drm_render_minor is 4294967295",
        ),
    ],
)
def test_broken_properties_are_odd_and_hinder_no_other_card(tree, text, oddity):
    tree.card()
    tree.card(render=129, pci="0000:0d:00.0")
    tree.file(f"{NODES}/1/properties", text)

    found = discover(tree)

    assert oddity in found.oddities
    assert [card.kfd_node for card in found.cards] == [2]
    assert found.absence is None


def test_number_that_is_too_large_is_no_number():
    values, wrong = gpu.parse_properties(
        b"a 18446744073709551615\nb 18446744073709551616\nc " + b"9" * 5000
    )

    assert values == {"a": 2**64 - 1}
    assert wrong == ["b 18446744073709551616", "c " + "9" * 58]


def test_broken_gpu_is_a_stranger(tree):
    tree.card()
    properties = tree.root / NODES / "1/properties"
    tree.file(properties.relative_to(tree.root), properties.read_text().replace("120001", "0"))

    found = discover(tree)

    assert found.strangers[0].why == "KFD lists it, but not whole"
    assert found.absence.reason == "unknown-card"


def test_missing_and_looping_files_are_odd(tree):
    tree.card()
    tree.card(node=2, render=129, pci="0000:0d:00.0")
    (tree.root / NODES / "1/properties").unlink()
    tree.link(f"{NODES}/3", f"/{NODES}/3")
    tree.link(f"{NODES}/2/mem_banks/7", "7")
    tree.file(f"{NODES}/not-a-number/properties", "simd_count 1\ngfx_target_version 1\n")

    found = discover(tree)

    assert [card.kfd_node for card in found.cards] == [2]
    assert found.oddities == (
        "KFD's node 1 has no properties: No such file or directory",
        (
            "memory bank 7 of KFD's node 2: expected a name and a number, "
            "got 'Too many levels of symbolic links'"
        ),
        "KFD's node 3 has no properties: Too many levels of symbolic links",
    )


def test_looping_nodes_and_links_are_no_exception(make_tree):
    tree = make_tree()
    tree.card(by_path=False, has_node=False)
    tree.link("dev/kfd", "kfd")
    tree.link("dev/dri/by-path/pci-0000:03:00.0-render", "pci-0000:03:00.0-render")
    (tree.root / "sys/class/drm/renderD128").unlink()
    tree.link("sys/class/drm/renderD128", "renderD128")

    found = discover(tree)

    assert found.kfd == DeviceNode("/dev/kfd", NodeKind.OTHER)
    assert found.absence.reason == "kfd-not-a-device"
    assert found.cards[0].by_path is None


def test_files_in_place_of_folders_are_no_exception(make_tree):
    tree = make_tree()
    tree.kfd()
    for path in ("sys/class/kfd", "sys/bus/pci/devices", "sys/class/drm", "proc", "dev/dri"):
        tree.file(path, "")

    assert absent(tree)[0] == "no-device"


KEYS = st.sampled_from(
    ["simd_count", "simd_per_cu", "gfx_target_version", "drm_render_minor", "location_id"]
)


@given(st.dictionaries(KEYS, st.integers(0, 2**64 - 1)))
def test_properties_are_read_back(values):
    text = "".join(f"{key} {value}\n" for key, value in values.items())

    assert gpu.parse_properties(text.encode()) == (values, [])


@given(st.binary() | st.text().map(str.encode))
def test_properties_of_any_bytes_are_numbers_and_printable_lines(data):
    values, wrong = gpu.parse_properties(data)

    assert all(0 <= value < 2**64 for value in values.values())
    assert all(line.isprintable() and len(line) <= 60 for line in wrong)


def test_this_machine_is_read_without_an_exception():
    found = gpu.discover()

    assert bool(found.absence) != any(
        card.render.kind is NodeKind.CHARACTER and found.kfd.kind is NodeKind.CHARACTER
        for card in found.cards
    )
