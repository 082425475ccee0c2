import dataclasses
import errno
import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocbake import machine

GIB = 1 << 30
KERNEL = "6.12.48+deb13-amd64"


@pytest.fixture
def tree(make_tree):
    """A machine of 4 processors and 32 GiB, of which 24 are free, without limits."""
    made = make_tree()
    made.file("proc/sys/kernel/osrelease", f"{KERNEL}\n")
    made.file(
        "proc/meminfo",
        f"MemTotal:       {32 << 20} kB\nMemFree: 1 kB\nMemAvailable:   {24 << 20} kB\n",
    )
    made.file(
        "proc/cpuinfo",
        "".join(
            f"processor\t: {n}\nmodel name\t: AMD Ryzen 9 9950X\ncpu MHz\t: 1\n\n" for n in range(4)
        ),
    )
    made.file("proc/self/cgroup", "0::/user.slice/build.scope\n")
    return made


def test_nothing_that_can_be_read_is_nothing_told(make_tree):
    assert machine.read(make_tree().root) == machine.Machine(
        kernel=None,
        distribution=None,
        is_wsl=False,
        amdgpu=False,
        amdgpu_version=None,
        blocklist=None,
        dkms=None,
        devices=(),
        selinux=None,
        apparmor=False,
        iommu_groups=0,
        iommu_options=(),
        cpu=None,
        cpus=None,
        memory=None,
        memory_available=None,
    )


def test_facts_can_be_written_as_json(tree):
    tree.card()

    written = json.loads(json.dumps(dataclasses.asdict(machine.read(tree.root))))

    assert written["kernel"] == KERNEL
    assert written["devices"][0]["pci"] == "0000:03:00.0"


def test_processor_and_memory_are_read(tree):
    found = machine.read(tree.root)

    assert (found.cpu, found.cpus) == ("AMD Ryzen 9 9950X", 4)
    assert (found.memory, found.memory_available) == (32 * GIB, 24 * GIB)


@pytest.mark.parametrize(
    ("path", "text", "name"),
    [
        (
            "etc/os-release",
            'NAME=x\nPRETTY_NAME="Debian GNU/Linux 13 (trixie)"\n',
            "Debian GNU/Linux 13 (trixie)",
        ),
        ("usr/lib/os-release", "PRETTY_NAME='Fedora Linux 43'\n", "Fedora Linux 43"),
        ("etc/os-release", "PRETTY_NAME=Alpine\n", "Alpine"),
        ("etc/os-release", "NAME=nameless\n", None),
    ],
)
def test_distribution_has_its_pretty_name(tree, path, text, name):
    tree.file(path, text)

    assert machine.read(tree.root).distribution == name


@pytest.mark.parametrize(
    ("release", "is_wsl"), [(KERNEL, False), ("5.15.167.4-microsoft-standard-WSL2", True)]
)
def test_wsl_is_told(tree, release, is_wsl):
    tree.file("proc/sys/kernel/osrelease", release)

    assert machine.read(tree.root).is_wsl is is_wsl


# --- driver


def test_driver_of_the_kernels_own_tree_has_no_version(tree):
    tree.card()

    found = machine.read(tree.root)

    assert found.amdgpu
    assert found.amdgpu_version is None


def test_driver_from_elsewhere_has_a_version(tree):
    tree.file("sys/module/amdgpu/version", "6.14.14\n")

    assert machine.read(tree.root).amdgpu_version == "6.14.14"


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({"etc/modprobe.d/gpu.conf": "# no\nblacklist amdgpu\n"}, "/etc/modprobe.d/gpu.conf"),
        ({"usr/lib/modprobe.d/a.conf": "  blacklist   amdgpu  \n"}, "/usr/lib/modprobe.d/a.conf"),
        ({"etc/modprobe.d/gpu.conf": "#blacklist amdgpu\nblacklist amdgpufb\n"}, None),
        ({"etc/modprobe.d/gpu.disabled": "blacklist amdgpu\n"}, None),
        ({"etc/modprobe.d/a.conf": "", "lib/modprobe.d/a.conf": "blacklist amdgpu\n"}, None),
        (
            {"proc/cmdline": "quiet modprobe.blacklist=nouveau,amdgpu\n"},
            "the kernel's option modprobe.blacklist=nouveau,amdgpu",
        ),
        (
            {"proc/cmdline": "module_blacklist=amdgpu"},
            "the kernel's option module_blacklist=amdgpu",
        ),
        ({"proc/cmdline": "quiet modprobe.blacklist=amdgpu_xcp amdgpu.dc=1"}, None),
    ],
)
def test_blocklisted_driver_is_told_with_the_place(tree, files, place):
    for path, text in files.items():
        tree.file(path, text)

    assert machine.read(tree.root).blocklist == place


