"""The toolchain that OpenXLA is compiled with: each tool is there, and is the release wanted."""

from __future__ import annotations

import pytest

from tests.image.conftest import package_names

PROBE = """
#include <numa.h>
#include <ranges>
#include <string>
#include <vector>
int main() {
  std::vector<std::string> words{"a", "b"};
  return static_cast<int>(std::ranges::size(words)) - 2 + (numa_available() > 1);
}
"""


@pytest.fixture(scope="module", autouse=True)
def toolchain(subject):
    if "clang-18" not in package_names(subject):
        pytest.skip("not OpenXLA's toolchain")


def test_bazel_answers(host, subject):
    if "bazel-bootstrap" not in package_names(subject) and not subject.has_files:
        pytest.skip("the layer below those with Bazel")

    assert host.check_output("bazel --version").startswith("bazel 7.7.")


def test_clang_is_18_where_xla_looks_for_it(host):
    assert " version 18.1." in host.check_output("/usr/lib/llvm-18/bin/clang --version")


def test_gcc_is_15(host):
    assert host.check_output("gcc-15 -dumpversion") == "15"
    assert host.check_output("gcc-15 -print-libgcc-file-name") == (
        "/usr/lib/gcc/x86_64-linux-gnu/15/libgcc.a"
    )


def test_clang_compiles_with_gcc_15_and_links_with_lld(host):
    host.check_output(f"cat > /tmp/probe.cc <<'EOF'\n{PROBE}\nEOF")
    host.check_output(
        "/usr/lib/llvm-18/bin/clang++ -std=c++20 -fuse-ld=lld "
        "--gcc-install-dir=/usr/lib/gcc/x86_64-linux-gnu/15 -o /tmp/probe /tmp/probe.cc -lnuma"
    )

    assert host.run("/tmp/probe").rc == 0
    assert "LLD 18" in host.check_output("readelf -p .comment /tmp/probe")


def test_python_has_numpy(host):
    assert host.check_output("python3 -c 'import numpy; print(numpy.array([1, 2]).sum())'") == "3"


@pytest.mark.parametrize("program", ["git", "make", "patch", "unzip", "xxd", "zip"])
def test_upstreams_scripts_find_their_programs(host, program):
    assert host.exists(program)


def test_there_is_no_rocm_in_it(host):
    assert not host.file("/opt/rocm").exists


def test_there_is_no_network(host):
    assert host.check_output("ls /sys/class/net") == "lo"
