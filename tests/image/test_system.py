"""Nothing is left over, nothing is open, and nobody is anybody they need not be."""

from __future__ import annotations

import pytest

# Debian's own, all in packages that dpkg calls essential.
SETUID = {
    "usr/bin/chage": "2755",
    "usr/bin/chfn": "4755",
    "usr/bin/chsh": "4755",
    "usr/bin/expiry": "2755",
    "usr/bin/gpasswd": "4755",
    "usr/bin/mount": "4755",
    "usr/bin/newgrp": "4755",
    "usr/bin/passwd": "4755",
    "usr/bin/su": "4755",
    "usr/bin/umount": "4755",
    "usr/sbin/unix_chkpwd": "2755",
}


@pytest.mark.parametrize(
    "folder",
    ["var/log", "var/cache/apt", "var/lib/apt/lists", "var/tmp", "tmp", "run", "root", "home"],
)
def test_no_log_cache_or_leftover_is_there(tree, folder):
    files = {
        path
        for path, member in tree.items()
        if path.startswith(f"{folder}/") and not member.isdir()
    }

    # Debian's base-files fills root's home from /usr/share/base-files.
    assert files <= {"root/.bashrc", "root/.profile"}


def test_the_machine_id_is_empty(tree):
    assert tree["etc/machine-id"].size == 0


def test_setuid_files_are_debians_own(tree):
    found = {
        path: f"{member.mode:o}"
        for path, member in tree.items()
        if member.mode & 0o6000 and not member.isdir()
    }

    assert found.items() <= SETUID.items()


def test_nothing_is_writable_by_everyone(tree):
    found = {
        path
        for path, member in tree.items()
        if member.mode & 0o002
        and not member.issym()
        and not member.isdev()
        and not member.mode & 0o1000
    }

    assert found == set()


def test_nothing_has_a_capability(tree):
    assert [
        path
        for path, member in tree.items()
        if any("capability" in key for key in member.pax_headers)
    ] == []


def test_no_network_tool_is_there(as_root):
    tools = ["curl", "wget", "nc", "ssh", "ftp", "telnet"]

    assert [tool for tool in tools if as_root.exists(tool)] == []


@pytest.mark.parametrize(
    "name", ["HSA_OVERRIDE_GFX_VERSION", "LD_LIBRARY_PATH", "LD_PRELOAD", "HIP_PATH", "ROCM_PATH"]
)
def test_no_variable_bends_what_runs(host, name):
    assert host.run(f"printenv {name}").rc != 0


def test_locale_and_time_zone_are_fixed(host):
    assert host.environment()["LC_ALL"] == "C.UTF-8"
    assert host.environment()["TZ"] == "UTC"


def test_a_runtime_runs_as_nobody_in_particular(host, runtime):
    assert host.check_output("id -u") == "1000"
    assert host.check_output("id -G") == "1000"


def test_a_runtime_needs_no_known_user(as_stranger, runtime):
    assert as_stranger.check_output("id -u") == "12345"
    assert as_stranger.run("cat /etc/os-release").rc == 0


def test_a_runtime_bakes_in_no_group_of_a_device(as_root, runtime):
    # The owner of /dev/kfd and of the render node differs from host to host.
    assert not as_root.group("render").exists


def test_a_runtime_has_no_compiler(as_root, runtime):
    compilers = ["hipcc", "clang", "clang++", "clang-22", "gcc", "g++", "cc", "c++", "ld", "ld.lld"]

    assert [name for name in compilers if as_root.exists(name)] == []
