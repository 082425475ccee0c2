"""A fake machine: the files below /sys and /dev that the kernel would show, in a folder."""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path

import pytest

# A device node that anybody may open and that does nothing stands in for a GPU's: /dev/null.
_DEVICE = (1, 3)
_AMD = 0x1002

# What topology of the kernel shows of a node, in its order:
# https://github.com/torvalds/linux/blob/master/drivers/gpu/drm/amd/amdkfd/kfd_topology.c
_CPU_PROPERTIES = {
    "cpu_cores_count": 16,
    "simd_count": 0,
    "mem_banks_count": 1,
    "caches_count": 0,
    "io_links_count": 1,
    "p2p_links_count": 0,
    "cpu_core_id_base": 0,
    "simd_id_base": 0,
    "max_waves_per_simd": 0,
    "lds_size_in_kb": 0,
    "gds_size_in_kb": 0,
    "num_gws": 0,
    "wave_front_size": 0,
    "array_count": 0,
    "simd_arrays_per_engine": 0,
    "cu_per_simd_array": 0,
    "simd_per_cu": 0,
    "max_slots_scratch_cu": 0,
    "gfx_target_version": 0,
    "vendor_id": 0,
    "device_id": 0,
    "location_id": 0,
    "domain": 0,
    "drm_render_minor": 0,
    "hive_id": 0,
    "num_sdma_engines": 0,
    "num_sdma_xgmi_engines": 0,
    "num_sdma_queues_per_engine": 0,
    "num_cp_queues": 0,
    "max_engine_clk_ccompute": 5759,
}
_GPU_PROPERTIES = _CPU_PROPERTIES | {
    "cpu_cores_count": 0,
    "caches_count": 99,
    "simd_id_base": 2147487744,
    "max_waves_per_simd": 16,
    "lds_size_in_kb": 64,
    "num_gws": 64,
    "wave_front_size": 32,
    "array_count": 8,
    "simd_arrays_per_engine": 2,
    "cu_per_simd_array": 8,
    "max_slots_scratch_cu": 32,
    "vendor_id": _AMD,
    "num_sdma_engines": 2,
    "num_sdma_queues_per_engine": 8,
    "num_cp_queues": 8,
    "max_engine_clk_fcompute": 2970,
    "local_mem_size": 0,
    "fw_version": 2870,
    "capability": 671588992,
    "debug_prop": 1511,
    "sdma_fw_version": 662,
    "unique_id": 0,
    "num_xcc": 1,
}


