import dataclasses

import pytest

from rocbake import gpu, hardware, machine
from rocbake.finding import Examination, Finding
from rocbake.hardware import Surroundings
from rocbake.passthrough import EngineFacts

ENGINE = EngineFacts(product="docker", version="26.1.5", address="unix:///s")


@pytest.fixture
def examine(make_tree):
    """Examine a machine, of which only what matters is said."""

    def examine(
        *versions,
        engine=ENGINE,
        environment=None,
        mode=0o660,
        about=None,
        around=None,
        change=None,
        **card,
    ):
        tree = make_tree()
        if versions:
            tree.cpu()
            tree.kfd(mode=mode, gid=992)
        for number, version in enumerate(versions):
            place = {"render": 128 + number, "pci": f"0000:{3 + number:02x}:00.0"}
            tree.card(target_version=version, mode=mode, **(place | card))
        if change:
            change(tree)
        facts = machine.read(tree.root)
        return list(
            hardware.examine(
                gpu.discover(tree.root, look=tree.stat),
                dataclasses.replace(facts, **({"cpus": 2, "memory": 16 << 30} | (about or {}))),
                engine=engine,
                environment=environment or {},
                around=Surroundings(**(around or {})),
            )
        )

    return examine


def plug_in_unknown(tree):
    """Plug in a card that no driver took."""
    tree.card(pci="0000:07:00.0", render=None, driver="", in_kfd=False)


def of(found, subject):
    return [(one.state, one.says, one.remedy) for one in found if one.subject == subject]


def test_machine_without_a_gpu_is_in_order(examine):
    found = examine()

    assert {one.state for one in found} == {"ok"}
    ((_, says, _),) = of(found, "gpu")
    assert says.endswith("building needs none")


def test_card_is_told_on_one_line(examine):
    ((state, says, _),) = of(examine(120001), "gpu")

    assert state == "ok"
    for part in ("gfx1201", "card", "0000:03:00.0", "/dev/dri/renderD128", "16.0 GiB"):
        assert part in says


def test_node_that_no_group_may_open_is_told(examine):
    ((state, says, remedy),) = of(examine(120001, mode=0o600), "gpu")

    assert state == "warn"
    assert "no group may read and write /dev/kfd and /dev/dri/renderD128" in says
    assert "udev" in remedy


@pytest.mark.parametrize(
    ("about", "subject", "state", "part"),
    [
        ({"amdgpu": True, "amdgpu_version": "6.14.4"}, "driver", "ok", "with amdgpu 6.14.4"),
        ({"amdgpu": True, "amdgpu_version": None}, "driver", "ok", "with its own amdgpu"),
        ({"amdgpu": False, "blocklist": "/etc/modprobe.d/x.conf"}, "driver", "warn", "x.conf"),
        ({"amdgpu": False, "blocklist": None}, "driver", "warn", "amdgpu is not loaded"),
        ({"dkms": "installed", "amdgpu": True}, "driver", "ok", "amdgpu"),
        ({"selinux": "permissive"}, "SELinux", "ok", "permissive"),
        ({"selinux": "enforcing"}, "SELinux", "warn", "boolean"),
        ({"apparmor": True}, "AppArmor", "ok", "enabled"),
        ({"iommu_groups": 20, "iommu_options": ("iommu=pt",)}, "IOMMU", "ok", "told iommu=pt"),
    ],
)
def test_each_fact_has_its_line(examine, about, subject, state, part):
    ((is_, says, _),) = of(examine(120001, about=about), subject)

    assert is_ == state
    assert part in says


def test_driver_that_dkms_did_not_install_is_told(examine):
    lines = of(examine(120001, about={"dkms": "added", "kernel": "6.12"}), "driver")

    assert ("warn", "dkms autoinstall -k 6.12") in [(state, remedy) for state, _, remedy in lines]


def test_window_that_is_too_small_is_told(examine):
    device = machine.Device("0000:03:00.0", vram=16 << 30, visible_vram=256 << 20)

    ((state, says, _),) = of(examine(120001, about={"devices": (device,)}), "resizable BAR")

    assert (state, "0.25 GiB of 16.0" in says) == ("warn", True)
    full = dataclasses.replace(device, visible_vram=16 << 30)
    ((state, _, _),) = of(examine(120001, about={"devices": (full,)}), "resizable BAR")
    assert state == "ok"


