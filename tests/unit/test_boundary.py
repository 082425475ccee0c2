import errno
import inspect
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time

import pytest
from invoke.program import Program

import tasks
from rocbake import command, errors, project

VERBS = sorted(tasks.namespace.task_names)
KINDS = [
    one
    for _, one in inspect.getmembers(errors, inspect.isclass)
    if issubclass(one, errors.RocbakeError)
]


@pytest.fixture
def invoke(capfd):
    """Run a command line in this process; return its exit code, stdout and stderr."""
    handler = signal.getsignal(signal.SIGTERM)

    def invoke(*words):
        ended = 0
        # Invoke uses up the help of a task; each command line gets tasks of its own.
        namespace = runpy.run_path(str(project.ROOT / "tasks.py"))["namespace"]
        try:
            Program(namespace=namespace, binary="invoke").run(["invoke", *words])
        except SystemExit as end:
            ended = end.code
        return ended, *capfd.readouterr()

    yield invoke
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def calls(monkeypatch):
    """Keep every verb from working, and tell which would have, with what."""
    started = []

    def stand_in(name):
        return lambda *words, **options: started.append((name, words, options))

    for name, function in inspect.getmembers(command, inspect.isfunction):
        if function.__module__ == "rocbake.command" and not name.startswith("_"):
            monkeypatch.setattr(command, name, stand_in(name))
    return started


def raising(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(command, "doctor", fail)


# What may be typed


def test_verbs_are_listed(invoke, calls):
    ended, out, err = invoke("--list")

    assert (ended, err) == (0, "")
    for verb in VERBS:
        assert f"  {verb} " in out
    assert calls == []


@pytest.mark.parametrize("verb", VERBS)
def test_help_tells_every_option_and_starts_nothing(invoke, calls, verb):
    ended, out, err = invoke(verb, "--help")

    assert (ended, err, calls) == (0, "", [])
    _, _, options = out.partition("\nOptions:\n")
    assert re.findall(r"^  --\S+(?:=STRING)?$", options, re.MULTILINE) == [], "not explained"
    assert " ".join(tasks.namespace[verb].__doc__.split()[:3]) in out


@pytest.mark.parametrize("verb", VERBS)
def test_word_that_is_no_option_is_refused(invoke, calls, verb):
    ended, out, err = invoke(verb, "gfx1201")

    assert (ended, out, calls) == (1, "", [])
    assert err == "No idea what 'gfx1201' is!\n"


@pytest.mark.parametrize("words", [("--nope",), ("-t", "gfx1201"), ("--dry-run=x",), ("--offlin",)])
def test_unknown_option_is_refused(invoke, calls, words):
    ended, out, err = invoke("build", "--target", "gfx1201", *words)

    assert (ended, out, calls) == (1, "", [])
    assert "No idea what" in err


@pytest.mark.parametrize(
    "words",
    [
        ("build", "--target"),
        ("build", "--target", "gfx1201", "--recipe"),
        ("build", "--target", "--json"),
        ("lock", "--name"),
        ("lock", "--name", "--check"),
        ("fetch", "--recipe"),
        ("export", "--target", "gfx1201", "--into"),
    ],
)
def test_option_without_its_value_is_refused(invoke, calls, words):
    ended, out, err = invoke(*words)

    assert (ended, out, calls) == (1, "", [])
    assert "needed value and was not given one" in err


def test_repeated_option_gives_every_value(invoke, calls):
    words = ("--target", "gfx1201", "--target=gfx1100", "--recipe", "one", "--json")
    invoke("build", *words, "--set", "a=b", "--set=c=d")

    ((name, words, options),) = calls
    assert (name, words) == ("build", (["gfx1201", "gfx1100"], ["one"]))
    assert options == {
        "dry_run": False,
        "as_json": True,
        "offline": False,
        "force": False,
        "settings": ["a=b", "c=d"],
        "jobs": None,
        "remote_cache": "",
        "remote_executor": "",
        "no_pull": False,
    }


def test_verbs_without_options_take_everything(invoke, calls):
    invoke("lock")
    invoke("fetch")

    assert [(name, words) for name, words, _ in calls] == [("lock", ([], [])), ("fetch", ([], []))]


# --dry


@pytest.mark.parametrize(
    "words", [("--dry", "build"), ("build", "--dry"), ("-R", "build"), ("--dry", "smoke")]
)
def test_dry_shows_the_plan(invoke, calls, words):
    ended, _, _ = invoke(*words, "--target", "gfx1201")

    assert ended == 0
    assert [options["dry_run"] for _, _, options in calls] == [True]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in {"build", "smoke"}])
