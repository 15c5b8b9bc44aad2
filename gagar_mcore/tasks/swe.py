"""Records of SWE-bench (lite, Verified, Pro) and SWE-smith, read and validated."""

import ast
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from gagar_mcore.tasks.task import TaskError

MAX_FILE_BYTES = 1 << 30
DIFF_HEADER = r"^diff --git a/.* b/(.*)$"


def _names(value: Any) -> Any:
    """Data sets store lists of tests as lists, as JSON, or (Pro) as Python writes them."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        pass
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ValueError("must be a list of test ids") from None


Names = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_names)]


class SweRecord(BaseModel):
    """One instance. `patch` solves it, but in SWE-smith, where it made the bug. Where a data set leaves out tests and patches,
    the record can be read and not run: see `lacks`."""

    model_config = ConfigDict(extra="ignore", strict=True)

    instance_id: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", validation_alias=AliasChoices("instance_id", "task_name"))
    ]
    problem_statement: Annotated[str, Field(min_length=1, validation_alias=AliasChoices("problem_statement", "prompt"))]
    repo: str = ""
    base_commit: Annotated[str, Field(pattern=r"^([0-9a-f]{40})?$")] = ""
    version: str = ""
    patch: str = ""
    test_patch: str = ""
    fail_to_pass: Annotated[Names, Field(validation_alias=AliasChoices("FAIL_TO_PASS", "fail_to_pass"))] = []
    pass_to_pass: Annotated[Names, Field(validation_alias=AliasChoices("PASS_TO_PASS", "pass_to_pass"))] = []
    selected_test_files_to_run: Names = []
    repo_language: str = "python"
    image: Annotated[str, Field(validation_alias=AliasChoices("image_name", "sandbox_image", "docker_image", "image"))] = ""
    dockerhub_tag: str = ""

    @property
    def smith(self) -> bool:
        return self.repo.startswith("swesmith/")

    @property
    def pro(self) -> bool:
        return bool(self.selected_test_files_to_run)

    @property
    def lacks(self) -> list[str]:
        """The fields without which its tests cannot be run."""
        needed = ["repo", "base_commit", "patch", "fail_to_pass"]
        needed += [] if self.smith or self.pro else ["version", "test_patch"]
        return [name for name in needed if not getattr(self, name)]

    @property
    def workdir(self) -> str:
        """Where its images have the repository."""
        return "/app" if self.pro else "/testbed"

    @property
    def container(self) -> str:
        """The image that the data set's makers publish for it."""
        if self.image:
            return self.image
        if self.dockerhub_tag:
            return f"jefzda/sweap-images:{self.dockerhub_tag}"
        return f"swebench/sweb.eval.x86_64.{self.instance_id.lower().replace('__', '_1776_')}:latest"


def read_records(path: Path) -> list[SweRecord]:
    """Of a file with a JSON list, one JSON object, or JSON lines. Raises TaskError, which names the record and the field."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise TaskError(f"{path}: larger than {MAX_FILE_BYTES} bytes; split it")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TaskError(f"{path}: no such file; name a file of SWE-bench or SWE-smith records") from None
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 text; convert it") from error
    records = [_record(path, number, item) for number, item in enumerate(_items(path, text), 1)]
    if not records:
        raise TaskError(f"{path}: holds no record")
    seen: set[str] = set()
    for record in records:
        if record.instance_id in seen:
            raise TaskError(f"{path}: two records have the instance_id {record.instance_id!r}; keep one")
        seen.add(record.instance_id)
    return records


def test_files(record: SweRecord) -> list[str]:
    """The files whose tests are to be run, in the repository."""
    if record.pro:
        return record.selected_test_files_to_run
    if record.smith:
        return list(dict.fromkeys(name.partition("::")[0] for name in [*record.fail_to_pass, *record.pass_to_pass]))
    return re.findall(DIFF_HEADER, record.test_patch, re.MULTILINE)


def reverse(patch: str) -> str:
    """A text patch that undoes another. Raises ValueError where that is not one of text, or makes or deletes files."""
    if re.search(r"^(GIT binary patch|Binary files|new file mode|deleted file mode|rename |copy |old mode)", patch, re.MULTILINE):
        raise ValueError("only changes of text can be turned round")
    return "".join(_reversed(patch.splitlines(keepends=True)))


def _reversed(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        if line.startswith(("--- ", "+++ ", "diff ", "index ")):
            yield line
        elif match := re.match(r"@@ -(\S+) \+(\S+) @@", line):
            yield f"@@ -{match[2]} +{match[1]} @@{line[match.end() :]}"
        elif line.startswith(("-", "+")):
            yield ("+" if line[0] == "-" else "-") + line[1:]
        else:
            yield line


def _items(path: Path, text: str) -> list[Any]:
    try:
        whole = json.loads(text)
        return whole if isinstance(whole, list) else [whole]
    except ValueError:
        pass
    items = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            items += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            raise TaskError(f"{path}: line {number}: no JSON: {error}; give a list, or one object a line") from error
    return items


def _record(path: Path, number: int, item: Any) -> SweRecord:
    try:
        return SweRecord.model_validate(item)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "record"
        raise TaskError(f"{path}: record {number}: {where}: {first['msg'].lower()}, got {str(first['input'])[:80]!r}") from error
