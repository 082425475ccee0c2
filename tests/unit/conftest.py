"""A web server on this machine that misbehaves on demand."""

import contextlib
import hashlib
import http.server
import importlib
import io
import itertools
import json
import shutil
import socket
import struct
import sys
import tarfile
import threading
import time
import types
from dataclasses import dataclass, field
from urllib.parse import unquote

import pytest

from rocbake import digest, lock, plan, project, retry, store, target
from rocbake.source import Deb, Url


@dataclass
class Answer:
    """How one request is answered; what is not said is as a good server does it."""

    status: int = 200
    headers: dict = field(default_factory=dict)
    content: bytes | None = None  # instead of the file
    cut: int | None = None  # bytes of the body after which the connection ends
    is_abrupt: bool = False  # ends with a reset
    honours_range: bool = True
    honours_if_range: bool = True
    is_chunked: bool = False
    delay: float = 0  # seconds before anything is said
    company: threading.Barrier | None = None  # says nothing before so many requests wait for it
    holds: bool = False  # says nothing more after `cut` bytes until the server ends


class Server:
    """Serves `files` by path; `script` holds answers to the next requests of a path."""

    def __init__(self):
        self._lock = threading.Lock()
        self.reset()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                with contextlib.suppress(ConnectionError):
                    outer.answer(self)

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # clients that leave are what is tested
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self._thread.start()

    def reset(self):
        self.files = {}
        self.etags = {}
        self.script = {}
        self.requests = []
        self.served = 0
        self.ending = threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def ranges(self):
        return [headers.get("Range") for _, headers in self.requests]

    def answer(self, handler):
        path = unquote(handler.path.partition("?")[0])
        with self._lock:
            self.requests.append((path, dict(handler.headers)))
            script = self.script.get(path)
            answer = script.pop(0) if script else Answer()
        if answer.company:
            answer.company.wait(30)
        body = self.files.get(path) if answer.content is None else answer.content
        status, headers = answer.status, dict(answer.headers)
        if body is None and status == 200:
            status = 404
        if status != 200:
            body = headers.pop("body", b"")
        etag = self.etags.get(path)
        if etag and status == 200:
            headers.setdefault("ETag", etag)
        asked = handler.headers.get("Range")
        condition = handler.headers.get("If-Range")
        holds = not answer.honours_if_range or condition in (None, headers.get("ETag"))
        if status == 200 and asked and answer.honours_range and holds:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                status, body = 416, b""
            else:
                headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
                status, body = 206, body[start:]
        self._send(handler, answer, status, headers, body)

    def _send(self, handler, answer, status, headers, body):
        ending = self.ending
        time.sleep(answer.delay)
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        if answer.is_chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        else:
            headers.setdefault("Content-Length", str(len(body)))
            handler.send_header("Content-Length", headers["Content-Length"])
        handler.end_headers()
        if answer.cut is not None:
            body = body[: answer.cut]
        with self._lock:
            self.served += len(body)
        if answer.is_chunked and body:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(body), body))
        elif not answer.is_chunked:
            handler.wfile.write(body)
        if answer.is_chunked:
            handler.wfile.write(b"0\r\n\r\n")
        if answer.holds:
            ending.wait(30)
        if answer.cut is not None and not answer.is_chunked:
            handler.close_connection = True
            if answer.is_abrupt:
                linger = struct.pack("ii", 1, 0)
                handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                handler.connection.close()


@pytest.fixture(scope="session")
def _running_server():
    running = Server()
    yield running
    running.close()


@pytest.fixture
def server(_running_server, monkeypatch):
    # A proxy that is set for everything else has no business here.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield _running_server
    _running_server.ending.set()
    _running_server.reset()


@pytest.fixture
def answer():
    return Answer


@pytest.fixture
def quick(monkeypatch):
    """Let the first wait between attempts be nearly none."""
    monkeypatch.setattr(retry, "_FIRST_WAIT_SECONDS", 0.001)


