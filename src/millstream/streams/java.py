"""The Java that Spark needs, and one line about it where it is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from millstream.streams.problems import StreamsError

NEEDED = 17
HOW = (
    "Debian and Ubuntu: apt install default-jre-headless; macOS: brew install openjdk@17; "
    "or set JAVA_HOME to one you have"
)


def check_java() -> None:
    """Raise if there is no Java that Spark 4.3 runs on."""
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if program is None or not os.access(program, os.X_OK):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no `java` on the path"
        raise StreamsError(f"Spark needs Java {NEEDED} or newer, and {where}. {HOW}")
    asked = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    found = re.search(r'version "(?:1\.)?(\d+)', asked.stderr)
    if asked.returncode:  # as of the `java` that macOS has where there is none
        said = (asked.stderr.strip() or "it says nothing").splitlines()[0]
        raise StreamsError(f"Spark needs Java {NEEDED} or newer, and {program} does not run: {said}. {HOW}")
    if found is not None and int(found[1]) < NEEDED:
        raise StreamsError(f"Spark needs Java {NEEDED} or newer, and {program} is Java {found[1]}. {HOW}")
