import copy
import errno
import json
import os
import shutil
import subprocess

import pytest

from rocbake import probes
from rocbake.gpu import Card, DeviceNode, NodeKind
from rocbake.passthrough import Ended
from rocbake.smoke_wish import SmokeCommand

KFD = DeviceNode("/dev/kfd", NodeKind.CHARACTER, 0o660, 0, 992, 235, 0)
RENDER = DeviceNode("/dev/dri/renderD128", NodeKind.CHARACTER, 0o660, 0, 992, 226, 128)
CARD = Card(
    index=0,
    kfd_node=1,
    target="gfx1201",
    product="Radeon RX 9070 XT",
    is_apu=False,
    memory=16 << 30,
    compute_units=64,
    render=RENDER,
    pci="0000:03:00.0",
)
NAMES = ("identity", "transfer", "increment", "matmul", "matmul-edges", "reduce", "streams")


def document(**changes):
    """What hip-probe prints on a card."""
    checks = [
        {"name": name, "ok": True, "expected": name, "got": name, "detail": "", "milliseconds": 1}
        for name in NAMES
    ]
    checks[2] |= {"expected": [2, 3, 4], "got": [2, 3, 4]}
    return {
        "schema": 1,
        "program": "hip-probe",
        "compiled_for": ["gfx1201"],
        "devices": [
            {
                "index": 0,
                "name": "AMD Radeon RX 9070 XT",
                "gcn_arch": "gfx1201",
                "pci_bus_id": "0000:03:00.0",
            }
        ],
        "device": 0,
        "checks": checks,
        "computed_on": {"kind": "gpu", "name": "AMD Radeon RX 9070 XT", "gcn_arch": "gfx1201"},
        "verdict": "pass",
        "error": None,
    } | changes


def ended(printed="", code=0, **facts):
    text = printed if isinstance(printed, str) else json.dumps(printed)
    return Ended(exit_code=code, stdout=text, stderr="", **facts)


def compute(answer, code=0):
    return probes.judge_compute(ended(answer, code), CARD, target="gfx1201")


# The nodes, opened


def opened(*answers, uid=1000, groups=(1000, 992), enforcing=False):
    lines = [
        f"node {node.path} {answer}" for node, answer in zip((KFD, RENDER), answers, strict=True)
    ]
    who = [f"Uid: {uid}\t{uid}\t{uid}\t{uid}", f"Groups: {' '.join(map(str, groups))} "]
    return probes.judge_access(
        ended("\n".join(lines + who)), (KFD, RENDER), selinux_enforcing=enforcing
    )


def test_nodes_that_open_are_named():
    found = opened("open", "open")

    assert found.verdict == "passed"
    assert found.says == "user 1000 opens /dev/kfd and /dev/dri/renderD128"
    assert found.where is None


@pytest.mark.parametrize(
    "number", [errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOMEM, errno.EINVAL]
)
def test_each_errno_is_told_apart(number):
    others = {
        opened("open", os.strerror(other)).says
        for other in (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOMEM, errno.EINVAL)
        if other != number
    }

    found = opened("open", os.strerror(number))

    assert found.verdict == "failed"
    assert "/dev/dri/renderD128" in found.says
    assert found.says not in others
    assert found.remedy


def test_denial_names_path_mode_owner_and_groups_held():
    found = opened("Permission denied", "open", groups=(44, 1000))

    for part in ("/dev/kfd", "0:992", "0660", "1000", "44"):
        assert part in found.says
    assert "992" in found.remedy


def test_selinux_is_named_where_groups_are_right():
    found = opened("Permission denied", "open", enforcing=True)

    assert "setsebool -P container_use_dri_devices=1" in found.remedy


def test_image_without_a_shell_is_no_success():
    found = probes.judge_access(ended("", 127), (KFD,), selinux_enforcing=False)

    assert found.verdict == "failed"
    assert "exit code 127" in found.says


SHELLS = [name for name in ("dash", "bash", "busybox") if shutil.which(name)]


