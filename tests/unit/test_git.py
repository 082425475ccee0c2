import hashlib
import os
import shlex
import shutil
import stat
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
# What ssh and git say of a key that the server does not know.
SSH = """\
Warning: Permanently added 'h' to the list of known hosts.
git@h: Permission denied (publickey).
fatal: Could not read from remote repository.

Please make sure you have the correct access rights
and the repository exists.
"""


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

    def object_path(self, digest):
        return self.path / ".git" / "objects" / digest[:2] / digest[2:]

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


@pytest.fixture
def personal(tmp_path, monkeypatch):
    """Let the test write the person's git configuration."""
    path = tmp_path / "gitconfig"
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(path))
    return path


@pytest.fixture
def git_program(tmp_path, monkeypatch):
    """Put a program before git on the PATH; `$GIT` in its text is the real one."""
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()

    def install(text):
        program.write_text(f"#!/bin/sh\nGIT={shutil.which('git')}\n{text}\n")
        program.chmod(stat.S_IRWXU)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return install


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


def publish(repository, server):
    """Serve a repository by the oldest protocol: its files over plain HTTP."""
    repository.git("update-server-info")
    for path in (repository.path / ".git").rglob("*"):
        if path.is_file():
            name = path.relative_to(repository.path / ".git").as_posix()
            server.files[f"/project.git/{name}"] = path.read_bytes()


def test_tree_is_packed_below_name_and_commit(repository, cache):
    fill(repository.path)
    commit = repository.commit()

    source = lock_git(repository.url, commit, cache=cache, mirrors=Mirrors())

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
    plain = lock_git(repository.url, commit, cache=cache, mirrors=Mirrors())
    settings = "[core]\nautocrlf = true\neol = crlf\nsymlinks = false\n"
    settings += f'attributesFile = {tmp_path}/attributes\n[filter "large"]\nsmudge = rev\n'
    (tmp_path / "attributes").write_text("* text=auto eol=crlf ident\n")
    (tmp_path / "gitconfig").write_text(settings)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.setenv(name, str(tmp_path / "another" / "repository"))

    personal = lock_git(repository.url, commit, cache=cache, mirrors=Mirrors())

    packed = {name: data for name, (_, data) in members(cache, plain).items() if data is not None}
    assert packed == {f"project-{commit}/{name}": data for name, data in content.items()}
    assert personal == plain


def test_locked_tree_comes_again(repository, cache):
    fill(repository.path)
    source = lock_git(repository.url, repository.commit(), cache=cache, mirrors=Mirrors())
    cache.prune(set())

    paths = fetch([source], cache=cache, mirrors=Mirrors())

    assert paths == {source.sha256: cache.path(source.sha256)}
    assert cache.verify(source.sha256)


def test_other_tar_than_the_locked_one_is_refused(repository, cache):
    source = lock_git(repository.url, repository.commit(), cache=cache, mirrors=Mirrors())
    other = source.model_copy(update={"sha256": hashlib.sha256(b"").hexdigest()})

    with pytest.raises(FetchError) as caught:
        fetch([other], cache=cache, mirrors=Mirrors())

    assert f"expected sha256 {other.sha256}" in str(caught.value)
    assert f"got      sha256 {source.sha256}" in str(caught.value)


def test_commit_need_not_be_a_branch(repository, cache):
    commit = repository.commit()
    repository.git("commit", "--quiet", "--amend", "--allow-empty", "--message=y")

    assert lock_git(repository.url, commit, cache=cache, mirrors=Mirrors()).commit == commit


def test_server_without_single_commits_gives_everything(repository, cache, server):
    fill(repository.path)
    commit = repository.commit()
    repository.commit()
    publish(repository, server)

    source = lock_git(f"{server.url}/project.git", commit, cache=cache, mirrors=Mirrors())

    assert source.sha256 == lock_git(repository.url, commit, cache=cache, mirrors=Mirrors()).sha256


