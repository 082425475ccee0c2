import email.utils
import hashlib
import random
import resource
import socket
import threading
import time

import pytest

from rocbake import download
from rocbake.download import Downloader, StoppedError
from rocbake.errors import FetchError
from rocbake.retry import DownloadError

CONTENT = random.Random(1).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
OTHER = random.Random(2).randbytes(len(CONTENT))
OFFSETS = sorted([0, 1, len(CONTENT) - 1, *random.Random(3).sample(range(2, len(CONTENT) - 2), 17)])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "file.part"


class Patient(Downloader):
    """A downloader that notes its waits instead of waiting."""

    def __init__(self):
        self.waits = []
        super().__init__(sleep=self.waits.append)


@pytest.fixture
def downloader():
    with Patient() as made:
        yield made


def get(downloader, server, path, **expected):
    server.files.setdefault("/file", CONTENT)
    expected = expected or {"sha256": SHA256, "size": len(CONTENT)}
    return downloader.get(f"{server.url}/file", path, **expected)


def refusal(downloader, server, path, **expected):
    with pytest.raises(DownloadError) as caught:
        get(downloader, server, path, **expected)
    return caught.value


def test_file_arrives_with_its_digest_and_size(downloader, server, path):
    got = get(downloader, server, path)

    assert (got.sha256, got.size) == (SHA256, len(CONTENT))
    assert path.read_bytes() == CONTENT
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_unknown_file_is_measured(downloader, server, path):
    got = get(downloader, server, path, sha256=None, size=None)

    assert (got.sha256, got.size) == (SHA256, len(CONTENT))


# Transfers that break off


@pytest.mark.parametrize("offset", OFFSETS)
def test_cut_is_resumed_where_it_was(downloader, server, answer, path, offset):
    server.script["/file"] = [answer(cut=offset)]

    got = get(downloader, server, path)

    assert got.sha256 == SHA256
    assert path.read_bytes() == CONTENT
    assert server.ranges() == [None, f"bytes={offset}-" if offset else None]
    assert server.served == len(CONTENT)


@pytest.mark.parametrize("is_abrupt", [False, True])
def test_twenty_cuts_in_one_file_cost_little(downloader, server, answer, path, is_abrupt):
    step = len(CONTENT) // 21
    server.script["/file"] = [answer(cut=step, is_abrupt=is_abrupt)] * 20

    get(downloader, server, path)

    assert path.read_bytes() == CONTENT
    assert len(server.requests) == 21
    assert server.served <= 1.05 * len(CONTENT)


def test_resume_proves_that_the_file_is_the_same(downloader, server, answer, path):
    server.etags["/file"] = '"one"'
    server.script["/file"] = [answer(cut=1000)]

    get(downloader, server, path, sha256=None)

    assert path.read_bytes() == CONTENT
    assert [headers.get("If-Range") for _, headers in server.requests] == [None, '"one"']
    assert server.ranges() == [None, "bytes=1000-"]


def test_unknown_file_without_proof_starts_over(downloader, server, answer, path):
    server.etags["/file"] = 'W/"weak"'
    server.script["/file"] = [answer(cut=1000)]

    get(downloader, server, path, sha256=None)

    assert path.read_bytes() == CONTENT
    assert server.ranges() == [None, None]


def test_chunked_body_that_ends_early_is_resumed(downloader, server, answer, path):
    server.script["/file"] = [answer(cut=1000, is_chunked=True)]

    get(downloader, server, path)

    assert path.read_bytes() == CONTENT
    assert server.ranges() == [None, "bytes=1000-"]


def test_beginning_of_an_earlier_process_is_used(downloader, server, path):
    path.parent.mkdir()
    path.write_bytes(CONTENT[:200_000])

    get(downloader, server, path)

    assert path.read_bytes() == CONTENT
    assert server.served == 100_000


def test_whole_file_of_an_earlier_process_needs_no_server(downloader, server, path):
    path.parent.mkdir()
    path.write_bytes(CONTENT)

    get(downloader, server, path)

    assert server.requests == []


