import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocbake import compiling
from rocbake.compiling import Finished, Run

HIP = "Building HIP object ggml/src/ggml-hip/CMakeFiles/ggml-hip.dir/__/ggml-cuda/acc.cu.o"


@pytest.mark.parametrize(
    ("text", "name", "is_hip"),
    [
        (HIP, "acc.cu", True),
        ("Building CXX object ggml/src/CMakeFiles/ggml-base.dir/ggml.cpp.o", "ggml.cpp", False),
        ("Building CXX object x.cpp.o", "x.cpp", False),
        ("Linking CXX shared library bin/libggml-hip.so.0.13.1", "libggml-hip.so.0.13.1", False),
        ("Linking CXX static library libcommon.a", "libcommon.a", False),
        ("Creating library symlink ggml/src/libx.so.0 ggml/src/libx.so", "libx.so", False),
        ("Re-checking globbed directories...", "Re-checking globbed directories...", False),
        ("", "", False),
    ],
)
def test_a_line_names_what_was_made(text, name, is_hip):
    assert compiling.parse(f"[12/197] {text}") == Finished(12, 197, name, is_hip)


# What Bazel 7.7.1 printed, and the same of a build of thousands.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[9 / 14] Compiling lib/greeting.cpp; 1s local ... (2 actions, 1 running)",
            Finished(9, 14, "greeting.cpp", is_hip=False, grows=True),
        ),
        (
            "[1,234 / 5,678] Compiling xla/service/gpu/x.cu.cc; 12s local, remote-cache ...",
            Finished(1234, 5678, "x.cu.cc", is_hip=False, grows=True),
        ),
        (
            "[12 / 14] 2 actions, 1 running",
            Finished(12, 14, "2 actions, 1 running", is_hip=False, grows=True),
        ),
        (
            "[14 / 14] [Prepa] action 'x'",
            Finished(14, 14, "[Prepa] action 'x'", is_hip=False, grows=True),
        ),
    ],
)
def test_bazel_is_understood(text, expected):
    assert compiling.parse(text) == expected


def test_bazel_is_not_over_while_it_may_find_more():
    run = Run(0.0, Finished(9, 9, "x", is_hip=False, grows=True), 10.0)

    assert not run.is_over
    assert run.goes_on_with(Finished(9, 14, "y", is_hip=False, grows=True))


@pytest.mark.parametrize("text", ["[0 / 0] x", "[, / ,] x", "[2 / 1] x", "[1 /2] x", "[1 / 2]"])
def test_what_looks_like_bazel_and_is_not_says_nothing(text):
    assert compiling.parse(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-- [12/197] x",
        "[ 12%] Building CXX object x.o",
        "[198/197] x",
        "[0/0] x",
        "[12/197]",
        "[12345678/12345679] x",
        "[١/٢] x",  # noqa: RUF001 - digits, but not Ninja's
        "ninja: Entering directory `/rocbake/build/tree'",
    ],
)
def test_other_lines_say_nothing_of_progress(text):
    assert compiling.parse(text) is None


def test_a_name_is_short():
    assert len(compiling.parse(f"[1/2] Generating {'x' * 500}").name) < 80


def compiled(*parts, hip=0, total=100):
    """A run in which objects of one kind were finished at a steady pace, one part after another."""
    done, at, run = 0, 0.0, None
    for count, seconds, is_hip in parts:
        for _ in range(count):
            done, at = done + 1, at + seconds
            line = Finished(done, total, "x", is_hip)
            if run is None:
                run = Run(0.0, line, at, hip=hip)
            else:
                run.take(line, at)
    return run, at


@pytest.mark.parametrize(("count", "seconds"), [(4, 60.0), (19, 1.0)])
def test_nothing_is_said_of_the_time_left_early_on(count, seconds):
    before, at = compiled((count, seconds, False))
    after, later = compiled((count + 1, seconds, False))

    assert before.left(at) is None
    assert after.left(later) is not None


def test_few_percent_are_too_few():
    before, at = compiled((19, 10.0, False), total=500)
    after, later = compiled((20, 10.0, False), total=500)

    assert before.left(at) is None
    assert after.left(later) == pytest.approx(4800)


def test_time_left_follows_from_the_pace():
    run, at = compiled((40, 2.0, False))

    assert run.left(at) == pytest.approx(60 * 2.0)


def test_time_left_counts_down_by_no_more_than_an_object():
    run, at = compiled((40, 6.0, False))

    assert run.left(at + 4) == pytest.approx(356)
    assert run.left(at + 3600) == pytest.approx(354)
    assert run.left(at - 5) == pytest.approx(360)


