import pytest

from rocbake import project
from rocbake.document import DocumentError
from rocbake.errors import UsageError


def test_own_project_is_sound():
    loaded = project.load()

    assert loaded.recipes
    assert loaded.containers


def test_faults_of_containers_and_recipes_are_told_at_once(checkout, monkeypatch):
    monkeypatch.chdir(checkout.root)
    checkout.edit("containers/base/container.yaml", "packages:", "packs:")
    checkout.edit("recipes/tool/recipe.yaml", "version: 1.10", "version: x")
    checkout.write("recipes/other/recipe.yaml", "summary: s\nversion: 1\nsdk: sdk\nruntime: sdk\n")

    with pytest.raises(DocumentError) as caught:
        checkout.load()

    assert [line.partition(": ")[0] for line in str(caught.value).splitlines()] == [
        "containers/base/container.yaml:1:1",
        "containers/base/container.yaml:7:1",
        "recipes/other/recipe.yaml:1:1",
        "recipes/other/recipe.yaml:1:1",
        "recipes/tool/recipe.yaml:2:10",
    ]


def test_faults_of_containers_alone_are_told_alone(checkout):
    checkout.edit("containers/base/container.yaml", "packages:", "packs:")

    with pytest.raises(DocumentError) as caught:
        checkout.load()

    assert len(caught.value.problems) == 2


def test_recipes_are_chosen_by_name(checkout):
    loaded = checkout.load()

    assert [one.name for one in loaded.choose([])] == ["tool"]
    assert [one.name for one in loaded.choose(["tool", "tool"])] == ["tool"]
    with pytest.raises(UsageError, match="there is no recipe 'x', 'y'; there are tool") as caught:
        loaded.choose(["x", "tool", "y"])
    assert caught.value.hint == "invoke list"
