import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rocbake import run as running
from rocbake.errors import EngineError, LockError
from rocbake.run import run

ROOT = Path(__file__).parents[2]


def sh(script, **options):
    return run(["sh", "-c", script], **options)


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def ends(pid, seconds=30.0):
    """Tell whether a process is gone soon."""
    limit = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < limit:
        time.sleep(0.01)
    return not is_alive(pid)


def written(path, seconds=30.0):
    """Wait for a number in a file."""
    limit = time.monotonic() + seconds
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < limit
        time.sleep(0.01)
    return int(path.read_text())


def test_both_streams_are_kept_apart():
    result = sh("echo out; echo err >&2; printf end")

    assert (result.returncode, result.stdout, result.stderr) == (0, "out\nend", "err\n")


def test_there_is_no_standard_input():
    ours, (reader, writer) = os.dup(0), os.pipe()
    os.dup2(reader, 0)
    try:
        # A program that read ours would wait for ever: the pipe is never closed.
        assert sh("cat; echo done", timeout=5).stdout == "done\n"
    finally:
        os.dup2(ours, 0)
        for descriptor in (ours, reader, writer):
            os.close(descriptor)


def test_words_are_no_shell_line():
    assert run(["printf", "%s", "$HOME; `id` *"]).stdout == "$HOME; `id` *"


def test_environment_and_folder_are_what_is_given(tmp_path):
    result = sh('echo "$ONE"; pwd; echo "$HOME"', env={"ONE": "1"}, cwd=tmp_path)

    assert result.stdout == f"1\n{tmp_path}\n\n"


def test_failure_is_an_error_with_the_end_of_the_output(tmp_path):
    log_path = tmp_path / "log"

    with pytest.raises(LockError) as caught:
        sh("echo why >&2; seq 100; exit 7", error=LockError, log_path=log_path)

    lines = str(caught.value).splitlines()
    assert lines[0] == "sh failed (exit code 7): sh -c 'echo why >&2; seq 100; exit 7'"
    assert lines[1:-1] == [*(f"  | {number}" for number in range(82, 101)), "  | why"]
    assert lines[-1] == f"  whole log: {log_path}"


def test_failure_may_be_looked_at():
    assert sh("exit 3", check=False).returncode == 3
    assert sh("kill -9 $$", check=False).returncode == -9


@pytest.mark.parametrize(("number", "said"), [(9, "signal 9, Killed"), (40, "signal 40, Real")])
def test_end_by_a_signal_is_said(number, said):
    with pytest.raises(EngineError, match=said):
        sh(f"kill -{number} $$", error=EngineError)


def test_missing_program_is_told():
    with pytest.raises(EngineError, match="no-such-program is not installed") as caught:
        run(["no-such-program"], error=EngineError)

    assert caught.value.hint == "./bootstrap"


def test_other_reasons_not_to_start_are_told(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("")

    with pytest.raises(EngineError, match=r"cannot be run: .*Permission denied"):
        run([plain], error=EngineError)
    with pytest.raises(EngineError, match=r"cannot be run: .*No such file or directory"):
        run(["true"], cwd=tmp_path / "none", error=EngineError)


def test_too_long_ends_the_whole_group(tmp_path):
    with pytest.raises(EngineError, match=r"took more than 0\.3 s and was stopped: sh -c"):
        sh("sh -c 'sleep 60 & echo $! > pid; wait' & wait", cwd=tmp_path, timeout=0.3,
           error=EngineError)  # fmt: skip

    assert ends(written(tmp_path / "pid"))


def test_deaf_grandchild_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "_GRACE_SECONDS", 0.1)
    deaf = "import signal, os, time; signal.signal(15, signal.SIG_IGN); "
    deaf += "open('pid', 'w').write(str(os.getpid())); time.sleep(60)"

    with pytest.raises(EngineError):
        sh(f'{sys.executable} -c "{deaf}" & while ! [ -s pid ]; do sleep 0.05; done; sleep 60',
           cwd=tmp_path, timeout=0.5, error=EngineError)  # fmt: skip

    assert ends(written(tmp_path / "pid"))


def test_deaf_program_is_killed(monkeypatch):
    monkeypatch.setattr(running, "_GRACE_SECONDS", 0.1)
    start = time.monotonic()

    with pytest.raises(EngineError):
        sh("trap '' TERM; sleep 60; sleep 60", timeout=0.2, error=EngineError)

    assert time.monotonic() - start < 30


