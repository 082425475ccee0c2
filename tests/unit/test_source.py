import pytest
from pydantic import TypeAdapter, ValidationError

from rocbake.source import Deb, Git, Pypi, Source, Url

SUM = {"sha256": "0" * 64, "size": 1}
DEB = SUM | {"name": "hipcc", "version": "1:7.2.4+dfsg~rc1-1", "architecture": "amd64"}


@pytest.mark.parametrize(
    ("source", "file_name", "label"),
    [
        (Deb(**DEB, path="pool/h/hipcc.deb"), "hipcc_1%3a7.2.4+dfsg~rc1-1_amd64.deb",
         "hipcc 1:7.2.4+dfsg~rc1-1 (amd64)"),
        (Url(**SUM, url="https://example.invalid/x", file_name="y"), "y",
         "https://example.invalid/x"),
        (Git(**SUM, url="https://example.invalid/p/name.git/", commit="a" * 40),
         f"name-{'a' * 40}.tar", f"https://example.invalid/p/name.git/ at {'a' * 40}"),
        (Pypi(**SUM, project="p", version="1.10", file_name="p-1.10.tar.gz"), "p-1.10.tar.gz",
         "p 1.10 (p-1.10.tar.gz)"),
    ],
    ids=["deb", "url", "git", "pypi"],
)  # fmt: skip
def test_source_is_named(source, file_name, label):
    assert source.file_name.lower() == file_name.lower()
    assert source.label == label
    assert TypeAdapter(Source).validate_json(source.model_dump_json()) == source


@pytest.mark.parametrize(
    "path",
    ["", "/pool/x.deb", "../x.deb", "pool/../x.deb", "pool/./x", "pool//x", "pool/", "pool/x y"],
)
def test_path_never_leaves_the_archive(path):
    with pytest.raises(ValidationError):
        Deb(**DEB, path=path)


@pytest.mark.parametrize("name", ["", ".x", "-x", "a/b", "..", "a b", "x\n"])
def test_file_name_is_one_plain_name(name):
    with pytest.raises(ValidationError):
        Url(**SUM, url="https://example.invalid/x", file_name=name)


@pytest.mark.parametrize("wrong", [{"sha256": "A" * 64}, {"sha256": ""}, {"size": -1}, {"x": 1}])
def test_damaged_source_is_refused(wrong):
    with pytest.raises(ValidationError):
        Url(**(SUM | {"url": "u", "file_name": "f"} | wrong))


def test_unknown_kind_is_refused():
    with pytest.raises(ValidationError):
        TypeAdapter(Source).validate_python({**SUM, "kind": "oci"})


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", "../x"), ("name", "a/b"), ("version", "../1"), ("version", "1 2"),
     ("architecture", "../amd64")],
)  # fmt: skip
def test_package_never_leaves_its_folder(field, value):
    package = {
        "name": "libx1", "version": "1:2.0+b1~x-1", "architecture": "amd64",
        "sha256": "0" * 64, "size": 1, "path": "pool/x.deb",
    }  # fmt: skip
    assert "/" not in Deb(**package).file_name

    with pytest.raises(ValidationError):
        Deb(**package | {field: value})
