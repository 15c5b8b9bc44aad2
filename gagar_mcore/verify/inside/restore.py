"""Put tests, their settings and their runner back to what the task has, and remove what was planted beside them.

Started inside the sandbox as `python3 -I -S restore.py BASE WORKDIR LANGUAGE [PATH ...]`, before any code of the repository runs.
What lies at or below each PATH is the task's too. Needs the standard library alone, follows no link, and prints one JSON object:
the paths that it restored and removed."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_NAMED = 200
FOLDERS = {
    *("tests", "__tests__", "__snapshots__", "testdata", "site-packages", "node_modules", ".venv", "venv", ".tox", ".nox"),
    "__pycache__",
}
ROOT_FOLDERS = {"test", "testing", "spec", ".github", ".cargo", ".mvn", ".yarn"}
FILES = {
    *("conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"),
    *("tox.ini", "setup.cfg", "pyproject.toml", "noxfile.py", ".coveragerc", "pyvenv.cfg", "phpunit.xml", "phpunit.xml.dist"),
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile", ".envrc", ".env"),
    *(".npmrc", ".yarnrc", ".yarnrc.yml", ".rspec", ".gitconfig", ".gitmodules", ".pythonrc", ".python-version", ".node-version"),
    *("go.work", ".swcrc", ".taprc", "bunfig.toml", ".tool-versions", ".nvmrc", "rust-toolchain", "rust-toolchain.toml"),
}
PATTERNS = re.compile(
    r"test_.*\.py|.*_tests?\.(py|go|rb|exs|c|cc|cpp)|.*[.-](test|spec)\.[cm]?[jt]sx?|.*_spec\.rb|.*Tests?\.(java|kt|php|cs)"
    r"|.*\.(pth|pyc|pyo|snap)|\.(mocha|jest|babel|nyc|c8)rc.*"
    r"|(jest|vitest|vite|karma|babel|ava|cypress|playwright)[.-](config|conf|setup)\..*"
)
METADATA = (".egg-info", ".dist-info")  # of distributions, which can name plug-ins of the test runner
VENDORED = {"go": "vendor", "php": "vendor"}
RUNNERS = {"pytest", "_pytest", "pluggy", "py", "iniconfig", "nose", "nose2", "hypothesis", "xdist", "pytest_asyncio", "coverage"}
AT_START = {"sitecustomize", "usercustomize"}
SOURCE_ROOTS = {"src", "lib", "python"}
MODULE = re.compile(r"(?:(?:src|lib|python)/)?([^/.]+)(?:/__init__)?((?:\.[^/]*)?\.(?:py|pyc|so|pyd|zip|egg)|)")
ENVIRONMENTS = (
    *("/opt/site-packages", "/usr/lib/python3*/*-packages", "/usr/local/lib/python3*/*-packages"),
    *("/opt/*/lib/python3*/site-packages", "/opt/*/envs/*/lib/python3*/site-packages", "/root/.local/lib/python3*/site-packages"),
)
COMMON = {"tests", "test", "docs", "examples", "scripts", "benchmarks", "tools"}  # that some distributions leave there
SCRIPTS = ("scripts", "jest", "mocha", "ava", "nyc", "tap", "vitest", "c8", "babel")


def main() -> None:
    base, workdir, language, *more = sys.argv[1:]
    done: dict[str, list[str]] = {"restored": [], "removed": []}
    here, there = set(paths(workdir)), set(paths(base))
    others = taken() if language.lower().startswith("py") else set()
    for path in sorted(here | there):
        own = guarded(path, language, more) or (others and path not in there and shadows(workdir, path, others))
        if own or (path in SOURCE_ROOTS and os.path.islink(os.path.join(workdir, path))):
            if same(os.path.join(base, path), os.path.join(workdir, path)):
                continue
            if os.path.lexists(os.path.join(base, path)):
                restore(base, workdir, path)
                done["restored"].append(path)
            elif os.path.lexists(os.path.join(workdir, path)):
                remove(os.path.join(workdir, path))
                done["removed"].append(path)
        elif (os.path.basename(path) == "package.json" and rescript(base, workdir, path)) or (
            os.path.basename(path) == "go.mod" and redirected(base, workdir, path)
        ):
            done["restored"].append(path)
    print(json.dumps({name: some[:MOST_NAMED] for name, some in done.items()}))


def paths(root: str) -> Iterator[str]:
    """Of files, links and folders, relative; the repository's own .git is left alone."""
    for folder, folders, files in os.walk(root):
        if folder == root and ".git" in folders:
            folders.remove(".git")
        for name in (*folders, *files):
            yield os.path.relpath(os.path.join(folder, name), root)


