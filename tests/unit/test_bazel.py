"""Bazel's words: what a recipe may say, and what may be asked for beside it."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rocbake import bake, bazel, lock, plan
from rocbake.bazel import BazelWish, Remote, parse_remote
from rocbake.errors import LockError, UsageError
from rocbake.source import Deps

CACHE, EXECUTOR = "--bazel-remote-cache", "--bazel-remote-executor"
WISH = BazelWish(
    target="//a:b", before=("-c", "opt"), flags=("--x={targets}",), after=("--h={home}/y",)
)


def test_targets_and_home_are_put_in():
    told = bazel.for_container(WISH, ["gfx1100", "gfx1201"])

    assert told["flags"][-1] == "--x=gfx1100,gfx1201"
    assert told["after"] == ["--h=/rocbake/home/y"]


def test_the_stage_that_downloads_may():
    online = [one.text for one in bazel.command_line(WISH, ["gfx1201"], offline=False)]

    assert "--repository_disable_download" not in online
    assert online[:2] == ["-c", "opt"]
    assert online[-2:] == ["--h=/rocbake/home/y", "//a:b"]


@pytest.mark.parametrize("word", ["two words", "{other}", "{targets", "a{}", "tab\t"])
def test_word_that_a_shell_would_split_or_nobody_knows_is_refused(word):
    with pytest.raises(ValidationError):
        BazelWish(target="//a", flags=(word,))


@pytest.mark.parametrize("target", ["a", "//a b", "//a:b:c", ""])
def test_what_is_no_label_is_refused(target):
    with pytest.raises(ValidationError):
        BazelWish(target=target)


# --- remote cache and execution


@pytest.mark.parametrize(
    ("cache", "executor", "words"),
    [
        ("https://c.invalid/x", "", ["--remote_cache=https://c.invalid/x"]),
        ("grpcs://c.invalid:443", "", ["--remote_cache=grpcs://c.invalid:443"]),
        (
            "",
            "grpc://[::1]:8980",
            ["--remote_executor=grpc://[::1]:8980", "--spawn_strategy=remote,local"],
        ),
    ],
)
def test_addresses_become_words(cache, executor, words):
    assert parse_remote(cache, executor).words == words


def test_nothing_asked_for_is_nothing():
    assert parse_remote("", "") is None


@pytest.mark.parametrize(
    ("cache", "executor"),
    [
        ("c.invalid", ""),
        ("ftp://c.invalid", ""),
        ("https://", ""),
        ("https://c.invalid:port", ""),
        ("https://c .invalid", ""),
        ("https://[::1", ""),
        ("", "https://e.invalid"),
    ],
)
def test_what_bazel_does_not_take_is_refused(cache, executor):
    option = CACHE if cache else EXECUTOR

    with pytest.raises(UsageError, match=f"^{option}: expected "):
        parse_remote(cache, executor)


def test_login_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(UsageError) as caught:
        parse_remote("https://me:hush@c.invalid/x", "")

    assert "hush" not in caught.value.for_humans()
    assert "machine c.invalid login" in caught.value.hint


@given(st.text(), st.text())
def test_any_addresses_are_read_or_refused(cache, executor):
    with contextlib.suppress(UsageError):
        parse_remote(cache, executor)


@pytest.fixture
def netrc(tmp_path):
    path = tmp_path / "netrc"

    def netrc(text):
        path.write_text(text)
        path.chmod(0o600)
        return path

    return netrc


def test_only_the_login_that_is_needed_is_handed_on(netrc):
    file = netrc("machine c.invalid login me password one\nmachine other login you password two\n")

    assert bazel.credentials(Remote(cache="https://c.invalid/x"), file) == (
        "machine c.invalid login me password one\n"
    )


def test_default_login_counts_and_no_file_is_none(netrc, tmp_path):
    remote = Remote(cache="https://c.invalid", executor="grpcs://e.invalid")

    assert bazel.credentials(remote, tmp_path / "none") == ""
    assert bazel.credentials(remote, netrc("default login me password one\n")) == (
        "machine c.invalid login me password one\nmachine e.invalid login me password one\n"
    )


def test_damaged_netrc_is_told_without_its_text(netrc):
    with pytest.raises(UsageError) as caught:
        bazel.credentials(Remote(cache="https://c.invalid"), netrc("machine c.invalid hush\n"))

    assert "hush" not in str(caught.value)


# --- plan and bake file


@pytest.fixture
def built(checkout):
    """The small project, whose recipe Bazel builds; what Bazel downloads is not recorded yet."""
    path = checkout.root / "recipes/tool/recipe.yaml"
    path.write_text(path.read_text() + "bazel: {target: //a, after: ['--config=x']}\n")
    checkout.write("recipes/bazel.Dockerfile", "FROM sdk\n")
    checkout.lock()
    return checkout


def with_deps(made):
    deps = Deps(sha256="d" * 64, size=1)
    return made.model_copy(update={"sources": (*made.sources, deps), "missing": {}})


def test_unrecorded_downloads_stop_a_build(built):
    made = built.plan()

    assert made.missing == {"tool": ("what Bazel downloads",)}
    with pytest.raises(LockError, match="what Bazel downloads"):
        plan.require_recorded([made])
    assert made.deps is None


def test_what_was_never_recorded_is_known_by_whose_lock_lacks_it(built):
    recipe = built.load().recipes["tool"]
    locks = {one.name: lock.read_container(one) for one in recipe.containers}
    recorded = lock.read_recipe(recipe)
    whole = recorded.model_copy(update={"sources": with_deps(built.plan()).sources})
    short = whole.model_copy(update={"sources": whole.sources[1:]})

    assert lock.unrecorded(recipe, locks, recorded) == ["tool"]
    assert lock.unrecorded(recipe, locks, whole) == []
    assert lock.unrecorded(recipe, locks, short) == ["tool"]


def test_downloads_are_no_file_to_fetch(built):
    made = with_deps(built.plan())

    assert made.deps.file_name == "repository-cache.tar"
    assert made.deps not in made.inputs


def test_only_the_stage_that_downloads_has_a_network(built):
    described = bake.describe(with_deps(built.plan()), [])["target"]

    online = {name for name, one in described.items() if one["network"] != "none"}
    assert online == {"deps"}
    assert described["built"]["target"] == "building"
    assert described["dist"]["contexts"]["built"] == "target:built"
    assert {one["dockerfile"] for name, one in described.items() if name in ("dist", "deps")} == {
        "bazel.Dockerfile"
    }


def test_downloads_are_not_made_unless_asked_for(built):
    group = bake.describe(with_deps(built.plan()), [])["group"]["default"]["targets"]

    assert "deps" not in group


def test_remote_cache_changes_the_stage_and_not_the_plan(built, tmp_path):
    made = with_deps(built.plan())
    remote = Remote(cache="https://c.invalid")

    usual = bake.describe(made, [])["target"]
    other = bake.describe(made, [], remote=remote, netrc=tmp_path / "netrc")["target"]

    assert other["built"]["target"] == "building-remotely"
    assert other["built"]["network"] == "default"
    assert other["built"]["secret"] == [f"id=netrc,src={tmp_path}/netrc"]
    assert "c.invalid" in other["built"]["args"]["REMOTE"]
    assert {name for name in usual if usual[name] != other[name]} == {"built"}
