"""Bazel's log of repository rules, read: which downloads nobody vouched for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

EXECUTE, DOWNLOAD, DOWNLOAD_AND_EXTRACT, FILE = 3, 4, 5, 6
URL, OUTPUT, SHA256 = 1, 2, 3
INTEGRITY = {DOWNLOAD: 5, DOWNLOAD_AND_EXTRACT: 6}
# A number that only one of the two has text in: whether it is executable, and its type.
OTHER = 4
ADDRESS = "https://example.org/a.tar"


@pytest.fixture(scope="module")
def downloads(bazel_tools):
    return bazel_tools.downloads


def varint(number):
    rest, last = divmod(number, 128)
    data = [last]
    while rest:
        rest, last = divmod(rest, 128)
        data.append(last)
    return bytes([one | 0x80 for one in data[:-1]] + data[-1:])


def text(number, value):
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def event(kind, *fields, context="repository @a"):
    message = text(1, "/x.bzl:1:1") + text(2, context)
    message += text(kind, b"".join(text(number, value) for number, value in fields))
    return varint(len(message)) + message


@pytest.mark.parametrize("kind", [DOWNLOAD, DOWNLOAD_AND_EXTRACT])
def test_a_download_without_any_checksum_is_named(downloads, kind):
    log = event(kind, (URL, ADDRESS), (OUTPUT, "x"))

    assert downloads.without_checksum(log) == {"a": [ADDRESS]}


@pytest.mark.parametrize("kind", [DOWNLOAD, DOWNLOAD_AND_EXTRACT])
def test_either_form_of_a_checksum_vouches_for_it(downloads, kind):
    log = event(kind, (URL, ADDRESS), (SHA256, "0" * 64))
    log += event(kind, (URL, ADDRESS), (INTEGRITY[kind], "sha256-AAAA"))

    assert downloads.without_checksum(log) == {}


def test_an_empty_checksum_is_none(downloads):
    assert downloads.without_checksum(event(DOWNLOAD, (URL, ADDRESS), (SHA256, ""))) != {}


def test_a_prefix_to_strip_is_no_checksum(downloads):
    """The field of that number in the other kind of event is one."""
    log = event(DOWNLOAD_AND_EXTRACT, (URL, ADDRESS), (OTHER, "tar"), (5, "a-1.0"))

    assert downloads.without_checksum(log) == {"a": [ADDRESS]}


def test_mirrors_are_one_download_and_a_rule_that_ran_twice_is_named_once(downloads):
    log = event(DOWNLOAD, (URL, ADDRESS), (URL, "https://mirror.example/a.tar")) * 2
    log += event(DOWNLOAD, (URL, "https://example.org/b"), context="repository @@b~1")

    assert downloads.without_checksum(log) == {"a": [ADDRESS], "b~1": ["https://example.org/b"]}


def test_other_events_are_passed_over(downloads):
    log = event(FILE, (1, ADDRESS), (2, "content"))

    assert downloads.without_checksum(log) == {}


def test_fields_that_are_new_are_passed_over(downloads):
    new = varint(40 << 3) + varint(300) + varint(41 << 3 | 1) + bytes(8) + varint(42 << 3 | 5)
    new += bytes(4)
    known = text(2, "repository @a") + text(DOWNLOAD, text(URL, ADDRESS))
    message = new + known

    assert downloads.without_checksum(varint(len(message)) + message) == {"a": [ADDRESS]}


def test_a_log_that_was_cut_is_refused(downloads):
    whole = event(DOWNLOAD, (URL, ADDRESS))

    for length in range(1, len(whole)):
        with pytest.raises(downloads.ToolError, match="ends within"):
            downloads.without_checksum(whole[:length])


@pytest.mark.parametrize(
    "words",
    [
        "/usr/bin/git fetch origin 0123:refs/remotes/origin/main",
        "git -C x submodule update --init",
        "curl -sSfL https://example.org/a",
        "/opt/python/bin/python3 -I -m pip download numpy",
        "python3.11 -m python.private.pypi.whl_installer.wheel_installer --requirement lit==1",
    ],
)
def test_a_rule_that_downloads_by_itself_is_named_with_its_command(downloads, words):
    log = event(EXECUTE, *((2, word) for word in words.split()))

    assert downloads.without_checksum(log) == {"a": [words]}


@pytest.mark.parametrize(
    "words",
    ["", "git apply x.patch", "gcc -m64 pip.c", "python3 -m compileall x", "python3 -m", "bash -m"],
)
def test_a_rule_that_runs_anything_else_is_passed_over(downloads, words):
    log = event(EXECUTE, *((2, word) for word in words.split()))

    assert downloads.without_checksum(log) == {}


def test_what_belongs_to_no_repository_is_refused(downloads):
    context = "module extension foo in @bar//:quux.bzl"

    with pytest.raises(downloads.ToolError, match=f"^{context} downloads without a checksum: http"):
        downloads.without_checksum(event(DOWNLOAD, (URL, ADDRESS), context=context))


def test_a_field_that_is_longer_than_its_message_is_refused(downloads):
    message = text(2, "repository @a") + varint(FILE << 3 | 2) + varint(9) + b"short"

    with pytest.raises(downloads.ToolError, match="ends within a field"):
        downloads.without_checksum(varint(len(message)) + message)


@given(data=st.binary(max_size=200))
def test_anything_else_is_read_or_refused(downloads, data):
    try:
        found = downloads.without_checksum(data)
    except downloads.ToolError:
        return
    assert all(urls for urls in found.values())


@given(
    made=st.lists(
        st.tuples(
            st.sampled_from([DOWNLOAD, DOWNLOAD_AND_EXTRACT]),
            st.text(alphabet="abc_-.~", min_size=1, max_size=8),
            st.text(min_size=1, max_size=300),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_what_is_named_is_exactly_what_has_no_checksum(downloads, made):
    log = b"".join(
        event(kind, (URL, url), *([(SHA256, "0" * 64)] * has_sum), context=f"repository @{name}")
        for kind, name, url, has_sum in made
    )

    found = downloads.without_checksum(log)

    expected = {(name, url) for _, name, url, has_sum in made if not has_sum}
    assert {(name, url) for name, urls in found.items() for url in urls} == expected
