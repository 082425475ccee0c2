"""Sources of containers, for some target sets or for all; what no lock names yet; other SDKs."""

import pytest
from pydantic import ValidationError

from rocbake import lock, plan
from rocbake.document import DocumentError
from rocbake.errors import LockError, TargetError
from rocbake.source import Git, Pypi, Url
from rocbake.target import parse_target_set
from rocbake.wish import GitWish, LayerWish, PypiWish, UrlWish, answers, wishes_for

COMMIT = "1" * 40
LOCKED = {"sha256": "0" * 64, "size": 1}
ONE = "https://example.invalid/rdna4.tar.gz"
OTHER = "https://example.invalid/rdna3.tar.gz"
ANY = "https://example.invalid/any"
SOURCES = f"""\
sources:
  - url: {ONE}
    targets: gfx120X-all
  - url: {OTHER}
    targets: gfx1100,gfx1101
  - url: {ANY}
"""


@pytest.fixture
def rich(checkout):
    """The small project, whose runtime container is made of files as well."""
    path = checkout.root / "containers/small/container.yaml"
    path.write_text(path.read_text() + SOURCES)
    checkout.edit(
        "containers/small/Dockerfile",
        "# small\n",
        "RUN --network=none --mount=type=bind,from=sources,target=/sources true\n",
    )
    checkout.lock()
    return checkout


def layer(made, name="small"):
    return next(one for one in made.layers if one.name == name)


@pytest.mark.parametrize(
    ("wish", "source"),
    [
        (UrlWish(url=ONE), Url(url=ONE, file_name="a", **LOCKED)),
        (GitWish(git=ONE, commit=COMMIT), Git(url=ONE, commit=COMMIT, **LOCKED)),
        (
            PypiWish(pypi="a", version="1"),
            Pypi(project="a", version="1", file_name="a-1.tar.gz", **LOCKED),
        ),
        (
            PypiWish(pypi="a", version="1", file="a.whl"),
            Pypi(project="a", version="1", file_name="a.whl", **LOCKED),
        ),
    ],
)
def test_wish_is_answered_by_its_own_source_alone(wish, source):
    others = [
        Url(url=OTHER, file_name="a", **LOCKED),
        Git(url=ONE, commit="2" * 40, **LOCKED),
        Git(url=OTHER, commit=COMMIT, **LOCKED),
        Pypi(project="a", version="2", file_name="a.whl", **LOCKED),
        Pypi(project="b", version="1", file_name="a.whl", **LOCKED),
    ]

    assert answers([wish], [*others, source]) == [source]
    assert answers([wish], others) == [None]


def test_file_that_is_named_is_not_answered_by_another_of_the_release():
    wish = PypiWish(pypi="a", version="1", file="a.whl")

    assert answers([wish], [Pypi(project="a", version="1", file_name="b.whl", **LOCKED)]) == [None]


@pytest.mark.parametrize(
    ("targets", "urls"),
    [
        ("gfx1201", [ONE, ANY]),
        ("gfx1200,gfx1201", [ONE, ANY]),
        ("gfx1101", [OTHER, ANY]),
    ],
)
def test_container_has_what_is_for_the_target_set(rich, targets, urls):
    made = rich.plan(targets)

    assert [one.url for one in layer(made).files_beside] == urls
    assert {one.url for one in made.inputs if isinstance(one, Url)} >= set(urls)


@pytest.mark.parametrize("targets", ["gfx1102", "gfx1101,gfx1201"])
def test_target_set_without_files_of_its_own_is_refused(rich, targets):
    with pytest.raises(TargetError) as caught:
        rich.plan(targets)

    assert str(caught.value) == (
        "container small: there are files for gfx120X-all, gfx1100,gfx1101, and none for "
        + ",".join(parse_target_set([targets]).names)
    )


def test_files_for_all_need_no_choice():
    wishes = [LayerWish(url=ANY)]

    assert wishes_for(wishes, parse_target_set(["gfx942"])) == wishes


def test_layer_is_told_apart_by_what_it_was_made_for(rich):
    one, other = (layer(rich.plan(name)) for name in ("gfx1201", "gfx1100"))

    assert (one.tag, other.tag) == ("7.2.4-gfx120X-all", "7.2.4-gfx1100_gfx1101")
    assert one.key != other.key
    # Both targets of a group are served by one layer.
    assert layer(rich.plan("gfx1200")).key == one.key


def test_file_of_another_family_changes_no_key(rich):
    before = rich.plan("gfx1201").key

    rich.lock(unrecorded=[OTHER])

    assert rich.plan("gfx1201").key == before


def test_what_no_lock_names_stops_the_build_with_the_command_that_records_it(rich):
    rich.lock(unrecorded=[ONE, "https://example.invalid/data.tar"])

    whole, first, second = (rich.plan(name) for name in ("gfx1100", "gfx1201", "gfx1200"))

    assert whole.missing == {"tool": ("https://example.invalid/data.tar",)}
    assert first.missing == {"small": (ONE,), "tool": ("https://example.invalid/data.tar",)}
    with pytest.raises(LockError) as caught:
        plan.require_recorded([first, second])
    assert str(caught.value).splitlines() == [
        "the locks do not name these files yet; nobody has recorded them:",
        f"  small: {ONE}",
        "  tool: https://example.invalid/data.tar",
    ]
    assert caught.value.hint == (
        "invoke lock --name small --name tool --target gfx1201 --target gfx1200  "
        "where they can be reached"
    )