@pytest.mark.parametrize(
    ("beginning", "ranges"),
    [(OTHER[:5000], ["bytes=5000-", None]), (OTHER, [None]), (OTHER + b"more", [None])],
    ids=["part", "whole", "longer"],
)
def test_damaged_beginning_costs_one_download(downloader, server, path, beginning, ranges):
    path.parent.mkdir()
    path.write_bytes(beginning)

    get(downloader, server, path)

    assert path.read_bytes() == CONTENT
    assert server.ranges() == ranges


def test_rest_that_is_another_one_than_asked_for_starts_over(downloader, server, answer, path):
    whole = {"Content-Range": f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}", "body": CONTENT}
    server.script["/file"] = [answer(cut=200_000), answer(status=206, headers=whole)]

    get(downloader, server, path, sha256=SHA256)

    assert path.read_bytes() == CONTENT
    assert server.ranges() == [None, "bytes=200000-", None]
    assert server.served == 200_000 + 2 * len(CONTENT)


def test_beginning_longer_than_the_file_starts_over(downloader, server, path):
    path.parent.mkdir()
    path.write_bytes(OTHER + b"more")

    get(downloader, server, path, sha256=SHA256)

    assert path.read_bytes() == CONTENT
    assert server.ranges() == [f"bytes={len(OTHER) + 4}-", None]


@pytest.mark.parametrize("honours_if_range", [True, False])
def test_file_that_changes_meanwhile_starts_over(
    downloader, server, answer, path, honours_if_range
):
    server.script["/file"] = [
        answer(content=OTHER, headers={"ETag": '"old"'}, cut=200_000),
        answer(honours_if_range=honours_if_range),
    ]
    server.etags["/file"] = '"new"'

    got = get(downloader, server, path, sha256=None)

    assert got.sha256 == SHA256
    assert path.read_bytes() == CONTENT
    assert server.ranges()[1] == "bytes=200000-"


def test_server_that_ignores_ranges_starts_over(downloader, server, answer, path):
    server.script["/file"] = [answer(cut=200_000), answer(honours_range=False)]

    get(downloader, server, path)

    assert path.read_bytes() == CONTENT
    assert server.ranges() == [None, "bytes=200000-"]


def test_server_that_ignores_ranges_and_breaks_off_is_given_up(downloader, server, answer, path):
    server.script["/file"] = [answer(cut=200_000, honours_range=False)] * 200

    error = refusal(downloader, server, path)

    assert error.cause == "broke off before the end"
    assert len(server.requests) == 5


def test_silence_is_a_passing_fault(downloader, server, answer, path, monkeypatch):
    monkeypatch.setattr(download, "SILENCE_SECONDS", 0.05)
    server.script["/file"] = [answer(cut=1000, holds=True)]

    get(downloader, server, path)

    assert path.read_bytes() == CONTENT
    assert server.ranges() == [None, "bytes=1000-"]


# Other bytes


def test_wrong_bytes_are_refused_with_both_digests(downloader, server, path):
    server.files["/file"] = OTHER

    error = refusal(downloader, server, path)

    assert SHA256 in str(error)
    assert hashlib.sha256(OTHER).hexdigest() in str(error)
    assert f"{server.url}/file" in str(error)
    assert "generated archive" not in str(error)
    assert path.read_bytes() == b""
    assert len(server.requests) == 1


def test_generated_archive_is_suspected(downloader, server, path):
    server.files["/project/archive/v1.tar.gz"] = OTHER

    with pytest.raises(DownloadError, match=r"generated archive\?"):
        downloader.get(f"{server.url}/project/archive/v1.tar.gz", path, sha256=SHA256)


@pytest.mark.parametrize("content", [CONTENT + b"more", CONTENT[:-1]])
def test_wrong_size_is_noticed_before_the_body(downloader, server, path, content):
    server.files["/file"] = content
    path.parent.mkdir()
    path.write_bytes(CONTENT[:1000])

    error = refusal(downloader, server, path)

    assert "expected 300000 bytes" in str(error)
    assert f"got      {len(content)} bytes" in str(error)
    # Another server's beginning is none of this one's business.
    assert path.read_bytes() == CONTENT[:1000]
    assert len(server.requests) == 1


def test_file_of_no_bytes_arrives(downloader, server, path):
    server.files["/file"] = b""

    downloader.get(f"{server.url}/file", path, sha256=hashlib.sha256().hexdigest(), size=0)

    assert path.read_bytes() == b""