# A small project: three containers, one recipe, locks for all of them

_FILES = {
    "containers/base/container.yaml": """\
summary: Debian
archive:
  name: debian
  keyring: keyring.asc
  suites:
    - name: sid
packages: [apt]
""",
    "containers/base/keyring.asc": "keys\n",
    "containers/base/Dockerfile": "FROM scratch\nADD rootfs.tar /\n",
    "containers/sdk/container.yaml": """\
summary: The compiler
parent: base
provider: debian
rocm: 7.2.4
packages: [hipcc, cmake]
""",
    "containers/sdk/Dockerfile": "FROM base\n",
    "containers/small/container.yaml": """\
summary: No compiler
parent: base
provider: debian
rocm: 7.2.4
packages: [libamdhip64-7]
""",
    "containers/small/Dockerfile": "FROM base\n# small\n",
    "containers/shared/install.sh": "#!/bin/sh\n",
    "recipes/Dockerfile": "FROM sdk\n",
    "recipes/tool/recipe.yaml": """\
summary: A tool
version: 1.10
sdk: sdk
runtime: small
sources:
  - url: https://example.invalid/data.tar
""",
    "recipes/tool/Dockerfile": "FROM runtime\n",
    "recipes/tool/build.sh": "#!/bin/sh\n",
    "recipes/tool/src/main.hip": "int main() {}\n",
}
_PACKAGES = {
    "base": [("apt", "3.0"), ("libc6", "2.41-1")],
    "sdk": [("cmake", "4.0"), ("hipcc", "1:7.2.4-1")],
    "small": [("libamdhip64-7", "7.2.4+dfsg-1")],
}


class Checkout:
    """A project on disk, to be changed and read again."""

    def __init__(self, root, like=None):
        self.root = root
        if like:
            shutil.copytree(like.root, root)
            return
        for name, text in _FILES.items():
            self.write(name, text)
        for name in ("containers/shared/install.sh", "recipes/tool/build.sh"):
            (root / name).chmod(0o755)
        self.lock()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def edit(self, name, old, new):
        path = self.root / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def load(self):
        return project.load(self.root)

    def source(self, text):
        """Return the digest and size that locks give a source."""
        content = self.content(text)
        return {"sha256": digest.sha256_bytes(content), "size": len(content)}

    def content(self, text):
        return f"content of {text}\n".encode()

    def files(self, made, folder):
        """Write every source of a plan into a folder, and say where each is."""
        folder.mkdir(parents=True, exist_ok=True)
        found = {}
        for source in made.inputs:
            path = folder / source.sha256
            path.write_bytes(self.content(source.label))
            path.chmod(0o444)
            found[source.sha256] = path
        return found

    def _urls(self, wishes, unrecorded):
        urls = [wish.url for wish in wishes if wish.url not in unrecorded]
        return [Url(url=url, file_name=url.rpartition("/")[2], **self.source(url)) for url in urls]

    def lock(self, *, unrecorded=()):
        """Write the locks that answer the wishes as they are, but for some addresses."""
        loaded = self.load()
        locks = {}
        for container in loaded.containers.values():
            parent = container.parent
            locks[container.name] = lock.ContainerLock(
                wish=lock.container_wish(container),
                parent=locks[parent.name].digest if parent else None,
                snapshot="20261030T080801Z",
                epoch=1793347681,
                suites=[
                    {
                        "name": "sid",
                        "codename": "sid",
                        "date": "2026-10-30T08:08:01Z",
                        "release_sha256": "0" * 64,
                    }
                ],
                made_with={"apt": "2.6.1"},
                packages=[
                    Deb(
                        name=name,
                        version=version,
                        architecture="amd64",
                        path=f"pool/{name}.deb",
                        **self.source(f"{name} {version} (amd64)"),
                    )
                    for name, version in _PACKAGES.get(container.name, [])
                ],
                sources=self._urls(container.file.sources, unrecorded),
            )
            lock.write(locks[container.name], container.folder)
        for recipe in loaded.recipes.values():
            sources = self._urls(recipe.file.sources, unrecorded)
            made = lock.RecipeLock(wish=lock.recipe_wish(recipe), sources=sources)
            lock.write(made, recipe.folder)
        return loaded

    def plan(self, *targets, recipe="tool", **asked):
        """Resolve a recipe for a target set, from what is on disk now."""
        found = self.load().recipes[recipe]
        wanted = target.parse_target_set(targets or ["gfx1201"])
        chosen = found.built_for(wanted, asked)
        locks, recipe_lock = lock.require_fresh(chosen.containers, chosen)
        return plan.make(found, wanted, locks=locks, recipe_lock=recipe_lock, asked=asked)


