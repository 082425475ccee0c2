import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocbake import dockerfile, project


def told(tmp_path, text, contexts=("base",)):
    path = tmp_path / "Dockerfile"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [
        (problem.line, problem.message) for problem in dockerfile.problems(path, contexts=contexts)
    ]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("FROM debian:13\n", 1, "FROM debian:13"),
        ("FROM base\nADD https://host.invalid/x /x\n", 2, "https://host.invalid/x"),
        ("FROM base\nADD git@host.invalid:x.git /x\n", 2, "git@host.invalid:x.git"),
        ("FROM base\nADD --checksum=sha256:0 http://host.invalid/x /x\n", 2, "http://host.invalid"),
        ("FROM base\nRUN true\n", 2, "RUN without --network=none"),
        ("FROM base\nRUN --network=host true\n", 2, "RUN without --network=none"),
        ("FROM base\nRUN --network=none --security=insecure true\n", 2, "RUN --security"),
        (
            "FROM base\nRUN --network=none --mount=type=bind,from=php,target=/x \\\n true\n",
            2,
            "php",
        ),
        ("FROM base\nCOPY --from=php /x /x\n", 2, "COPY --from=php"),
        ("# syntax=docker/dockerfile:1\nFROM base\n", 1, "syntax"),
        ("\ufeff# syntax=docker/dockerfile:1\nFROM base\n", 1, "syntax"),
        ("  #syntax = docker/dockerfile:1\nFROM base\n", 1, "syntax"),
        ("//syntax=docker/dockerfile:1\nFROM base\n", 1, "syntax"),
        ("#!/bin/sh\n// syntax=docker/dockerfile:1\nFROM base\n", 2, "syntax"),
        ('{"syntax": "docker/dockerfile:1"}\nFROM base\n', 1, "JSON"),
        ('\ufeff#!/bin/x\n\n{"syntax":\n"x"}\nFROM base\n', 1, "JSON"),
        ("FROM base\nONBUILD RUN --network=none true\n", 2, "ONBUILD"),
        ("FROM base\nARG where\nADD $where /x\n", 3, "a variable could hold an address"),
        ("FROM base\nARG where\nCOPY a ${where:-b} /x\n", 3, "a variable could hold an address"),
        ('FROM base\nADD ["https://host.invalid/x","/x"]\n', 2, "https://host.invalid/x"),
        ('FROM base\nADD "https://host.invalid/x" /x\n', 2, "https://host.invalid/x"),
        ("FROM base\nRUN --network=none --mount=type=cache,target=/c true\n", 2, "type=cache"),
        ("FROM base\nRUN --network=none --mount=target=/c,TYPE=secret true\n", 2, "type=secret"),
        ("FROM base\nRUN --network=none --mount=type=ssh true\n", 2, "type=ssh"),
        ('FROM base\nRUN --network=none --mount="type=cache",target=/c true\n', 2, "type=cache"),
        ('FROM base\nRUN --network=none --mount="from=php",target=/c true\n', 2, "from=php"),
        ("FROM base\nRUN --network=none --mount=type=$t,target=/c true\n", 2, "type=$t"),
        ("FROM base\n\nARG GH_TOKEN\n", 3, "ARG GH_TOKEN"),
        ("FROM base\nENV API_KEY=x\n", 2, "ENV API_KEY"),
        ("from base\nrun true\n", 2, "RUN without --network=none"),
    ],
)
def test_what_is_not_locked_is_told_with_its_line(tmp_path, text, line, words):
    ((found, message),) = told(tmp_path, text)

    assert found == line
    assert words in message


def test_all_is_told_at_once(tmp_path):
    found = told(tmp_path, "FROM x\nRUN true\nADD http://host.invalid/y /\n")

    assert [line for line, _ in found] == [1, 2, 3]


def test_an_earlier_stage_is_known(tmp_path):
    text = "FROM base AS build\nFROM scratch\nCOPY --from=build /x /x\n"

    assert told(tmp_path, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffFROM base\n",
        "#!/bin/x\nFROM base\n",
        "FROM base\nCOPY a b $HOME/x\n",
        "FROM base\nRUN --network=none --mount=type=tmpfs,target=/t --mount=target=/x true\n",
        "FROM base\nRUN --network=none --mount=type=bind,from=base,target=/x,ro true\n",
    ],
)
def test_what_is_locked_is_let_through(tmp_path, text):
    assert told(tmp_path, text) == []


def test_a_missing_file_is_told(tmp_path):
    (found,) = dockerfile.problems(tmp_path / "Dockerfile", contexts=())

    assert "not a Dockerfile" in found.message


def test_this_projects_own_are_clean():
    project.load()


@given(text=st.text(alphabet=st.sampled_from("FROM RUNADCPY base\\\n#=-:/'\"<${}EOF"), max_size=80))
def test_no_text_breaks_it(tmp_path_factory, text):
    told(tmp_path_factory.mktemp("dockerfile"), text)


@given(data=st.binary(max_size=60))
def test_no_bytes_break_it(tmp_path_factory, data):
    told(tmp_path_factory.mktemp("dockerfile"), data)


ONLINE = """\
FROM base AS offline
RUN {offline} true
FROM base AS downloading
RUN {online} true
FROM base
RUN --network=none true
"""


def told_online(tmp_path, offline="--network=none", online="--network=default"):
    path = tmp_path / "Dockerfile"
    path.write_text(ONLINE.format(offline=offline, online=online))
    found = dockerfile.problems(path, contexts=["base"], online=["downloading"])
    return [(one.line, one.message.split(":")[0]) for one in found]


SECRET = "--mount=type=secret,id=netrc,target=/x"


def test_stage_that_is_named_may_have_a_network_and_no_other(tmp_path):
    without = "RUN without --network=none"

    assert told_online(tmp_path) == []
    assert told_online(tmp_path, online="--network=none") == []
    assert told_online(tmp_path, offline="--network=default") == [(2, without)]
    assert told_online(tmp_path, online="--network=host") == [(4, without)]
    assert told_online(tmp_path, online="") == [(4, without)]


def test_logins_are_for_the_stage_with_a_network_alone(tmp_path):
    mount = "RUN --mount type=secret"

    assert told_online(tmp_path, online=f"--network=default {SECRET}") == []
    assert told_online(tmp_path, offline=f"--network=none {SECRET}") == [(2, mount)]
    other = SECRET.replace("netrc", "token")
    assert told_online(tmp_path, online=f"--network=default {other}") == [(4, mount)]


def test_caches_of_compilers_are_the_only_ones(tmp_path):
    mount = "--network=none --mount=type=cache,target=/x,id="

    assert told_online(tmp_path, offline=f"{mount}rocbake-bazel") == []
    assert told_online(tmp_path, offline=f"{mount}rocbake-ccache") == []
    assert told_online(tmp_path, offline=f"{mount}other") == [(2, "RUN --mount type=cache")]
