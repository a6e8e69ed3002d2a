"""The package index: which wheels there are, and single files out of them, by HTTP ranges."""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import fsspec
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from pypi_simple import PYPI_SIMPLE_ENDPOINT, PyPISimple

from .source import BuildError

# Bytes a range: a wheel's headers lie side by side, so that few and large ones are fastest.
BLOCK_SIZE = 16 << 20
ATTEMPTS = 3


def endpoint():
    """The index that pip is set up to use, or PyPI."""
    named = os.environ.get("PIP_INDEX_URL")
    if not named:
        command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
        named = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return named or PYPI_SIMPLE_ENDPOINT


@functools.cache
def wheels(project):
    """Addresses of a project's wheels for Linux on x86-64, by version: those of the last build, for one Python."""
    try:
        packages = PyPISimple(endpoint()).get_project_page(project).packages
    except Exception as error:
        raise BuildError(f"{endpoint()} does not list the versions of {project}: {error}") from error
    best = {}
    for package in packages:
        try:
            _, version, build, tags = parse_wheel_filename(package.filename)
        except InvalidWheelFilename:
            continue
        fits = any("linux" in tag.platform and tag.platform.endswith("x86_64") for tag in tags)
        if not fits or package.is_yanked or version.is_prerelease:
            continue
        # The Python does not matter; the name makes the choice the same each time.
        best[version] = max(best.get(version, ((), "", "")), (build, package.filename, package.url))
    return {version: url for version, (_, _, url) in best.items()}


def newest(project, prefix):
    """The address of a project's newest wheel whose version begins with the numbers `prefix`."""
    fitting = [version for version in wheels(project) if version.release[: len(prefix)] == prefix]
    if not fitting:
        wanted = ".".join(map(str, prefix))
        raise BuildError(f"{endpoint()} has no wheel of {project} {wanted} for Linux on x86-64")
    return wheels(project)[max(fitting)]


def extract(url, wanted, folder):
    """Puts the files of a wheel for whose names `wanted` says yes into a folder, with the wheel's paths; says which."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with fsspec.filesystem("http").open(url, block_size=BLOCK_SIZE, cache_type="blockcache") as remote:
                with zipfile.ZipFile(remote) as wheel:
                    names = [name for name in wheel.namelist() if wanted(name)]
                    wheel.extractall(folder, names)
                    return names
        except (OSError, ValueError, zipfile.BadZipFile, fsspec.exceptions.FSTimeoutError) as error:
            if attempt == ATTEMPTS:
                raise BuildError(f"{url} cannot be read by ranges: {error!r}") from error


def complete(folder, fill):
    """The folder `folder`, which `fill` fills where it is not there yet; it appears only when it is complete."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".unfinished-"))
        try:
            fill(unfinished)
            unfinished.chmod(0o755)
            if not folder.is_dir():
                os.replace(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder
