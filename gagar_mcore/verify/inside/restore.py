"""Put tests, their settings and their runner back to what the task has, and remove what was planted beside them.

Started inside the sandbox as `python3 -I -S restore.py BASE WORKDIR LANGUAGE`, before any code of the repository runs. Needs the
standard library alone, follows no link, and prints one JSON object: the paths that it restored and removed."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_NAMED = 200
FOLDERS = {
    *("tests", "__tests__", "__snapshots__", "testdata", "site-packages", "node_modules", ".venv", "venv", ".tox", ".nox"),
    "__pycache__",
}
ROOT_FOLDERS = {"test", "testing", "spec", ".github", ".cargo", ".mvn", ".yarn"}
FILES = {
    *("conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"),
    *("tox.ini", "setup.cfg", "pyproject.toml", "noxfile.py", ".coveragerc", "pyvenv.cfg", "phpunit.xml"),
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile", ".envrc", ".env"),
    *(".npmrc", ".yarnrc", ".yarnrc.yml", ".rspec", ".gitconfig", ".gitmodules", ".pythonrc", ".python-version", ".node-version"),
}
PATTERNS = re.compile(
    r"test_.*\.py|.*_tests?\.(py|go|rb|exs|c|cc|cpp)|.*[.-](test|spec)\.[cm]?[jt]sx?|.*_spec\.rb|.*Tests?\.(java|kt|php|cs)"
    r"|.*\.(pth|pyc|pyo|snap)|(jest|vitest|karma|babel|ava|cypress|playwright)\.(config|conf)\..*|\.mocharc.*|\.jestrc.*"
)
RUNNERS = {"pytest", "_pytest", "pluggy", "py", "iniconfig", "nose", "nose2", "hypothesis", "xdist", "pytest_asyncio", "coverage"}
SOURCE_ROOTS = ("", "src/", "lib/", "python/")
SCRIPTS = ("scripts", "jest", "mocha", "ava", "nyc", "tap", "vitest", "c8", "babel")


def main() -> None:
    base, workdir, language = sys.argv[1:4]
    done: dict[str, list[str]] = {"restored": [], "removed": []}
    here, there = set(paths(workdir)), set(paths(base))
    for path in sorted(here | there):
        if guarded(path) or (language == "python" and path not in there and shadows(workdir, path)):
            if same(os.path.join(base, path), os.path.join(workdir, path)):
                continue
            if os.path.lexists(os.path.join(base, path)):
                restore(base, workdir, path)
                done["restored"].append(path)
            elif os.path.lexists(os.path.join(workdir, path)):
                remove(os.path.join(workdir, path))
                done["removed"].append(path)
        elif os.path.basename(path) == "package.json" and rescript(base, workdir, path):
            done["restored"].append(path)
    print(json.dumps({name: some[:MOST_NAMED] for name, some in done.items()}))


def paths(root: str) -> Iterator[str]:
    """Of files, links and folders, relative; the repository's own .git is left alone."""
    for folder, folders, files in os.walk(root):
        if folder == root and ".git" in folders:
            folders.remove(".git")
        for name in (*folders, *files):
            yield os.path.relpath(os.path.join(folder, name), root)


def guarded(path: str) -> bool:
    parts = path.split("/")
    if parts[0] in ROOT_FOLDERS or not FOLDERS.isdisjoint(parts):
        return True
    return parts[-1] in FILES or PATTERNS.fullmatch(parts[-1]) is not None or ".git" in parts


def shadows(workdir: str, path: str) -> bool:
    """Whether it takes the place of a module of the standard library or of the test runner."""
    folder, _, name = path.rpartition("/")
    if (folder and folder + "/") not in SOURCE_ROOTS:
        return False
    module, _, suffix = name.partition(".")
    if module not in sys.stdlib_module_names and module not in RUNNERS:
        return False
    whole = os.path.join(workdir, path)
    if os.path.isdir(whole):
        return any(name.startswith("__init__.") for name in os.listdir(whole))
    return suffix.rpartition(".")[2] in ("py", "so", "pyd", "zip", "egg")


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
