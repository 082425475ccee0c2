import hashlib
import os
import subprocess
import tarfile

import pytest

from rocbake import git
from rocbake.cache import Cache
from rocbake.errors import FetchError, LockError
from rocbake.fetch import fetch, lock_git
from rocbake.mirror import Mirrors
from rocbake.retry import DownloadError

DATE = "1700000000 +0200"
LINES = b"one\r\ntwo\n$Id$ $Format:%H$\n"


class Repository:
    def __init__(self, path, kind="sha1"):
        self.path = path
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(path),
            "GIT_AUTHOR_DATE": "1600000000 +0000",
            "GIT_COMMITTER_DATE": DATE,
        }
        self.git("init", "--quiet", f"--object-format={kind}")

    def git(self, *arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@a.invalid")
        command = ["git", "-C", self.path, *who, *arguments]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message=x")
        return self.git("rev-parse", "HEAD")

    @property
    def url(self):
        return self.path.as_uri()


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "project.git").mkdir()
    return Repository(tmp_path / "project.git")


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def members(cache, source):
    with tarfile.open(cache.path(source.sha256)) as tar:
        return {
            member.name: (member, tar.extractfile(member).read() if member.isfile() else None)
            for member in tar
        }


def fill(path):
    (path / "folder").mkdir()
    (path / "folder" / "näme").write_bytes(b"\x00\xff")
    (path / "program").write_bytes(b"#!/bin/sh\n")
    (path / "program").chmod(0o755)
    (path / "link").symlink_to("folder/näme")


def test_tree_is_packed_below_name_and_commit(repository, cache):
    fill(repository.path)
    commit = repository.commit()

    source = lock_git(repository.url, commit, cache=cache)

    tar = members(cache, source)
    root = f"project-{commit}"
    assert source.url == repository.url
    assert source.commit == commit
    assert cache.has(source.sha256, source.size)
    assert {name for name in tar if name != root} == {
        f"{root}/folder", f"{root}/folder/näme", f"{root}/link", f"{root}/program"
    }  # fmt: skip
    assert tar[f"{root}/folder/näme"][1] == b"\x00\xff"
    assert tar[f"{root}/link"][0].linkname == "folder/näme"
    assert tar[f"{root}/program"][0].mode & 0o100
    assert not tar[f"{root}/folder/näme"][0].mode & 0o100
    assert {member.mtime for member, _ in tar.values()} == {1_700_000_000}
    assert list((cache.root / "part").iterdir()) == []


def test_attributes_and_personal_settings_change_nothing(repository, cache, tmp_path, monkeypatch):
    attributes = "[attr]odd text eol=crlf ident\n*.odd odd export-subst\n"
    attributes += "*.bin filter=large text eol=lf crlf\n*.wide working-tree-encoding=UTF-16\n"
    attributes += "secret export-ignore\n"
    content = {
        ".gitattributes": attributes.encode(),
        "a.odd": LINES,
        "b.bin": LINES,
        "c.wide": b"wide\n",
        "secret": b"secret\n",
    }
    for name, data in content.items():
        # Past the attributes: what is committed is what the test says.
        (repository.path / "blob").write_bytes(data)
        blob = repository.git("hash-object", "-w", "--no-filters", "blob")
        repository.git("update-index", "--add", "--cacheinfo", f"100644,{blob},{name}")
    repository.git("commit", "--quiet", "--message=x")
    commit = repository.git("rev-parse", "HEAD")
    plain = lock_git(repository.url, commit, cache=cache)
    settings = "[core]\nautocrlf = true\neol = crlf\nsymlinks = false\n"
    settings += f'attributesFile = {tmp_path}/attributes\n[filter "large"]\nsmudge = rev\n'
    (tmp_path / "attributes").write_text("* text=auto eol=crlf ident\n")
    (tmp_path / "gitconfig").write_text(settings)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.setenv(name, str(tmp_path / "another" / "repository"))

    personal = lock_git(repository.url, commit, cache=cache)

    packed = {name: data for name, (_, data) in members(cache, plain).items() if data is not None}
    assert packed == {f"project-{commit}/{name}": data for name, data in content.items()}
    assert personal == plain


def test_locked_tree_comes_again(repository, cache):
    fill(repository.path)
    source = lock_git(repository.url, repository.commit(), cache=cache)
    cache.prune(set())

    paths = fetch([source], cache=cache, mirrors=Mirrors())

    assert paths == {source.sha256: cache.path(source.sha256)}
    assert cache.verify(source.sha256)


