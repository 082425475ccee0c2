"""Test images: an artifact's image, and over it what only its tests need.

They are made where they are wanted, in the engine alone: the store, and whoever is given an image,
gets the product without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import zstandard

from rocbake import engine, log

if TYPE_CHECKING:
    from pathlib import Path

    from rocbake.store import Entry

# Where a test image has what its tests need: /opt/tests, as the tar says.
_FOLDER = "/opt"
_SUFFIX = "-test"


def reference(image: str) -> str:
    """Return a test image's name, given the image's.

    >>> reference("rocbake/whisper-cpp:gfx1201")
    'rocbake/whisper-cpp:gfx1201-test'
    """
    return image + _SUFFIX


def make(image: str, tests: Path) -> str:
    """Lay a tar over an image that the engine has, and return the new image's name.

    Args:
        image: The image's name.
        tests: A .tar.zst; its paths are below /opt.

    Raises:
        EngineError: The engine does not answer, or has no such image.
    """
    name = reference(image)
    with tests.open("rb") as packed:
        engine.overlay(image, zstandard.ZstdDecompressor().stream_reader(packed), _FOLDER, name)
    return name


def bring(entry: Entry) -> str:
    """Return the name of the image that an artifact's tests run in; it is in the engine then."""
    image = entry.artifact.image.reference
    if entry.tests_path is None:
        return image
    with log.step(f"Making {reference(image)}"):
        return make(image, entry.tests_path)
