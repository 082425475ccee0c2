from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from rocbake import document
from rocbake.container import ContainerFile
from rocbake.document import DocumentError
from rocbake.recipe import RecipeFile

DATA = Path(__file__).parent.parent / "data"
BAD = sorted(DATA.glob("*/bad/*.yaml"))
MODELS = {"containers": ContainerFile, "recipes": RecipeFile}


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load(text, model=Anything):
        path = tmp_path / "file.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return document.read(path, model).value.model_dump()

    return load


def reasons(load, text, model=Anything):
    with pytest.raises(DocumentError) as caught:
        load(text, model)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("path", BAD, ids=[f"{one.parts[-3]}-{one.stem}" for one in BAD])
def test_bad_file_is_explained(path, monkeypatch):
    monkeypatch.chdir(path.parent)

    with pytest.raises(DocumentError) as caught:
        document.read(path, MODELS[path.parts[-3]])

    assert f"{caught.value}\n" == path.with_suffix(".txt").read_text()
    assert caught.value.exit_code == 2


def test_every_expected_text_has_its_file():
    assert {one.stem for one in BAD} == {one.stem for one in DATA.glob("*/bad/*.txt")}
    assert len(BAD) > 20


@pytest.mark.parametrize(
    "text",
    ["7.10", "1e3", "0x10", "0o7", "012", "yes", "on", "null", "~", "true", "2026-10-30", "="],
)
def test_plain_scalar_stays_text(load, text):
    assert load(f"key: {text}\nlist: [{text}, '{text}']\n") == {"key": text, "list": [text, text]}


def test_other_scalars_are_what_they_say(load):
    text = "one:\ntwo: ''\nthree: |\n  a\n  b\nfour: !!str 7.10\nfive: [ 'a', ]\n"

    assert load(text) == {"one": None, "two": "", "three": "a\nb\n", "four": "7.10", "five": ["a"]}


def test_merged_keys_give_way(load):
    text = "base: &b {one: 1, two: 2}\nown: {<<: [{one: first}, *b], three: 3, <<: {two: x}}\n"

    assert load(text)["own"] == {"one": "first", "two": "x", "three": "3"}
    assert load("own:\n  one: mine\n  <<: {one: 1}\n")["own"] == {"one": "mine"}
    assert load("own: {'<<': text}\n")["own"] == {"<<": "text"}


def test_alias_is_what_it_names(load):
    assert load("one: &a [1, {two: 3}]\nfour: *a\n")["four"] == ["1", {"two": "3"}]


def test_byte_order_mark_and_windows_line_ends_are_taken(load):
    assert load("\ufeffone: 1\r\ntwo: [a]\r\n".encode()) == {"one": "1", "two": ["a"]}


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{a: " * 50_000, "- " * 100_000, "[" * 900 + "]" * 900]
)
def test_depth_ends_somewhere(load, text):
    (reason,) = reasons(load, text)

    assert "nest" in reason


def test_depth_does_not_depend_on_the_interpreter(load):
    value = load("key: " + "[" * 50 + "]" * 50)["key"]
    for _ in range(49):
        (value,) = value

    assert value == []
    assert reasons(load, "key: " + "[" * 51 + "]" * 51) == [
        "file.yaml:1:56: nested more than 50 deep"
    ]


def test_size_ends_somewhere(load):
    assert reasons(load, "a" * (1 << 20) + ":") == [
        "file.yaml:1:1: expected at most 1048576 bytes, got 1048577"
    ]


def test_unreadable_file_is_explained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    for path, reason in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(DocumentError, match=f":1:1: cannot be read: {reason}"):
            document.read(path, Anything)


def test_path_is_shown_as_it_would_be_typed(tmp_path, monkeypatch):
    (tmp_path / "below").mkdir()

    monkeypatch.chdir(tmp_path)
    inside = document.shown(tmp_path / "below" / "file")
    monkeypatch.chdir(tmp_path / "below")

    assert inside == "below/file"
    assert document.shown(tmp_path / "file") == str(tmp_path / "file")


def test_problems_are_in_the_order_of_files_and_lines():
    problems = [
        document.Problem(Path(path), line, column, message)
        for path, line, column, message in (
            ("b", 1, 1, "five"),
            ("a", 10, 1, "four"),
            ("a", 9, 2, "three"),
            ("a", 9, 1, "two"),
            ("a", 2, 30, "one"),
        )
    ]

    said = [line.rpartition(" ")[2] for line in str(DocumentError(problems)).splitlines()]

    assert said == ["one", "two", "three", "four", "five"]


def test_problem_stands_at_its_value(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text("one: 1\nlist:\n  - {a: b}\n  - c\n<<: {merged: x}\n")
    read = document.read(path, Anything)

    def place(*at):
        problem = read.problem("wrong", *at)
        assert (problem.path, problem.message) == (path, "wrong")
        return problem.line, problem.column

    assert place() == (1, 1)
    assert place("one") == (1, 6)
    assert place("list", 0, "a") == (3, 9)
    assert place("list", 1) == (4, 5)
    assert place("list", 1, "absent") == (4, 5)
    assert place("merged") == (5, 14)
    assert place("absent") == (1, 1)


# Whatever stands in a file, nothing but words comes of it

# fmt: off
SNIPPETS = st.sampled_from([
    "summary: ", "version: ", "sources:", "packages: ", "archive: ", "suites: ", "git: x", "7.10",
    "- ", "  ", "\n", "\t", "{", "}", "[", "]", ",", ": ", "? ", "&a ", "*a", "<<: ", "!!int ",
    "!x ", "|", ">", "'", '"', "#", "%YAML 1.2\n", "---\n", "...\n", "\\", "\0", "\ufeff", "\x85",
])
# fmt: on


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    data=st.lists(SNIPPETS, max_size=30).map(lambda parts: "".join(parts).encode())
    | st.text(max_size=60).map(str.encode)
    | st.binary(max_size=40)
)
def test_any_file_is_read_or_explained(tmp_path, model, data):
    path = tmp_path / "file.yaml"
    path.write_bytes(data)

    lines = data.count(b"\n") + data.count(b"\r") + data.count(b"\x85") + 2
    problems = problems_in(path, model)

    assert all(1 <= one.line <= lines and one.column >= 1 for one in problems)


def problems_in(path, model):
    try:
        document.read(path, model)
    except DocumentError as wrong:
        return wrong.problems or pytest.fail("no reason given")
    return []


LEAVES = st.none() | st.text(max_size=6) | st.sampled_from(["7.10", "yes", "<<", "sid"])
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [*RecipeFile.model_fields, *ContainerFile.model_fields, "url", "git", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(tree=TREES)
def test_any_tree_is_read_or_explained(tmp_path, model, tree):
    path = tmp_path / "file.yaml"
    path.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")

    assert all(one.message for one in problems_in(path, model))