def guarded(path: str, language: str = "", more: Sequence[str] = ()) -> bool:
    parts = path.split("/")
    if parts[0] in ROOT_FOLDERS or not FOLDERS.isdisjoint(parts) or parts[0] == VENDORED.get(language.lower()):
        return True
    if ".git" in parts or any(part.endswith(METADATA) for part in parts):
        return True
    if any(path == own or path.startswith(f"{own}/") for own in more):
        return True
    return parts[-1] in FILES or PATTERNS.fullmatch(parts[-1]) is not None


def taken() -> set[str]:
    """Names of modules of the standard library, of the environment, and of test runners."""
    folders = [folder for pattern in ENVIRONMENTS for folder in glob.glob(pattern)]
    installed = {name.partition(".")[0] for folder in folders for name in os.listdir(folder)}
    return (installed - COMMON) | set(sys.stdlib_module_names) | RUNNERS | AT_START


def shadows(workdir: str, path: str, others: set[str]) -> bool:
    """Whether it is imported in the place of one of the others: a file, a package's own, or a link to either."""
    found = MODULE.fullmatch(path)
    return found is not None and found[1] in others and (bool(found[2]) or os.path.islink(os.path.join(workdir, path)))


def same(one: str, other: str) -> bool:
    try:
        first, second = os.lstat(one), os.lstat(other)
    except OSError:
        return not os.path.lexists(one) and not os.path.lexists(other)
    if stat.S_IFMT(first.st_mode) != stat.S_IFMT(second.st_mode):
        return False
    if stat.S_ISLNK(first.st_mode):
        return os.readlink(one) == os.readlink(other)
    if not stat.S_ISREG(first.st_mode):
        return stat.S_ISDIR(first.st_mode)
    if first.st_size != second.st_size or (first.st_mode ^ second.st_mode) & 0o111:
        return False
    if first.st_mtime_ns == second.st_mtime_ns:  # which no patch can set
        return True
    with open(one, "rb") as left, open(other, "rb") as right:
        return left.read() == right.read()


def restore(base: str, workdir: str, path: str) -> None:
    make_way(workdir, os.path.dirname(path))
    source, target = os.path.join(base, path), os.path.join(workdir, path)
    if os.path.lexists(target):
        remove(target)
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
    elif os.path.isdir(source):
        os.mkdir(target)
    else:
        shutil.copyfile(source, target)
        os.chmod(target, stat.S_IMODE(os.stat(source).st_mode) | 0o600)


def make_way(workdir: str, folder: str) -> None:
    """Real folders down to `folder`: a link in its place would lead elsewhere."""
    at = workdir
    for part in folder.split("/") if folder else ():
        at = os.path.join(at, part)
        if os.path.islink(at) or not os.path.isdir(at):
            if os.path.lexists(at):
                os.unlink(at)
            os.mkdir(at)


def remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def redirected(base: str, workdir: str, path: str) -> bool:
    """go.mod as the task has it, where it takes modules from other places than there. Whether it did."""
    source, target = os.path.join(base, path), os.path.join(workdir, path)
    if not os.path.lexists(target):
        return False
    before = replacements(source) if os.path.isfile(source) else []
    if not os.path.islink(target) and replacements(target) == before:
        return False
    remove(target)
    if os.path.isfile(source):
        restore(base, workdir, path)
    return True


def replacements(path: str) -> list[str]:
    with open(path, errors="replace") as file:
        return [line.strip() for line in file if "=>" in line]


def rescript(base: str, workdir: str, path: str) -> bool:
    """How tests are run, taken from the task's package.json; the rest of it stays. Whether that changed anything."""
    source, target = os.path.join(base, path), os.path.join(workdir, path)
    if not os.path.isfile(source) or not os.path.lexists(target):
        return False
    if os.path.islink(target) or not os.path.isfile(target):
        restore(base, workdir, path)
        return True
    with open(source) as file:
        before = json.load(file)
    try:
        with open(target) as file:
            after = json.load(file)
        differing = [key for key in SCRIPTS if before.get(key) != after.get(key)]
    except (OSError, ValueError, AttributeError):
        restore(base, workdir, path)
        return True
    for key in differing:
        after.pop(key, None)
        after |= {key: before[key]} if key in before else {}
    if differing:
        make_way(workdir, os.path.dirname(path))
        remove(target)
        with open(target, "w") as file:
            json.dump(after, file, indent=2)
    return bool(differing)


if __name__ == "__main__":
    main()
