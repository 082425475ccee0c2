"""The source of hip-probe, compiled and run in the image that it is built in.

A machine that runs these tests needs no compiler: everything is compiled once, in one container
without a network, and every case is a command in it.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
import uuid
from pathlib import Path

import pytest

from rocbake import engine

pytestmark = pytest.mark.timeout(1800)

RECIPE_DIR = Path(__file__).parents[2] / "recipes" / "hip-probe"
SRC = RECIPE_DIR / "src"
README = (SRC / "README.md").read_text()
VERDICTS = re.findall(r"^\| `([\w-]+)` \| (\d+) \| (.+) \|$", README, re.MULTILINE)
CODES = {name: int(code) for name, code, _ in VERDICTS}

# One translation unit: parsing the standard library is what takes the time.
DRIVER = r"""
#include "host.cpp"
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
    } else if (what == "processor") {
        std::puts(json::write(processor_name(argv[2])).text.c_str());
    } else if (what == "supervise") {
        const std::string how = argv[2];
        const auto work = [&how](Wire& wire) { misbehave(how, wire); };
        const Report report = supervise(work, std::chrono::seconds(1), "what to do");
        std::fputs(document(report, {"gfx1201", "gfx12-generic"}).c_str(), stdout);
        return entry_of(report.verdict).exit_code;
    }
}
"""


# What is done to the host's code, and the checks that must then fail.
BROKEN = {
    "transfer": ("return back;", "back[1000] ^= 1; return back;", ["transfer"]),
    "increment": ("result[i] += 1;", "result[i] += 2;", ["increment"]),
    "guard": ("std::min(count, (block", "std::min(count + 1, (block", ["increment"]),
    "matmul": ("* b_tile[k][x]", "* b_tile[x][k]", ["matmul", "matmul-edges"]),
    "edges": ("start < shape.inner;", "start + kTile <= shape.inner;", ["matmul-edges"]),
    "reduce": ("distance > 0;", "distance > 1;", ["reduce"]),
}

# The driver and the program at once; then the program again with each change, from its objects.
COMPILE = """\
set -eu
cd /scratch
hipcc -std=c++20 -O0 -Wall -Wextra -Werror -I recipe/src -x c++ driver.cpp -o driver &
export GPU_TARGETS=gfx1201 SOURCE_DATE_EPOCH=1700000000 ROCBAKE_RECIPE_DIR=/scratch/recipe
ROCBAKE_BUILD_DIR=/scratch/build ROCBAKE_DIST_DIR=/scratch/dist recipe/build.sh
wait $!
printf '%s\\n' broken/*.cpp | xargs -P "$(nproc)" -I{} \
    hipcc -std=c++20 -O0 -Wall -Wextra -Werror -I recipe/src -x c++ -c {} -o {}.o
mv build/host.cpp.o host.o
for object in broken/*.o; do hipcc build/*.o "$object" -o "${object%.cpp.o}"; done
"""

# Whoever opens the pipe for reading lets the one who waits to write go on.
TRAP = """\
mkfifo /dev/kfd
(: >/dev/kfd; touch /scratch/opened) &
/scratch/dist/bin/hip-probe "$@" >/dev/null 2>&1
sleep 0.2
test -e /scratch/opened && opened=yes || opened=no
kill $! 2>/dev/null
rm -f /dev/kfd /scratch/opened
echo $opened
"""


class Sdk:
    """A container of the image that hip-probe is compiled in."""

    def __init__(self, container):
        self._container = container

    def put(self, files, owner=(0, 0)):
        """Put files into it: bytes by absolute path, or whole folders of this machine."""
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:

            def entry(info):
                info.uid, info.gid = owner
                # Folders of pytest's are closed to everyone else.
                info.mode = 0o755 if info.isdir() else info.mode
                return info

            for path, content in files.items():
                if isinstance(content, Path):
                    tar.add(content, path, filter=entry)
                else:
                    info = tarfile.TarInfo(path)
                    info.size = len(content)
                    tar.addfile(entry(info), io.BytesIO(content))
        assert self._container.put_archive("/", stream.getvalue())

    def run(self, *words, user="root", env=None):
        """Run a command in it to its end."""
        answer = self._container.exec_run(
            ["timeout", "600", *words], user=user, environment=env, demux=True
        )
        stdout, stderr = (part.decode() if part else "" for part in answer.output)
        return subprocess.CompletedProcess(words, answer.exit_code, stdout, stderr)


@pytest.fixture(scope="module")
def compiled(sdk):
    """Return a container with the driver, hip-probe, and hip-probe with each broken host."""
    host = (SRC / "host.cpp").read_text()
    files = {"scratch/recipe": RECIPE_DIR, "scratch/driver.cpp": DRIVER.encode()}
    for name, (old, new, _) in BROKEN.items():
        assert host.count(old) == 1, old
        files[f"scratch/broken/{name}.cpp"] = host.replace(old, new).encode()
    with engine.started(sdk, ["sleep", "infinity"], read_only=False) as container:
        made = Sdk(container)
        made.put(files)
        ended = made.run("bash", "-c", COMPILE)
        assert ended.returncode == 0, ended.stderr
        # For a process with a group that its user's own is not.
        made.run("sh", "-c", "echo 'also:x:44:nobody' >>/etc/group")
        yield made


@pytest.fixture
def driver(compiled):
    """Return how to run the program that calls the host side of hip-probe.

    A path among the arguments is a folder, which the program finds as it is here.
    """

    def run(*arguments, stdin="", user="root", owner=(0, 0), env=None):
        place = f"/roots/{uuid.uuid4()}"
        words = [place if isinstance(word, Path) else str(word) for word in arguments]
        folders = {place[1:]: word for word in arguments if isinstance(word, Path)}
        compiled.put({f"{place[1:]}.stdin": stdin.encode(), **folders}, owner)
        command = f'exec /scratch/driver "$@" <{place}.stdin'
        return compiled.run("sh", "-c", command, "sh", *words, user=user, env=env)

    return run


@pytest.fixture(scope="module")
def hip_probe(compiled):
    """Return how to run the program itself: what it ended with, and its document."""

    def run(*options, program="/scratch/dist/bin/hip-probe"):
        ended = compiled.run(program, *options)
        return ended, json.loads(ended.stdout)

    return run


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
        (["--host", "--timeout", "7"], "1 -1 7"),
        (["--list"], "2 -1 60"),
        (["--help", "--nonsense"], "3 -1 60"),
        (["--version"], "4 -1 60"),
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
        (["--host", "--device", "0"], "--host asks for no device; leave out --device"),
        (["--device=1", "--host"], "--host asks for no device; leave out --device"),
        (["--host", "--list"], "--host asks for no device; leave out --list"),
        (["--host=1"], 'unknown option "--host=1"'),
        (["--list=1"], 'unknown option "--list=1"'),
    ],
)
def test_options_that_make_no_sense_are_refused(driver, arguments, message):
    refused = driver("options", *arguments)

    assert (refused.returncode, refused.stdout.strip()) == (2, message)


def test_help_lists_every_option_and_verdict(driver):
    text = driver("help").stdout

    for option in re.findall(r'"(--\w+)"', (SRC / "options.cpp").read_text()):
        assert f"  {option} " in text
    assert VERDICTS
    for name, code, meaning in VERDICTS:
        assert re.search(rf"^  {name} +{code}  {re.escape(meaning)}$", text, re.MULTILINE)


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


def test_denial_names_owner_mode_and_group(driver, root):
    (root / "dev" / "kfd").touch()
    (root / "dev" / "kfd").chmod(0o000)

    failure = json.loads(
        driver("why-not-opened", root, 13, user="nobody", owner=(1234, 992)).stdout
    )

    assert "owned by 1234:992, mode 0000" in failure["message"]
    assert "this process is user 65534 with groups 44, 65534" in failure["message"]
    assert failure["hint"].endswith("--group-add 992")


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
    written = (SRC / "report.cpp").read_text()
    assert list(report) == re.findall(r'\bfield\("(\w+)"', written)
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
    assert ended.returncode == CODES[verdict]
    assert report["verdict"] == verdict
    assert report["error"]["reason"] == reason
    assert report["error"]["step"] == "second"
    assert report["error"]["message"] == message
    assert report["error"]["hint"] == {"throw": None, "fail": "hint"}.get(how, "what to do")
    assert report["checks"] == [{"name": "first", "ok": True}]
    assert message in ended.stderr


# The host's own path


def test_host_computes_and_says_so(compiled, hip_probe):
    ended, report = hip_probe("--host")

    assert ended.returncode == 0
    assert (report["verdict"], report["error"]) == ("host", None)
    assert [check["name"] for check in report["checks"]] == [
        "transfer",
        "increment",
        "matmul",
        "matmul-edges",
        "reduce",
    ]
    for check in report["checks"]:
        assert check["ok"]
        assert check["expected"] == check["got"]
        assert check["detail"].endswith("; the host computed")
    assert report["checks"][1]["got"] == [2, 3, 4]
    assert (report["devices"], report["device"]) == ([], None)
    name = compiled.run("sed", "-n", r"s/^model name\s*: //p", "/proc/cpuinfo").stdout
    assert report["computed_on"] == {"kind": "host", "name": (name.splitlines() or [None])[0]}


def test_host_says_so_on_every_line(hip_probe):
    ended, report = hip_probe("--host")

    lines = ended.stderr.splitlines()
    assert len(lines) == 1 + len(report["checks"]) + 1
    assert all(line.startswith("hip-probe on the host: ") for line in lines)
    assert "no GPU was used" in lines[-1]
    assert "pass:" not in ended.stderr


def test_host_reads_the_version_of_the_loaded_library(compiled, hip_probe):
    library = compiled.run(
        "sh", "-c", "ldd /scratch/dist/bin/hip-probe | grep -o '/.*libamdhip64.so.[0-9]*'"
    )
    file = compiled.run("readlink", "-f", library.stdout.strip()).stdout.strip()

    _, on_host = hip_probe("--host")
    _, on_gpu = hip_probe()

    assert file.endswith(f"/libamdhip64.so.{on_host['hip']['runtime']}")
    assert on_host["hip"]["runtime"] == on_gpu["hip"]["runtime"]
    assert on_host["hip"]["driver"] is None


# Without --host it is opened, which shows that this would be seen.
@pytest.mark.parametrize(("options", "opened"), [(["--host"], "no"), (["--list"], "yes")])
def test_host_never_opens_the_node_of_the_driver(compiled, options, opened):
    assert compiled.run("bash", "-c", TRAP, "bash", *options).stdout.strip() == opened


@pytest.mark.parametrize("options", [["--host", "--device", "0"], ["--list", "--host"]])
def test_host_refuses_what_asks_for_a_device(hip_probe, options):
    ended, report = hip_probe(*options)

    assert ended.returncode == 2
    assert (report["verdict"], report["error"]["reason"]) == ("usage", "bad-option")
    assert (report["checks"], report["computed_on"]) == ([], None)


@pytest.mark.parametrize("name", BROKEN)
def test_host_that_computes_wrongly_is_found_out(hip_probe, name):
    wrong = BROKEN[name][-1]

    ended, report = hip_probe("--host", program=f"/scratch/broken/{name}")

    assert ended.returncode == 9
    assert report["verdict"] == "wrong-result"
    assert [check["name"] for check in report["checks"] if not check["ok"]] == wrong
    assert report["error"]["step"] == wrong[0]
    assert report["error"]["message"] == f"not the expected result: {', '.join(wrong)}"
    assert report["computed_on"]["kind"] == "host"
    assert all(line.startswith("hip-probe on the host: ") for line in ended.stderr.splitlines())


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor\t: 0\nmodel name\t: Some CPU @ 3:2\nmodel name\t: other\n", "Some CPU @ 3:2"),
        ("processor\t: 0\nmodel\t\t: 6\n", None),
        ("model name\t: \n", None),
        ("model name\n", None),
        ("", None),
    ],
)
def test_processor_is_called_as_the_kernel_calls_it(driver, root, cpuinfo, name):
    (root / "proc").mkdir()
    (root / "proc" / "cpuinfo").write_text(cpuinfo)

    assert json.loads(driver("processor", root).stdout) == name


def test_processor_without_proc_has_no_name(driver, root):
    assert driver("processor", root).stdout.strip() == "null"
