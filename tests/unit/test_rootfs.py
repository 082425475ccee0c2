import contextlib
import io
import json
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest

from rocbake import rootfs, run
from rocbake.errors import BuildError


@pytest.fixture
def layer(checkout):
    return checkout.plan().layers[0]


def test_key_is_of_what_decides_about_bytes(layer):
    same = layer.model_copy(update={"tag": "x", "files": "0" * 64, "key": "1" * 64})
    keys = [
        rootfs.key(layer),
        rootfs.key(layer.model_copy(update={"epoch": 1})),
        rootfs.key(layer.model_copy(update={"packages": layer.packages[1:]})),
    ]

    assert rootfs.key(same) == keys[0]
    assert len(set(keys)) == 3


def test_missing_mmdebstrap_is_told(layer, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)

    with pytest.raises(BuildError, match="mmdebstrap is not installed") as caught:
        rootfs.make(layer, tmp_path / "rootfs.tar", files={}, log_path=tmp_path / "log")

    assert caught.value.hint == "./bootstrap"


def tar(wanted, folders=(), form=tarfile.PAX_FORMAT):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as made:
        for name, about in wanted:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if name in folders else tarfile.REGTYPE
            for key, value in about.items():
                setattr(info, key, value)
            made.addfile(info)
    return stream.getvalue()


@pytest.fixture
def mmdebstrap(monkeypatch, tmp_path):
    """Stand in for mmdebstrap: note how it was called, and write what it would."""
    seen = {}

    def fake(words, *, env, **options):
        if seen.get("fails"):
            raise BuildError("mmdebstrap failed")
        place = next(word for word in words if word.endswith(".tar"))
        repository = Path(words[-1].partition("copy:")[2].split()[0])
        seen.update(words=words, env=env, packages=(repository / "Packages").read_text(),
                    files=sorted(path.name for path in repository.iterdir()))  # fmt: skip
        Path(place).write_bytes(seen.get("tar") or tar([]))
        return run.Result(0, "", "")

    class Control(contextlib.nullcontext):
        def __init__(self, path):
            super().__init__(self)
            self.path = path

        def debcontrol(self):
            return f"Package: {Path(self.path).name.partition('_')[0]}\n"

    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(rootfs.run, "run", fake)
    monkeypatch.setattr(rootfs, "DebFile", Control)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return seen


def make(layer, checkout, tmp_path):
    files = checkout.files(checkout.plan(), tmp_path / "cache")
    destination = tmp_path / "kept" / "rootfs.tar"
    rootfs.make(layer, destination, files=files, log_path=tmp_path / "log")
    return destination


def test_only_locked_packages_are_offered(layer, checkout, tmp_path, mmdebstrap):
    destination = make(layer, checkout, tmp_path)

    assert destination.is_file()
    assert mmdebstrap["files"] == ["Packages", "apt_3.0_amd64.deb", "libc6_2.41-1_amd64.deb"]
    assert "--include=apt=3.0,libc6=2.41-1" in mmdebstrap["words"]
    stanzas = mmdebstrap["packages"].split("\n\n")
    assert len(stanzas) == 2
    assert f"SHA256: {layer.packages[0].sha256}" in stanzas[0]
    assert "Filename: ./apt_3.0_amd64.deb" in stanzas[0]
    sources = [word for word in mmdebstrap["words"] if word.startswith("deb ")]
    assert len(sources) == 1
    assert "copy:" in sources[0]


def test_environment_of_the_caller_does_not_show(layer, checkout, tmp_path, mmdebstrap,
                                                 monkeypatch):  # fmt: skip
    for name in ("LANG", "LC_MESSAGES", "TZ", "SOURCE_DATE_EPOCH", "http_proxy", "APT_CONFIG"):
        monkeypatch.setenv(name, "ours")

    make(layer, checkout, tmp_path)

    assert "ours" not in json.dumps(mmdebstrap["env"])
    assert mmdebstrap["env"]["SOURCE_DATE_EPOCH"] == "1793347681"
    assert mmdebstrap["env"]["TZ"] == "UTC"


def test_failure_leaves_nothing(layer, checkout, tmp_path, mmdebstrap):
    mmdebstrap["fails"] = True

    with pytest.raises(BuildError):
        make(layer, checkout, tmp_path)

    assert list((tmp_path / "kept").iterdir()) == []
    assert not list(tmp_path.glob("rocbake-rootfs-*"))


def test_cut_off_writing_leaves_nothing(layer, checkout, tmp_path, mmdebstrap, monkeypatch):
    def interrupted(_made, destination, _epoch):
        destination.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(rootfs, "_rewrite", interrupted)

    with pytest.raises(KeyboardInterrupt):
        make(layer, checkout, tmp_path)

    assert list((tmp_path / "kept").iterdir()) == []


def members(path):
    with tarfile.open(path) as made:
        return list(made)


def test_what_the_machine_left_is_left_out(layer, checkout, tmp_path, mmdebstrap):
    kept = ["./", "./etc", "./etc/passwd", "./etc/machine-id", "./var/log", "./var/cache/apt",
            "./run", "./tmp", "./usr/bin/apt"]  # fmt: skip
    left = ["./etc/hostname", "./etc/resolv.conf", "./etc/passwd-", "./var/lib/dpkg/status-old",
            "./var/log/dpkg.log", "./var/cache/apt/pkgcache.bin", "./run/x", "./tmp/x"]  # fmt: skip
    folders = {"./", "./etc", "./var/log", "./var/cache/apt", "./run", "./tmp"}
    mmdebstrap["tar"] = tar([(name, {}) for name in sorted(kept + left)], folders)

    found = [one.name for one in members(make(layer, checkout, tmp_path))]

    assert [f"./{name.removeprefix('./').strip('.')}" for name in found] == sorted(kept)


def test_members_are_in_one_form(layer, checkout, tmp_path, mmdebstrap):
    capability = {rootfs._CAPABILITY: "cap"}
    mmdebstrap["tar"] = tar(
        [
            ("./old", {"mtime": 5.5, "uname": "root", "gname": "root", "mode": 0o4755, "uid": 7}),
            ("./new", {"mtime": 2e9}),
            ("./with", {"pax_headers": capability | {"SCHILY.xattr.security.selinux": "x"}}),
            ("./folder", {"mtime": 1}),
        ],
        {"./folder"},
    )

    old, new, with_, folder = members(make(layer, checkout, tmp_path))

    assert (old.mtime, old.uname, old.gname, old.mode, old.uid) == (5, "", "", 0o4755, 7)
    assert new.mtime == folder.mtime == 1793347681
    assert with_.pax_headers == capability


def test_bytes_do_not_change_with_the_form_of_the_tar(layer, checkout, tmp_path, mmdebstrap):
    made = []
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        mmdebstrap["tar"] = tar([("./" + "n" * 120, {"mtime": 7})], form=form)
        made.append(make(layer, checkout, tmp_path).read_bytes())

    assert made[0] == made[1]


def test_what_is_kept_is_found_until_it_changes(layer, checkout, tmp_path, mmdebstrap):
    kept = tmp_path / "kept"
    kept.mkdir()
    assert rootfs.find(layer, kept) is None

    path = rootfs.keep(
        layer, kept, files=checkout.files(checkout.plan(), tmp_path / "c"), log_path=tmp_path / "l"
    )

    assert rootfs.find(layer, kept) == path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert rootfs.find(layer, kept) is None


def test_a_tar_without_its_digest_is_not_used(layer, tmp_path):
    (tmp_path / f"{rootfs.key(layer)}.tar").write_bytes(b"cut off")

    assert rootfs.find(layer, tmp_path) is None
