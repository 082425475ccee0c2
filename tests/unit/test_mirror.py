import shlex
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocbake import mirror
from rocbake.errors import RecipeError
from rocbake.mirror import Mirrors, apt_archives, load, parse, parse_inline, redact

ONE = "http://one.invalid/debian"
TWO = "https://two.invalid/debian"
VAULT = "https://vault.invalid/sha256"
HOST = "https://host.invalid/"
SNAPSHOTS = """\
Acquire::Snapshots::URI "";
Acquire::Snapshots::URI::Host "";
Acquire::Snapshots::URI::Host::.far.invalid "https://past.invalid/far/@PATH@/@SNAPSHOTID@/";
Acquire::Snapshots::URI::Host::one.invalid "https://past.invalid/archive/@PATH@/@SNAPSHOTID@/";
Acquire::Snapshots::URI::Host::none.invalid "no";
Acquire::Snapshots::URI::Origin::Debian "https://past.invalid/origin/@SNAPSHOTID@/";
"""


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """Let a test see no configuration of the machine it runs on."""
    monkeypatch.delenv("ROCBAKE_MIRRORS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
def user_file(tmp_path):
    path = tmp_path / "config" / "rocbake" / "mirrors.yaml"
    path.parent.mkdir(parents=True)
    return path


@pytest.fixture
def apt(tmp_path):
    """Install an apt that says what it is told."""

    def install(repositories, snapshots="", code=0):
        (tmp_path / "bin").mkdir()
        for name, text in (("apt-get", repositories), ("apt-config", snapshots)):
            path = tmp_path / "bin" / name
            path.write_text(f"#!/bin/sh\nprintf '%s' {shlex.quote(text)}\nexit {code}\n")
            path.chmod(stat.S_IRWXU)

    return install


def refusal(text, *, inline=False):
    with pytest.raises(RecipeError) as caught:
        (parse_inline if inline else parse)(text, where="file")
    return str(caught.value)


# Addresses


def test_archive_urls_are_in_order():
    mirrors = Mirrors(archives={"debian": (ONE + "/", TWO)})

    urls = mirrors.archive_urls("debian", "pool/a/a_1.deb", snapshot=None)

    assert urls == [f"{ONE}/pool/a/a_1.deb", f"{TWO}/pool/a/a_1.deb"]
    assert mirrors.archive_urls("ubuntu", "pool/a/a_1.deb", snapshot=None) == []


def test_paths_are_quoted():
    mirrors = Mirrors(archives={"debian": (ONE,)})

    assert mirrors.archive_urls("debian", "p/g++_1+b~c%3a2.deb", snapshot=None) == [
        f"{ONE}/p/g%2B%2B_1%2Bb~c%253a2.deb"
    ]


def test_snapshot_takes_its_place():
    mirrors = Mirrors(archives={"debian": (f"{TWO}/@SNAPSHOT@/", ONE)})

    with_snapshot = mirrors.archive_urls("debian", "a", snapshot="20261030T080801Z")
    without = mirrors.archive_urls("debian", "a", snapshot=None)

    assert with_snapshot == [f"{TWO}/20261030T080801Z/a", f"{ONE}/a"]
    assert without == [f"{ONE}/a"]


def test_vaults_serve_any_digest():
    assert Mirrors(blobs=(VAULT, f"{ONE}/")).blob_urls("ab") == [f"{VAULT}/ab", f"{ONE}/ab"]


@pytest.mark.parametrize(
    ("url", "places"),
    [
        (f"{HOST}us/tool", ["/srv/tool", f"{TWO}/tool.git"]),
        (f"{HOST}us/tool.git", ["/srv/us/tool.git"]),
        (f"{HOST}us/", ["/srv/us/"]),
        (f"{HOST}them/tool", [f"{ONE}/host/them/tool", "/srv/all/them/tool"]),
        ("https://host.invalid.other/us/tool", []),
        ("http://host.invalid/us/tool", []),
    ],
)
def test_longest_match_gives_the_places_of_a_repository(url, places):
    mirrors = Mirrors(
        git={
            HOST: (f"{ONE}/host/", "/srv/all"),
            f"{HOST}us/": ("/srv/us/",),
            f"{HOST}us/tool": ("/srv/tool", f"{TWO}/tool.git"),
            f"{HOST}us/to": ("/srv/nothing",),
        }
    )

    assert mirrors.git_places(url) == [*places, url]


def test_own_address_may_be_put_before_a_mirror():
    mirrors = Mirrors(git={HOST: (HOST, "/srv")})

    assert mirrors.git_places(f"{HOST}a") == [f"{HOST}a", "/srv/a"]


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://user:word@host/a@b?token=c#d", "https://***@host/a@b?***#d"),
        ("https://host/a@b", "https://host/a@b"),
        ("cannot reach 'https://me@host/'", "cannot reach 'https://***@host/'"),
    ],
)
def test_secrets_are_not_shown(address, shown):
    assert redact(address) == shown


