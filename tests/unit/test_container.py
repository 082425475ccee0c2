import shutil

import pytest

from rocbake import container
from rocbake.document import DocumentError

BASE = "containers/base/container.yaml"
SDK = "containers/sdk/container.yaml"
SMALL = "containers/small/container.yaml"


@pytest.fixture(autouse=True)
def _in_checkout(checkout, monkeypatch):
    monkeypatch.chdir(checkout.root)


def reasons(checkout):
    with pytest.raises(DocumentError) as caught:
        container.load_all(checkout.root)
    return str(caught.value).splitlines()


def test_parents_come_before_children(checkout):
    shutil.copytree(checkout.root / "containers/sdk", checkout.root / "containers/aaa")
    checkout.edit("containers/aaa/container.yaml", "parent: base", "parent: small")
    checkout.edit("containers/aaa/Dockerfile", "FROM base", "FROM small")

    loaded = container.load_all(checkout.root)

    assert list(loaded) == ["base", "small", "aaa", "sdk"]
    assert [one.name for one in loaded["aaa"].chain] == ["base", "small", "aaa"]
    assert loaded["aaa"].keyring == checkout.root / "containers/base/keyring.asc"
    assert loaded["aaa"].archive == loaded["base"].file.archive


def test_rocm_is_the_nearest_below(checkout):
    checkout.edit(SDK, "provider: debian\nrocm: 7.2.4\n", "")
    checkout.edit(SDK, "parent: base", "parent: small")
    checkout.edit("containers/sdk/Dockerfile", "FROM base", "FROM small")

    loaded = container.load_all(checkout.root)

    assert loaded["base"].rocm is None
    assert loaded["sdk"].rocm == "7.2.4"


def test_rocm_stays_text(checkout):
    checkout.edit(SDK, "7.2.4", "7.10")

    assert container.load_all(checkout.root)["sdk"].rocm == "7.10"


def test_no_container_is_no_error(tmp_path):
    assert container.load_all(tmp_path / "none") == {}


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        (
            SDK,
            "t: base",
            "t: bas",
            "2:9: parent: there is no container 'bas'; did you mean 'base'?",
        ),
        (
            SDK,
            "t: base",
            "t: x",
            "2:9: parent: there is no container 'x'; there are base, sdk, small",
        ),
        (SDK, "provider: debian\n", "", "3:7: 'provider' and 'rocm' go together"),
        (SDK, "rocm: 7.2.4\n", "", "3:11: 'provider' and 'rocm' go together"),
        (
            BASE,
            "keyring.asc",
            "other.asc",
            "4:12: archive.keyring: there is no other.asc beside it",
        ),
    ],
)
def test_container_that_does_not_fit_is_refused(checkout, file, old, new, reason):
    checkout.edit(file, old, new)

    assert reasons(checkout) == [f"{file}:{reason}"]


def test_archive_is_said_once(checkout):
    checkout.write("containers/sdk/keyring.asc", "")
    with (checkout.root / SDK).open("a") as stream:
        stream.write("archive: {name: own, keyring: keyring.asc, suites: [{name: sid}]}\n")

    assert reasons(checkout) == [
        f"{SDK}:6:10: 'archive' is said by the root container alone, and 'parent' is given here"
    ]


def test_archive_is_said_by_the_root_container(checkout):
    checkout.edit(SDK, "parent: base\n", "")

    assert reasons(checkout) == [
        f"{SDK}:1:1: 'archive' is missing: a container without 'parent' says where packages are"
    ]


def test_dockerfile_takes_nothing_that_is_not_locked(checkout):
    checkout.write("containers/small/Dockerfile", "FROM base\nCOPY --from=packages / /\nFROM sdk\n")
    checkout.write("containers/base/Dockerfile", "FROM packages\n")

    assert [line.partition(": ")[0] for line in reasons(checkout)] == [
        "containers/base/Dockerfile:1:1",
        "containers/small/Dockerfile:3:1",
    ]


@pytest.mark.parametrize("name", ["base", "sdk"])
def test_dockerfile_stands_beside_it(checkout, name):
    (checkout.root / f"containers/{name}/Dockerfile").unlink()

    (reason,) = reasons(checkout)

    assert reason.startswith(f"containers/{name}/")
    assert "Dockerfile" in reason


def test_circle_is_refused(checkout):
    checkout.edit(SDK, "parent: base", "parent: small")
    checkout.edit(SMALL, "parent: base", "parent: sdk")

    assert reasons(checkout) == [
        f"{SDK}:2:9: parent: goes round in a circle: sdk -> small -> sdk",
        f"{SMALL}:2:9: parent: goes round in a circle: small -> sdk -> small",
    ]


def test_parent_of_itself_is_refused(checkout):
    checkout.edit(SDK, "parent: base", "parent: sdk")

    assert reasons(checkout) == [f"{SDK}:2:9: parent: goes round in a circle: sdk -> sdk"]


@pytest.mark.parametrize("parent", ["none", "sdk"])
def test_wrong_parent_is_told_where_it_stands_alone(checkout, parent):
    checkout.write("containers/top/container.yaml", "summary: s\nparent: sdk\npackages: []\n")
    checkout.write("containers/top/Dockerfile", "")
    checkout.edit(SDK, "parent: base", f"parent: {parent}")

    assert [line.partition(": ")[0] for line in reasons(checkout)] == [f"{SDK}:2:9"]


def test_providers_do_not_mix(checkout):
    checkout.edit(SDK, "parent: base\nprovider: debian", "parent: small\nprovider: amd")

    assert reasons(checkout) == [f"{SDK}:3:11: provider: amd, but small below it has another"]


def test_providers_do_not_mix_across_a_layer_without_one(checkout):
    checkout.write("containers/between/container.yaml", "summary: s\nparent: small\npackages: []\n")
    checkout.write("containers/between/Dockerfile", "")
    checkout.edit(SDK, "parent: base\nprovider: debian", "parent: between\nprovider: amd")

    assert reasons(checkout) == [f"{SDK}:3:11: provider: amd, but small below it has another"]


@pytest.mark.parametrize("name", ["Sdk", "1sdk", "sdk_x", "sdk-", "sd..k"])
def test_name_of_another_form_is_refused(checkout, name):
    (checkout.root / "containers/small").rename(checkout.root / "containers" / name)

    (reason,) = reasons(checkout)

    assert f"the folder's name '{name}' is not of the form" in reason


@pytest.mark.parametrize("name", ["dist", "default", "packages", "shared"])
def test_name_that_bake_files_use_is_refused(checkout, name):
    folder = checkout.root / "containers" / name
    shutil.copytree(checkout.root / "containers/small", folder, dirs_exist_ok=True)

    (reason,) = reasons(checkout)

    assert f"the folder's name '{name}' means something else" in reason


def test_every_fault_of_every_file_is_told(checkout):
    checkout.edit(SMALL, "rocm: 7.2.4\n", "")
    checkout.edit(SDK, "packages:", "packs:")
    checkout.edit(SDK, "rocm: 7.2.4", "rocm: new")
    checkout.write("containers/top/container.yaml", "summary: s\nparent: sdk\npackages: []\n")
    checkout.write("containers/top/Dockerfile", "")

    assert reasons(checkout) == [
        f"{SDK}:1:1: 'packages' is missing",
        f"{SDK}:4:7: rocm: String should match pattern '^[0-9]+(\\.[0-9]+)*$'; got text 'new'",
        f"{SDK}:5:1: unknown key 'packs'; did you mean 'packages'?",
        f"{SMALL}:3:11: 'provider' and 'rocm' go together",
    ]
