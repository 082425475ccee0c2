"""The packages are the locked ones, whole, and ROCm is the release that was asked for."""

from __future__ import annotations

import re

import pytest


def installed(host):
    listing = host.check_output(
        "dpkg-query --show --showformat "
        "'${db:Status-Abbrev} ${Package} ${Version} ${Architecture}\\n'"
    )
    return {tuple(line.split()[1:]): line.split()[0] for line in listing.splitlines()}


def locked(layers):
    return {(deb.name, deb.version, deb.architecture) for layer in layers for deb in layer.packages}


def test_the_locked_packages_and_no_others_are_installed(host, subject):
    found = installed(host)

    assert set(found.values()) == {"ii"}
    assert set(found) == locked(subject.layers)


def test_no_packaged_file_was_changed(as_root):
    changed = as_root.run("dpkg --verify").stdout.splitlines()

    # Field 3 is c for a configuration file, which a package's own scripts may fill in.
    assert [line for line in changed if " c " not in line] == []


def test_hip_is_of_the_release_that_was_asked_for(host, subject):
    if subject.has_files:
        pytest.skip("AMD's ROCm is in no package")
    runtimes = [one for one in installed(host) if one[0].startswith("libamdhip64-")]
    rocm = subject.plan.rocm

    assert bool(runtimes) == (rocm is not None)
    assert all(
        re.match(rf"{re.escape(rocm)}[-+]", version)
        for name, version, _ in runtimes
        if name != "libamdhip64-dev"
    )


def test_hipconfig_says_the_same_release(host, sdk):
    major, minor, *_ = sdk.rocm.split(".")

    # HIP counts its own third part: 7.2.53211 is of ROCm 7.2.4.
    assert host.check_output("hipconfig --version").startswith(f"{major}.{minor}.")