# The configuration


def test_file_holds_one_address_or_a_list():
    text = f"debian: [{ONE}, {TWO}]\nblobs: {VAULT}\n"

    assert parse(text, where="file") == {"debian": (ONE, TWO), "blobs": (VAULT,)}
    assert parse("# nothing yet\n", where="file") == {}


def test_git_addresses_are_mapped_to_addresses_and_paths(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    text = f"{HOST}: [ssh://git@two.invalid/x/, ~/git]\n{HOST}us/tool: /srv/git/tool.git/\n"
    words = f"{HOST}=ssh://git@two.invalid/x/ {HOST}us/tool=/srv/git/tool.git/,{HOST}=~/git"
    expected = {
        HOST: ("ssh://git@two.invalid/x/", "/home/me/git"),
        f"{HOST}us/tool": ("/srv/git/tool.git",),
    }

    assert parse(text, where="file") == expected
    assert parse_inline(words, where="X") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("debian: [\n", "file:2: not YAML: "),
        ("a: b: c\n", "file:1: not YAML: "),
        ("- debian\n", "file:1: expected `NAME: ADDRESS`"),
        ("x\n", "file:1: expected `NAME: ADDRESS`"),
        (f"debian: {ONE}\ndebian: {TWO}\n", "file:2: debian is here twice"),
        ("blobs: []\n# why\ndebian: ftp://host/\n", "file:3: 'ftp://host/' is not an http"),
        (f"debian:\n- {ONE}\n- [a]\n", "file:3: expected an address"),
        ("debian:\n", "file:1: '' is not an http"),
        ("debian: http://\n", "file:1: 'http://' is not"),
        ("debian: http://[\n", "file:1: 'http://[' is not"),
        ("debian: 'file:'\n", "file:1: 'file:' is not"),
        ("debian: http://host/?q\n", "file:1: 'http://host/?***' is not"),
        ("debian: htp://me:secret@host\n", "file:1: 'htp://***@host' is not"),
        (f"Debian Sid: {ONE}\n", "file:1: 'Debian Sid' is not an archive's name"),
        (
            f"debian: {ONE}\nhttps://host.invalid: /srv\n",
            "file:2: 'https://host.invalid' ends at no slash: expected 'https://host.invalid/'",
        ),
        ("htp://me:secret@host/: /srv\n", "file:1: 'htp://***@host/' is not a file, git, http,"),
        ("https://: /srv\n", "file:1: 'https://' is not a file, git, http,"),
        ("https://me:secret@host/: /a\n" * 2, "file:2: https://***@host/ is here twice"),
        (
            f"{HOST}:\n- /srv\n- a\n",
            "file:3: 'a' is neither a file, git, http, https or ssh address of git nor an absolute",
        ),
        (f"{HOST}: git@host:tool\n", "file:1: 'git@host:tool' is neither a file, git"),
        (f"{HOST}: file:/srv\n", "file:1: 'file:/srv' is neither"),
        (f"{HOST}: ext://x/\n", "file:1: 'ext://x/' is neither"),
        (f"{HOST}: https://me:secret@two/?q\n", "file:1: 'https://***@two/?***' is neither"),
        (f"{HOST}: ~nobody-of-that-name/x\n", "file:1: '~nobody-of-that-name/x' is neither"),
        (f"{HOST}:\n", "file:1: '' is neither"),
        ("debian: /srv/debian\n", "file:1: '/srv/debian' is not an http"),
        ("a: \0\n", "file:1: not YAML"),
        ("[" * 1000, "file:1: not YAML"),
    ],
)
def test_faults_of_a_file_have_their_line(text, message):
    assert message in refusal(text)


