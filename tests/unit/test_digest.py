import hashlib
import io
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocbake import digest


def files(root, *names):
    return digest.sha256_files(root, [Path(name) for name in names])


@pytest.fixture
def root(tmp_path):
    for name in ("a", "b", "folder/c"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"content of {name}")
        path.chmod(0o644)
    return tmp_path


@pytest.mark.parametrize("data", [b"", b"x" * 3_000_000], ids=len)
def test_each_way_gives_the_same_digest(tmp_path, data):
    (tmp_path / "file").write_bytes(data)
    expected = hashlib.sha256(data).hexdigest()

    assert digest.sha256_bytes(data) == expected
    assert digest.sha256_file(tmp_path / "file") == expected
    assert digest.sha256_stream(io.BytesIO(data)) == expected
    assert digest.is_sha256(expected)


@pytest.mark.parametrize("text", ["", "0" * 63, "0" * 65, "A" * 64, "sha256:" + "0" * 64,
                                  "0" * 64 + "\n"])  # fmt: skip
def test_other_text_is_no_sha256(text):
    assert not digest.is_sha256(text)


def test_json_is_canonical():
    assert digest.canonical_json({"b": 1.0, "a": ["é", "\n"]}) == '{"a":["é","\\n"],"b":1}'.encode()
    assert digest.sha256_json({"b": 1, "a": 2}) == digest.sha256_json({"a": 2, "b": 1})


def test_what_differs_between_checkouts_does_not_count(root):
    before = files(root, "a", "b", "folder/c")

    os.utime(root / "a", (1, 1))
    (root / "a").chmod(0o600)
    (root / "b").chmod(0o674)
    (root / "folder").chmod(0o775)
    root = root.rename(root.with_name("elsewhere"))

    assert files(root, "folder/c", "b", "a", "a") == before


def test_everything_else_counts(root):
    digests = [files(root, "a", "b")]
    digests.append(files(root, "a"))
    digests.append(files(root, "a", "folder/c"))
    (root / "a").write_text("other content")
    digests.append(files(root, "a", "b"))
    (root / "a").chmod(0o755)
    digests.append(files(root, "a", "b"))
    (root / "b").unlink()
    (root / "b").symlink_to("a")
    digests.append(files(root, "a", "b"))
    (root / "b").unlink()
    (root / "b").symlink_to("nowhere")
    digests.append(files(root, "a", "b"))
    (root / "b").unlink()
    (root / "b").write_text("nowhere")
    digests.append(files(root, "a", "b"))
    (root / "b").rename(root / "c")
    digests.append(files(root, "a", "c"))

    assert len(set(digests)) == len(digests)


def test_name_and_content_cannot_be_taken_for_each_other(tmp_path):
    for name, content in (("1/ab", "c"), ("1/d", ""), ("2/a", "bc"), ("2/d", "")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)

    assert files(tmp_path / "1", "ab", "d") != files(tmp_path / "2", "a", "d")


NAMES = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=5)


@settings(max_examples=30, deadline=None)
@given(names=st.lists(NAMES.filter(lambda n: n not in {".", ".."}), min_size=1, unique=True),
       turn=st.randoms())  # fmt: skip
def test_order_does_not_count(tmp_path_factory, names, turn):
    root = tmp_path_factory.mktemp("order")
    for name in names:
        (root / name).write_text(name)
    shuffled = list(names)
    turn.shuffle(shuffled)

    assert files(root, *shuffled) == files(root, *names)


def test_missing_file_is_an_error(root):
    with pytest.raises(FileNotFoundError):
        files(root, "none")