def test_long_commit_ids_are_known(tmp_path, cache):
    (tmp_path / "long").mkdir()
    repository = Repository(tmp_path / "long", kind="sha256")
    (tmp_path / "long" / "file").write_bytes(b"x")
    commit = repository.commit()

    assert len(commit) == 64
    assert f"long-{commit}/file" in members(
        cache, lock_git(repository.url, commit, cache=cache, mirrors=Mirrors())
    )


@pytest.mark.parametrize("name", ["main", "v1.0", "abcdef0", "HEAD~1", "--upload-pack=x"])
def test_names_that_move_are_refused(repository, cache, name):
    with pytest.raises(LockError, match="is not a full commit id"):
        lock_git(repository.url, name, cache=cache, mirrors=Mirrors())


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
        lock_git(repository.url, found, cache=cache, mirrors=Mirrors())

    assert caught.value.is_gone


def test_missing_repository_is_in_the_report(cache, tmp_path):
    source = git.Git(sha256="0" * 64, size=1, url=(tmp_path / "none").as_uri(), commit="1" * 40)

    with pytest.raises(FetchError, match=r"git: fatal: .* does not (exist|appear)"):
        fetch([source], cache=cache, mirrors=Mirrors())


def test_transports_that_run_programs_are_closed(cache, tmp_path):
    with pytest.raises(DownloadError, match="not allowed"):
        lock_git(f"ext::touch {tmp_path}/ran", "1" * 40, cache=cache, mirrors=Mirrors())

    assert not (tmp_path / "ran").exists()


def test_submodules_are_named_and_refused(repository, cache):
    other = repository.commit()
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{other},third party/lib")
    repository.git("commit", "--quiet", "--message=x")
    commit = repository.git("rev-parse", "HEAD")

    with pytest.raises(FetchError, match="has submodules") as caught:
        lock_git(repository.url, commit, cache=cache, mirrors=Mirrors())

    assert f"  third party/lib at {other}" in str(caught.value)


def test_tree_that_cannot_be_packed_is_a_fetch_error(repository, cache):
    (repository.path / "link").symlink_to("/etc/passwd")

    with pytest.raises(FetchError, match="link"):
        lock_git(repository.url, repository.commit(), cache=cache, mirrors=Mirrors())


def test_passing_faults_are_tried_again(cache, server, answer, quick):
    server.script["/p.git/info/refs"] = [answer(status=503)] * 4

    with pytest.raises(DownloadError, match="not found"):
        lock_git(f"{server.url}/p.git", "1" * 40, cache=cache, mirrors=Mirrors())

    # Each attempt asks once; the fifth gets the plain answer, and the wider request too.
    assert len(server.requests) == 6


# Mirrors


def refusal(*arguments, **options):
    with pytest.raises(FetchError) as caught:
        lock_git(*arguments, **({"mirrors": Mirrors()} | options))
    return caught.value


@pytest.mark.parametrize("kind", ["checkout", "bare", "worktree", "shallow"])
def test_mirror_gives_the_same_and_is_not_recorded(repository, cache, server, tmp_path, kind):
    fill(repository.path)
    commit = repository.commit()
    mirror_path = tmp_path / kind
    {
        "checkout": lambda: repository.path.rename(mirror_path),
        "bare": lambda: repository.git("clone", "--bare", ".", mirror_path),
        "worktree": lambda: repository.git("worktree", "add", "--detach", mirror_path),
        "shallow": lambda: repository.git("clone", "--depth=1", repository.url, mirror_path),
    }[kind]()
    url = f"{server.url}/us/project.git"
    direct = lock_git(mirror_path.as_uri(), commit, cache=cache, mirrors=Mirrors())
    mirrors = Mirrors(git={url: (str(mirror_path),)})

    locked = lock_git(url, commit, cache=cache, mirrors=mirrors)
    cache.prune(set())
    fetch([locked], cache=cache, mirrors=mirrors)

    assert (locked.url, locked.commit) == (url, commit)
    tar = members(cache, locked)
    assert {name.partition("/")[0] for name in tar} == {f"project-{commit}"}
    assert f"project-{commit}/folder/näme" in tar
    assert locked.size == direct.size
    assert server.requests == []