def test_background_child_that_holds_the_output_does_not_hang_it(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "_DRAIN_SECONDS", 0.1)
    start = time.monotonic()

    result = sh("sleep 60 & echo $! > pid; echo said", cwd=tmp_path)

    os.kill(written(tmp_path / "pid"), signal.SIGKILL)
    assert time.monotonic() - start < 30
    assert result.stdout == "said\n"


def test_interrupt_ends_what_runs(tmp_path):
    main = threading.get_ident()

    def interrupt():
        written(tmp_path / "pid")
        signal.pthread_kill(main, signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        sh("echo $$ > pid; sleep 60", cwd=tmp_path)
    helper.join()

    assert ends(written(tmp_path / "pid"))


def test_interrupt_is_never_lost_in_a_wait_without_end(tmp_path, monkeypatch):
    # Python hears a signal between two instructions, and a system call that has begun is one: what
    # comes just before it is heard after it.
    real, waits = os.waitpid, []

    def waitpid(pid, flags):
        waits.append(flags)
        return real(pid, flags)

    monkeypatch.setattr(os, "waitpid", waitpid)
    monkeypatch.setattr(running, "_GLANCE_SECONDS", 0.02)

    sh("sleep 0.1")
    with pytest.raises(EngineError, match=r"took more than 0\.1 s"):
        sh("sleep 60", timeout=0.1, error=EngineError)

    assert set(waits) == {os.WNOHANG}


def test_second_interrupt_kills_what_is_deaf_to_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "_GRACE_SECONDS", 60)
    main = threading.get_ident()

    def interrupt():
        written(tmp_path / "pid")
        signal.pthread_kill(main, signal.SIGINT)
        written(tmp_path / "asked")
        signal.pthread_kill(main, signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        sh("trap 'echo 1 > asked' TERM; echo $$ > pid; while :; do sleep 0.05; done", cwd=tmp_path)
    helper.join()

    assert time.monotonic() - start < 30
    assert ends(written(tmp_path / "pid"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_a_program_starts_ends_it_too(tmp_path, monkeypatch, number):
    class EndedError(BaseException):
        pass

    def end(*_):
        raise EndedError

    real = running._start

    def slow(words, **options):
        process = real(words, **options)
        written(tmp_path / "pid")
        signal.raise_signal(number)
        return process

    monkeypatch.setattr(running, "_start", slow)
    before = signal.signal(number, end)
    try:
        with pytest.raises(EndedError):
            sh("echo $$ > pid; sleep 60", cwd=tmp_path)
        assert signal.getsignal(number) is end
    finally:
        signal.signal(number, before)

    assert ends(written(tmp_path / "pid"))


def test_log_is_added_to_line_by_line(tmp_path):
    log_path = tmp_path / "log"
    log_path.write_text("before\n")
    lines = []

    sh("echo one; echo two >&2; echo three", log_path=log_path, on_line=lines.append)

    kept = log_path.read_text()
    assert kept.startswith("before\n")
    assert sorted(kept.split()) == ["before", "one", "three", "two"]
    assert sorted(lines) == ["one", "three", "two"]


def test_line_is_told_when_it_comes(tmp_path):
    def told(line):
        (tmp_path / line).touch()

    result = sh(
        "echo first; while ! [ -e first ]; do sleep 0.01; done; echo second",
        cwd=tmp_path,
        on_line=told,
        timeout=10,
    )

    assert result.stdout == "first\nsecond\n"


def test_output_that_is_no_utf_8_is_kept_readable(tmp_path):
    result = sh(r"printf 'a\377b\n\303\251\n'", log_path=tmp_path / "log")

    assert result.stdout == "a\N{REPLACEMENT CHARACTER}b\né\n"
    assert (tmp_path / "log").read_text(encoding="utf-8") == result.stdout


def test_much_output_on_both_streams_does_not_stick():
    result = sh("yes x | head -c 300000; yes y | head -c 300000 >&2", timeout=30)

    assert (len(result.stdout), len(result.stderr)) == (300_000, 300_000)


def test_kill_takes_what_runs_along(tmp_path):
    """SIGKILL leaves nobody time to clean up; what was started must not go on by itself."""
    note = tmp_path / "pid"
    words = f"from rocbake.run import run; run(['sh', '-c', 'echo $$ > {note}; exec sleep 60'])"
    ours = subprocess.Popen([sys.executable, "-c", words], cwd=ROOT)
    pid = written(note)

    ours.kill()
    ours.wait()

    assert ends(pid)
