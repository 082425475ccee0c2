"""Every file comes from a package or from a build step that is known to make it."""

from __future__ import annotations

import fnmatch
import json
import re

import pytest

from rocbake import oci

INFO = "var/lib/dpkg/info/"

# What packages' own scripts and the steps of our Dockerfiles write, and who does.
MADE = {
    "etc/.java/.systemPrefs/.system*": "openjdk-25-jre-headless",
    "etc/alternatives/*": "update-alternatives",
    "etc/ca-certificates.conf": "ca-certificates",
    "etc/dpkg/origins/default": "base-files",
    "etc/environment": "libpam-modules",
    "etc/group": "base-passwd, add-user.sh",
    "etc/inputrc": "readline-common",
    "etc/ld.so.cache": "ldconfig",
    "etc/localtime": "tzdata",
    "etc/machine-id": "rootfs.py",
    "etc/modules": "kmod",
    "etc/motd": "base-files",
    "etc/networks": "netbase",
    "etc/nsswitch.conf": "base-files",
    "etc/pam.d/common-*": "pam-auth-update",
    "etc/passwd": "base-passwd, add-user.sh",
    "etc/profile": "base-files",
    "etc/python3/debian_config": "python3-minimal",
    "etc/security/opasswd": "libpam-modules",
    "etc/shells": "debianutils",
    "etc/ssl/certs/*": "ca-certificates",
    "etc/subgid": "base-passwd",
    "etc/subuid": "base-passwd",
    "etc/systemd/system/*.wants/*": "deb-systemd-helper",
    "lib32": "libc6-i386, for the link into /usr",
    "root/.bashrc": "base-files",
    "root/.profile": "base-files",
    "usr/lib/ld-linux.so.2": "libc6-i386",
    "usr/lib/python3*.pyc": "python3",
    "usr/local/man": "base-files",
    "usr/share/info/dir": "install-info",
    "usr/share/python3*.pyc": "python3",
    "var/cache/debconf/*": "debconf",
    "var/lib/apt/*": "apt",
    "var/lib/dpkg/*": "dpkg",
    "var/lib/pam/*": "pam-auth-update",
    "var/lib/python/python3*_installed": "python3",
    "var/lib/shells.state": "debianutils",
    "var/lib/systemd/*": "deb-systemd-helper",
    "var/spool/mail": "base-files",
}


@pytest.fixture(scope="module")
def owned(subject, tree):
    """Every path that a package of the image says is its own."""
    text = []
    for index in range(len(subject.layout.layers)):
        with subject.layout.open_layer(index) as tar:
            text += [
                tar.extractfile(member).read().decode()
                for member in tar
                if member.name.removeprefix("./").startswith(INFO) and member.name.endswith(".list")
            ]
    return {merged(line.removeprefix("/")) for line in "\n".join(text).splitlines()}


def merged(path):
    """Return the path as it is on a system whose /bin, /sbin and /lib* are links into /usr."""
    return re.sub(r"^(bin|sbin|lib|lib32|lib64|libx32)(?=/)", r"usr/\1", path)


def test_no_file_is_unexplained(tree, owned, bundled, subject):
    # The product, and programs of the recipe's own that are none of it.
    own = (f"opt/{subject.plan.name}/", f"usr/local/lib/{subject.plan.name}/")
    # What the tarball in the lock holds, and where the loader is told of it.
    unpacked = ("opt/rocm/", "etc/ld.so.conf.d/rocm.conf", "usr/local/bin/bazel")

    unexplained = [
        path
        for path, member in tree.items()
        if not member.isdir()
        and merged(path) not in owned
        and not any(fnmatch.fnmatchcase(path, pattern) for pattern in MADE)
        and not (subject.is_recipe and path.startswith(own))
        and not (subject.has_files and path.startswith(unpacked))
        and path not in bundled
        # The public name of an alternative, as /usr/bin/awk is.
        and not (member.issym() and member.linkname.startswith("/etc/alternatives/"))
    ]

    assert unexplained == []


def test_the_product_is_what_the_manifest_lists(subject, tree):
    if not subject.is_recipe:
        pytest.skip("not a recipe's image")
    product = f"opt/{subject.plan.name}/"

    found = {}
    for member, content in oci.members(subject.layout, len(subject.layout.layers) - 1):
        if content and member.name.startswith(product):
            found[member.name.removeprefix(product)] = content

    in_image = {
        path for path, member in tree.items() if path.startswith(product) and member.isreg()
    }
    assert in_image == {product + path for path in found}
    listed = json.loads((subject.layout.folder.parent / "manifest.json").read_text())["files"]
    assert found == {entry["path"]: entry["sha256"] for entry in listed if entry["sha256"]}
