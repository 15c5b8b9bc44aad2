"""`task.toml` and `tests/config.json` of the Harbor layout, schema 1.x: every field with its type."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

NodeId = Annotated[str, Field(min_length=1, max_length=10_000)]
Seconds = Annotated[float, Field(gt=0)]
Amount = Annotated[int, Field(gt=0)]


def _inside(path: str) -> str:
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path or path == "/":
        raise ValueError("must be an absolute path below / without '..'")
    return path


def _below(path: str) -> str:
    if path.startswith(("/", "-")) or not {"", ".", ".."}.isdisjoint(path.split("/")) or "\0" in path:
        raise ValueError("must be a path below the repository, without '.' and '..'")
    return path


InsidePath = Annotated[str, AfterValidator(_inside)]
BelowPath = Annotated[str, AfterValidator(_below)]


class Part(BaseModel):
    """Wrong types are refused; fields that the layout does not have are kept aside, see `unknown_fields`."""

    model_config = ConfigDict(extra="allow", strict=True)


class Networked(Part):
    network_mode: Literal["no-network", "public", "allowlist"] | None = None
    allowed_hosts: list[str] | None = None

    @model_validator(mode="after")
    def _hosts_need_a_list(self) -> "Networked":
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError('allowed_hosts needs network_mode = "allowlist"')
        return self


class Author(Part):
    name: str
    email: str | None = None


class Package(Part):
    name: Annotated[str, Field(min_length=1)]
    version: Annotated[str, Field(min_length=1)] | None = None
    description: str = ""
    authors: list[Author] = []
    keywords: list[str] = []


class Metadata(Part):
    """Free; these two are read here."""

    task_id: str | None = None
    language: str = "python"


class Healthcheck(Part):
    command: str
    interval_sec: float = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: Amount = 3


class McpServer(Part):
    name: str
    transport: Literal["stdio", "sse", "http", "streamable-http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = []
    headers: dict[str, str] = {}


def _megabytes(name: str, text: str) -> int:
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([MG])B?", text.strip().upper())
    if found is None:
        raise ValueError(f"{name}: {text[:40]!r} is no size such as 512M or 2G")
    return int(float(found[1]) * (1024 if found[2] == "G" else 1))


class Environment(Networked):
    build_timeout_sec: Seconds = 600.0
    docker_image: Annotated[str, Field(min_length=1)] | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    memory_mb: Amount | None = None
    storage_mb: Amount | None = None
    gpus: Annotated[int, Field(ge=0)] = 0
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[McpServer] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: InsidePath | None = None
    allow_internet: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _old_sizes(cls, data: Any) -> Any:
        """Schema 1.0 writes `memory = "2G"` for `memory_mb = 2048`, and `storage` so too."""
        if not isinstance(data, dict):
            return data
        old = {name: data[name] for name in ("memory", "storage") if isinstance(data.get(name), str)}
        sizes = {f"{name}_mb": _megabytes(name, text) for name, text in old.items()}
        return {**sizes, **{name: value for name, value in data.items() if name not in old}}


class Collect(Part):
    """A command run where the agent worked, after it has ended."""

    command: Annotated[str, Field(min_length=1)]
    service: str = "main"
    timeout_sec: Seconds = 60.0
    user: str | int | None = None


class Verifier(Networked):
    timeout_sec: Seconds = 1800.0
    env: dict[str, str] = {}
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: list[Collect] = []

    @model_validator(mode="after")
    def _shared_has_none(self) -> "Verifier":
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError('environment_mode = "shared" has no [verifier.environment]; leave one of them out')
        return self


class Agent(Networked):
    timeout_sec: Seconds = 5400.0
    user: str | int | None = None


class Solution(Part):
    env: dict[str, str] = {}


class Artifact(Part):
    source: InsidePath
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None


class TaskToml(Part):
    schema_version: Annotated[str, Field(pattern=r"^1\.\d+$")]
    task: Package | None = None
    metadata: Metadata = Metadata()
    verifier: Verifier = Verifier()
    agent: Agent = Agent()
    environment: Environment = Environment()
    solution: Solution = Solution()
    artifacts: list[InsidePath | Artifact] = []
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: list[dict[str, Any]] = []

    @model_validator(mode="before")
    @classmethod
    def _old_version(cls, data: Any) -> Any:
        """Schema 1.0 calls it `version`, and names no package."""
        if isinstance(data, dict) and "version" in data and "schema_version" not in data:
            return {"schema_version": data["version"], **{name: value for name, value in data.items() if name != "version"}}
        return data


class Grade(Part):
    """Where the tests' own reports are, and what a test's id is in them: `name`, `suite.name`, or `classname.name` of JUnit.
    `log`: what test.sh prints, read by the parser of SWE-bench that `parser` names."""

    format: Literal["ctrf", "junit", "log"]
    node_id: Literal["name", "suite.name", "classname.name"] | None = None
    tool_label: str = ""
    reports: list[InsidePath] = []
    parser: str = ""


class TestConfig(Part):
    """`inventory`: seconds that each test took when the task was made, of all tests that every run reports. `unsteady`:
    beginnings of ids that differ from run to run. `reached`: what code of the repository reaches for in an honest run, as the
    runner of real packages tells it. `guarded`: what of the repository is the tests', whatever its name."""

    f2p_node_ids: Annotated[list[NodeId], Field(min_length=1)]
    p2p_node_ids: list[NodeId]
    base_commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")] | None = None
    grade: Grade | None = None
    inventory: dict[NodeId, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {}
    unsteady: list[NodeId] = []
    reached: list[str] = []
    guarded: list[BelowPath] = []


def unknown_fields(part: BaseModel, where: str = "") -> Iterator[str]:
    """The dotted names of fields that the layout does not have, those of the free metadata left out."""
    for name in part.model_extra or {}:
        if not isinstance(part, Metadata):
            yield f"{where}{name}"
    for name in type(part).model_fields:
        value = getattr(part, name)
        for number, item in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(item, BaseModel):
                yield from unknown_fields(item, f"{where}{name}.{number}." if isinstance(value, list) else f"{where}{name}.")