@pytest.mark.parametrize(
    ("present", "state"),
    [
        ((), None),
        (("6.14.14/source/dkms.conf",), "added"),
        (("6.14.14/source/dkms.conf", "6.14.14/6.8.0-1-amd64/x86_64/module/amdgpu.ko"), "added"),
        (("6.14.14/source/dkms.conf", f"6.14.14/{KERNEL}/x86_64/module/amdgpu.ko"), "built"),
        (
            (
                "6.14.14/source/dkms.conf",
                f"6.14.14/{KERNEL}/x86_64/module/amdgpu.ko",
                f"kernel-{KERNEL}-x86_64/module/amdgpu.ko",
            ),
            "installed",
        ),
        (("6.14.14/source/dkms.conf", "kernel-6.8.0-1-amd64-x86_64/log/make.log"), "added"),
        ((f"original_module/{KERNEL}/x86_64/amdgpu.ko",), None),
    ],
)
def test_dkms_state_is_that_for_the_running_kernel(tree, present, state):
    for path in present:
        tree.file(f"var/lib/dkms/amdgpu/{path}", "")

    assert machine.read(tree.root).dkms == state


def test_devices_have_memory_and_firmware(workstation):
    workstation.file("sys/bus/pci/drivers/amdgpu/0000:03:00.0/fw_version/mec_fw_version", "0x0b3\n")
    workstation.file(
        "sys/bus/pci/drivers/amdgpu/0000:03:00.0/fw_version/smc_fw_version", "0x684b00"
    )
    workstation.file(
        "sys/bus/pci/drivers/amdgpu/0000:03:00.0/fw_version/dmcu_fw_version", "0x00000000"
    )
    workstation.file("sys/bus/pci/drivers/amdgpu/bind", "")

    card, igpu = machine.read(workstation.root).devices

    assert card.firmware == {"mec": "0x0b3", "smc": "0x684b00"}
    assert (card.pci, card.vram, card.gtt) == ("0000:03:00.0", 16 * GIB, 32 * GIB)
    assert (igpu.pci, igpu.vram, igpu.firmware) == ("0000:0d:00.0", GIB // 2, {})


@pytest.mark.parametrize(
    ("visible", "vram", "is_resizable"),
    [
        (16 * GIB, 16 * GIB, True),
        (256 << 20, 16 * GIB, False),
        (None, 16 * GIB, None),
        (0, 0, None),
        (1, None, None),
    ],
)
def test_resizable_bar_shows_all_of_the_memory(visible, vram, is_resizable):
    device = machine.Device("0000:03:00.0", vram=vram, visible_vram=visible)

    assert device.resizable_bar is is_resizable


def test_small_bar_is_read_from_the_device(tree):
    tree.card(visible=256 << 20)

    assert machine.read(tree.root).devices[0].resizable_bar is False


# --- confinement and IOMMU


@pytest.mark.parametrize(
    ("text", "state"), [("1", "enforcing"), ("0", "permissive"), ("", None), ("yes", None)]
)
def test_selinux_is_told(tree, text, state):
    tree.file("sys/fs/selinux/enforce", text)

    assert machine.read(tree.root).selinux == state


@pytest.mark.parametrize(("text", "is_enabled"), [("Y\n", True), ("N\n", False)])
def test_apparmor_is_told(tree, text, is_enabled):
    tree.file("sys/module/apparmor/parameters/enabled", text)

    assert machine.read(tree.root).apparmor is is_enabled


def test_iommu_is_told(tree):
    tree.file("proc/cmdline", "quiet iommu=pt amd_iommu=on xiommu=no\n")
    for number in range(3):
        (tree.root / f"sys/kernel/iommu_groups/{number}").mkdir(parents=True)

    found = machine.read(tree.root)

    assert found.iommu_groups == 3
    assert found.iommu_options == ("iommu=pt", "amd_iommu=on")


# --- limits of control groups


def memory(tree):
    found = machine.read(tree.root)
    return found.memory // GIB, found.memory_available // GIB


def test_limit_of_version_2_holds(tree):
    here = "sys/fs/cgroup/user.slice/build.scope"
    tree.file(f"{here}/memory.max", f"{8 * GIB}\n")
    tree.file(f"{here}/memory.current", f"{5 * GIB}\n")
    tree.file(f"{here}/memory.stat", f"anon 1\ninactive_file {2 * GIB}\n")
    tree.file(f"{here}/cpu.max", "250000 100000\n")

    assert memory(tree) == (8, 5)
    assert machine.read(tree.root).cpus == 2


def test_limit_of_a_group_above_holds(tree):
    tree.file("sys/fs/cgroup/user.slice/build.scope/memory.max", "max\n")
    tree.file("sys/fs/cgroup/user.slice/memory.max", f"{4 * GIB}\n")
    tree.file("sys/fs/cgroup/user.slice/build.scope/cpu.max", "300000 100000\n")
    tree.file("sys/fs/cgroup/user.slice/cpu.max", "50000 100000\n")

    assert memory(tree) == (4, 4)
    assert machine.read(tree.root).cpus == 1


def test_container_sees_its_limit_at_the_top(tree):
    tree.file("proc/self/cgroup", "0::/../../docker/0123\n")
    tree.file("sys/fs/cgroup/memory.max", f"{2 * GIB}\n")

    assert memory(tree) == (32, 24)
    tree.file("proc/self/cgroup", "0::/\n")
    assert memory(tree) == (2, 2)


def test_limit_of_version_1_holds(tree):
    tree.file("proc/self/cgroup", "4:memory:/docker/0123\n2:cpu,cpuacct:/docker/0123\n0::/\n")
    here = "sys/fs/cgroup/memory/docker/0123"
    tree.file(f"{here}/memory.limit_in_bytes", f"{8 * GIB}\n")
    tree.file(f"{here}/memory.usage_in_bytes", f"{7 * GIB}\n")
    tree.file(f"{here}/memory.stat", f"inactive_file 1\ntotal_inactive_file {GIB}\n")
    tree.file("sys/fs/cgroup/cpu/docker/0123/cpu.cfs_quota_us", "300000\n")
    tree.file("sys/fs/cgroup/cpu/docker/0123/cpu.cfs_period_us", "100000\n")

    assert memory(tree) == (8, 2)
    assert machine.read(tree.root).cpus == 3


def test_no_limit_of_version_1_is_none(tree):
    tree.file("proc/self/cgroup", "4:memory:/\n2:cpu,cpuacct:/\n")
    tree.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    tree.file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    tree.file("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")

    assert memory(tree) == (32, 24)
    assert machine.read(tree.root).cpus == 4


def test_limit_above_what_there_is_changes_nothing(tree):
    tree.file("sys/fs/cgroup/memory.max", f"{64 * GIB}\n")
    tree.file("sys/fs/cgroup/cpu.max", "6400000 100000\n")

    assert memory(tree) == (32, 24)
    assert machine.read(tree.root).cpus == 4


def test_broken_files_are_no_exception(tree):
    digits = "9" * 5000
    for path in (
        "proc/self/cgroup",
        "proc/meminfo",
        "proc/cpuinfo",
        "etc/os-release",
        "sys/fs/cgroup/memory.max",
        "sys/fs/cgroup/cpu.max",
        "sys/module/amdgpu/version",
        "var/lib/dkms",
        "etc/modprobe.d",
    ):
        tree.file(path, b"\xff\x00 " + digits.encode())
    tree.link("sys/bus/pci/drivers/amdgpu", "amdgpu")
    tree.link("sys/fs/selinux/enforce", "enforce")

    found = machine.read(tree.root)

    assert (found.devices, found.dkms, found.cpus, found.memory) == ((), None, None, None)


# --- the kernel's messages


def record(text, seconds=1.0, *, prefix=6, rest="-"):
    return f"{prefix},339,{int(seconds * 1e6)},{rest};{text}\n".encode()


def test_messages_of_the_driver_are_picked():
    records = [
        record("amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 timeout", 12.25, prefix=3),
        record("NET: Registered protocol family 10"),
        record("kfd kfd: amdgpu: added device 1002:7550", 5.140900, rest="-,caller=T1"),
        record("amdgpu: said by a program", prefix=30),
        record("[drm:amdgpu_job_timedout [amdgpu]] *ERROR*\n SUBSYSTEM=pci\n DEVICE=+pci:1", 13),
    ]

    assert machine.kernel_messages(None, lambda: records) == [
        "[12.250000] amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 timeout",
        "[5.140900] kfd kfd: amdgpu: added device 1002:7550",
        "[13.000000] [drm:amdgpu_job_timedout [amdgpu]] *ERROR*",
    ]


def test_earlier_messages_are_left_out():
    now = time.monotonic()
    records = [record("amdgpu: old", now - 60), record("amdgpu: new", now)]

    (line,) = machine.kernel_messages(time.time() - 5, lambda: records)

    assert line.endswith("amdgpu: new")


def test_messages_that_may_not_be_read_are_told():
    def refuse():
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    assert machine.kernel_messages(None, refuse) == [
        "the kernel's messages cannot be read: Operation not permitted; try: sudo dmesg"
    ]


def test_messages_that_are_not_there_are_told(tmp_path):
    (line,) = machine.kernel_messages(None, lambda: machine.read_kmsg(tmp_path / "kmsg"))

    assert "No such file or directory" in line


def test_what_was_read_before_an_error_is_kept():
    def break_off():
        yield record("amdgpu: one")
        raise OSError(errno.EIO, "broken")

    assert machine.kernel_messages(None, break_off)[0] == "[1.000000] amdgpu: one"
    assert "broken" in machine.kernel_messages(None, break_off)[1]


def test_reading_does_not_wait_for_more(tmp_path):
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    os.write(writer, record("amdgpu: one"))

    found = list(machine.read_kmsg(path))

    os.close(writer)
    assert found == [record("amdgpu: one")]


def test_overwritten_records_are_passed_over(tmp_path, monkeypatch):
    path = tmp_path / "kmsg"
    path.touch()
    answers = [OSError(errno.EPIPE, "overwritten"), b"1", BlockingIOError()]

    def answer(descriptor, size):
        one = answers.pop(0)
        if isinstance(one, OSError):
            raise one
        return one

    monkeypatch.setattr(os, "read", answer)

    assert list(machine.read_kmsg(path)) == [b"1"]


def test_reading_that_fails_is_told(tmp_path, monkeypatch):
    path = tmp_path / "kmsg"
    path.touch()

    def fail(descriptor, size):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "read", fail)

    (line,) = machine.kernel_messages(None, lambda: machine.read_kmsg(path))

    assert line.startswith("the kernel's messages cannot be read: broken")


@given(st.lists(st.binary()))
def test_records_of_any_bytes_are_no_exception(records):
    assert all("\n" not in line for line in machine.kernel_messages(None, lambda: records))


def test_this_machine_is_read():
    found = machine.read()

    assert found.kernel == os.uname().release
    assert found.cpus >= 1
    assert 0 < found.memory_available <= found.memory
    assert isinstance(machine.kernel_messages(time.time()), list)
