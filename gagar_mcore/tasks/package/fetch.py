"""A package's source distribution and the environment of its tests, by pip."""

import shutil
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from gagar_mcore.tasks.task import TaskError

PIP_S = 900.0
PYTEST = "pytest>=8,<10"
OF_PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
TEST_EXTRAS = ("test", "tests", "testing")
REQUIREMENT_FILES = ("requirements/tests.in", "requirements/test.in", "tests/requirements.txt", "test-requirements.txt")
SETTINGS = {"pytest.ini": "[pytest]", "pyproject.toml": "[tool.pytest", "tox.ini": "[pytest]", "setup.cfg": "[tool:pytest]"}


@dataclass(frozen=True, slots=True)
class Package:
    """`root`: the unpacked source distribution. `source_root`: where its modules are below that, "" or "src". `modules`: files of
    the package, relative to `root`. `tests`: its tests' folder, relative to `root`. `settings`: pytest's, where there are any.
    `site`: everything that its tests import, but for the package itself. `requirements`: what is in it."""

    name: str
    version: str
    root: Path
    source_root: str
    modules: tuple[str, ...]
    tests: str
    settings: str | None
    site: Path
    requirements: tuple[str, ...]


def fetch(requirement: str, root: Path, site: Path) -> Package:
    """`requirement`: NAME==VERSION; its distribution is unpacked to `root`, the environment made in `site`. Like `pip install`
    this runs what the package does when it is built. Raises TaskError where it cannot be used: no sdist, not pure, no tests."""
    name, separator, version = requirement.partition("==")
    if not separator or not name or not version or requirement.startswith("-"):
        raise TaskError(f"--from-package: {requirement!r} is not of the form NAME==VERSION, such as marshmallow==4.4.0")
    if name.lower() in OF_PYTEST:
        raise TaskError(f"--from-package: {name} is a part of pytest, which runs the tests; name another package")
    _unpack(requirement, root)
    info = HeaderParser().parsestr(_text(root / "PKG-INFO"))
    extras = [extra for extra in info.get_all("Provides-Extra", []) if extra.lower() in TEST_EXTRAS]
    wanted = f"{name}[{','.join(extras)}]=={version}" if extras else requirement
    _pip("install", "--target", str(site), "--only-binary", ":all:", PYTEST, wanted, *_group_requirements(root))
    tops = _own_modules(name, site)
    source_root = "src" if all((root / "src" / top).exists() for top in tops) else ""
    missing = [top for top in tops if not (root / source_root / top).exists()]
    if missing:
        raise TaskError(
            f"{requirement}: its source distribution lacks {', '.join(missing)}; packages with built parts are not used"
        )
    files = [path for top in tops for path in _files(root / source_root / top)]
    if any(path.suffix in (".so", ".pyx", ".c") for path in files):
        raise TaskError(f"{requirement}: not pure Python; name another package")
    for top in tops:
        target = site / top
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    modules = tuple(sorted(str(path.relative_to(root)) for path in files if path.suffix == ".py"))
    tests = next((folder for folder in ("tests", "test") if (root / folder).is_dir()), None)
    if tests is None:
        raise TaskError(f"{requirement}: its source distribution has no folder of tests; name another package or version")
    frozen = _pip("freeze", "--path", str(site)).splitlines()
    requirements = tuple(line for line in frozen if not line.lower().startswith(f"{name.lower()}=="))
    return Package(name, version, root, source_root, modules, tests, _settings(root), site, requirements)


def _unpack(requirement: str, root: Path) -> None:
    folder = root.with_name(f"{root.name}.download")
    name = requirement.partition("==")[0]
    _pip("download", "--no-deps", "--no-binary", name, "--dest", str(folder), requirement)
    archives = sorted(folder.glob("*.tar.gz"))
    if not archives:
        raise TaskError(f"{requirement}: pip brought no source distribution (.tar.gz)")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    [top] = (folder / "unpacked").iterdir()
    top.rename(root)
    shutil.rmtree(folder)


def _own_modules(name: str, site: Path) -> list[str]:
    """The top-level modules and packages that the distribution itself installed."""
    wanted = name.lower().replace("-", "_").replace(".", "_")
    for info in site.glob("*.dist-info"):
        if info.name.rpartition("-")[0].rpartition("-")[0].lower().replace(".", "_") == wanted:
            paths = [line.partition(",")[0] for line in _text(info / "RECORD").splitlines()]
            tops = {path.split("/")[0] for path in paths if path.endswith((".py", ".so")) and not path.startswith("..")}
            return sorted(tops)
    raise TaskError(f"{site}: pip installed no {name}")


def _files(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]


def _group_requirements(root: Path) -> list[str]:
    """Of the dependency groups of its tests, and of a file of requirements that is named for them."""
    try:
        groups = tomllib.loads(_text(root / "pyproject.toml")).get("dependency-groups", {})
    except (TaskError, tomllib.TOMLDecodeError):
        groups = {}
    wanted, found = [name for name in groups if name.lower() in TEST_EXTRAS], _listed_requirements(root)
    for name in wanted:  # which grows by the groups that these include
        for item in groups[name]:
            if isinstance(item, str):
                found.append(item)
            elif (other := item.get("include-group")) in groups and other not in wanted:
                wanted.append(other)
    return [item for item in found if not item.startswith("-")]


def _listed_requirements(root: Path) -> list[str]:
    for name in REQUIREMENT_FILES:
        if (root / name).is_file():
            lines = [line.partition("#")[0].strip() for line in _text(root / name).splitlines()]
            return [line for line in lines if line and not line.startswith("-")]
    return []


def _settings(root: Path) -> str | None:
    for name, section in SETTINGS.items():
        if (root / name).is_file() and section in _text(root / name):
            return name
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise TaskError(f"{path}: missing; this is no source distribution") from None


def _pip(*words: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_S, check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()[-1:]
        raise TaskError(f"pip {words[0]}: {' '.join(said)[:500]}")
    return done.stdout
