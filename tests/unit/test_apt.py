import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rocbake import apt, run
from rocbake.container import Archive
from rocbake.errors import FetchError, LockError, TrustError

ARCHIVE = Archive(
    name="debian",
    keyring="keyring.asc",
    suites=[{"name": "sid"}, {"name": "experimental", "only": ["hip*", "roc*"]}],
)
INRELEASE = "Codename: {}\nDate: Sun, 01 Nov 2026 12:00:00 +0000\n"
PACKAGE = """\
Package: {}
Version: {}
Architecture: amd64
SHA256: {}
Size: 7
Filename: pool/{}.deb

"""


@pytest.fixture
def said(monkeypatch, tmp_path):
    """Stand in for apt: note what it is asked, answer as a test wants, in a root of its own."""
    answers = {"update": (0, ""), "install": "", "show": "", "asked": [], "until": ""}

    def fake(words, *, env=None, **options):
        answers["asked"].append(words)
        if words[0] == "apt-config":
            return run.Result(0, 'Acquire::http::Proxy "http://p.invalid";\nDir "/";\n', "")
        root = Path(env["APT_CONFIG"]).parent
        answers["root"] = root
        answers["files"] = {
            name: (root / name).read_text()
            for name in ("sources.list", "preferences", "apt.conf", "status")
        }
        if words[1] == "update":
            code, talk = answers["update"]
            for suite, codename in (("sid", "sid"), ("experimental", "rc-buggy")):
                path = root / f"state/lists/m_dists_{suite}_InRelease"
                path.write_text(INRELEASE.format(codename) + answers["until"])
            return run.Result(code, "", talk)
        return run.Result(0, answers[words[1]], "")

    monkeypatch.setattr(apt.run, "run", fake)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return answers


@pytest.fixture
def indices(tmp_path):
    def indices(*mirrors):
        return apt.Indices(ARCHIVE, keyring=tmp_path / "keyring.asc", mirrors=mirrors)

    return indices


MIRROR, OTHER = "http://m.invalid/debian", "http://other.invalid/debian"


def test_archive_is_looked_at_in_a_root_of_its_own(said, indices, tmp_path):
    with indices(MIRROR) as open_:
        assert [(one.suite, one.codename, one.date) for one in open_.releases()] == [
            ("sid", "sid", datetime(2026, 11, 1, 12, tzinfo=UTC)),
            ("experimental", "rc-buggy", datetime(2026, 11, 1, 12, tzinfo=UTC)),
        ]
        root = said["root"]

    assert root.is_relative_to(tmp_path)
    assert not root.exists()
    signed = f"signed-by={tmp_path}/keyring.asc"
    assert said["files"]["sources.list"] == (
        f"deb [{signed}] {MIRROR} sid main\ndeb [{signed}] {MIRROR} experimental main\n"
    )
    settings = said["files"]["apt.conf"]
    assert f'Dir::State::status "{root}/status";' in settings
    assert 'Dir::Etc::trusted "/dev/null";' in settings
    assert 'Acquire::http::Proxy "http://p.invalid";' in settings
    assert 'Dir "/";' not in settings


def test_suite_with_names_gives_nothing_else(said, indices):
    with indices(MIRROR):
        pass

    assert said["files"]["preferences"] == (
        "Package: hip* roc*\nPin: release a=experimental\nPin-Priority: 600\n\n"
        "Package: *\nPin: release a=experimental\nPin-Priority: -1\n"
    )


def test_next_mirror_is_asked_when_one_fails(said, indices):
    said["update"] = (0, "W: Failed to fetch x")

    with pytest.raises(FetchError) as caught:
        indices(MIRROR, OTHER).__enter__()

    assert str(caught.value).splitlines()[1:] == [
        f"  {MIRROR}: W: Failed to fetch x",
        f"  {OTHER}: W: Failed to fetch x",
    ]
    assert "ROCBAKE_MIRRORS" in caught.value.hint
    assert not said["root"].exists()


@pytest.mark.parametrize("talk", ["W: GPG error: m", "E: The repository is not signed."])
def test_signature_that_is_not_the_keyrings_is_told(said, indices, talk):
    said["update"] = (100, talk)

    with pytest.raises(TrustError) as caught:
        indices(MIRROR).__enter__()

    assert caught.value.hint.startswith("check keyring.asc")
    assert caught.value.exit_code == 12