def test_carve_out_of_an_apu_is_told(examine):
    device = machine.Device("0000:03:00.0", vram=512 << 20, visible_vram=512 << 20, gtt=12 << 30)

    found = examine(110501, apu=True, about={"devices": (device,)})

    ((state, says, _),) = of(found, "memory of the APU")
    assert (state, says) == ("ok", "0.5 GiB carved out, 12.0 GiB more of the machine's")


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"is_desktop": True}, "Docker Desktop"),
        ({"is_local": False, "address": "ssh://far"}, "another machine"),
        ({"rootless": True}, "loses the groups"),
        ({"remapped": True}, "loses the groups"),
        ({"product": "podman", "rootless": True, "runtime": "runc"}, "on runc"),
    ],
)
def test_engine_that_cannot_pass_a_gpu_is_told(examine, changes, part):
    found = examine(120001, engine=dataclasses.replace(ENGINE, **changes))

    ((state, says, remedy),) = of(found, "engine and GPU")
    assert (state, part in says, bool(remedy)) == ("warn", True, True)


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ({}, 0o660),
        ({"product": "podman", "rootless": True, "runtime": "crun"}, 0o660),
        ({"rootless": True}, 0o666),
    ],
)
def test_engine_that_can_is_not(examine, changes, mode):
    found = examine(120001, engine=dataclasses.replace(ENGINE, **changes), mode=mode)

    assert of(found, "engine and GPU") == []


def test_engine_that_is_silent_is_told_elsewhere(examine):
    assert of(examine(120001, engine=None), "engine and GPU") == []


def test_variables_that_change_what_rocm_does_are_told(examine):
    found = examine(environment={"HSA_OVERRIDE_GFX_VERSION": "11.0.0", "HOME": "/root"})

    ((state, says, remedy),) = of(found, "environment")
    assert (state, remedy) == ("warn", "unset HSA_OVERRIDE_GFX_VERSION")
    assert "'11.0.0'" in says


@pytest.mark.parametrize(
    ("memory", "cpus", "state"), [(16 << 30, 8, "ok"), (16 << 30, 9, "warn"), (1 << 30, 1, "ok")]
)
def test_memory_is_held_against_processors(examine, memory, cpus, state):
    tree_facts = machine.Machine(
        kernel=None, distribution=None, is_wsl=False, amdgpu=False, amdgpu_version=None,
        blocklist=None, dkms=None, devices=(), selinux=None, apparmor=False, iommu_groups=0,
        iommu_options=(), cpu=None, cpus=cpus, memory=memory, memory_available=None,
    )  # fmt: skip
    nothing = gpu.Gpus(kfd=gpu.DeviceNode("/dev/kfd", gpu.NodeKind.MISSING))

    found = hardware.examine(nothing, tree_facts, engine=None, environment={})

    ((is_, _, _),) = of(list(found), "memory")
    assert is_ == state


def test_worst_state_is_told():
    ok, warn, fail = (
        Finding(subject="a", says="b"),
        Finding(subject="a", says="b", remedy="c"),
        Finding(subject="a", says="b", remedy="c", exit_code=7),
    )

    assert Examination.of([ok]).worst == "ok"
    assert Examination.of([ok, warn, ok]).worst == "warn"
    assert Examination.of([warn, fail, ok]).worst == "fail"


# What hinders a GPU


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda tree: tree.file("proc/sys/kernel/osrelease", "5.15-microsoft-WSL2"), "WSL"),
        (lambda tree: (tree.root / "sys/class/kfd").mkdir(parents=True), "pass it into"),
        (lambda tree: (tree.root / "dev/kfd").mkdir(parents=True), "rmdir"),
        (plug_in_unknown, "modprobe"),
    ],
)
def test_only_a_machine_without_any_gpu_is_in_order(examine, change, part):
    lines = of(examine(change=change), "gpu")

    assert {state for state, _, _ in lines} == {"warn"}
    assert part in str(lines)


def test_card_without_its_node_is_told(examine):
    lines = of(examine(120001, 110003, change=lambda tree: lose(tree, "renderD129")), "gpu")

    assert [state for state, _, _ in lines] == ["ok", "warn", "warn"]
    assert "renderD129 is missing" in lines[1][1]