def test_other_tar_than_the_locked_one_is_refused(repository, cache):
    source = lock_git(repository.url, repository.commit(), cache=cache)
    other = source.model_copy(update={"sha256": hashlib.sha256(b"").hexdigest()})

    with pytest.raises(FetchError) as caught:
        fetch([other], cache=cache, mirrors=Mirrors())

    assert f"expected sha256 {other.sha256}" in str(caught.value)
    assert f"got      sha256 {source.sha256}" in str(caught.value)


def test_commit_need_not_be_a_branch(repository, cache):
    commit = repository.commit()
    repository.git("commit", "--quiet", "--amend", "--allow-empty", "--message=y")

    assert lock_git(repository.url, commit, cache=cache).commit == commit


def test_server_without_single_commits_gives_everything(repository, cache, server):
    fill(repository.path)
    commit = repository.commit()
    repository.commit()
    repository.git("update-server-info")
    # The oldest protocol: files of the repository over plain HTTP.
    for path in (repository.path / ".git").rglob("*"):
        if path.is_file():
            name = path.relative_to(repository.path / ".git").as_posix()
            server.files[f"/project.git/{name}"] = path.read_bytes()

    source = lock_git(f"{server.url}/project.git", commit, cache=cache)

    assert source.sha256 == lock_git(repository.url, commit, cache=cache).sha256


def test_long_commit_ids_are_known(tmp_path, cache):
    (tmp_path / "long").mkdir()
    repository = Repository(tmp_path / "long", kind="sha256")
    (tmp_path / "long" / "file").write_bytes(b"x")
    commit = repository.commit()

    assert len(commit) == 64
    assert f"long-{commit}/file" in members(cache, lock_git(repository.url, commit, cache=cache))


@pytest.mark.parametrize("name", ["main", "v1.0", "abcdef0", "HEAD~1", "--upload-pack=x"])
def test_names_that_move_are_refused(repository, cache, name):
    with pytest.raises(LockError, match="is not a full commit id"):
        lock_git(repository.url, name, cache=cache)


@pytest.mark.parametrize("of", ["tag", "tree", "nothing"])
def test_only_a_commit_is_a_commit(repository, cache, of):
    repository.commit()
    repository.git("tag", "--annotate", "--message=x", "v1")
    found = {
        "tag": lambda: repository.git("rev-parse", "v1"),
        "tree": lambda: repository.git("rev-parse", "HEAD^{tree}"),
        "nothing": lambda: "1" * 40,
    }[of]()

    with pytest.raises(DownloadError, match=f"has no commit {found}") as caught:
        lock_git(repository.url, found, cache=cache)

    assert caught.value.is_gone


def test_missing_repository_is_in_the_report(cache, tmp_path):
    source = git.Git(sha256="0" * 64, size=1, url=(tmp_path / "none").as_uri(), commit="1" * 40)

    with pytest.raises(FetchError, match=r"git: fatal: .* does not (exist|appear)"):
        fetch([source], cache=cache, mirrors=Mirrors())


def test_transports_that_run_programs_are_closed(cache, tmp_path):
    with pytest.raises(DownloadError, match="not allowed"):
        lock_git(f"ext::touch {tmp_path}/ran", "1" * 40, cache=cache)

    assert not (tmp_path / "ran").exists()


def test_submodules_are_named_and_refused(repository, cache):
    other = repository.commit()
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{other},third party/lib")
    repository.git("commit", "--quiet", "--message=x")
    commit = repository.git("rev-parse", "HEAD")

    with pytest.raises(FetchError, match="has submodules") as caught:
        lock_git(repository.url, commit, cache=cache)

    assert f"  third party/lib at {other}" in str(caught.value)


def test_tree_that_cannot_be_packed_is_a_fetch_error(repository, cache):
    (repository.path / "link").symlink_to("/etc/passwd")

    with pytest.raises(FetchError, match="link"):
        lock_git(repository.url, repository.commit(), cache=cache)


def test_passing_faults_are_tried_again(cache, server, answer, quick):
    server.script["/p.git/info/refs"] = [answer(status=503)] * 4

    with pytest.raises(DownloadError, match="not found"):
        lock_git(f"{server.url}/p.git", "1" * 40, cache=cache)

    # Each attempt asks once; the fifth gets the plain answer, and the wider request too.
    assert len(server.requests) == 6