@pytest.mark.parametrize("shell", SHELLS)
def test_script_tells_what_every_shell_finds(shell, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    paths = ["/dev/null", f"{tmp_path}/folder", f"{tmp_path}/missing", "/dev/full"]
    words = probes.open_nodes_command(paths)
    words[:1] = [shell, "sh"] if shell == "busybox" else [shell]

    done = subprocess.run(words, capture_output=True, text=True, check=True)

    answers = [line.split(" ", 2)[2] for line in done.stdout.splitlines()[: len(paths)]]
    assert answers == ["open", "Is a directory", "No such file or directory", "open"]
    assert "Uid:" in done.stdout
    assert not (tmp_path / "missing").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("shell", SHELLS)
def test_script_tells_why_a_node_does_not_open(shell, tmp_path):
    node = tmp_path / "node"
    os.mknod(node, 0o020660, os.makedev(1, 3))
    os.chown(node, 0, 992)
    node.chmod(0o660)
    tmp_path.chmod(0o711)
    # By a name of its own folder: nobody else may enter the folders above it.
    words = probes.open_nodes_command(["./node"])
    words[:1] = [shutil.which(shell), "sh"] if shell == "busybox" else [shutil.which(shell)]

    def answer(groups):
        done = subprocess.run(
            words, capture_output=True, text=True, check=True, user=65534, group=65534,
            extra_groups=groups, cwd=tmp_path,
        )  # fmt: skip
        return probes.judge_access(
            ended(done.stdout),
            (DeviceNode("./node", NodeKind.CHARACTER, 0o660, 0, 992, 1, 3),),
            selinux_enforcing=False,
        )

    assert answer([992]).verdict == "passed"
    assert "0:992" in answer([44]).says
    assert answer([44]).verdict == "failed"


# The runtime


def test_runtime_must_see_the_card_that_was_passed():
    assert probes.judge_devices(ended(document(verdict="listed", checks=[])), CARD).verdict == (
        "passed"
    )


def test_runtime_that_sees_another_card_fails():
    other = document()
    other["devices"][0]["pci_bus_id"] = "0000:0a:00.0"

    found = probes.judge_devices(ended(other), CARD)

    assert found.verdict == "failed"
    assert "0000:03:00.0" in found.says
    assert "0000:0a:00.0" in found.says


def test_runtime_that_sees_more_than_was_passed_fails():
    other = document()
    other["devices"] *= 2

    assert probes.judge_devices(ended(other), CARD).says.endswith("sees 2")


# What was computed


def test_answer_of_the_card_passes():
    found = compute(document())

    assert (found.verdict, found.where) == ("passed", "gpu")
    assert found.says == "7 checks, [1, 2, 3] became [2, 3, 4], by AMD Radeon RX 9070 XT"


def change(path, value):
    def apply(answer):
        *way, last = path
        place = answer
        for step in way:
            place = place[step]
        place[last] = value

    return apply


LIES = {
    "nobody": (change(["computed_on"], None), "nothing in the answer shows"),
    "another kind": (change(["computed_on", "kind"], "magic"), "nothing in the answer shows"),
    "another target": (change(["computed_on", "gcn_arch"], "gfx1100"), "expected gfx1201"),
    "another card": (change(["devices", 0, "pci_bus_id"], "0000:0a:00.0"), "0000:0a:00.0"),
    "verdict of a list": (change(["verdict"], "listed"), "nothing in the answer shows"),
    "verdict of the host": (change(["verdict"], "host"), "nothing in the answer shows"),
    "no identity": (change(["checks", 0, "name"], "other"), "not checked: identity"),
    "a check not ok": (change(["checks", 3, "ok"], False), "matmul: expected"),
    "ok without being so": (change(["checks", 5, "got"], 7), "reduce: expected reduce, got 7"),
    "both wrong alike": (
        lambda answer: answer["checks"][2].update(expected=[1, 2, 3], got=[1, 2, 3]),
        "increment: expected [2, 3, 4], got [1, 2, 3]",
    ),
    "no checks": (change(["checks"], []), "not checked: identity, transfer"),
}


@pytest.mark.parametrize(("apply", "reason"), LIES.values(), ids=LIES)
def test_answer_that_proves_nothing_fails(apply, reason):
    answer = copy.deepcopy(document())
    apply(answer)

    found = compute(answer)

    assert found.verdict == "failed"
    assert found.where is None
    assert reason in found.says


def test_right_numbers_from_the_host_fail():
    found = compute(document(computed_on={"kind": "host", "name": "Ryzen"}))

    assert (found.verdict, found.where) == ("failed", "host")
    assert found.says == "it was computed on the host"


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "OK",
        "1/1 backends passed\nOK",
        "[2, 3, 4]",
        "null",
        "{}",
        '{"program": "hip-probe"}',
        json.dumps(document(program="other")),
        json.dumps(document(schema=2)),
        json.dumps(document(devices={})),
        "[" * 100_000,
    ],
)
def test_what_is_no_document_fails(printed):
    found = compute(printed)

    assert found.verdict == "failed"
    assert "did not print hip-probe's document" in found.says