def test_whole_host_may_have_a_mirror(repository, cache, server, tmp_path):
    commit = repository.commit()
    mirrors = Mirrors(git={f"{server.url}/us/": (f"{tmp_path.as_uri()}/",)})

    source = lock_git(f"{server.url}/us/project.git", commit, cache=cache, mirrors=mirrors)

    assert source == lock_git(repository.url, commit, cache=cache, mirrors=Mirrors()).model_copy(
        update={"url": f"{server.url}/us/project.git"}
    )
    assert server.requests == []


def test_mirrors_are_tried_in_order_and_the_address_last(repository, cache, tmp_path, capsys):
    source = lock_git(repository.url, repository.commit(), cache=cache, mirrors=Mirrors())
    cache.prune(set())
    (tmp_path / "empty").mkdir()
    Repository(tmp_path / "empty")
    places = (str(tmp_path / "none"), str(tmp_path / "empty"))

    fetch([source], cache=cache, mirrors=Mirrors(git={repository.url: places}))

    told = capsys.readouterr().err
    assert cache.verify(source.sha256)
    assert f"{tmp_path}/none: no such folder, or not one that you may read" in told
    assert "it came from another place" in told
    # A mirror that is behind is no fault.
    assert "/empty" not in told


def test_every_place_that_gives_another_tree_is_refused(repository, cache, tmp_path):
    commit = repository.commit()
    repository.git("clone", "--bare", ".", tmp_path / "mirror")
    source = lock_git(repository.url, commit, cache=cache, mirrors=Mirrors())
    other = source.model_copy(update={"sha256": hashlib.sha256(b"").hexdigest()})
    mirrors = Mirrors(git={repository.url: (str(tmp_path / "mirror"),)})
    cache.prune(set())

    with pytest.raises(FetchError) as caught:
        fetch([other], cache=cache, mirrors=mirrors)

    mirror_at = str(caught.value).index(f"{tmp_path}/mirror: is not the locked file")
    assert str(caught.value).index(f"{repository.url}: is not the locked file") > mirror_at
    assert str(caught.value).count(f"expected sha256 {other.sha256}") == 2
    assert cache.usage().files == 0


def test_answers_of_all_places_are_in_one_error(cache, tmp_path):
    url = (tmp_path / "origin").as_uri()

    error = refusal(url, "1" * 40, cache=cache, mirrors=Mirrors(git={url: (f"{tmp_path}/none",)}))

    lines = str(error).splitlines()
    assert lines[0] == f"{url} at {'1' * 40} could not be had:"
    assert lines[1].startswith(f"  {tmp_path}/none: no such folder")
    assert lines[2].startswith(f"  {url}: git: fatal: ")


@pytest.mark.parametrize("options", [["--bare"], []], ids=["bare", "checkout"])
def test_mirror_of_another_user_needs_a_word_to_git(
    repository, cache, personal, git_program, options
):
    commit = repository.commit()
    place = repository.path.parent / "a mirror"
    repository.git("clone", *options, ".", place)
    # The variable with which git's own tests make every folder another user's.
    git_program('GIT_TEST_ASSUME_DIFFERENT_OWNER=1 exec "$GIT" "$@"')
    url = f"{repository.url}/none"
    mirrors = Mirrors(git={url: (str(place),)})

    error = refusal(url, commit, cache=cache, mirrors=mirrors)
    subprocess.run(shlex.split(error.hint), check=True)

    assert f"{place}: belongs to another user" in str(error)
    assert str(place) in personal.read_text()
    assert lock_git(url, commit, cache=cache, mirrors=mirrors).url == url


def test_personal_rule_against_local_transports_is_for_others(repository, cache, personal):
    personal.write_text('[protocol "file"]\nallow = never\n')
    commit = repository.commit()
    mirrors = Mirrors(git={"http://host.invalid/": (f"{repository.path.parent}",)})

    url = "http://host.invalid/project.git"
    assert lock_git(url, commit, cache=cache, mirrors=mirrors).url == url


# Damage


def remove(path):
    path.unlink()


def spoil(path):
    path.chmod(0o600)
    path.write_bytes(b"spoilt")