def lose(tree, name):
    (tree.root / "dev/dri" / name).unlink()


@pytest.mark.parametrize(
    ("groups", "mode", "state"),
    [((1000, 992), 0o660, "ok"), ((1000,), 0o660, "warn"), ((1000,), 0o666, "ok")],
)
def test_podman_without_root_needs_its_users_groups(examine, groups, mode, state):
    engine = EngineFacts("podman", "5.0", "unix:///s", rootless=True, runtime="crun")

    ((is_, says, remedy),) = of(
        examine(120001, engine=engine, mode=mode, around={"uid": 1000, "groups": groups}), "gpu"
    )

    assert is_ == state
    if state == "warn":
        assert "must be in group 992 to read and write /dev/kfd and" in says
        assert "usermod -aG" in remedy


def test_docker_gives_the_groups_itself(examine):
    ((state, _, _),) = of(examine(120001, around={"uid": 1000, "groups": (1000,)}), "gpu")

    assert state == "ok"


@pytest.mark.parametrize(
    ("kernel", "targets", "state", "part"),
    [
        ("6.8.0-45-generic", {"gfx1201"}, "warn", "gfx1201 needs Linux 6.11 or later"),
        ("6.11.0", {"gfx1201"}, "ok", "6.11 is new enough for gfx1201"),
        ("6.8.0", {"gfx12-generic"}, "warn", "6.11"),
        ("6.8.0", {"gfx1151", "gfx1201"}, "warn", "gfx1201 needs"),
        ("6.6.9", {"gfx1151", "gfx1201"}, "warn", "gfx1151, gfx1201 needs Linux 6.11"),
        ("5.18.1", {"gfx1100"}, "warn", "5.19"),
        ("6.1.0", {"gfx942:xnack+"}, "warn", "6.5"),
        ("4.18.0", {"gfx90a", "gfx1030"}, None, ""),  # nothing is known of them
        (None, {"gfx1201"}, None, ""),
        ("rolling", {"gfx1201"}, None, ""),
    ],
)
def test_kernel_is_held_against_the_artifacts(examine, kernel, targets, state, part):
    about = {"kernel": kernel, "amdgpu": True}

    found = examine(change=plug_in_unknown, about=about, around={"targets": frozenset(targets)})

    lines = of(found, "kernel")
    assert [one for one, _, _ in lines] == ([state] if state else [])
    assert part in str(lines)


def test_kernel_is_no_matter_to_another_driver(examine):
    about = {"kernel": "6.8.0", "amdgpu": True, "amdgpu_version": "6.16.13"}
    around = {"targets": frozenset({"gfx1201"})}

    assert of(examine(change=plug_in_unknown, about=about, around=around), "kernel") == []


def test_kernel_that_lists_the_card_knows_it(examine):
    about = {"kernel": "5.14.0-611.el9.x86_64", "amdgpu": True}

    found = examine(120000, about=about, around={"targets": frozenset({"gfx1201"})})

    assert [state for state, _, _ in of(found, "kernel")] == ["ok"]


def test_kernel_is_no_matter_where_there_is_no_gpu(examine):
    found = examine(about={"kernel": "6.1.0"}, around={"targets": frozenset({"gfx1201"})})

    ((state, says, _),) = of(found, "kernel")
    assert (state, "there is no GPU here" in says) == ("ok", True)


@pytest.mark.parametrize(
    ("version", "release", "part"),
    [
        ("6.8.5", "7.2.4", "6.10, which came with ROCm 6.3"),
        ("6.10.5", "7.2.4", None),
        ("6.7.0", "7.0.2", "6.8"),
        ("6.8.5", "7.1.1", None),
        ("6.3.6", "6.4.0", None),
        (None, "7.2.4", None),
    ],
)
def test_driver_is_held_against_the_artifacts(examine, version, release, part):
    about = {"kernel": "6.8.0", "amdgpu": True, "amdgpu_version": version}

    found = examine(120001, about=about, around={"releases": frozenset({release})})

    told = [says for state, says, _ in of(found, "driver") if state == "warn"]
    assert len(told) == (part is not None)
    assert (part or "") in str(told)