def test_error_of_the_program_is_told_with_its_remedy():
    error = {"reason": "kfd-denied", "message": "no entry", "hint": "--group-add 992", "step": "x"}

    found = compute(document(verdict="no-gpu", error=error), 10)

    assert found.says == "no-gpu: no entry"
    assert found.remedy == "--group-add 992"


def test_exit_code_counts_even_where_the_words_are_good():
    assert compute(document(), 1).says == "it says pass, and ended with exit code 1"


# What is ended from outside


def test_hang_names_the_probe_and_the_time():
    found = probes.judge_compute(
        ended(document(), -1, timed_out=True, seconds=120.0), CARD, target="gfx1201"
    )

    assert found.verdict == "failed"
    assert found.says == "hung: it did not end in 120 s, and was ended"
    assert "dmesg" in found.remedy


def test_want_of_memory_counts_even_with_exit_code_0():
    found = probes.judge_compute(ended(document(), out_of_memory=True), CARD, target="gfx1201")

    assert found.verdict == "failed"
    assert "memory" in found.says
    assert "exit code 0 all the same" in found.says


# The host


def on_host(**changes):
    answer = document(
        verdict="host", devices=[], device=None, computed_on={"kind": "host", "name": "Ryzen 9"}
    )
    answer["checks"] = [one for one in answer["checks"] if one["name"] in NAMES[1:6]]
    return answer | changes


def test_host_is_called_the_host():
    found = probes.judge_host(ended(on_host()))

    assert (found.verdict, found.where) == ("passed", "host")
    assert found.says == "on the host: 5 checks by Ryzen 9"


def test_host_never_passes_for_a_gpu():
    assert compute(on_host()).verdict == "failed"
    assert probes.judge_host(ended(document())).verdict == "failed"


# Commands of recipes

SPEECH = SmokeCommand(
    name="speech",
    run=("whisper-cli", "jfk.wav"),
    gpu=r"ROCm\d+ compute buffer",
    expect="ask not what",
    refuse=("falling back", "Skipping"),
    host=("whisper-cli", "--no-gpu"),
)
SPOKEN = "ask not what your country\nROCm0 compute buffer size = 22 MiB\n"


def test_command_shows_that_the_gpu_computed():
    found = probes.judge_command(ended(SPOKEN), SPEECH, on_host=False)

    assert (found.verdict, found.where) == ("passed", "gpu")
    assert found.says == "it printed 'ROCm0 compute buffer'"


@pytest.mark.parametrize(
    ("printed", "code", "reason"),
    [
        ("ask not what your country\n", 0, "computed on the host"),
        ("ROCm0 compute buffer\n", 0, "did not print 'ask not what'"),
        (SPOKEN + "Skipping\n1/1 backends passed\nOK\n", 0, "it printed 'Skipping', and may not"),
        (SPOKEN, 1, "exit code 1: whisper-cli jfk.wav"),
    ],
)
def test_command_without_proof_fails(printed, code, reason):
    found = probes.judge_command(ended(printed, code), SPEECH, on_host=False)

    assert found.verdict == "failed"
    assert found.where is None
    assert reason in found.says
    assert printed.splitlines()[0] in found.output


def test_command_on_the_host_says_so():
    found = probes.judge_command(ended("ask not what\n"), SPEECH, on_host=True)

    assert (found.verdict, found.where) == ("passed", "host")
    assert found.says.startswith("on the host")


def test_proof_may_stand_on_either_stream():
    one = Ended(exit_code=0, stdout="ask not what", stderr="ROCm1 compute buffer")

    assert probes.judge_command(one, SPEECH, on_host=False).where == "gpu"