def test_endless_body_is_left(downloader, server, answer, path):
    server.script["/file"] = [answer(content=CONTENT * 2, is_chunked=True)]

    error = refusal(downloader, server, path)

    assert "got      at least 3" in str(error)
    assert path.read_bytes() == b""


def test_compressed_file_is_kept_compressed(downloader, server, answer, path):
    server.script["/file"] = [answer(headers={"Content-Encoding": "gzip"})]

    get(downloader, server, path)

    assert path.read_bytes() == CONTENT
    assert server.requests[0][1]["Accept-Encoding"] == "identity"


# What servers say


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 501])
def test_final_refusals_are_not_asked_again(downloader, server, answer, path, status):
    server.script["/file"] = [answer(status=status)]

    error = refusal(downloader, server, path)

    assert error.status == status
    assert error.is_gone == (status in (404, 410))
    assert f"{server.url}/file: {status} " in str(error)
    assert len(server.requests) == 1
    assert downloader.waits == []


def test_login_is_hinted_at(downloader, server, answer, path):
    server.script["/file"] = [answer(status=401)]

    assert ".netrc" in refusal(downloader, server, path).hint


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_passing_refusals_are_asked_again(downloader, server, answer, path, status):
    server.script["/file"] = [answer(status=status)] * 2

    get(downloader, server, path)

    assert len(server.requests) == 3
    assert 0 < downloader.waits[0] < downloader.waits[1]


def test_lasting_refusal_is_the_one_that_is_raised(downloader, server, answer, path, capsys):
    server.script["/file"] = [answer(status=503)] * 9

    error = refusal(downloader, server, path)

    assert error.status == 503
    assert len(server.requests) == 5
    assert len(downloader.waits) == 4
    assert "503 Service Unavailable; attempt 2 in" in capsys.readouterr().err


def test_wait_that_the_server_asks_for_is_kept(downloader, server, answer, path):
    date = email.utils.formatdate(time.time() + 60, usegmt=True)
    server.script["/file"] = [
        answer(status=429, headers={"Retry-After": "3"}),
        answer(status=503, headers={"Retry-After": date}),
        answer(status=503, headers={"Retry-After": "soon"}),
    ]

    get(downloader, server, path)

    assert downloader.waits[0] == 3
    assert 50 < downloader.waits[1] <= 60
    assert downloader.waits[2] < 10
    assert len(server.requests) == 4


def test_too_long_a_wait_is_not_waited(downloader, server, answer, path):
    server.script["/file"] = [answer(status=429, headers={"Retry-After": "3600"})]

    error = refusal(downloader, server, path)

    assert "429 Too Many Requests, to be asked again in 3600 s" in str(error)
    assert "quota" in error.hint
    assert downloader.waits == []


def test_redirect_is_followed(downloader, server, answer, path):
    server.files["/there"] = CONTENT
    server.script["/file"] = [answer(status=302, headers={"Location": f"{server.url}/there"})]

    get(downloader, server, path)

    assert path.read_bytes() == CONTENT
    assert [asked for asked, _ in server.requests] == ["/file", "/there"]


def test_redirect_in_a_circle_is_final(downloader, server, answer, path):
    server.script["/file"] = [answer(status=302, headers={"Location": "/file"})] * 50

    assert "redirects" in str(refusal(downloader, server, path))
    assert downloader.waits == []


def test_secrets_are_sent_and_never_shown(downloader, server, answer, path, capsys):
    server.files["/file"] = CONTENT
    server.script["/file"] = [
        answer(status=500),
        answer(headers={"ETag": '"a"'}, cut=9),
        answer(status=404),
    ]
    url = server.url.replace("//", "//user:hunter2@") + "/file?token=hunter3"

    with pytest.raises(DownloadError) as caught:
        downloader.get(url, path, sha256=SHA256)

    assert server.requests[0][1]["Authorization"].startswith("Basic ")
    kept = "".join(item.read_text(errors="replace") for item in path.parent.iterdir())
    shown = capsys.readouterr().err + caught.value.for_humans() + kept
    assert "hunter" not in shown
    assert "//***@127.0.0.1" in shown
    assert '"validator"' in kept