@pytest.mark.parametrize(
    ("files", "part"),
    [
        (None, "has none"),
        (frozenset(), "has none"),
        (frozenset({"gc_11_0_0_pfp.bin"}), "has no gc_12_0_1_*"),
        (frozenset({"gc_12_0_1_pfp.bin.zst"}), None),
        (frozenset({"gc_12_0_1_pfp.bin"}), None),
    ],
)
def test_missing_firmware_is_told(examine, files, part):
    around = {"targets": frozenset({"gfx1201", "gfx90a"}), "firmware": files}

    lines = of(examine(change=plug_in_unknown, around=around), "firmware")

    assert [part in says for _, says, _ in lines] == ([True] if part else [])


def test_firmware_is_no_matter_where_another_driver_holds_the_card(examine):
    def plug_in(tree):
        tree.card(pci="0000:07:00.0", render=None, driver="vfio-pci", in_kfd=False)

    assert of(examine(change=plug_in), "firmware") == []


def test_firmware_of_a_card_that_computes_is_its_version(examine):
    device = machine.Device("0000:03:00.0", firmware={"mec": "0x0000000b", "sdma": "0x00000296"})

    lines = of(examine(120001, about={"devices": (device,)}), "firmware")

    assert lines == [("ok", "0000:03:00.0: mec 0x0000000b, sdma 0x00000296", None)]


@pytest.mark.parametrize(
    ("cards", "groups", "options", "state"),
    [
        ((120001, 120001), 20, (), "warn"),
        ((120001, 120001), 20, ("iommu=nopt",), "warn"),
        ((120001, 120001), 20, ("amd_iommu=on", "iommu=pt"), "ok"),
        ((120001, 120001), 0, (), "ok"),
        ((120001,), 20, (), "ok"),
        ((120001, 110003), 20, (), "ok"),
    ],
)
def test_iommu_matters_to_several_cards(examine, cards, groups, options, state):
    found = examine(*cards, about={"iommu_groups": groups, "iommu_options": options})

    ((is_, _, _),) = of(found, "IOMMU")
    assert is_ == state


@pytest.mark.parametrize(
    ("kernel", "version", "vram", "state"),
    [
        ("6.8.0", None, 512 << 20, "warn"),
        ("6.10.0", None, 512 << 20, "ok"),
        ("6.8.0", "6.12.12", 512 << 20, "ok"),
        ("6.8.0", None, 48 << 30, "ok"),
    ],
)
def test_carve_out_is_all_there_is_for_an_old_kernel(examine, kernel, version, vram, state):
    device = machine.Device("0000:03:00.0", vram=vram, visible_vram=vram, gtt=15 << 30)
    about = {"kernel": kernel, "amdgpu_version": version, "devices": (device,)}

    ((is_, says, _),) = of(examine(110003, apu=True, about=about), "memory of the APU")

    assert is_ == state
    assert "15.0 GiB" in says


@pytest.mark.parametrize(("allowed", "state"), [(True, "ok"), (False, "warn"), (None, "warn")])
def test_boolean_of_selinux_is_heeded(examine, allowed, state):
    found = examine(120001, about={"selinux": "enforcing"}, around={"may_use_dri": allowed})

    ((is_, _, remedy),) = of(found, "SELinux")
    assert is_ == state
    assert (remedy or "") in {"", "sudo setsebool -P container_use_dri_devices=1"}


def test_selinux_is_no_matter_where_there_is_no_gpu(examine):
    assert of(examine(about={"selinux": "enforcing"}), "SELinux") == [("ok", "enforcing", None)]


@pytest.mark.parametrize(
    ("cpus", "remedy"),
    [
        (64, "docker buildx create --use --driver-opt cpuset-cpus=0-7"),
        (2, None),
    ],
)
def test_builds_are_held_down_to_memory(examine, cpus, remedy):
    found = examine(about={"cpus": cpus, "memory": 16 << 30})

    ((_, says, is_),) = of(found, "memory")
    assert is_ == remedy
    assert f"{cpus} compilers at a time" in says


def test_nothing_is_said_where_nothing_is_known(examine):
    found = examine(120001, about={"memory": None, "cpus": None, "kernel": None, "devices": ()})

    assert {one.subject for one in found} == {
        "gpu",
        "driver",
        "IOMMU",
        "confinement",
        "environment",
    }
