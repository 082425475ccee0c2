"""Git sources: the tree of one commit as a deterministic tar, by way of the git program.

The files come out as they were committed. Neither a person's git configuration nor attributes in
the tree (line ends, keywords, large-file filters, what an archive leaves out) change a byte.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rocbake import archive
from rocbake.errors import BuildError, FetchError
from rocbake.mirror import redact
from rocbake.retry import DownloadError, retry
from rocbake.run import run
from rocbake.source import Git

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rocbake.archive import TarDigest
    from rocbake.run import Result

_FETCH_SECONDS = 3600.0
_LOCAL_SECONDS = 600.0
_SHA1_DIGITS = 40
# What outranks every attribute that a tree or a person sets. Without `text` no line end changes;
# the rest are the other ways in which a checkout may differ from what was committed.
_ATTRIBUTES = "* -text -ident -filter -working-tree-encoding\n"
# Some addresses name a program to run, such as those that begin with ext::, so only these go.
_PROTOCOLS = "file:git:http:https:ssh"
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


def pack(
    url: str,
    commit: str,
    destination: Path,
    *,
    scratch_dir: Path,
    sleep: Callable[[float], None],
) -> TarDigest:
    """Fetch one commit and write its tree as a tar, below a folder `<repository>-<commit>`.

    Args:
        url: Where the repository is.
        commit: The full commit id.
        destination: The tar to write.
        scratch_dir: An empty folder with room for the repository and its tree.
        sleep: Waits between attempts.

    Raises:
        DownloadError: The repository or the commit could not be had.
        FetchError: git is missing, or the tree has submodules.
    """
    repository = scratch_dir / "repository"
    tree = scratch_dir / "tree"
    tree.mkdir()
    kind = "sha1" if len(commit) == _SHA1_DIGITS else "sha256"
    _git("init", "--quiet", "--bare", "--template=", f"--object-format={kind}", str(repository))
    info_dir = repository / "info"
    info_dir.mkdir(exist_ok=True)
    (info_dir / "attributes").write_text(_ATTRIBUTES, encoding="utf-8")
    retry(url, lambda: _fetch(repository, url, commit), sleep=sleep)
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


def _fetch(repository: Path, url: str, commit: str) -> None:
    """Fetch the commit alone; from a server that gives no single commits, everything."""
    fetch = (f"--git-dir={repository}", "fetch", "--quiet", "--no-tags")
    result = _git(*fetch, "--depth=1", "--", url, commit, is_remote=True, check=False)
    if result.returncode != 0 and "not our ref" in result.stderr:
        raise DownloadError(url, f"has no commit {commit}", status=404)
    if result.returncode != 0 and not _is_passing(result):
        branches = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
        result = _git(*fetch, "--", url, *branches, is_remote=True, check=False)
    if result.returncode != 0:
        told = [line for line in result.stderr.splitlines() if line.startswith("fatal: ")]
        cause = redact(told[0]) if told else f"exit code {result.returncode}"
        raise DownloadError(url, f"git: {cause}", is_transient=_is_passing(result))
    found = _git(
        f"--git-dir={repository}", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}",
        check=False,
    )  # fmt: skip
    if found.stdout.strip() != commit:
        raise DownloadError(url, f"has no commit {commit}", status=404)


def _is_passing(result: Result) -> bool:
    text = result.stderr.lower()
    return any(words in text for words in _PASSING)


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