def test_objects_of_hip_that_are_to_come_count_as_what_they_are():
    # Whisper.cpp compiles all it has for the processor first.
    run, at = compiled((40, 2.0, False), hip=50)

    assert run.left(at) == pytest.approx(50 * 10.0 + 10 * 2.0)


def test_objects_of_hip_count_as_they_turn_out_to_be():
    run, at = compiled((40, 2.0, False), (10, 7.0, True), hip=40)

    assert run.left(at) == pytest.approx(30 * 7.0 + 20 * 2.0)


def test_objects_that_follow_those_of_hip_are_cheaper():
    run, at = compiled((10, 20.0, True), hip=10)

    assert run.left(at) == pytest.approx(90 * 4.0)


def test_without_a_word_on_hip_the_kind_that_is_compiled_counts():
    run, at = compiled((50, 1.0, False), (10, 7.0, True))

    assert run.left(at) == pytest.approx(40 * 7.0)


def test_more_objects_of_hip_than_were_told_do_no_harm():
    run, at = compiled((40, 2.0, False), (20, 7.0, True), hip=5)

    assert run.left(at) == pytest.approx(40 * 2.0)


def test_one_giant_does_not_decide():
    run, at = compiled((50, 1.0, True), (1, 200.0, True))

    assert run.left(at) == pytest.approx(49 * (1 + 199 / 50))


def test_old_objects_are_forgotten():
    run, at = compiled((200, 10.0, False), (200, 1.0, False), total=1000)

    assert 600 < run.left(at) < 800


def test_lines_that_were_lost_are_counted():
    run = Run(0.0, Finished(10, 100, "x", is_hip=False), 20.0)
    run.take(Finished(50, 100, "x", is_hip=False), 100.0)

    assert run.left(100.0) == pytest.approx(100)
    assert run.seconds == 100


def test_a_kind_of_which_none_was_timed_yet_is_taken_for_the_other():
    run = Run(0.0, Finished(5, 10, "x", is_hip=False), 10.0)
    run.take(Finished(6, 10, "x", is_hip=False), 20.0)
    # Ninja says the same count again, of another object.
    run.take(Finished(6, 10, "y", is_hip=True), 30.0)

    assert run.left(30.0) == pytest.approx(4 * 20 / 6)


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ((3, 10), (4, 10), True),
        ((3, 10), (3, 10), True),
        ((3, 10), (4, 8), True),
        ((3, 10), (2, 10), False),
        ((3, 10), (1, 5), False),
        ((10, 10), (1, 10), False),
        ((1, 1), (1, 1), False),
        ((0, 2), (1, 400), True),
    ],
)
def test_a_count_that_falls_is_another_run(first, then, expected):
    run = Run(0.0, Finished(*first, "x", is_hip=False), 1.0)

    assert run.goes_on_with(Finished(*then, "x", is_hip=False)) is expected


counts = st.tuples(st.integers(0, 50), st.integers(1, 50)).map(sorted)
times = st.floats(0, 1e9)


@given(
    st.lists(st.tuples(counts, times, st.booleans()), min_size=1, max_size=40),
    st.integers(0, 60),
    times,
)
def test_time_left_is_never_nonsense(lines, hip, later):
    run = None
    for (done, total), at, is_hip in lines:
        line = Finished(done, max(total, 1), "x", is_hip)
        if run and run.goes_on_with(line):
            run.take(line, at)
        else:
            run = Run(0.0, line, at, hip=hip)

        left = run.left(later)
        assert left is None or left >= 0
        assert left is None or not run.is_over or left == 0


@given(st.floats(0, 1e9))
def test_a_guess_is_at_least_what_it_is_about(seconds):
    words = compiling.about(seconds).split()
    numbers = [int(word) for word in words if word.isdigit()]
    minutes = numbers[0] * 60 + numbers[1] if len(numbers) == 2 else numbers[0]

    assert seconds / 60 <= minutes <= max(1, seconds / 60) + 10


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min 00 s"),
        (723, "12 min 03 s"),
        (3599, "59 min 59 s"),
        (3900, "1 h 05 min"),
        (100_000, "27 h 46 min"),
    ],
)
def test_spans_are_said_as_people_do(seconds, expected):
    assert compiling.span(seconds) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "1 min"),
        (60, "1 min"),
        (61, "2 min"),
        (600, "10 min"),
        (601, "15 min"),
        (3300, "55 min"),
        (3301, "1 h 00 min"),
        (3601, "1 h 10 min"),
        (7500, "2 h 10 min"),
    ],
)
def test_guesses_are_rounded(seconds, expected):
    assert compiling.about(seconds) == expected