def test_words_hold_one_address_each():
    words = f" debian={ONE},debian={TWO}\n blobs={VAULT}, "

    assert parse_inline(words, where="X") == {"debian": (ONE, TWO), "blobs": (VAULT,)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("debian", "file: 'debian' is neither a file nor NAME=ADDRESS"),
        ("http://me:secret@host", "file: 'http://***@host' is neither"),
        (f"={ONE}", "file: '' is not an archive's name"),
        ("debian=host", "file: 'host' is not an http"),
        (f"{HOST}a=b=/srv", "file: 'b=/srv' is neither a file, git"),
        ("https://host.invalid=/srv", "file: 'https://host.invalid' ends at no slash"),
    ],
)
def test_faults_of_words_are_named(text, message):
    assert message in refusal(text, inline=True)


@given(st.text() | st.text(alphabet="a:-[]{}&*!|>'\"#%@`?,= \n\thtp/0"))
def test_any_text_is_read_or_refused(text):
    for read in (parse, parse_inline):
        result, complaint = {}, "file:"
        try:
            result = read(text, where="file")
        except RecipeError as error:
            complaint = str(error)

        assert complaint.startswith("file:")
        assert all(isinstance(value, tuple) for value in result.values())


NAMES = st.text("abz019.+-", min_size=1, max_size=8).filter(lambda name: name[0].isalnum())
ADDRESSES = st.builds("{}://{}.invalid/{}".format, st.sampled_from(["http", "https"]), NAMES, NAMES)
REPOSITORIES = st.builds("{}{}".format, ADDRESSES, st.sampled_from(["", "/", ".git"]))
PATHS = st.builds("/{}/{}".format, NAMES, NAMES)


def lists_of(addresses):
    return st.lists(addresses, min_size=1, max_size=3)


@settings(max_examples=30)
@given(
    st.dictionaries(NAMES, lists_of(ADDRESSES), max_size=3),
    st.dictionaries(REPOSITORIES, lists_of(REPOSITORIES | PATHS), max_size=3),
)
def test_both_forms_say_the_same(archives, repositories):
    wanted = archives | repositories
    text = "".join(f'"{name}": [{", ".join(listed)}]\n' for name, listed in wanted.items())
    words = ",".join(f"{name}={one}" for name, listed in wanted.items() for one in listed)
    expected = {name: tuple(listed) for name, listed in wanted.items()}

    assert parse(text, where="file") == expected
    assert parse_inline(words, where="file") == expected


def test_nothing_is_configured():
    assert load() == Mirrors()


def test_words_of_the_environment_outrank_the_file(monkeypatch, user_file):
    user_file.write_text(f"debian: {ONE}\n")
    from_file = load()
    monkeypatch.setenv("ROCBAKE_MIRRORS", f"debian={TWO} blobs={VAULT} {HOST}=/srv/git")

    assert from_file == Mirrors(archives={"debian": (ONE,)})
    assert load() == Mirrors(archives={"debian": (TWO,)}, blobs=(VAULT,), git={HOST: ("/srv/git",)})


def test_environment_may_name_a_file(monkeypatch, tmp_path):
    (tmp_path / "a=b.yaml").write_text(f"blobs: {VAULT}\n")
    monkeypatch.setenv("ROCBAKE_MIRRORS", str(tmp_path / "a=b.yaml"))

    assert load() == Mirrors(blobs=(VAULT,))