class Tree:
    """A machine's root folder, filled by the calls below.

    Without root rights no device node can be made: then a file stands in its place, and `stat`
    answers what a node there would; hand it to what reads nodes.
    """

    def __init__(self, root, *, real):
        self.root = root
        self.real = real
        self._recorded = {}
        self._next_node = 0
        self._next_partition = 0
        root.mkdir(parents=True)

    def file(self, path, text):
        """Write a file; a path may start with a slash."""
        there = self.root / str(path).lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, bytes):
            there.write_bytes(text)
        else:
            there.write_text(text)
        return there

    def link(self, path, to):
        """Make a symbolic link; a `to` that starts with a slash is taken below the root."""
        there = self.root / str(path).lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        if str(to).startswith("/"):
            to = os.path.relpath(self.root / str(to).lstrip("/"), there.parent)
        there.symlink_to(to)
        return there

    def device(self, path, *, mode=0o660, uid=0, gid=0, device=_DEVICE):
        """Make a character device."""
        there = self.file(path, "")
        if self.real:
            there.unlink()
            os.mknod(there, stat.S_IFCHR | 0o600, os.makedev(*device))
            os.chown(there, uid, gid)
            there.chmod(mode)
        else:
            found = list(there.stat())
            found[stat.ST_MODE] = stat.S_IFCHR | mode
            found[stat.ST_UID], found[stat.ST_GID] = uid, gid
            self._recorded[there] = os.stat_result(found, {"st_rdev": os.makedev(*device)})
        return there

    def stat(self, path):
        """Answer like os.stat, and for a device that could not be made, as if it was there."""
        there = Path(path)
        found = there.stat()
        return self._recorded.get(there.resolve(), found)

    def kfd(self, mode=0o666, uid=0, gid=0):
        """Make /dev/kfd."""
        return self.device("dev/kfd", mode=mode, uid=uid, gid=gid)

    def cpu(self, node=None, *, memory=64 << 30, **properties):
        """List the processor in KFD's topology, as its first node usually is."""
        return self._topology_node(
            node, "", _CPU_PROPERTIES | properties, bank=(0, memory), links=()
        )

    def card(
        self,
        target_version=120001,
        *,
        node=None,
        render=128,
        pci="0000:03:00.0",
        name="navi48",
        product=None,
        simd_count=128,
        memory=16 << 30,
        uuid=0x1D5E2C6B0F3A9C47,
        apu=False,
        mode=0o660,
        gid=992,
        uid=0,
        simd_per_cu=2,
        device_id=0x7550,
        driver="amdgpu",
        vendor=_AMD,
        gtt=32 << 30,
        visible=None,
        link_type=2,
        partition=None,
        in_kfd=True,
        has_node=True,
        by_path=True,
        **properties,
    ):
        """Plug in a GPU: KFD's topology node, what sysfs shows, the render node and its link.

        Args:
            memory: Bytes of its own; of an APU, of the carve-out.
            visible: Bytes of it that the processor can reach; None for all.
            gtt: Bytes of the host's memory that it may use.
            partition: Number of the partition this is; one call for each of them.
            link_type: How KFD says it is joined to the processor: 2 is PCI Express, 11 is XGMI.
            in_kfd: Whether KFD lists it.
            has_node: Whether /dev/dri has its render node; None for render means none anywhere.
            properties: Lines of the topology's `properties` instead of the usual ones.
        """
        domain, bus, slot = pci.split(":")
        function = int(slot.split(".")[1], 16)
        location = int(bus, 16) << 8 | int(slot.split(".")[0], 16) << 3 | function
        own = f"sys/devices/pci{domain}:00/{pci}"
        if not (self.root / own).exists():
            self._pci_device(
                own,
                pci,
                {
                    "vendor": f"0x{vendor:04x}",
                    "device": f"0x{device_id:04x}",
                    "class": "0x030000",
                    "uevent": f"DRIVER={driver}\nPCI_ID={vendor:04X}:{device_id:04X}\n"
                    f"PCI_SLOT_NAME={pci}",
                },
                driver,
            )
        if driver == "amdgpu":
            self.file(f"{own}/mem_info_vram_total", f"{memory}\n")
            self.file(f"{own}/mem_info_vis_vram_total", f"{visible or memory}\n")
            self.file(f"{own}/mem_info_gtt_total", f"{gtt}\n")
            if not apu:
                self.file(f"{own}/unique_id", f"{uuid:016x}\n")
            if product:
                self.file(f"{own}/product_name", f"{product}\n")
        if render is not None:
            if partition:
                holder = f"sys/devices/platform/amdgpu_xcp_{self._next_partition}"
                stable = f"platform-amdgpu_xcp_{self._next_partition}-render"
                self._next_partition += 1
            else:
                holder, stable = own, f"pci-{pci}-render"
            self._render_node(holder, render)
            if has_node:
                self.device(f"dev/dri/renderD{render}", mode=mode, uid=uid, gid=gid)
                if by_path:
                    self.link(f"dev/dri/by-path/{stable}", f"/dev/dri/renderD{render}")
        if in_kfd:
            self._topology_node(
                node,
                name,
                _GPU_PROPERTIES
                | {
                    "simd_count": simd_count,
                    "simd_per_cu": simd_per_cu,
                    "gfx_target_version": target_version,
                    "device_id": device_id,
                    "location_id": location | (partition or 0) << 28,
                    "domain": int(domain, 16),
                    "drm_render_minor": render or 0,
                    "unique_id": uuid,
                }
                | properties,
                bank=(1, memory),
                links=((link_type, 0),),
            )

    def _topology_node(self, node, name, properties, *, bank, links):
        number = self._next_node if node is None else node
        self._next_node = max(self._next_node, number + 1)
        topology = "sys/devices/virtual/kfd/kfd/topology"
        if not (self.root / "sys/class/kfd/kfd").exists():
            self.link("sys/class/kfd/kfd", "/sys/devices/virtual/kfd/kfd")
            self.file(f"{topology}/generation_id", "2\n")
        here = f"{topology}/nodes/{number}"
        is_gpu = properties["simd_count"] != 0
        self.file(f"{here}/gpu_id", f"{51000 + number if is_gpu else 0}\n")
        self.file(f"{here}/name", f"{name}\n")
        self.file(
            f"{here}/properties", "".join(f"{key} {value}\n" for key, value in properties.items())
        )
        heap, size = bank
        self.file(
            f"{here}/mem_banks/0/properties",
            f"heap_type {heap}\nsize_in_bytes {size}\nflags 0\nwidth 256\nmem_clk_max 1258\n",
        )
        for index, (kind, other) in enumerate(links):
            self.file(
                f"{here}/io_links/{index}/properties",
                f"type {kind}\nversion_major 0\nversion_minor 0\nnode_from {number}\n"
                f"node_to {other}\nweight 20\n",
            )
        return self.root / here

    def _pci_device(self, own, pci, attributes, driver):
        for name, text in attributes.items():
            self.file(f"{own}/{name}", f"{text}\n")
        self.link(f"sys/bus/pci/devices/{pci}", f"/{own}")
        if driver:
            (self.root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
            (self.root / f"sys/module/{driver.replace('-', '_')}").mkdir(
                parents=True, exist_ok=True
            )
            self.link(f"{own}/driver", f"/sys/bus/pci/drivers/{driver}")
            self.link(f"sys/bus/pci/drivers/{driver}/{pci}", f"/{own}")

    def _render_node(self, holder, minor):
        drm = f"{holder}/drm/renderD{minor}"
        self.file(f"{drm}/dev", f"226:{minor}\n")
        self.link(f"{drm}/device", f"/{holder}")
        self.link(f"sys/class/drm/renderD{minor}", f"/{drm}")


@pytest.fixture
def make_tree(tmp_path):
    """Make fake machines: make_tree() is one without any AMD GPU or driver."""
    numbers = itertools.count(1)

    def make(*, real=None):
        is_root = os.geteuid() == 0
        return Tree(tmp_path / f"machine-{next(numbers)}", real=is_root if real is None else real)

    return make


@pytest.fixture
def workstation(make_tree):
    """A gfx1201 card and the processor's own gfx1103, nodes of group 992, mode 0660."""
    tree = make_tree()
    tree.kfd(mode=0o660, gid=992)
    tree.cpu()
    tree.card()
    tree.card(
        110003,
        render=129,
        pci="0000:0d:00.0",
        name="phoenix",
        simd_count=24,
        memory=512 << 20,
        uuid=0,
        apu=True,
        device_id=0x15BF,
    )
    return tree
