import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml

from rocbake import errors

RECIPE_DIR = Path(__file__).parents[2] / "recipes" / "hip-probe"
SRC = RECIPE_DIR / "src"
BUILD = (RECIPE_DIR / "build.sh").read_text()
README = (SRC / "README.md").read_text()
SOURCES = {path.name: path.read_text() for path in SRC.iterdir() if path.suffix != ".md"}

# What is compiled without HIP, and so can be tried on any machine with a C++ compiler.
HOST_UNITS = ["nodes.cpp", "options.cpp", "report.cpp", "supervise.cpp"]
HOST_HEADERS = ["json.hpp", "names.hpp", "nodes.hpp", "options.hpp", "report.hpp"]
HOST_HEADERS += ["supervise.hpp", "verdict.hpp"]

# One translation unit: parsing the standard library is what takes the time.
DRIVER = r"""
#include "names.hpp"
#include "nodes.cpp"
#include "options.cpp"
#include "report.cpp"
#include "supervise.cpp"

#include <limits>

using namespace probe;

std::string from_hex(const std::string& hex)
{
    std::string bytes;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
        bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return bytes;
}

void misbehave(const std::string& how, Wire& wire)
{
    wire.begin("first");
    wire.check(json::Object().add("name", "first").add("ok", true));
    wire.begin("second");
    std::puts("a stray line on stdout");
    if (how == "hang")
        for (;;)
            pause();
    if (how == "abort")
        std::abort();
    if (how == "exit")
        _exit(0);
    if (how == "fail")
        throw Failure(Verdict::no_gpu, "why", "what\nnext", "hint", "hipErrorX");
    if (how == "throw")
        throw std::runtime_error("unforeseen");
    wire.computed_on(json::Object().add("kind", "gpu"));
    wire.end(Verdict::pass);
}

int main(int argc, char** argv)
{
    const std::string what = argv[1];
    const std::vector<std::string_view> rest(argv + 2, argv + argc);
    if (what == "strings") {
        char line[256];
        while (std::scanf("%255s", line) == 1)
            std::puts(json::write(from_hex(line + 1)).text.c_str());
    } else if (what == "values") {
        using Limits = std::numeric_limits<double>;
        const std::vector<double> doubles{0.1, -0.0, 1e300, Limits::denorm_min(),
                                          Limits::infinity(), Limits::quiet_NaN()};
        const json::Value object = json::Object()
            .add("doubles", doubles)
            .add("largest", std::numeric_limits<std::uint64_t>::max())
            .add("least", std::numeric_limits<std::int64_t>::min())
            .add("float", static_cast<float>(0.5))
            .add("literal", "text")
            .add("view", std::string_view("view"))
            .add("truth", true)
            .add("falsehood", false)
            .add("nothing", std::optional<std::string>())
            .add("something", std::optional<std::string>("\"quoted\""))
            .add("none", std::nullopt)
            .add("empty", std::vector<int>())
            .add("list", std::vector<std::string>{"a", "b"})
            .add("nested", std::vector<json::Value>{json::Object().add("k", 1), json::Object()});
        std::puts(object.text.c_str());
    } else if (what == "names-device") {
        std::puts(names_device(rest[0], rest[1]) ? "yes" : "no");
    } else if (what == "may-run-on") {
        std::puts(may_run_on(split(rest[0], ','), rest[1]) ? "yes" : "no");
    } else if (what == "options") {
        try {
            const Options options = parse_options(rest);
            std::printf("%d %d %d\n", static_cast<int>(options.action),
                        options.device.value_or(-1), options.timeout_seconds);
        } catch (const UsageError& error) {
            std::puts(error.message.c_str());
            return 2;
        }
    } else if (what == "help") {
        std::fputs(help_text().c_str(), stdout);
    } else if (what == "why-no-gpu") {
        std::puts(to_json(why_no_gpu(argv[2])).text.c_str());
    } else if (what == "why-not-opened") {
        std::puts(to_json(why_not_opened(argv[2], "/dev/kfd", std::atoi(argv[3]))).text.c_str());
    } else if (what == "render-node") {
        std::puts(json::write(render_node_of(argv[2], argv[3])).text.c_str());
    } else if (what == "supervise") {
        const std::string how = argv[2];
        const auto work = [&how](Wire& wire) { misbehave(how, wire); };
        const Report report = supervise(work, std::chrono::seconds(1));
        std::fputs(document(report, {"gfx1201", "gfx12-generic"}).c_str(), stdout);
        return entry_of(report.verdict).exit_code;
    }
}
"""


