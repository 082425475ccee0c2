import hashlib
import json
import os
import tarfile
from pathlib import Path

import pytest

from rocbake import export as exporting
from rocbake.errors import BuildError, UsageError
from rocbake.export import export
from rocbake.store import Store


@pytest.fixture
def entry(put, tmp_path):
    return put(Store(tmp_path / "artifacts"), with_image=True)


def test_archive_checksum_and_manifest_are_copied(entry, tmp_path):
    folder = tmp_path / "new" / "folder"

    paths = export(entry, folder, image=False)

    assert [path.name for path in paths] == [
        "tool.tar.zst",
        "tool.tar.zst.sha256",
        "tool.manifest.json",
    ]
    assert sorted(folder.iterdir()) == sorted(paths)
    assert paths[0].read_bytes() == b"archive"
    sha256 = hashlib.sha256(b"archive").hexdigest()
    assert paths[1].read_text() == f"{sha256}  tool.tar.zst\n"
    assert json.loads(paths[2].read_text())["files"] == []
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o644}


def test_image_is_written_as_a_tar(entry, tmp_path):
    (path,) = export(entry, tmp_path / "to", image=True)

    assert path.name == "tool-1.10-gfx1201.image.tar"
    with tarfile.open(path) as tar:
        (old,) = json.load(tar.extractfile("manifest.json"))
    assert old["RepoTags"] == ["rocbake/tool:gfx1201"]


def test_bundled_archive_is_copied_with_its_own_manifest(put, tmp_path):
    entry = put(Store(tmp_path / "artifacts"), with_bundle=b"x")

    paths = export(entry, tmp_path / "to", image=False, bundled=True)

    assert [path.name for path in paths] == [
        "tool-bundled.tar.zst",
        "tool-bundled.tar.zst.sha256",
        "tool-bundled.manifest.json",
    ]
    assert paths[0].read_bytes() == b"bundled x"
    assert json.loads(paths[2].read_text())["files"][0]["path"] == "lib/one"


def test_what_needs_no_more_of_rocm_has_no_bundled_archive(entry, tmp_path):
    with pytest.raises(UsageError, match="has no bundled archive") as caught:
        export(entry, tmp_path / "to", image=False, bundled=True)

    assert caught.value.hint == "leave out --bundled"


def damage(path):
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize("name", ["tool.tar.zst", "manifest.json"])
def test_damaged_artifact_is_not_exported(entry, tmp_path, name):
    damage(entry.folder / name)

    with pytest.raises(BuildError, match="damaged since it was stored") as caught:
        export(entry, tmp_path / "to", image=False)

    assert caught.value.hint == "invoke build --recipe tool --force"
    assert list((tmp_path / "to").iterdir()) == []


def test_missing_archive_is_told(entry, tmp_path):
    entry.archive_path.unlink()

    with pytest.raises(BuildError, match=r"damaged since it was stored: .* got no file"):
        export(entry, tmp_path / "to", image=False)


def test_damaged_image_is_not_exported(entry, tmp_path):
    for path in (entry.folder / "image/blobs/sha256").iterdir():
        damage(path)
        with pytest.raises(BuildError):
            export(entry, tmp_path / "to", image=True)
        assert list((tmp_path / "to").iterdir()) == []
        damage(path)
    export(entry, tmp_path / "to", image=True)


def test_what_was_there_stays_until_all_is_well(entry, tmp_path):
    (tmp_path / "tool.tar.zst").write_text("old")
    damage(entry.archive_path)

    with pytest.raises(BuildError):
        export(entry, tmp_path, image=False)

    assert (tmp_path / "tool.tar.zst").read_text() == "old"
    assert not list(tmp_path.glob(".tool*"))


def test_cut_off_copy_leaves_nothing(entry, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting.digest, "sha256_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(entry, tmp_path / "to", image=False)

    assert list((tmp_path / "to").iterdir()) == []


def test_container_has_an_image_only(put, tmp_path):
    entry = put(Store(tmp_path / "artifacts"), name="base", content=None, with_image=True)

    with pytest.raises(UsageError, match="an image and no archive") as caught:
        export(entry, tmp_path / "to", image=False)

    assert caught.value.hint == "add --image"
    assert export(entry, tmp_path / "to", image=True)


def test_folder_that_cannot_be_written_is_told(entry, tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match=r"cannot be written: (File exists|Not a directory)"):
        export(entry, tmp_path / "file", image=False)
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        export(entry, tmp_path / "file" / "below", image=False)


def test_umask_does_not_show(entry, tmp_path):
    before = os.umask(0o077)
    try:
        (path, *_) = export(entry, tmp_path / "to", image=False)
    finally:
        os.umask(before)

    assert path.stat().st_mode & 0o777 == 0o644


ENVIRONMENT = {"XLA_TARGET": "rocm", "XLA_ARCHIVE_PATH": "{archive}", "XLA_BUILD": ""}


def test_lines_to_paste_name_the_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert exporting.in_shell(ENVIRONMENT, Path("a folder/x.tar.gz")) == [
        "export XLA_TARGET=rocm",
        f"export XLA_ARCHIVE_PATH='{tmp_path}/a folder/x.tar.gz'",
        "unset XLA_BUILD",
    ]


def test_job_of_github_is_told_after_what_it_knows(tmp_path):
    file = tmp_path / "env"
    file.write_text("A=1\n")

    exporting.to_github(ENVIRONMENT, tmp_path / "x.tar.gz", job={"GITHUB_ENV": str(file)})

    assert file.read_text().splitlines() == [
        "A=1",
        "XLA_TARGET=rocm",
        f"XLA_ARCHIVE_PATH={tmp_path}/x.tar.gz",
        "XLA_BUILD=",
    ]


def test_where_there_is_no_job_that_is_said(tmp_path):
    with pytest.raises(UsageError, match="no step of GitHub Actions"):
        exporting.to_github(ENVIRONMENT, tmp_path / "x", job={})
    with pytest.raises(UsageError, match="cannot be written"):
        exporting.to_github(ENVIRONMENT, tmp_path / "x", job={"GITHUB_ENV": str(tmp_path)})
