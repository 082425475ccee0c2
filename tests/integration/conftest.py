"""Tests on the real engine. Each gets a checkout of its own, with one small recipe in it.

`words` stands on the container `base` alone and is built by a shell script in a second, so that
what is tested - hermeticity, interruption, equal bytes - can be tested many times.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rocbake import engine, oci, store
from rocbake.cache import Cache
from rocbake.store import Store

ROOT = Path(__file__).resolve().parents[2]
RECIPE = """\
summary: A program that says a few words
version: 1.0.0
sdk: base
runtime: base
"""
DOCKERFILE = """\
FROM runtime
COPY --from=dist / /opt/words/
ENV PATH=/opt/words/bin:/usr/bin:/bin
CMD ["words"]
"""
BUILD = """\
#!/bin/sh
set -eu
mkdir -p /rocbake/dist/bin
printf '#!/bin/sh\\necho one lock, one command for %s\\n' "$GPU_TARGETS" > /rocbake/dist/bin/words
chmod 0755 /rocbake/dist/bin/words
"""


@dataclass
class Checkout:
    """A copy of this project with only the container `base` and the recipe `words`."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def recipe(self) -> Path:
        return self.root / "recipes" / "words"

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "invoke", *words]

    def invoke(self, *words: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a verb in the checkout and check its exit code."""
        done = subprocess.run(
            self.command(*words),
            cwd=self.root,
            env=os.environ | self.env | more,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return done

    def build(self, *words: str, **more: str) -> dict:
        """Build `words` and return what the verb says of it."""
        done = self.invoke("build", "--target", "gfx1201", "--json", *words, **more)
        return next(one for one in json.loads(done.stdout) if one["name"] == "words")

    def artifacts(self) -> list[dict]:
        """Return what the store lists of `words`."""
        listed = json.loads(self.invoke("list", "--json").stdout)["artifacts"]
        return [one for one in listed if one["name"] == "words"]

    def lock(self) -> None:
        """Answer the recipe's wish; there is nothing to resolve, so no network is needed."""
        lock = {"schema": 1, "kind": "recipe", "wish": {"sources": []}, "sources": []}
        (self.recipe / "lock.json").write_text(json.dumps(lock))


def make_checkout(root: Path) -> Checkout:
    for name in ("rocbake", "containers/base", "containers/shared", "tests/image"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tasks.py", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    checkout = Checkout(root)
    checkout.recipe.mkdir(parents=True)
    shutil.copy(ROOT / "recipes" / "Dockerfile", root / "recipes" / "Dockerfile")
    (checkout.recipe / "recipe.yaml").write_text(RECIPE)
    (checkout.recipe / "Dockerfile").write_text(DOCKERFILE)
    (checkout.recipe / "build.sh").write_text(BUILD)
    (checkout.recipe / "build.sh").chmod(0o755)
    checkout.lock()
    return checkout


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """The stored image of `base`, built and tested once; most tests are about what stands on it."""
    checkout = make_checkout(tmp_path_factory.mktemp("base"))
    checkout.build()
    return checkout.root / "artifacts" / "base"


@pytest.fixture
def empty_checkout(tmp_path):
    """A checkout whose store is empty."""
    return make_checkout(tmp_path / "empty")


@pytest.fixture
def checkout(tmp_path, base):
    """A checkout that has `base` in its store, but no image of `words`."""
    made = make_checkout(tmp_path / "checkout")
    shutil.copytree(base, made.root / "artifacts" / "base", copy_function=os.link)
    return made


@pytest.fixture
def bare_cache(tmp_path):
    """A cache with every source that this machine's has, but no kept root file system."""
    root = tmp_path / "bare-cache"
    try:
        shutil.copytree(Cache().root / "sha256", root / "sha256", copy_function=os.link)
    except OSError:  # another file system
        shutil.rmtree(root)
        shutil.copytree(Cache().root / "sha256", root / "sha256")
    return root


@pytest.fixture(scope="session")
def here():
    """This checkout itself, with all its recipes and its own store."""
    return Checkout(ROOT)


@pytest.fixture(scope="session")
def built(here):
    """The artifacts of hip-probe for gfx1201 and of its containers, by name, images loaded."""
    here.invoke("build", "--recipe", "hip-probe", "--target", "gfx1201")
    entries = {
        one.artifact.name: one
        for one in Store(ROOT / "artifacts").entries()
        if one.artifact.targets in {(), ("gfx1201",)}
    }
    for one in entries.values():
        # What is reused is not loaded again, and somebody may have taken it from the engine.
        if engine.layers(one.artifact.image.reference) != one.artifact.image.layers:
            engine.load(oci.read(one.folder / store.IMAGE), one.artifact.image.reference)
    return entries


@pytest.fixture(scope="session")
def sdk(built):
    """The name of the image with the HIP SDK."""
    return built["rocm"].artifact.image.reference
