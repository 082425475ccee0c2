import json
import os
import stat
from pathlib import Path

import pytest

from rocbake import bake
from rocbake.errors import BuildError

GOLDEN = Path(__file__).parent.parent / "data" / "plan" / "bake.json"


@pytest.fixture
def described(checkout):
    return bake.describe(checkout.plan("gfx1100,gfx1201"), ["small"])


def test_bake_file_is_the_recorded_one(described):
    assert json.dumps(described, indent=2) + "\n" == GOLDEN.read_text()


def test_nothing_reaches_a_network(described):
    for one in described["target"].values():
        assert one["network"] == "none"
        assert one["attest"] == ["type=provenance,disabled=true", "type=sbom,disabled=true"]
        assert one["platforms"] == ["linux/amd64"]
        assert one["args"]["SOURCE_DATE_EPOCH"] == "1793347681"


def test_every_input_is_below_one_folder(described, tmp_path):
    text = json.dumps(described)

    assert str(tmp_path) not in text
    for one in described["target"].values():
        places = [one["context"], *one.get("contexts", {}).values()]
        for place in places:
            if place.startswith("target:"):
                assert place.removeprefix("target:") in described["target"]
            else:
                assert "://" not in place
                assert not place.startswith(("/", "..", "~"))
        for output in one.get("output", []):
            assert "dest=out/" in output


def test_only_what_is_asked_is_exported(checkout):
    made = checkout.plan()

    for exports in ([], ["base"], ["sdk", "base"]):
        described = bake.describe(made, exports)

        exported = [name for name, one in described["target"].items() if "output" in one]
        product = ["dist", "bundle", "tests", "tool"]
        assert sorted(exported) == sorted([*exports, *product])
        assert described["group"]["default"]["targets"] == [*sorted(exports), *product]


def test_what_changes_no_byte_is_handed_on_and_in_no_key(checkout):
    made = checkout.plan()

    usual = bake.describe(made, [])["target"]["dist"]["args"]
    asked = bake.describe(made, [], jobs=3)["target"]["dist"]["args"]

    assert (usual["JOBS"], usual["CCACHE"]) == ("", "1")
    assert asked["JOBS"] == "3"
    assert {name for name in usual if usual[name] != asked[name]} == {"JOBS"}
    assert usual["SDK"] == made.chain(made.sdk)[-1].key


def test_build_from_nothing_takes_nothing_from_before_and_leaves_it_to_others(checkout):
    made = checkout.plan()

    usual = bake.describe(made, [])["target"]
    fresh = bake.describe(made, [], fresh=" 1")["target"]
    again = bake.describe(made, [], fresh=" 2")["target"]

    for name in ("dist", "bundle", "tests"):
        # Told to ignore its cache, BuildKit would empty ccache's as well.
        assert "no-cache" not in fresh[name]
        assert fresh[name]["args"]["CCACHE"] == ""
        assert len({one[name]["args"]["SDK"] for one in (usual, fresh, again)}) == 3
    for name in ("base", "sdk", "small", "tool"):
        assert fresh[name]["no-cache"] is True
        assert "no-cache" not in usual[name]


def test_tools_of_the_sdk_are_laid_out_and_part_of_the_plan(checkout):
    before = checkout.plan()
    tools = checkout.root / "containers" / "sdk" / "tools"
    tools.mkdir()
    (tools / "one.py").write_text("print(1)\n")

    after = checkout.plan()

    assert before.files != after.files
    assert [layer.key for layer in before.layers] == [layer.key for layer in after.layers]


def test_images_are_exported_with_their_epoch_and_compressed_once(described):
    (output,) = described["target"]["tool"]["output"]

    for part in ("type=oci", "tar=false", "rewrite-timestamp=true", "compression=zstd"):
        assert part in output.split(",")


def test_image_says_what_it_is(checkout, described):
    made = checkout.plan("gfx1100,gfx1201")
    labels = described["target"]["tool"]["labels"]

    assert labels["dev.rocbake.key"] == made.key
    assert labels["dev.rocbake.targets"] == "gfx1100,gfx1201"
    assert labels["org.opencontainers.image.version"] == "1.10"
    assert described["target"]["dist"]["labels"] == {}
    assert "dev.rocbake.targets" not in described["target"]["small"]["labels"]


def laid_out(checkout, folder, made):
    rootfs = folder / "rootfs.tar"
    files = checkout.files(made, folder / "cache")
    rootfs.write_bytes(b"root")
    rootfs.chmod(0o644)
    work = folder / "work"
    work.mkdir()
    bake.lay_out(made, checkout.load(), work, files=files, rootfs=rootfs)
    return work


def test_every_place_in_the_bake_file_is_there(checkout, tmp_path):
    made = checkout.plan()
    work = laid_out(checkout, tmp_path, made)

    for one in bake.describe(made, [])["target"].values():
        for place in (one["context"], *one.get("contexts", {}).values()):
            assert place.startswith("target:") or (work / place).is_dir()
        assert (work / one["context"] / one["dockerfile"]).is_file()
    assert (work / "containers/base/rootfs.tar").read_bytes() == b"root"