@pytest.mark.parametrize("order", [1, -1])
def test_dry_never_starts_work(invoke, calls, verb, order):
    ended, out, err = invoke(*["--dry", verb][::order])

    assert (ended, out, calls) == (2, "", [])
    assert err == (
        f"✗ --dry does nothing for {verb}: it has no plan to show\n  → invoke {verb} --help\n"
    )


# How it ends


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_error_is_told_once_and_ends_with_its_code(invoke, monkeypatch, kind):
    raising(monkeypatch, kind("what went wrong", hint="what to type"))

    ended, out, err = invoke("doctor")

    assert (ended, out) == (kind.exit_code, "")
    assert err == "✗ what went wrong\n  → what to type\n"


def test_each_kind_of_failure_has_its_code():
    assert {kind.__name__: kind.exit_code for kind in KINDS} == {
        "RocbakeError": 1,
        "UsageError": 2,
        "RecipeError": 2,
        "LockError": 3,
        "FetchError": 4,
        "BuildError": 5,
        "ReproError": 6,
        "EngineError": 7,
        "TargetError": 8,
        "SmokeError": 9,
        "NoGpuError": 10,
        "FitError": 11,
        "TrustError": 12,
    }


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EROFS, "/x/y must be writable"),
        (errno.EACCES, "/x/y must be writable"),
        (errno.ENOSPC, "the file system of /x/y is full"),
        (errno.ENOENT, "ROCBAKE_DEBUG=1"),
    ],
)
def test_refusal_of_the_system_is_a_sentence(invoke, monkeypatch, number, words):
    raising(monkeypatch, OSError(number, os.strerror(number), "/x/y"))

    ended, out, err = invoke("doctor")

    assert (ended, out) == (1, "")
    first, second = err.splitlines()
    assert first == f"✗ /x/y: {os.strerror(number)}"
    assert second.startswith("  → ")
    assert words in second


def test_full_disk_below_the_output_is_a_sentence():
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        ended = subprocess.run(
            [sys.executable, "-m", "invoke", "list", "--targets"],
            cwd=project.ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip

    assert ended.returncode == 1
    assert ended.stderr.startswith("✗ output: No space left on device\n  → the file system of")
    assert len(ended.stderr.splitlines()) == 2


def test_traceback_is_for_those_who_ask(invoke, monkeypatch):
    raising(monkeypatch, errors.LockError("what went wrong"))
    monkeypatch.setenv("ROCBAKE_DEBUG", "1")

    ended, out, err = invoke("doctor")

    assert (ended, out) == (3, "")
    assert "Traceback" in err
    assert err.endswith("✗ what went wrong\n")


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")],
)
def test_signal_ends_it_after_cleaning_up(invoke, monkeypatch, number, code, word):
    cleaned = []
    main = threading.get_ident()

    def work(**_):
        try:
            threading.Timer(0.05, signal.pthread_kill, (main, number)).start()
            time.sleep(20)
        finally:
            if number == signal.SIGTERM:
                # A second one does not stop this.
                signal.raise_signal(number)
            cleaned.append(True)

    monkeypatch.setattr(command, "doctor", work)

    ended, out, err = invoke("doctor")

    assert (ended, out, cleaned) == (code, "", [True])
    assert err == f"✗ {word}; what was finished is kept, nothing is half-written\n"


def test_reader_that_left_is_no_fault():
    reader, writer = os.pipe()
    os.close(reader)

    ended = subprocess.run(
        [sys.executable, "-m", "invoke", "list", "--targets", "--json"],
        cwd=project.ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writer)

    assert (ended.returncode, ended.stderr) == (141, "")


_QUICK = """
import sys, time
start = time.monotonic()
from invoke.program import Program
import tasks
try:
    Program(namespace=tasks.namespace).run(["invoke", *sys.argv[1:]])
except SystemExit as end:
    print(end.code, time.monotonic() - start, "docker" in sys.modules)
"""


def test_unknown_target_is_refused_before_anything_is_loaded():
    result = subprocess.run(
        [sys.executable, "-c", _QUICK, "build", "--target", "gfx12O1"],
        cwd=project.ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(project.ROOT)},
    )  # fmt: skip

    code, seconds, docker = result.stdout.split()
    assert (code, docker) == ("8", "False")
    assert float(seconds) < 2, "well under a second where nothing else runs"
    assert "'gfx12O1' is not known: did you mean gfx1201" in result.stderr