def test_whole_plans_are_no_error_and_say_nothing_of_it(rich):
    made = rich.plan()

    plan.require_recorded([made])

    assert "missing" not in made.model_dump(mode="json")


def test_lock_with_a_hole_is_not_stale(rich):
    rich.lock(unrecorded=[ONE])
    small = rich.load().containers["small"]
    locks = {one.name: lock.read_container(one) for one in small.chain}

    assert lock.stale_container(small, locks) == []


def test_recording_a_file_leaves_the_layers_above_fresh(rich):
    small = rich.load().containers["small"]
    before = lock.read_container(small)

    rich.lock(unrecorded=[ONE])

    after = lock.read_container(small)
    assert before.digest == after.digest
    assert not before.is_as(after)


def test_another_family_leaves_the_layers_above_fresh(rich):
    small = rich.load().containers["small"]
    before = lock.read_container(small)

    rich.edit(
        "containers/small/container.yaml",
        f"  - url: {ANY}\n",
        f"  - url: {ANY}\n  - {{url: {ANY}2, targets: gfx942}}\n",
    )
    rich.lock()

    assert lock.read_container(small).digest == before.digest


@pytest.mark.parametrize("text", ["gfx9999", "rdna99", ""])
def test_target_set_that_is_none_is_refused(text):
    with pytest.raises(ValidationError):
        LayerWish(url=ANY, targets=text)


def test_target_set_that_is_none_is_told_with_its_line(rich, monkeypatch):
    monkeypatch.chdir(rich.root)
    rich.edit("containers/small/container.yaml", "gfx120X-all", "gfx1209")

    with pytest.raises(DocumentError, match=r"containers/small/container.yaml:8:14: .*gfx1209"):
        rich.load()


# --- another SDK, by an option

SDK_BY_OPTION = """\
sdk_where:
  compiler=new: newer
options:
  compiler:
    summary: Which compiler
    values: [old, new]
    otherwise: old
"""


@pytest.fixture
def choosing(checkout):
    checkout.write(
        "containers/newer/container.yaml",
        (checkout.root / "containers/sdk/container.yaml").read_text(),
    )
    checkout.write("containers/newer/Dockerfile", "FROM base\n# newer\n")
    path = checkout.root / "recipes/tool/recipe.yaml"
    path.write_text(path.read_text() + SDK_BY_OPTION)
    checkout.lock()
    return checkout


def test_option_chooses_the_container_that_is_built_in(choosing):
    usual, other = choosing.plan(), choosing.plan(compiler="new")

    assert (usual.sdk, usual.tag) == ("sdk", "gfx1201")
    assert (other.sdk, other.tag) == ("newer", "gfx1201_compiler-new")
    assert [one.name for one in usual.layers] == ["base", "small", "sdk"]
    assert [one.name for one in other.layers] == ["base", "small", "newer"]
    assert usual.key != other.key


def test_lock_of_a_container_that_is_not_chosen_need_not_be_there(choosing):
    (choosing.root / "containers/newer/lock.json").unlink()

    assert choosing.plan().sdk == "sdk"
    with pytest.raises(LockError, match="there is no lock for newer"):
        choosing.plan(compiler="new")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("=new: newer", "=new: new", "8:17: sdk_where.compiler=new: there is no container 'new'"),
        ("=new: newer", "=odd: newer", "sdk_where.compiler=odd: no option of this recipe has that"),
        ("compiler=new: ", "other=new: ", "sdk_where.other=new: no option of this recipe has that"),
    ],
)
def test_choice_that_cannot_be_made_is_refused(choosing, old, new, reason):
    choosing.edit("recipes/tool/recipe.yaml", old, new)

    with pytest.raises(DocumentError) as caught:
        choosing.load()

    assert reason in str(caught.value)


# --- whose ROCm


def test_rocm_of_another_provider_is_refused_with_the_reason(checkout, monkeypatch):
    monkeypatch.chdir(checkout.root)
    path = checkout.root / "recipes/tool/recipe.yaml"
    path.write_text(
        path.read_text() + "rocm: { provider: amd, because: Debian has no roctracer }\n"
    )

    with pytest.raises(DocumentError) as caught:
        checkout.load()

    assert str(caught.value) == (
        "recipes/tool/recipe.yaml:4:10: runtime: small has ROCm of provider debian, and tool takes "
        "amd's alone: Debian has no roctracer"
    )


def test_sdk_without_rocm_takes_the_runtimes(checkout):
    checkout.edit("containers/sdk/container.yaml", "provider: debian\nrocm: 7.2.4\n", "")
    checkout.lock()

    assert checkout.plan().rocm == "7.2.4"