@pytest.fixture(scope="session")
def _checkout(tmp_path_factory):
    return Checkout(tmp_path_factory.mktemp("project") / "checkout")


@pytest.fixture
def checkout(_checkout, tmp_path):
    return Checkout(tmp_path / "checkout", like=_checkout)


@pytest.fixture
def own_checkout(checkout, tmp_path, monkeypatch):
    """Let verbs find the small project, and an empty cache, where they look for their own."""
    load = project.load
    monkeypatch.setattr(project, "load", lambda root=checkout.root: load(root))
    monkeypatch.setattr(project, "ROOT", checkout.root)
    monkeypatch.setenv("ROCBAKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(checkout.root)
    return checkout


@pytest.fixture
def make_checkout():
    return Checkout


# Tools that containers hand to recipes


class Tools(types.SimpleNamespace):
    """The modules of one container's tools/, which find each other and those of no other."""

    def __init__(self, folder):
        self.folder = folder
        names = [path.stem for path in folder.glob("*.py")]
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(folder)
            for name in names:
                patch.delitem(sys.modules, name, raising=False)
            super().__init__(**{name: importlib.import_module(name) for name in names})
            for name in names:
                sys.modules.pop(name)


@pytest.fixture(scope="session")
def ggml_tools():
    return Tools(project.ROOT / "containers" / "ggml" / "tools")


@pytest.fixture(scope="session")
def bazel_tools():
    return Tools(project.ROOT / "containers" / "openxla-host" / "tools")


# Images


class Image:
    """An OCI layout of one image, made by the book, to be damaged."""

    def __init__(self, folder, layers, compress, **settings):
        self.folder = folder
        (folder / "blobs/sha256").mkdir(parents=True)
        self.tars = [self._tar(files) for files in layers]
        self.layers = [compress(tar) for tar in self.tars]
        history = [{"created_by": f"layer {number}"} for number in range(len(layers))]
        self._settings = {
            "config": {"User": "1000"} | settings,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{self._sum(t)}" for t in self.tars]},
            "history": [{"created_by": "ENV", "empty_layer": True}, *history],
        }
        self._manifest = {"layers": [self._blob(one) for one in self.layers]}
        self._write()

    def _write(self):
        self.config = json.dumps(self._settings).encode()
        self._manifest.setdefault("config", {}).update(self._blob(self.config))
        self._write_manifest()

    def _write_manifest(self):
        self.manifest = json.dumps(self._manifest).encode()
        self._index = {"manifests": [self._blob(self.manifest)]}
        self._write_index()

    def _write_index(self):
        (self.folder / "index.json").write_text(json.dumps(self._index))

    def index(self, change):
        change(self._index)
        self._write_index()

    def change_manifest(self, change):
        change(self._manifest)
        self._write_manifest()

    def change_config(self, change):
        change(self._settings)
        self._write()

    def _blob(self, content):
        (self.folder / "blobs/sha256" / self._sum(content)).write_bytes(content)
        return {
            "mediaType": "application/octet-stream",
            "digest": f"sha256:{self._sum(content)}",
            "size": len(content),
        }

    @staticmethod
    def _sum(content):
        return hashlib.sha256(content).hexdigest()

    @staticmethod
    def _tar(files):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, "nowhere"
            tar.addfile(link)
        return stream.getvalue()


@pytest.fixture
def make_image(tmp_path):
    numbers = itertools.count()

    def make(*layers, compress=bytes, folder=None, **settings):
        folder = folder or tmp_path / f"image-{next(numbers)}"
        return Image(folder, layers, compress, **settings)

    return make


# Artifacts


def described(files, *, targets=("gfx1201",), **more):
    """Return a manifest of some files, as bytes."""
    rows = [
        {
            "path": path,
            "mode": "0644",
            "size": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "link": None,
            "elf": None,
            "code_objects": {},
        }
        for path, data in files.items()
    ]
    head = {"schema": 1, "kind": "plain", "name": "tool", "version": "1.0", "key": "a" * 64}
    rest = {"epoch": 0, "rocm": "7.2.4", "targets": targets, "needed": [], "versions": {}}
    return json.dumps(head | rest | more | {"files": rows}).encode()


def archived(folder, file_name, content, library):
    """Put a bundled archive with its manifest into a folder, and return its record."""
    manifest = described({"lib/one": library}, kind="bundled")
    (folder / file_name).write_bytes(content)
    (folder / store.BUNDLED_MANIFEST).write_bytes(manifest)
    return store.ArchiveRecord(
        file_name=file_name,
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        tar_sha256="0" * 64,
        manifest_sha256=hashlib.sha256(manifest).hexdigest(),
    )


@pytest.fixture
def put(make_image):
    """Put an artifact that nobody built into a store."""

    def put(
        kept,
        *,
        name="tool",
        tag="gfx1201",
        key="a" * 64,
        content=b"archive",
        files=None,
        built_at="2026-11-01T00:00:00Z",
        targets=("gfx1201",),
        overridden=None,
        with_image=False,
        with_bundle=None,
        layers=("sha256:1",),
    ):
        staged = kept.work(f"staged-{name}-{tag}")
        staged.mkdir()
        archive = bundled = tests = None
        if with_bundle is not None:
            packed = f"{name}-bundled.tar.zst"
            bundled = archived(staged, packed, b"bundled " + with_bundle, with_bundle)
            (staged / f"{name}-tests.tar.zst").write_bytes(b"tests " + with_bundle)
            tests = store.TestsRecord(
                file_name=f"{name}-tests.tar.zst",
                sha256=hashlib.sha256(b"tests " + with_bundle).hexdigest(),
                size=6 + len(with_bundle),
            )
        if content is not None:
            (staged / f"{name}.tar.zst").write_bytes(content)
            manifest = described(files or {}, targets=targets)
            (staged / store.MANIFEST).write_bytes(manifest)
            archive = store.ArchiveRecord(
                file_name=f"{name}.tar.zst",
                sha256=hashlib.sha256(content).hexdigest(),
                size=len(content),
                tar_sha256="0" * 64,
                manifest_sha256=hashlib.sha256(manifest).hexdigest(),
            )
        if with_image:
            make_image({"etc/name": name.encode()}, folder=staged / store.IMAGE)
        (staged / store.LOG).write_text("log of the build\n")
        image = store.ImageRecord(
            reference=f"rocbake/{name}:{tag}",
            config="sha256:0",
            layers=layers,
            manifest="sha256:1",
            size=1,
        )
        artifact = store.Artifact(
            name=name,
            version="1.10",
            tag=tag,
            targets=targets if content is not None else (),
            options=overridden or {},
            overridden=overridden or {},
            key=key,
            image=image,
            archive=archive,
            bundled=bundled,
            tests=tests,
            built_at=built_at,
            seconds=1.0,
            engine={"docker": "26.1.5"},
        )
        return kept.put(staged, artifact)

    return put