def test_nothing_is_there_but_what_is_named(checkout, tmp_path):
    checkout.write("recipes/tool/src/.main.swp", "")
    checkout.write("recipes/tool/src/main.hip~", "")
    checkout.write("containers/sdk/notes", "")
    checkout.write("containers/shared/notes", "")
    (checkout.root / "recipes/tool/link").symlink_to("src/main.hip")
    made = checkout.plan()

    work = laid_out(checkout, tmp_path, made)

    assert sorted(str(path.relative_to(work)) for path in work.rglob("*") if not path.is_dir()
                  or path.is_symlink()) == [
        "containers/base/Dockerfile",
        "containers/base/rootfs.tar",
        "containers/sdk/Dockerfile",
        "containers/shared/install.sh",
        "containers/small/Dockerfile",
        "packages/sdk/cmake_4.0_amd64.deb",
        "packages/sdk/hipcc_1%3A7.2.4-1_amd64.deb",
        "packages/small/libamdhip64-7_7.2.4+dfsg-1_amd64.deb",
        "recipes/Dockerfile",
        "recipes/tool/Dockerfile",
        "recipes/tool/build.sh",
        "recipes/tool/link",
        "recipes/tool/src/main.hip",
        "sources/data.tar",
    ]  # fmt: skip
    assert (work / "recipes/tool/link").readlink() == Path("src/main.hip")
    assert (work / "sources/data.tar").read_bytes() == checkout.content(
        "https://example.invalid/data.tar"
    )


def modes(work):
    return {
        path.relative_to(work): stat.S_IMODE(path.lstat().st_mode)
        for path in work.rglob("*")
        if not path.is_file() or path.relative_to(work).parts[0] in {"recipes", "containers"}
    }


def test_modes_are_the_same_under_every_umask(checkout, tmp_path):
    made, found = checkout.plan(), []
    (checkout.root / "recipes/tool/build.sh").chmod(0o700)
    (checkout.root / "recipes/tool/src/main.hip").chmod(0o600)

    for number, umask in enumerate((0o000, 0o022, 0o077)):
        folder = tmp_path / str(number)
        folder.mkdir()
        before = os.umask(umask)
        try:
            found.append(modes(laid_out(checkout, folder, made)))
        finally:
            os.umask(before)

    assert found[0] == found[1] == found[2]
    assert found[0][Path("recipes/tool/build.sh")] == 0o755
    assert found[0][Path("recipes/tool/src/main.hip")] == 0o644
    assert found[0][Path("recipes/tool/src")] == found[0][Path("sources")] == 0o755


def test_recipe_without_sources_has_an_empty_folder_of_them(checkout, tmp_path):
    checkout.edit("recipes/tool/recipe.yaml", "sources:\n", "")
    checkout.edit("recipes/tool/recipe.yaml", "  - url: https://example.invalid/data.tar\n", "")
    checkout.lock()

    work = laid_out(checkout, tmp_path, checkout.plan())

    assert list((work / "sources").iterdir()) == []


def test_file_on_another_file_system_is_copied(checkout, tmp_path, monkeypatch):
    def other_device(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", other_device)

    work = laid_out(checkout, tmp_path, checkout.plan())

    data = (work / "sources/data.tar").stat()
    assert data.st_nlink == 1
    assert stat.S_IMODE(data.st_mode) == 0o444
    assert (work / "sources/data.tar").read_bytes()


def test_two_sources_of_one_name_are_refused_and_neither_is_touched(checkout, tmp_path):
    made = checkout.plan()
    package = made.layers[-1].packages[0]
    twin = package.model_copy(update={"sha256": "0" * 64})
    layer = made.layers[-1].model_copy(update={"packages": (package, twin)})
    made = made.model_copy(update={"layers": (*made.layers[:-1], layer)})
    files = checkout.files(checkout.plan(), tmp_path / "cache")
    files["0" * 64] = tmp_path / "other"
    files["0" * 64].write_bytes(b"other")
    before = files[package.sha256].read_bytes()
    rootfs = tmp_path / "rootfs.tar"
    rootfs.write_bytes(b"root")
    work = tmp_path / "work"
    work.mkdir()

    with pytest.raises(BuildError, match=f"two sources are called {package.file_name}"):
        bake.lay_out(made, checkout.load(), work, files=files, rootfs=rootfs)

    assert files[package.sha256].read_bytes() == before


def test_a_name_that_is_taken_is_not_written_over(tmp_path):
    first, second, place = tmp_path / "first", tmp_path / "second", tmp_path / "place"
    first.write_bytes(b"first")
    second.write_bytes(b"second")
    bake._link(first, place)

    with pytest.raises(FileExistsError):
        bake._link(second, place)

    assert first.read_bytes() == b"first"


def test_what_changed_since_the_plan_was_made_is_refused(checkout, tmp_path):
    made = checkout.plan()
    loaded = checkout.load()
    script = loaded.recipes[made.name].folder / "build.sh"
    script.write_text(f"{script.read_text()}# later\n")
    dockerfile = loaded.containers[made.sdk].folder / "Dockerfile"
    dockerfile.write_text(f"{dockerfile.read_text()}# later\n")

    with pytest.raises(BuildError) as refused:
        laid_out(checkout, tmp_path, made)

    assert f"recipes/{made.name}" in str(refused.value)
    assert f"containers/{made.sdk}" in str(refused.value)


def test_no_proxy_of_the_user_reaches_a_step(described):
    for one in described["target"].values():
        assert one["args"]["HTTPS_PROXY"] == one["args"]["https_proxy"] == ""
