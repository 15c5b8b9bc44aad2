"""A task in the form of DeepSWE's: a repository with history, an artifact made of commits, tests that apply it."""

import json
import subprocess
from pathlib import Path

from gagar_mcore.tasks.load import load_task
from gagar_mcore.tasks.task import Task

TOML = '''
schema_version = "1.3"
artifacts = ["/logs/artifacts/model.patch"]
[task]
name = "any/adding"
[verifier]
network_mode = "no-network"
environment_mode = "separate"
timeout_sec = 60.0
[verifier.env]
GREETING = "hello"
[verifier.environment]
memory_mb = 512
[[verifier.collect]]
command = """mkdir -p /logs/artifacts && git config --global --add safe.directory /app
git diff --binary BASE HEAD > /logs/artifacts/model.patch"""
timeout_sec = 30.0
[agent]
network_mode = "no-network"
[environment]
memory_mb = 512
'''
TEST = """
set -e
[ "$GREETING" = hello ]
[ ! -s /logs/artifacts/model.patch ] || git apply /logs/artifacts/model.patch
python3 -B - <<'END'
import sys, time
sys.path.insert(0, ".")
import adding
def case(name, passed):
    failure = "" if passed else "<failure message='no'/>"
    return f'<testcase classname="tests.adding" name="{name}" time="0.01">{failure}</testcase>'
cases = case("test_add", adding.add(1, 2) == 3), case("test_same", adding.same(4) == 4)
with open("/logs/verifier/new.xml", "w") as file:
    file.write(f'<testsuites><testsuite name="pytest" tests="2">{"".join(cases)}</testsuite></testsuites>')
END
echo 1 > /logs/verifier/reward.txt
"""
BUGGY = "def add(a, b):\n    return a - b\n\n\ndef same(a):\n    return a\n"
FIXED = BUGGY.replace("a - b", "a + b")


def git(folder: Path, *words: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *settings, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def committed(folder: Path, text: str, message: str) -> str:
    (folder / "adding.py").write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def write_committed_task(root: Path) -> Task:
    """`adding`, whose history holds nothing after the base commit."""
    app = root / "environment" / "app"
    for folder in (app, root / "tests", root / "solution"):
        folder.mkdir(parents=True)
    git(app, "init", "-q")
    committed(app, "def same(a):\n    return a\n", "first")
    base = committed(app, BUGGY, "second")
    (root / "task.toml").write_text(TOML.replace("BASE", base))
    (root / "instruction.md").write_text("Mend add. Commit what you do.\n")
    (root / "tests" / "test.sh").write_text(TEST)
    config = {"base_commit": base, "f2p_node_ids": ["tests.adding.test_add"], "p2p_node_ids": ["tests.adding.test_same"]}
    config["grade"] = {"format": "junit", "reports": ["/logs/verifier/new.xml"]}
    (root / "tests" / "config.json").write_text(json.dumps(config))
    solve = f"set -e\ncat > adding.py <<'END'\n{FIXED}END\ngit config --global --add safe.directory /app\n"
    solve += "git -c user.name=a -c user.email=a@b commit -qam fixed\n"
    (root / "solution" / "solve.sh").write_text(solve)
    return load_task(root)