@pytest.mark.parametrize("of", ["HEAD:folder/näme", "HEAD:folder"])
@pytest.mark.parametrize("damage", [remove, spoil])
def test_object_that_a_mirror_lacks_is_named(repository, cache, capsys, of, damage):
    fill(repository.path)
    commit = repository.commit()
    lacking = repository.git("rev-parse", of)
    damage(repository.object_path(lacking))
    url = f"{repository.url}/none"
    mirrors = Mirrors(git={url: (str(repository.path),)})

    error = refusal(url, commit, cache=cache, mirrors=mirrors)

    told = str(error).splitlines()[1]
    assert f"the mirror is incomplete: object {lacking} is missing or damaged; git: " in told
    assert told.count(lacking) == 2
    assert error.hint.startswith(f"git clone --mirror {url} ")
    assert "; attempt " not in capsys.readouterr().err


def test_incomplete_repository_is_no_mirror(repository, cache):
    fill(repository.path)
    commit = repository.commit()
    lacking = repository.git("rev-parse", "HEAD:program")
    repository.object_path(lacking).unlink()

    error = refusal(repository.url, commit, cache=cache)

    assert f"the repository is incomplete: object {lacking} is missing" in str(error)
    assert error.hint is None


def test_clone_without_file_contents_is_no_mirror(repository, cache, tmp_path):
    fill(repository.path)
    commit = repository.commit()
    repository.git("config", "uploadpack.allowFilter", "true")
    repository.git("clone", "--bare", "--filter=blob:none", repository.url, tmp_path / "mirror")
    shutil.rmtree(repository.path)
    mirrors = Mirrors(git={repository.url: (str(tmp_path / "mirror"),)})

    error = refusal(repository.url, commit, cache=cache, mirrors=mirrors)

    assert "the mirror is incomplete: object " in str(error)


def test_file_that_a_web_server_lacks_is_named(repository, cache, server):
    fill(repository.path)
    commit = repository.commit()
    lacking = repository.git("rev-parse", "HEAD:program")
    repository.object_path(lacking).unlink()
    publish(repository, server)

    error = refusal(f"{server.url}/project.git", commit, cache=cache)

    assert f"the repository is incomplete: object {lacking} is missing" in str(error)


@pytest.mark.parametrize(
    ("words", "attempts"),
    [(f"unable to read {'a' * 40}", 1), ("Out of memory, malloc failed", 5)],
)
@pytest.mark.usefixtures("quick")
def test_pack_that_breaks_off_is_asked_for_again_unless_an_object_is_missing(
    repository, cache, personal, words, attempts
):
    commit = repository.commit()
    asked, program = repository.path / "asked", repository.path / "pack"
    # It reads all that is asked for, and gives the head of a pack of 5 objects and none of them.
    program.write_text(
        f"#!/bin/sh\ncat > /dev/null\necho x >> {asked}\nprintf 'PACK\\0\\0\\0\\2\\0\\0\\0\\5'\n"
        f"echo 'fatal: {words}' >&2\nexit 128\n"
    )
    program.chmod(stat.S_IRWXU)
    personal.write_text(f"[uploadpack]\npackObjectsHook = {program}\n")

    error = refusal(repository.url, commit, cache=cache)

    assert str(error).endswith(f"git: remote: fatal: {words}")
    assert asked.read_text() == "x\n" * attempts


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (SSH, "git@h: Permission denied (publickey)."),
        (
            "remote: Repository not found.\nfatal: repository 'https://***@h/x/' not found\n",
            "fatal: repository 'https://***@h/x/' not found",
        ),
        ("fatal: early EOF\n", "fatal: early EOF"),
        ("", "exit code 128"),
    ],
)
@pytest.mark.usefixtures("quick")
def test_line_that_tells_why_is_told(repository, cache, git_program, said, told):
    git_program(
        f"""case "$*" in *' fetch '*) printf %s {shlex.quote(said)} >&2; exit 128 ;; esac
        exec "$GIT" "$@\""""
    )

    assert str(refusal(repository.url, "1" * 40, cache=cache)).endswith(f"git: {told}")