# No server


def test_refused_connection_is_tried_five_times(downloader, path, unused_url):
    with pytest.raises(DownloadError, match="Connection refused") as caught:
        downloader.get(unused_url, path)

    assert caught.value.is_unreachable
    assert len(downloader.waits) == 4


@pytest.fixture
def unused_url(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/file"


@pytest.mark.parametrize(("code", "attempts"), [("EAI_NONAME", 1), ("EAI_AGAIN", 5)])
def test_unknown_host_is_final_unless_the_resolver_is_down(
    downloader, path, monkeypatch, code, attempts
):
    def fail(*args, **kwargs):
        raise socket.gaierror(getattr(socket, code), "the resolver's words")

    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(socket, "getaddrinfo", fail)

    with pytest.raises(DownloadError, match="host not found: the resolver's words"):
        downloader.get("http://mirror.invalid/file", path)

    assert len(downloader.waits) == attempts - 1


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("ftp://mirror.invalid/file", "only http, https and file"),
        ("file://elsewhere/file", "no other machine"),
        ("http://[", "not an address"),
        ("http:///file", "host"),
        ("", "only http, https and file"),
    ],
)
def test_senseless_addresses_are_refused(downloader, path, url, cause):
    with pytest.raises(DownloadError, match=cause):
        downloader.get(url, path)

    assert downloader.waits == []


def test_local_file_is_copied(downloader, path, tmp_path):
    source = tmp_path / "a file"
    source.write_bytes(CONTENT)
    path.parent.mkdir()
    path.write_bytes(OTHER[:1000])

    got = downloader.get(source.as_uri(), path, sha256=SHA256, size=len(CONTENT))

    assert got.size == len(CONTENT)
    assert path.read_bytes() == CONTENT


def test_local_file_faults_are_final(downloader, path, tmp_path):
    (tmp_path / "short").write_bytes(CONTENT[:10])

    with pytest.raises(DownloadError, match="no such file") as missing:
        downloader.get((tmp_path / "none").as_uri(), path)
    with pytest.raises(DownloadError, match="directory"):
        downloader.get(tmp_path.as_uri(), path)
    with pytest.raises(DownloadError, match="broke off after 10 of 300000"):
        downloader.get((tmp_path / "short").as_uri(), path, size=len(CONTENT))

    assert missing.value.is_gone
    assert downloader.waits == []


# Around it


def test_bytes_are_counted_through_restarts(server, answer, path):
    counts = []
    server.script["/file"] = [answer(cut=100_000), answer(cut=50_000, honours_range=False)]
    path.parent.mkdir()
    path.write_bytes(CONTENT[:10])

    with Downloader(sleep=lambda _: None, on_bytes=counts.append) as downloader:
        get(downloader, server, path)

        assert sum(counts) == len(CONTENT)
        assert min(counts) < 0
        counts.clear()
        server.script["/file"] = [answer(cut=100_000), answer(status=404)]
        path.unlink()
        refusal(downloader, server, path)

    assert sum(counts) == 0
    assert path.stat().st_size == 100_000


def test_stop_keeps_what_has_come(server, answer, path):
    stop = threading.Event()
    server.script["/file"] = [answer(cut=100_000, holds=True)]

    with (
        Downloader(stop=stop, on_bytes=lambda count: count and stop.set()) as downloader,
        pytest.raises(StoppedError),
    ):
        get(downloader, server, path)

    assert 0 < path.stat().st_size <= 100_000
    assert CONTENT.startswith(path.read_bytes())


def test_stop_ends_a_wait(server, answer, path):
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    server.script["/file"] = [answer(status=503, headers={"Retry-After": "100"})]
    start = time.monotonic()

    with Downloader(stop=stop) as downloader, pytest.raises(StoppedError):
        get(downloader, server, path)

    assert time.monotonic() - start < 15


def test_full_file_system_is_explained(downloader, server, path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(FetchError) as caught:
            get(downloader, server, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert not isinstance(caught.value, DownloadError)
    assert f"cannot write {path}: " in str(caught.value)
    assert "MB free" in str(caught.value)
    assert "invoke clean" in caught.value.hint
    assert path.stat().st_size == 100_000
    assert len(server.requests) == 1
