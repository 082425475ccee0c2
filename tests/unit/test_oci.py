import gzip
import hashlib
import io
import json
import tarfile

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocbake import oci
from rocbake.errors import BuildError

COMPRESSIONS = {"gzip": gzip.compress, "zstd": zstandard.compress, "none": bytes}


def sha256(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_image_is_read(make_image):
    image = make_image({"etc/one": b"1"}, {"etc/two": b"2"})

    layout = oci.read(image.folder)

    assert layout.config.digest == sha256(image.config)
    assert layout.manifest.digest == sha256(image.manifest)
    assert layout.diff_ids == tuple(map(sha256, image.tars))
    assert [blob.digest for blob in layout.layers] == list(map(sha256, image.layers))
    assert layout.settings == {"User": "1000"}
    assert layout.layers_history == ("layer 0", "layer 1")
    assert layout.size == sum(map(len, [image.config, image.manifest, *image.layers]))
    layout.verify()


@pytest.mark.parametrize("compress", COMPRESSIONS.values(), ids=COMPRESSIONS)
def test_layer_is_walked_whatever_its_compression(make_image, compress):
    image = make_image({"bin/sh": b"x" * 100_000, "empty": b""}, compress=compress)

    found = list(oci.members(oci.read(image.folder), 0))

    assert [(member.name, content) for member, content in found] == [
        ("bin/sh", hashlib.sha256(b"x" * 100_000).hexdigest()),
        ("empty", hashlib.sha256(b"").hexdigest()),
        ("link", None),
    ]


def test_identity_does_not_change_with_the_compression(make_image):
    images = [oci.read(make_image({"a": b"1"}, compress=c).folder) for c in COMPRESSIONS.values()]

    assert len({(one.config.digest, one.diff_ids) for one in images}) == 1
    assert len({one.manifest.digest for one in images}) == 3


def test_layer_of_several_frames_is_read_whole(make_image):
    def in_two(data):
        return zstandard.compress(data[:700]) + zstandard.compress(data[700:])

    image = make_image({"a": b"1" * 5000}, compress=in_two)

    assert len(list(oci.members(oci.read(image.folder), 0))) == 2


def test_flipped_byte_is_found(make_image):
    image = make_image({"a": b"1" * 1000}, {"b": b"2"})
    layout = oci.read(image.folder)

    for blob in layout.blobs:
        path = layout.path(blob)
        good = path.read_bytes()
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(BuildError, match=f"expected {blob.digest}, got sha256:"):
            layout.verify()
        path.unlink()
        with pytest.raises(BuildError, match="got no file"):
            layout.verify()
        path.write_bytes(good)
    layout.verify()


def test_tar_holds_both_forms(make_image):
    image = make_image({"a": b"1"}, {"b": b"2"}, {"a": b"1"})
    layout = oci.read(image.folder)
    stream = io.BytesIO()

    layout.write_tar(stream, "rocbake/tool:gfx1201")

    stream.seek(0)
    with tarfile.open(fileobj=stream) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}
        assert len(tar.getnames()) == len(files)
    assert json.loads(files.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(files.pop("index.json"))["manifests"]
    (old,) = json.loads(files.pop("manifest.json"))
    assert entry["digest"] == layout.manifest.digest
    assert entry["size"] == layout.manifest.size
    assert entry["annotations"] == {
        "io.containerd.image.name": "docker.io/rocbake/tool:gfx1201",
        "org.opencontainers.image.ref.name": "gfx1201",
    }
    assert old["RepoTags"] == ["rocbake/tool:gfx1201"]
    assert len(old["Layers"]) == 3
    assert {old["Config"], *old["Layers"]} < set(files)
    for name, content in files.items():
        assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    assert {sha256(content) for content in files.values()} == {one.digest for one in layout.blobs}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda i: (i.folder / "index.json").unlink(), "No such file"),
        (lambda i: i.index(lambda v: v["manifests"].clear()), "not enough values"),
        (lambda i: i.index(lambda v: v["manifests"].append(v["manifests"][0])), "too many values"),
        (lambda i: i.index(lambda v: v["manifests"][0].update(digest="md5:1")), "not a sha256"),
        (lambda i: i.index(lambda v: v["manifests"][0].update(digest="0" * 64)), "not a sha256"),
        (lambda i: i.index(lambda v: v["manifests"][0].update(digest="sha256:../../x")),
         "not a sha256"),
        (lambda i: i.change_manifest(lambda v: v["layers"].pop()), "1 layers, 2 diffIDs"),
        (lambda i: i.change_manifest(lambda v: v.pop("config")), "'config'"),
        (lambda i: i.change_config(lambda v: v["history"].pop()), "2 layers, 2 diffIDs, 1 instr"),
        (lambda i: i.change_config(lambda v: v["rootfs"]["diff_ids"].append("sha256:1")),
         "not a sha256"),
        (lambda i: i.change_config(lambda v: v.update(history=["text"])), "no attribute"),
        (lambda i: i.change_config(lambda v: v.update(rootfs=None)), "NoneType"),
        (lambda i: (i.folder / "index.json").write_text("[" * 100_000), "recursion"),
        (lambda i: (i.folder / "index.json").write_bytes(b"\xff"), "decode"),
    ],
)  # fmt: skip
def test_other_folder_is_refused(make_image, change, reason):
    image = make_image({"a": b"1"}, {"b": b"2"})
    change(image)

    with pytest.raises(BuildError, match="not an OCI layout of one image: ") as caught:
        oci.read(image.folder)

    assert reason in str(caught.value)


@pytest.mark.parametrize("compress", COMPRESSIONS.values(), ids=COMPRESSIONS)
@pytest.mark.parametrize("damage", ["cut", "noise"])
def test_damaged_layer_is_told(make_image, compress, damage):
    image = make_image({"a": b"1" * 3000, "b": bytes(range(256)) * 40}, compress=compress)
    layout = oci.read(image.folder)
    path = layout.path(layout.layers[0])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage == "cut" else data[:6] + b"\xa5" * 900)

    with pytest.raises(BuildError, match="layer 0 cannot be read: "):
        list(oci.members(layout, 0))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["manifests", "config", "layers", "digest", "size", "rootfs", "history"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=5,
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_layout_is_read_or_refused(make_image, data):
    image = make_image({"a": b"1"})

    def anywhere(value):
        while True:
            key = data.draw(st.sampled_from(list(value) if isinstance(value, dict) else [0]))
            if (
                not isinstance(value[key], (dict, list))
                or not value[key]
                or data.draw(st.booleans())
            ):
                value[key] = data.draw(JSON)
                return
            value = value[key]

    data.draw(st.sampled_from([image.index, image.change_manifest, image.change_config]))(anywhere)

    try:
        layout = oci.read(image.folder)
        layout.verify()
        list(oci.members(layout, 0))
    except BuildError as refused:
        assert str(image.folder) in str(refused)  # noqa: PT017 - both ways are right


def test_a_glance_finds_blobs_that_are_missing_or_cut_off(make_image):
    layout = oci.read(make_image({"a": b"1"}).folder)
    layout.check_sizes()
    path = layout.path(layout.layers[0])
    content = path.read_bytes()

    path.write_bytes(content[:-1])
    with pytest.raises(BuildError, match=f"expected {len(content)} bytes, got {len(content) - 1}"):
        layout.check_sizes()
    path.unlink()
    with pytest.raises(BuildError, match="got no file"):
        layout.check_sizes()
