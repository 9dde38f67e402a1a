"""This package as one file that Spark hands to its executors."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("millstream", "pyspark_millstream")


def write_package(folder: Path) -> Path:
    """A zip of the package's Python files, in `folder`.

    The compiled kernel stays behind, as it would not run on another kind of machine: executors use the same
    code uncompiled, which is slower. They need the package's dependencies installed. Where the package itself
    is installed on them, nothing need be shipped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "millstream.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in PACKAGES:
            spec = find_spec(name)
            if spec is None or spec.origin is None:
                continue
            root = Path(spec.origin).parent
            for path in sorted(root.rglob("*.py")):
                archive.write(path, Path(name) / path.relative_to(root))
    return target
