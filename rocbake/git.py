"""Git sources: the tree of one commit as a deterministic tar, by way of the git program.

It comes from a mirror or from the repository's own address, which makes no difference to the tar.
The files come out as they were committed. Neither a person's git configuration nor attributes in
the tree (line ends, keywords, large-file filters, what an archive leaves out) change a byte.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rocbake import archive, log
from rocbake.errors import BuildError, FetchError
from rocbake.mirror import GIT_SCHEMES, redact
from rocbake.retry import DownloadError, mismatch, retry
from rocbake.run import run
from rocbake.source import Git

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocbake.archive import TarDigest
    from rocbake.cache import Cache
    from rocbake.mirror import Mirrors
    from rocbake.run import Result

_FETCH_SECONDS = 3600.0
_LOCAL_SECONDS = 600.0
_SHA1_DIGITS = 40
# What outranks every attribute that a tree or a person sets. Without `text` no line end changes;
# the rest are the other ways in which a checkout may differ from what was committed.
_ATTRIBUTES = "* -text -ident -filter -working-tree-encoding\n"
# Some addresses name a program to run, such as those that begin with ext::, so only these go.
# The variable outranks a person's protocol.*.allow, so a mirror on this machine is always allowed.
# https://git-scm.com/docs/git#Documentation/git.txt-codeGITALLOWPROTOCOLcode
_PROTOCOLS = ":".join(GIT_SCHEMES)
# The variables that say how to get to a server, not which repository is meant.
_TRANSPORT = ("GIT_SSL_", "GIT_SSH", "GIT_ASKPASS", "GIT_PROXY", "GIT_CONFIG", "GIT_HTTP_")
_PASSING = (
    "connection reset",
    "connection refused",
    "connection timed out",
    "could not resolve host",
    "temporary failure in name resolution",
    "early eof",
    "rpc failed",
    "unexpected disconnect",
    "returned error: 429",
    "returned error: 5",
)
# How git names an object that it cannot read, at either end of a fetch. The same words without an
# object, "possible repository corruption", may also mean that the other end ran out of memory.
_DAMAGE = re.compile(
    r"(?:unable to read|unable to find|unable to unpack|could not read|could not fetch"
    r"|bad object|bad tree object|(?:loose|packed|missing \w+) object) '?"
    r"([0-9a-f]{40}(?:[0-9a-f]{24})?)\b",
    re.IGNORECASE,
)
_FOREIGN = re.compile(r"detected dubious ownership in repository at '([^']*)'")
# What git says of every fetch that ends early, before or after the line that tells why.
_VAGUE = (
    "could not read from remote repository",
    "early eof",
    "hung up unexpectedly",
    "bad pack header",
    "invalid index-pack output",
    "index-pack failed",
    "git-pack-objects died",
    "possible repository corruption",
    "please make sure you have the correct access rights",
    "and the repository exists",
)


def bring(
    url: str,
    commit: str,
    *,
    cache: Cache,
    mirrors: Mirrors,
    sleep: Callable[[float], None],
    answers: list[DownloadError],
    sha256: str | None = None,
) -> TarDigest | None:
    """Put the tree of one commit into the cache, from the first place that gives it.

    The tar has all files below a folder `<repository>-<commit>`, named by the address alone.

    Args:
        url: The repository's own address, the last place that is asked.
        commit: The full commit id.
        cache: Where the tar goes.
        mirrors: Which places are asked before.
        sleep: Waits between attempts.
        answers: Gets what each place said that did not give it.
        sha256: The tar's digest as it is locked; None takes what comes.

    Returns:
        The tar's digest, or None if no place gave the tree.

    Raises:
        FetchError: git is missing, the tree cannot be packed, or the cache cannot be written.
    """
    for place in mirrors.git_places(url):
        with cache.scratch_dir("git-") as folder:
            path = Path(folder) / "tar"
            try:
                tar = _pack(place, url, commit, path, sleep=sleep)
                if sha256 not in (None, tar.sha256):
                    raise mismatch(place, f"sha256 {sha256}", f"sha256 {tar.sha256}")
            except DownloadError as error:
                answers.append(error)
                continue
            cache.accept(path, tar.sha256)
        for answer in answers:
            if not answer.is_gone:
                log.warn(f"{answer}\n  it came from another place")
        return tar
    return None


def _pack(
    place: str, url: str, commit: str, destination: Path, *, sleep: Callable[[float], None]
) -> TarDigest:
    """Fetch the commit from a place, and write its tree as a tar beside what that leaves."""
    repository = destination.parent / "repository"
    tree = destination.parent / "tree"
    tree.mkdir()
    kind = "sha1" if len(commit) == _SHA1_DIGITS else "sha256"
    _git("init", "--quiet", "--bare", "--template=", f"--object-format={kind}", str(repository))
    info_dir = repository / "info"
    info_dir.mkdir(exist_ok=True)
    (info_dir / "attributes").write_text(_ATTRIBUTES, encoding="utf-8")
    retry(place, lambda: _fetch(repository, place, url, commit), sleep=sleep)
    _refuse_submodules(repository, url, commit)
    inside = (f"--git-dir={repository}", f"--work-tree={tree}")
    _git(*inside, "read-tree", commit)
    _git(*inside, "checkout-index", "--all", "--quiet")
    epoch = int(_git(*inside, "show", "--no-patch", "--format=%ct", commit).stdout)
    name = Git(sha256="0" * 64, size=0, url=url, commit=commit).file_name
    try:
        return archive.write_tar(tree, destination, prefix=name.removesuffix(".tar"), epoch=epoch)
    except BuildError as error:
        raise FetchError(f"{redact(url)} at {commit}: {error}") from error


def _fetch(repository: Path, place: str, url: str, commit: str) -> None:
    """Fetch the commit alone; from a server that gives no single commits, everything."""
    if place.startswith("/") and not os.access(place, os.R_OK | os.X_OK):
        raise DownloadError(place, "no such folder, or not one that you may read")
    fetch = (f"--git-dir={repository}", "fetch", "--quiet", "--no-tags")
    result = _git(*fetch, "--depth=1", "--", place, commit, is_remote=True, check=False)
    if result.returncode != 0 and "not our ref" in result.stderr:
        raise DownloadError(place, f"has no commit {commit}", status=404)
    if result.returncode != 0 and not (_is_passing(result) or _is_permanent(result)):
        branches = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
        result = _git(*fetch, "--", place, *branches, is_remote=True, check=False)
    if result.returncode != 0:
        raise _refusal(result, place, url)
    found = _git(
        f"--git-dir={repository}", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}",
        check=False,
    )  # fmt: skip
    if found.stdout.strip() != commit:
        raise DownloadError(place, f"has no commit {commit}", status=404)


def _refusal(result: Result, place: str, url: str) -> DownloadError:
    """Return the failure that git's words mean, and what to type where that is known."""
    is_mirror = place != url
    foreign = _FOREIGN.search(result.stderr)
    if foreign:
        # Of a checkout it has to be the .git folder, in the settings of a person or the system:
        # https://git-scm.com/docs/git-config#Documentation/git-config.txt-safedirectory
        error = DownloadError(
            place,
            "belongs to another user, and git reads such a repository only if its setting "
            f"safe.directory names {foreign[1]}",
        )
        error.hint = f"git config --global --add safe.directory {shlex.quote(foreign[1])}"
        return error
    cause = f"git: {redact(_told(result))}"
    damage = _DAMAGE.search(result.stderr)
    if damage:
        kind = "mirror" if is_mirror else "repository"
        cause = f"the {kind} is incomplete: object {damage[1]} is missing or damaged; {cause}"
    error = DownloadError(place, cause, is_transient=_is_passing(result))
    if damage and is_mirror:
        error.hint = (
            f"git clone --mirror {shlex.quote(redact(url))} FOLDER, for ROCBAKE_MIRRORS to name"
        )
    return error