SECRET = "https://me:s3cr3t@m.invalid/debian"


def test_passwords_of_mirrors_are_not_told(said, indices):
    said["update"] = (100, f"Err:1 {SECRET} sid InRelease\nE: Failed '{SECRET}/x'")

    with pytest.raises(FetchError) as caught:
        indices(SECRET).__enter__()

    assert "s3cr3t" not in str(caught.value)
    assert "https://***@m.invalid/debian: E: Failed 'https://***@m.invalid/debian/x'" in str(
        caught.value
    )


def test_passwords_in_the_lines_of_apt_are_not_told(said, indices, monkeypatch):
    def fail(*_, **__):
        raise LockError(f"apt-get failed: apt-get install '?essential'\n  | '{SECRET}/a.deb' a")

    with indices(MIRROR) as open_:
        monkeypatch.setattr(apt.run, "run", fail)
        with pytest.raises(LockError) as caught:
            open_.resolve(["aa"])

    assert str(caught.value) == (
        "apt-get failed: apt-get install '?essential'\n  | 'https://***@m.invalid/debian/a.deb' a"
    )


@pytest.mark.parametrize(("year", "warned"), [(2000, 2), (9000, 0)])
def test_release_past_its_date_is_warned_of(said, indices, capsys, year, warned):
    said["until"] = f"Valid-Until: Sun, 08 Nov {year} 12:00:00 +0000\n"

    with indices(MIRROR) as open_:
        open_.releases()

    told = capsys.readouterr().err.splitlines()
    assert len(told) == warned
    for line, suite in zip(told, ("sid", "experimental"), strict=False):
        assert line.startswith(f"! {suite}: its Release file of Sun, 01 Nov 2026 12:00:00")
        assert f"valid until Sun, 08 Nov {year}" in line


def test_no_mirror_and_no_apt_are_told(said, indices, monkeypatch):
    with pytest.raises(FetchError, match="no mirror of the archive 'debian' is known"):
        indices().__enter__()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(LockError, match="apt-get is not on PATH"):
        indices(MIRROR).__enter__()


def test_closure_is_locked_as_the_index_has_it(said, indices):
    said["install"] = (
        "'http://m/pool/x' libb_1%3a2.0-1_amd64.deb 7 SHA256:1\nother line\n"
        "'http://m/pool/x' aa_1.0_amd64.deb 7 SHA256:1\n"
    )
    said["show"] = PACKAGE.format("aa", "1.0", "1" * 64, "aa") + PACKAGE.format(
        "libb", "1:2.0-1", "2" * 64, "libb"
    )

    with indices(MIRROR) as open_:
        found = open_.resolve(["aa"], essential=True)

    assert [(deb.name, deb.version, deb.path, deb.size) for deb in found] == [
        ("aa", "1.0", "pool/aa.deb", 7),
        ("libb", "1:2.0-1", "pool/libb.deb", 7),
    ]
    words = next(words for words in said["asked"] if words[1] == "install")
    assert words[2:] == ("--print-uris", "--yes", "-qq", "?essential", "aa")
    assert set(said["asked"][-1][2:]) == {"--no-all-versions", "aa=1.0", "libb=1:2.0-1"}


def test_what_is_below_is_installed_and_never_changed(said, indices):
    said["show"] = PACKAGE.format("aa", "1.0", "1" * 64, "aa")
    with indices(MIRROR) as open_:
        said["install"] = "'u' aa_1.0_amd64.deb 7 x\n"
        below = open_.resolve(["aa"])
        said["install"] = ""
        assert open_.resolve(["aa"], installed=below) == []
        assert "Package: aa\n" in said["files"]["status"]
        assert "Status: install ok installed" in said["files"]["status"]

        said["install"] = "'u' aa_1.1_amd64.deb 7 x\n"
        with pytest.raises(LockError, match=r"aa: 1\.0 is below, 1\.1 is needed"):
            open_.resolve(["b"], installed=below)
        said["show"] = ""
        with pytest.raises(LockError, match=r"does not list any more.*\n  aa 1\.0 \(amd64\)"):
            open_.resolve(["b"], installed=below)
