"""Where everything lies in a run directory."""

import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunLayout:
    """Paths of one run. Step s (from 1) is collected with weights version s - 1 and, applied, gives version s;
    version 0 is the initial policy."""

    root: Path

    @property
    def recipe(self) -> Path:
        return self.root / "recipe.yaml"

    @property
    def epochs(self) -> Path:
        return self.root / "epochs.json"

    @property
    def lock(self) -> Path:
        return self.root / "controller.lock"

    @property
    def trainer_state(self) -> Path:
        """`{"applied": s}`: the trainer holds the weights of step s."""
        return self.root / "trainer.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def wandb_ledger(self) -> Path:
        """Beside the folders that Weights & Biases makes in `wandb/`."""
        return self.root / "wandb" / "ledger.json"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def server(self, name: str) -> Path:
        """Address and keys of the server that `gagar serve` runs, while it runs; named by its role first."""
        return self.root / "servers" / f"{name}.json"

    def new_experts(self, server: str) -> Path:
        """Where the sidecar of a server that starts now stores the experts of tokens."""
        return self.root / "experts" / f"{server}-{time.time_ns()}"

    def step(self, step: int) -> Path:
        return self.root / "steps" / f"{step:06d}"

    def trajectory(self, step: int, trajectory_id: str) -> Path:
        return self.step(step) / "trajectories" / f"{trajectory_id}.json"

    def experts(self, step: int, trajectory_id: str) -> Path:
        return self.step(step) / "trajectories" / f"{trajectory_id}.experts.npy"

    def group(self, step: int, group_id: str) -> Path:
        return self.step(step) / "groups" / f"{group_id}.json"

    def workspace(self, step: int, group_id: str) -> Path:
        return self.step(step) / "workspaces" / group_id

    def batch(self, step: int) -> Path:
        return self.step(step) / "batch"

    def step_metrics(self, step: int, part: str) -> Path:
        """`part` is `collect` or `load` (controller) or `train` (trainer)."""
        return self.step(step) / f"{part}.json"

    def outcomes(self, step: int) -> Path:
        """What the step's groups say of their tasks."""
        return self.step(step) / "tasks.json"

    def evaluation(self, version: int) -> Path:
        return self.root / "evals" / f"{version:06d}"

    def weights(self, version: int, lineage: int = 0) -> Path:
        return self.root / "weights" / f"{lineage}-{version:06d}"

    def checkpoint(self, step: int, lineage: int = 0) -> Path:
        return self.root / "checkpoints" / f"{lineage}-{step:06d}"