def _told(result: Result) -> str:
    """Return the line of git's talk that tells why it failed."""
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    plain = [line for line in lines if not any(words in line.lower() for words in _VAGUE)]
    for beginning in ("remote: fatal: ", "remote: error: ", "fatal: ", "error: "):
        for line in plain:
            if line.startswith(beginning):
                return line
    # The program that goes to the server, such as ssh; what it says before may be harmless.
    return (plain or lines or [f"exit code {result.returncode}"])[-1]


def _is_passing(result: Result) -> bool:
    # A server that lacks an object ends early too, and will do so the next time.
    text = result.stderr.lower()
    return not _is_permanent(result) and any(words in text for words in _PASSING)


def _is_permanent(result: Result) -> bool:
    """Tell whether another request of any kind would fail as this one did."""
    return bool(_DAMAGE.search(result.stderr) or _FOREIGN.search(result.stderr))


def _refuse_submodules(repository: Path, url: str, commit: str) -> None:
    listed = _git(f"--git-dir={repository}", "ls-tree", "-r", "-z", commit).stdout
    lines = []
    for entry in listed.split("\0"):
        facts, _, path = entry.partition("\t")
        if " commit " in facts:
            lines.append(f"  {path} at {facts.split()[-1]}")
    if lines:
        raise FetchError(
            f"{redact(url)} at {commit} has submodules, which a git source does not hold:\n"
            + "\n".join(lines),
            hint="use a source archive that includes them, or a repository without them",
        )


def _git(*arguments: str, is_remote: bool = False, check: bool = True) -> Result:
    # A hook's or a parent's variables would lead git to another repository.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": _PROTOCOLS}
    if is_remote:
        # A person's certificates, proxies, logins and address rewrites are what gets there.
        env |= {name: os.environ[name] for name in os.environ if name.startswith(_TRANSPORT)}
    else:
        env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    seconds = _FETCH_SECONDS if is_remote else _LOCAL_SECONDS
    return run(["git", *arguments], env=env, timeout=seconds, check=check, error=FetchError)
