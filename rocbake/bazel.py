"""Bazel: what it is told to build a product, word by word, and where each word comes from.

Upstream's command line stands in recipe.yaml as upstream has it; what is added here makes the build
hermetic, and each addition says why. What only the container can know - how many jobs it has room
for, which GCC Clang would take - its tools add when it is run. Everything here is pure.
"""

from __future__ import annotations

import netrc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from rocbake.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_Word = Annotated[str, StringConstraints(pattern=r"^[^\s{}]*(\{(targets|home)\}[^\s{}]*)*$")]
Origin = Literal["upstream", "recipe", "rocbake"]

# Places in the container; recipes/bazel.Dockerfile makes them.
HOME = "/rocbake/home"
REPOSITORY_CACHE = "/rocbake/deps"

# https://bazel.build/reference/command-line-reference, for Bazel 7.7
_ADDED = {
    "--incompatible_strict_action_env": "no action sees the PATH or the environment of who calls",
    "--nostamp": "no date, user or host in what is built",
    "--verbose_failures": "the command that failed is shown",
    "--spawn_strategy=local": "a container may not mount, and Bazel's sandbox would",
    f"--repository_cache={REPOSITORY_CACHE}": "downloads come from what the lock names",
}
_OFFLINE = {"--repository_disable_download": "and from nowhere else"}
_SCHEMES = ("http", "https", "grpc", "grpcs")


class BazelWish(BaseModel):
    """What stands below `bazel` in a recipe.yaml.

    In words, `{targets}` stands for the GPU targets, separated by commas, and `{home}` for the
    home folder in the container, which is the same for everyone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: Annotated[str, StringConstraints(pattern=r"^(@[\w.-]+)?//[\w./+-]*(:[\w./+-]+)?$")] = (
        Field(description="label of what is built")
    )
    before: tuple[_Word, ...] = Field(
        default=(), description="upstream's words, as far as they come before what may be added"
    )
    flags: tuple[_Word, ...] = Field(default=(), description="the recipe's own words")
    after: tuple[_Word, ...] = Field(
        default=(), description="upstream's words that come after what may be added"
    )


@dataclass(frozen=True)
class Word:
    """One word of a command line.

    Attributes:
        text: The word as Bazel gets it; no shell reads it any more.
        origin: Who has it there.
        why: What for, of words that are added here.
    """

    text: str
    origin: Origin
    why: str = ""


def command_line(wish: BazelWish, targets: Sequence[str], *, offline: bool = True) -> list[Word]:
    """Return the words behind `bazel build`, as far as they do not depend on the machine.

    Args:
        wish: The recipe's.
        targets: GPU targets.
        offline: Whether it is the stage that builds, and may download nothing.
    """
    added = _ADDED | (_OFFLINE if offline else {})
    return [
        *(Word(_filled(one, targets), "upstream") for one in wish.before),
        *(Word(text, "rocbake", why) for text, why in added.items()),
        *(Word(_filled(one, targets), "recipe") for one in wish.flags),
        *(Word(_filled(one, targets), "upstream") for one in wish.after),
        Word(wish.target, "upstream"),
    ]


def for_container(wish: BazelWish, targets: Sequence[str]) -> dict[str, Any]:
    """Return the same for the container's tools, which put their own words behind the flags.

    `before` and `after` are upstream's, `flags` what is added between them, `offline` what is
    added in the stage that builds, and `target` what is built.
    """
    return {
        "before": [_filled(one, targets) for one in wish.before],
        "flags": [*_ADDED, *(_filled(one, targets) for one in wish.flags)],
        "offline": [*_OFFLINE],
        "after": [_filled(one, targets) for one in wish.after],
        "target": wish.target,
    }


def _filled(word: str, targets: Sequence[str]) -> str:
    return word.replace("{targets}", ",".join(targets)).replace("{home}", HOME)


@dataclass(frozen=True)
class Remote:
    """Bazel's own remote cache and remote execution.

    Neither decides about what is built, so no plan knows of them.

    Attributes:
        cache: Address of the cache, or None.
        executor: Address of the execution service, or None.
    """

    cache: str | None = None
    executor: str | None = None

    @property
    def words(self) -> list[str]:
        """What Bazel is told of it."""
        words = []
        if self.cache:
            words.append(f"--remote_cache={self.cache}")
        if self.executor:
            words += [f"--remote_executor={self.executor}", "--spawn_strategy=remote,local"]
        return words

    @property
    def hosts(self) -> list[str]:
        """The hosts whose credentials it may need."""
        found = [urlsplit(one).hostname for one in (self.cache, self.executor) if one]
        return list(dict.fromkeys(host for host in found if host))


def parse_remote(cache: str, executor: str) -> Remote | None:
    """Read `--bazel-remote-cache` and `--bazel-remote-executor`; None if neither was given.

    Raises:
        UsageError: An address that Bazel does not take, or one that holds a login.
    """
    for option, text in (("--bazel-remote-cache", cache), ("--bazel-remote-executor", executor)):
        if text:
            _check_address(option, text)
    return Remote(cache or None, executor or None) if cache or executor else None


def _check_address(option: str, text: str) -> None:
    allowed = _SCHEMES if option == "--bazel-remote-cache" else _SCHEMES[2:]
    expected = " or ".join(f"{scheme}://HOST[:PORT]" for scheme in allowed)
    # What was typed may hold a password, so it is not repeated.
    wrong = UsageError(f"{option}: expected {expected}")
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in allowed and bool(parts.hostname) and parts.port != 0
    except ValueError as odd:
        raise wrong from odd
    if not is_address or any(letter.isspace() for letter in text):
        raise wrong
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            f"{option}: a login in an address ends up in logs",
            hint=f"put it into ~/.netrc: machine {parts.hostname} login NAME password SECRET",
        )


def credentials(remote: Remote, file: Path) -> str:
    """Return the part of a netrc file that a remote cache or executor needs; empty for none.

    Args:
        remote: The services that are asked.
        file: The user's netrc.

    Raises:
        UsageError: The file is damaged.
    """
    if not file.is_file():
        return ""
    try:
        known = netrc.netrc(file)
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError) as wrong:
        # Its own message may quote a password.
        raise UsageError(f"{file}: not a netrc file that can be read") from wrong
    lines = []
    for host in remote.hosts:
        found = known.hosts.get(host) or known.hosts.get("default")
        if found:
            login, _, password = found
            lines.append(f"machine {host} login {login} password {password}\n")
    return "".join(lines)