def tool(*names):
    for name in names:
        if found := shutil.which(name):
            return found
    missing = f"none of {', '.join(names)} is on PATH"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


@pytest.fixture(scope="module")
def open_dir():
    """Return a folder that any user may enter, as those below tmp_path may not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def driver(open_dir):
    """Compile the host side of hip-probe with a program that calls it; return how to run it."""
    compiler = tool("c++", "g++", "clang++")
    source = open_dir / "driver.cpp"
    source.write_text(DRIVER)
    flags = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", f"-I{SRC}"]
    program = open_dir / "driver"
    subprocess.run([compiler, *flags, source, "-o", program], check=True)

    def run(*arguments, stdin="", env=None, **options):
        return subprocess.run(
            [program, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
            env={"PATH": os.environ["PATH"], **(env or {})},
            **options,
        )

    return run


def table(heading):
    """Return the rows of the README's table below a heading, without the table's own head."""
    section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().replace("`", "") for cell in row] for row in rows[2:]]


# build.sh


def test_build_script_is_clean():
    checked = subprocess.run([tool("shellcheck"), RECIPE_DIR / "build.sh"], check=False)

    assert checked.returncode == 0


def test_build_script_keeps_its_contract():
    assert BUILD.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in BUILD
    assert len(BUILD.splitlines()) <= 60
    assert os.access(RECIPE_DIR / "build.sh", os.X_OK)
    assert "/opt/rocm" not in BUILD


@pytest.mark.parametrize(
    "flag",
    ["-fuse-cuid=none", "-ffile-prefix-map", "-Werror=date-time", "-Wl,--build-id=sha1", "-Werror"],
)
def test_build_script_asks_for_the_same_bytes(flag):
    assert flag in BUILD


@pytest.fixture
def build(tmp_path):
    """Run build.sh with a compiler that writes down how it was called."""
    calls = tmp_path / "calls"
    (tmp_path / "bin").mkdir()
    compiler = tmp_path / "bin" / "hipcc"
    compiler.write_text(
        f'#!/bin/bash\necho "${{@@Q}}" >>{shlex.quote(str(calls))}\n'
        'while [[ $1 != -o ]]; do shift; done; echo compiled >"$2"\n'
    )
    compiler.chmod(0o755)

    def run(targets, *, jobs="1", path=None):
        calls.write_text("")
        env = {
            "PATH": path or f"{tmp_path / 'bin'}:/usr/bin:/bin",
            "SOURCE_DATE_EPOCH": "1700000000",
            "ROCBAKE_JOBS": jobs,
            "ROCBAKE_RECIPE_DIR": str(RECIPE_DIR),
            "ROCBAKE_BUILD_DIR": str(tmp_path / "build"),
            "ROCBAKE_DIST_DIR": str(tmp_path / "dist"),
        }
        if targets is not None:
            env["GPU_TARGETS"] = targets
        ended = subprocess.run(
            ["/bin/bash", RECIPE_DIR / "build.sh"],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        return ended, [shlex.split(line) for line in calls.read_text().splitlines()]

    return run


def test_build_compiles_kernels_for_every_target_and_links_once(build, tmp_path):
    ended, calls = build("gfx1201,gfx90a:xnack+,gfx12-generic", jobs="2")

    assert ended.returncode == 0, ended.stderr
    kernels = [call for call in calls if any(word.endswith("kernels.hip") for word in call)]
    assert len(kernels) == 1
    asked = [word for word in kernels[0] if word.startswith("--offload-arch=")]
    assert asked == [
        "--offload-arch=gfx12-generic",
        "--offload-arch=gfx1201",
        "--offload-arch=gfx90a:xnack+",
    ]
    assert len(calls) == len(list(SRC.glob("*.cpp"))) + len(list(SRC.glob("*.hip"))) + 1
    assert (tmp_path / "dist" / "bin" / "hip-probe").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "dist" / "share" / "doc" / "hip-probe" / "README.md").is_file()


def test_build_calls_do_not_depend_on_the_order_of_targets(build):
    _, first = build("gfx1201,gfx1100")
    _, second = build("gfx1100,gfx1201,gfx1100")

    assert first == second
    assert any('-DHIP_PROBE_COMPILED_FOR="gfx1100,gfx1201"' in call for call in first)


def test_build_passes_no_run_path(build):
    _, calls = build("gfx1201")

    assert not [word for call in calls for word in call if "rpath" in word]


def test_build_without_targets_or_compiler_says_so(build):
    without_targets, _ = build(None)
    without_compiler, _ = build("gfx1201", path="/usr/bin:/bin")

    assert without_targets.returncode != 0
    assert "GPU targets" in without_targets.stderr
    if not shutil.which("hipcc", path="/usr/bin:/bin"):
        assert without_compiler.returncode != 0
        assert "hipcc is not on PATH" in without_compiler.stderr


# What is said in two places


def verdicts_in_source():
    entry = r'VerdictEntry\{\s*Verdict::(\w+),\s*"([^"]+)",\s*(\d+),\s*"([^"]+)"\s*\}'
    return re.findall(entry, SOURCES["verdict.hpp"])


def test_every_verdict_is_documented_with_its_exit_code():
    assert table("How it ends") == [list(entry[1:]) for entry in verdicts_in_source()]


def test_every_verdict_of_the_enumeration_has_an_entry():
    enumeration = re.search(r"enum class Verdict \{([^}]*)\}", SOURCES["verdict.hpp"])[1]

    names = [name.strip() for name in enumeration.split(",")]

    assert names == [entry[0] for entry in verdicts_in_source()]
    assert [entry[1] for entry in verdicts_in_source()] == [
        name.replace("_", "-") for name in names
    ]


def test_exit_codes_do_not_collide_with_those_of_rocbake():
    codes = {entry[1]: int(entry[2]) for entry in verdicts_in_source()}
    meanings = {
        error.exit_code
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.RocbakeError)
    }

    assert {name: code for name, code in codes.items() if code != 0} == {
        "usage": errors.UsageError.exit_code,
        "wrong-result": 9,
        "no-gpu": 10,
        "no-code-object": 13,
        "runtime-error": 14,
    }
    assert not {13, 14} & meanings


def test_kernels_are_those_documented_and_each_is_launched():
    source = SOURCES["kernels.hip"]
    device_code = source[source.index('extern "C" {') : source.index('} // extern "C"')]
    signatures = re.findall(r"__launch_bounds__\([\w:]+\) void (\w+\([^)]*\))", device_code)
    signatures = [re.sub(r"\s+", " ", signature) for signature in signatures]

    assert signatures
    assert source.count("__global__") == len(signatures)
    assert sorted(signatures) == sorted(row[0] for row in table("The kernels"))
    for signature in signatures:
        assert f"{signature.partition('(')[0]}<<<" in source


def test_device_code_stays_in_one_unit():
    with_device_code = [
        name for name, text in SOURCES.items() if re.search(r"__(global|device)__", text)
    ]

    assert with_device_code == ["kernels.hip"]


def test_checks_are_those_documented():
    in_source = re.findall(r'\{"([\w-]+)", \w+\}', SOURCES["checks.cpp"])
    documented = [name for row in table("What is checked") for name in row[0].split(", ")]

    assert documented == ["identity", *in_source]


def test_fields_of_the_document_are_those_documented():
    in_source = re.findall(r'\bfield\("(\w+)"', SOURCES["report.cpp"])
    documented = [name for row in table("The document, schema 1") for name in row[0].split(", ")]

    assert documented == in_source


def test_reasons_for_no_gpu_are_documented():
    documented = set(re.findall(r"`((?:kfd|render)-\w+|no-device)`", README))
    literal = set(re.findall(r'"((?:kfd|render)-\w+|no-device)"', SOURCES["nodes.cpp"]))
    endings = set(re.findall(r'kind \+ "(-\w+)"', SOURCES["nodes.cpp"]))

    assert documented == literal | {kind + end for kind in ("kfd", "render") for end in endings}


def test_version_is_the_recipe_s():
    recipe = yaml.safe_load((RECIPE_DIR / "recipe.yaml").read_text())

    assert f'kVersion = "{recipe["version"]}"' in SOURCES["options.hpp"]


@pytest.mark.parametrize("name", HOST_UNITS + HOST_HEADERS)
def test_host_side_knows_nothing_of_hip(name):
    assert "#include <hip" not in SOURCES[name]
    assert '"hip.hpp"' not in SOURCES[name]


# The writer of JSON


def samples():
    """Return every byte, every pair that starts a sequence, and what UTF-8 forbids."""
    yield b""
    yield from (bytes([byte]) for byte in range(256) if byte != ord("\n"))
    yield from (
        bytes([first, second]) for first in range(0xC0, 0x100) for second in range(0x7E, 0xC2, 3)
    )
    yield from (f"a{chr(point)}b".encode() for point in (0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000))
    yield from (f"{chr(point)}".encode() for point in (0xFFFD, 0xFFFF, 0x10000, 0x10FFFF))
    yield from (b"\xed\xa0\x80", b"\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80")
    yield from (b"\xe2\x82", b"\xf0\x9f\x98", b"x\xf0\x9f\x98\x80y", b"\xc3", b'\\"\x00\x1f\r\n\t')


def test_any_bytes_become_the_string_that_utf_8_makes_of_them(driver):
    texts = list(samples())

    written = driver("strings", stdin="".join(f"x{text.hex()}\n" for text in texts)).stdout

    # How many replacement characters stand for one broken sequence is not agreed on anywhere.
    one = re.compile("\ufffd+")
    lines = written.splitlines()
    assert len(lines) == len(texts)
    for text, line in zip(texts, lines, strict=True):
        assert one.sub("?", json.loads(line)) == one.sub("?", text.decode(errors="replace")), text


def test_values_of_every_kind(driver):
    written = json.loads(driver("values").stdout)

    assert written == {
        "doubles": [0.1, -0.0, 1e300, 5e-324, None, None],
        "largest": 2**64 - 1,
        "least": -(2**63),
        "float": 0.5,
        "literal": "text",
        "view": "view",
        "truth": True,
        "falsehood": False,
        "nothing": None,
        "something": '"quoted"',
        "none": None,
        "empty": [],
        "list": ["a", "b"],
        "nested": [{"k": 1}, {}],
    }


# The command line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "0 -1 60"),
        (["--json"], "0 -1 60"),
        (["--device", "3", "--timeout=5"], "0 3 5"),
        (["--list"], "1 -1 60"),
        (["--help", "--nonsense"], "2 -1 60"),
        (["--version"], "3 -1 60"),
    ],
)
def test_options_are_understood(driver, arguments, expected):
    assert driver("options", *arguments).stdout.strip() == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--frob"], 'unknown option "--frob"'),
        (["extra"], 'unexpected argument "extra"'),
        ([""], 'unexpected argument ""'),
        (["--device"], "--device wants a number after it"),
        (["--device="], '--device wants a whole number from 0 to 1023, got ""'),
        (["--device", "-1"], '--device wants a whole number from 0 to 1023, got "-1"'),
        (["--device", "1x"], '--device wants a whole number from 0 to 1023, got "1x"'),
        (
            ["--device", "99999999999"],
            '--device wants a whole number from 0 to 1023, got "99999999999"',
        ),
        (["--timeout", "0"], '--timeout wants a whole number from 1 to 3600, got "0"'),
        (["--list", "--device", "0"], "--list shows every device; leave out --device"),
        (["--list=1"], 'unknown option "--list=1"'),
    ],
)
def test_options_that_make_no_sense_are_refused(driver, arguments, message):
    refused = driver("options", *arguments)

    assert (refused.returncode, refused.stdout.strip()) == (2, message)


def test_help_lists_every_option_and_verdict(driver):
    text = driver("help").stdout

    for option in re.findall(r'"(--\w+)"', SOURCES["options.cpp"]):
        assert option in text
    for _, name, code, meaning in verdicts_in_source():
        assert re.search(rf"^  {name} +{code}  {meaning}$", text, re.MULTILINE)


# Names of targets


@pytest.mark.parametrize(
    ("target", "gcn_arch", "fits"),
    [
        ("gfx1201", "gfx1201", "yes"),
        ("gfx1201", "gfx1200", "no"),
        ("gfx120", "gfx1201", "no"),
        ("gfx90a", "gfx90a:sramecc+:xnack-", "yes"),
        ("gfx90a:xnack-", "gfx90a:sramecc+:xnack-", "yes"),
        ("gfx90a:xnack+", "gfx90a:sramecc+:xnack-", "no"),
        ("gfx90a:sramecc+:xnack-", "gfx90a:sramecc+:xnack-", "yes"),
        ("gfx1030:xnack-", "gfx1030", "no"),
        ("gfx12-generic", "gfx1201", "no"),
        ("", "gfx1201", "no"),
    ],
)
def test_target_names_a_device(driver, target, gcn_arch, fits):
    assert driver("names-device", target, gcn_arch).stdout.strip() == fits


@pytest.mark.parametrize(
    ("compiled_for", "may"),
    [
        ("gfx1100,gfx1201", "yes"),
        ("gfx1100,gfx1200", "no"),
        ("gfx1100,gfx12-generic", "yes"),
        ("", "no"),
    ],
)
def test_program_may_run_on_a_device(driver, compiled_for, may):
    assert driver("may-run-on", compiled_for, "gfx1201").stdout.strip() == may


# Why there is no GPU


@pytest.fixture
def root(tmp_path):
    (tmp_path / "dev" / "dri").mkdir(parents=True)
    return tmp_path


def device_node(path):
    path.symlink_to("/dev/null")


def test_missing_node_and_driver(driver, root):
    failure = json.loads(driver("why-no-gpu", root).stdout)

    assert failure["reason"] == "kfd-missing"
    assert "no AMD compute driver" in failure["message"]
    assert "modprobe amdgpu" in failure["hint"]


def test_missing_node_where_the_driver_is_loaded(driver, root):
    (root / "sys" / "class" / "kfd").mkdir(parents=True)

    failure = json.loads(driver("why-no-gpu", root).stdout)

    assert failure["reason"] == "kfd-missing"
    assert "--device /dev/kfd" in failure["hint"]


def test_folder_where_the_node_should_be(driver, root):
    (root / "dev" / "kfd").mkdir()

    failure = json.loads(driver("why-no-gpu", root).stdout)

    assert failure["message"] == "/dev/kfd is not a device node"


def test_no_render_node(driver, root):
    device_node(root / "dev" / "kfd")
    device_node(root / "dev" / "dri" / "card0")

    failure = json.loads(driver("why-no-gpu", root).stdout)

    assert failure["reason"] == "render-missing"


@pytest.mark.parametrize(
    ("version", "said"),
    [("120001", "gfx1201"), ("90010", "gfx90a"), ("110003", "gfx1103"), ("0", "no GPU")],
)
def test_nodes_that_open_without_a_device(driver, root, version, said):
    device_node(root / "dev" / "kfd")
    device_node(root / "dev" / "dri" / "renderD128")
    node = root / "sys" / "class" / "kfd" / "kfd" / "topology" / "nodes" / "1"
    node.mkdir(parents=True)
    (node / "properties").write_text(
        f"cpu_cores_count 0\ngfx_target_version {version}\nvendor_id 4098\n"
    )

    failure = json.loads(driver("why-no-gpu", root).stdout)

    assert failure["reason"] == "no-device"
    assert said in failure["message"]


@pytest.mark.parametrize(
    ("error", "reason", "said"),
    [
        (1, "kfd-denied", "device rules"),
        (2, "kfd-refused", "No such file"),
        (6, "kfd-refused", "no driver"),
        (12, "kfd-refused", "no GPU that it can use"),
        (13, "kfd-denied", "although mode and groups allow it"),
        (19, "kfd-refused", "no driver"),
        (22, "kfd-refused", "refuses this process"),
    ],
)
def test_each_errno_has_its_own_meaning(driver, root, error, reason, said):
    (root / "dev" / "kfd").touch(mode=0o600)

    failure = json.loads(driver("why-not-opened", root, error).stdout)

    assert failure["reason"] == reason
    assert said in failure["message"]
    assert failure["hint"]


def test_denial_names_owner_mode_and_group(driver, open_dir):
    (open_dir / "dev").mkdir()
    (open_dir / "dev" / "kfd").touch()
    (open_dir / "dev" / "kfd").chmod(0o000)
    # Root is denied nothing by a mode, and so has to be somebody else.
    is_root = os.geteuid() == 0
    nobody = {"user": 65534, "group": 65534, "extra_groups": [44]} if is_root else {}

    failure = json.loads(driver("why-not-opened", open_dir, 13, **nobody).stdout)

    assert f"owned by {os.geteuid()}:{os.getegid()}, mode 0000" in failure["message"]
    if is_root:
        assert "this process is user 65534 with groups 44, 65534" in failure["message"]
    assert failure["hint"].endswith(f"--group-add {os.getegid()}")


def test_denial_by_selinux_names_the_boolean(driver, root):
    (root / "dev" / "kfd").touch(mode=0o600)
    (root / "sys" / "fs" / "selinux").mkdir(parents=True)
    (root / "sys" / "fs" / "selinux" / "enforce").write_text("1")

    failure = json.loads(driver("why-not-opened", root, 13).stdout)

    assert "container_use_dri_devices" in failure["hint"]


def test_render_node_of_a_device(driver, root):
    (root / "sys/bus/pci/devices/0000:03:00.0/drm/renderD129").mkdir(parents=True)
    (root / "sys/bus/pci/devices/0000:03:00.0/drm/card1").mkdir()

    absent = driver("render-node", root, "0000:03:00.0").stdout.strip()
    device_node(root / "dev" / "dri" / "renderD129")
    present = driver("render-node", root, "0000:03:00.0").stdout.strip()
    other = driver("render-node", root, "0000:04:00.0").stdout.strip()

    assert (absent, present, other) == ("null", '"/dev/dri/renderD129"', "null")


# Supervision


def test_work_that_ends_well(driver):
    ended = driver("supervise", "well", env={"HIP_VISIBLE_DEVICES": "0"})

    report = json.loads(ended.stdout)
    assert ended.returncode == 0
    assert list(report) == [
        name for row in table("The document, schema 1") for name in row[0].split(", ")
    ]
    assert report["schema"] == 1
    assert report["compiled_for"] == ["gfx1201", "gfx12-generic"]
    assert report["environment"] == {"HIP_VISIBLE_DEVICES": "0"}
    assert report["checks"] == [{"name": "first", "ok": True}]
    assert report["computed_on"] == {"kind": "gpu"}
    assert (report["verdict"], report["error"]) == ("pass", None)
    assert "a stray line on stdout" in ended.stderr


@pytest.mark.parametrize(
    ("how", "verdict", "reason", "message"),
    [
        (
            "hang",
            "runtime-error",
            "timeout",
            'the step "second" did not end within 1 s of the start',
        ),
        (
            "abort",
            "runtime-error",
            "crash",
            'the process was ended by SIGABRT during the step "second"',
        ),
        (
            "exit",
            "runtime-error",
            "crash",
            'the process ended without an answer during the step "second"',
        ),
        ("throw", "runtime-error", "internal", "unforeseen"),
        ("fail", "no-gpu", "why", "what\nnext"),
    ],
)
def test_work_that_goes_wrong_still_gives_one_document(driver, how, verdict, reason, message):
    ended = driver("supervise", how)

    report = json.loads(ended.stdout)
    codes = {entry[1]: int(entry[2]) for entry in verdicts_in_source()}
    assert ended.returncode == codes[verdict]
    assert report["verdict"] == verdict
    assert report["error"]["reason"] == reason
    assert report["error"]["step"] == "second"
    assert report["error"]["message"] == message
    assert report["checks"] == [{"name": "first", "ok": True}]
    assert message in ended.stderr
