import shutil
from pathlib import Path

import pytest

from rocbake import container, recipe
from rocbake.document import DocumentError
from rocbake.wish import GitWish, PypiWish, UrlWish

TOOL = "recipes/tool/recipe.yaml"


@pytest.fixture(autouse=True)
def _in_checkout(checkout, monkeypatch):
    monkeypatch.chdir(checkout.root)


def load(checkout):
    return recipe.load_all(checkout.root, container.load_all(checkout.root))


def reasons(checkout):
    with pytest.raises(DocumentError) as caught:
        load(checkout)
    return str(caught.value).splitlines()


def test_recipe_knows_its_containers(checkout):
    tool = load(checkout)["tool"]

    assert tool.file.version == "1.10"
    assert (tool.sdk.name, tool.runtime.name) == ("sdk", "small")
    assert [one.name for one in tool.containers] == ["base", "small", "sdk"]


def test_each_kind_of_source_is_known(checkout):
    commit = "0123456789" * 4
    checkout.edit(
        TOOL,
        "  - url: https://example.invalid/data.tar\n",
        f"""\
  - url: https://example.invalid/one
  - git: https://example.invalid/two
    commit: {commit}
  - pypi: three
    version: 1.10
  - {{pypi: four, version: 1e3, file: four.whl}}
""",
    )

    assert load(checkout)["tool"].file.sources == (
        UrlWish(url="https://example.invalid/one"),
        GitWish(git="https://example.invalid/two", commit=commit),
        PypiWish(pypi="three", version="1.10"),
        PypiWish(pypi="four", version="1e3", file="four.whl"),
    )


def test_files_are_what_a_build_may_see(checkout):
    for name in (".git/config", "src/.main.hip.swp", "src/main.hip~", "old~/file", "a b/ö"):
        checkout.write(f"recipes/tool/{name}", "")
    (checkout.root / "recipes/tool/link").symlink_to("/nowhere")
    (checkout.root / "recipes/tool/empty").mkdir()
    checkout.write("recipes/tool/src/lock.json", "its own")

    assert load(checkout)["tool"].files() == [
        Path(name)
        for name in (
            "Dockerfile",
            "a b/ö",
            "build.sh",
            "link",
            "src/lock.json",
            "src/main.hip",
        )
    ]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("sdk: sdk", "sdk: sd", "3:6: sdk: there is no container 'sd'; did you mean 'sdk'?"),
        (
            "me: small",
            "me: x",
            "4:10: runtime: there is no container 'x'; there are base, sdk, small",
        ),
        (
            "runtime: small",
            "runtime: base",
            "3:6: sdk sdk has ROCm 7.2.4, but runtime base has None",
        ),
    ],
)
def test_recipe_that_does_not_fit_is_refused(checkout, old, new, reason):
    checkout.edit(TOOL, old, new)

    assert reasons(checkout) == [f"{TOOL}:{reason}"]


def test_sources_have_names_of_their_own(checkout):
    with (checkout.root / TOOL).open("a") as stream:
        stream.write("  - url: https://example.invalid/other/data.tar?raw=1\n")
        stream.write("  - {pypi: data, version: 1.0, file: data.tar}\n")
        stream.write("  - url: https://example.invalid/data.tar.gz\n")

    assert reasons(checkout) == [
        f"{TOOL}:7:10: sources.1.url: another source is called data.tar as well",
        f"{TOOL}:8:38: sources.2.file: another source is called data.tar as well",
    ]


def test_sdk_and_runtime_have_one_rocm(checkout):
    checkout.edit("containers/small/container.yaml", "7.2.4", "7.2.5")

    assert reasons(checkout) == [f"{TOOL}:3:6: sdk sdk has ROCm 7.2.4, but runtime small has 7.2.5"]


def test_files_beside_it_are_missed(checkout):
    (checkout.root / "recipes/tool/build.sh").unlink()
    (checkout.root / "recipes/tool/Dockerfile").unlink()

    first, second = reasons(checkout)

    assert "Dockerfile" in first
    assert second == f"{TOOL}:1:1: there is no build.sh beside it"


def test_name_of_a_container_is_refused(checkout):
    (checkout.root / "recipes/tool").rename(checkout.root / "recipes/sdk")

    (reason,) = reasons(checkout)

    assert reason.startswith("recipes/sdk/recipe.yaml:1:1: the name 'sdk' is a container's already")


@pytest.mark.parametrize("name", ["Tool", "to_ol", "dist", "default"])
def test_other_name_is_refused(checkout, name):
    (checkout.root / "recipes/tool").rename(checkout.root / "recipes" / name)

    (reason,) = reasons(checkout)

    assert f"the folder's name '{name}'" in reason


def test_every_fault_of_every_recipe_is_told(checkout):
    for name in ("one", "two"):
        shutil.copytree(checkout.root / "recipes/tool", checkout.root / "recipes" / name)
    checkout.edit("recipes/one/recipe.yaml", "version: 1.10", "version: v1")
    checkout.edit("recipes/two/recipe.yaml", "sdk: sdk", "sdk: none")

    assert [line.partition(": ")[0] for line in reasons(checkout)] == [
        "recipes/one/recipe.yaml:2:10",
        "recipes/two/recipe.yaml:3:6",
    ]