@pytest.mark.parametrize("value", ["~nobody-of-that-name/x", "x" * 5000, "no/such/file"])
def test_environment_that_is_neither_is_refused(monkeypatch, value):
    monkeypatch.setenv("ROCBAKE_MIRRORS", value)

    with pytest.raises(RecipeError, match=r"ROCBAKE_MIRRORS: .* is neither") as caught:
        load()

    assert "ROCBAKE_MIRRORS=debian=ADDRESS" in caught.value.hint


def test_file_that_is_no_text_is_refused(user_file):
    user_file.write_bytes(b"\xff\xfe\xff")

    with pytest.raises(RecipeError, match=r"mirrors\.yaml:1: cannot be read"):
        load()


# This machine's apt


def printed(*addresses):
    """Return what `apt-get update --print-uris` prints for these archives."""
    return "".join(
        f"'{address}/dists/sid/{index}' file_of_{index.replace('/', '_')} 0 \n"
        for index in ("InRelease", "main/binary-amd64/Packages.xz")
        for address in addresses
    )


def test_apt_names_its_archives():
    listed = printed(ONE, TWO, "http://sec.invalid/debian-security", "cdrom://disc/debian")

    assert apt_archives(listed, "") == {
        "debian": (ONE, TWO),
        "debian-security": ("http://sec.invalid/debian-security",),
    }


def test_odd_addresses_of_apt_are_left_out():
    listed = printed("http://host.invalid", "http://[", "tor+http://x/debian", "file:/srv/debian")
    listed += "'http://flat.invalid/debian/./InRelease' flat 0\n\nE: 'quoted' words\n"

    assert apt_archives(listed, "") == {"debian": ("file:/srv/debian",)}


def test_list_of_mirrors_is_read(tmp_path):
    (tmp_path / "debian.list").write_text(f"# ours\n{ONE}/ priority:1\n\nrsync://x/debian\n{TWO}\n")
    listed = printed(f"mirror+file:{tmp_path}/debian.list", f"mirror+file:{tmp_path}/none.list")

    assert apt_archives(listed, "") == {"debian": (ONE, TWO)}


@pytest.mark.parametrize(
    ("address", "service"),
    [
        (ONE, "https://past.invalid/archive/debian/@SNAPSHOT@"),
        ("http://a.b.far.invalid/x/debian", "https://past.invalid/far/x/debian/@SNAPSHOT@"),
        ("http://none.invalid/debian", "https://past.invalid/origin/@SNAPSHOT@"),
        ("http://far.invalid/debian", "https://past.invalid/origin/@SNAPSHOT@"),
    ],
)
def test_snapshot_service_of_apt_is_the_last_resort(address, service):
    assert apt_archives(printed(address), SNAPSHOTS) == {"debian": (address, service)}


def test_snapshot_service_serves_archives_the_machine_does_not_use():
    assert apt_archives(printed("http://host.invalid/ubuntu"), SNAPSHOTS) == {
        "ubuntu": ("http://host.invalid/ubuntu",),
        "debian": ("https://past.invalid/origin/@SNAPSHOT@",),
    }


def test_override_outranks_the_host():
    override = (
        'Acquire::Snapshots::URI::Override::Origin::Debian "https://own.invalid/@SNAPSHOTID@";\n'
    )

    assert apt_archives(printed(ONE), SNAPSHOTS + override)["debian"][1:] == (
        "https://own.invalid/@SNAPSHOT@",
    )


def test_apt_serves_what_is_not_configured(monkeypatch, apt):
    apt(printed(ONE, "http://own.invalid/private"), SNAPSHOTS)
    monkeypatch.setenv("ROCBAKE_MIRRORS", f"debian={TWO}")

    assert load() == Mirrors(
        archives={"debian": (TWO,), "private": ("http://own.invalid/private",)}
    )


def test_apt_that_fails_knows_nothing(apt):
    apt("", code=100)

    assert load() == Mirrors()


def test_no_host_is_in_the_code():
    assert "://" not in mirror.__doc__
    assert not [value for value in vars(mirror).values() if "://" in str(value)[:20]]
