"""The errors that a user can mend: they are shown as one line."""

from gagar_mcore.config.load import RecipeError
from gagar_mcore.controller.bookkeeping import DiskFull
from gagar_mcore.engine.protocol import EngineError
from gagar_mcore.launcher.local import ProcessFailed
from gagar_mcore.records.epochs import Fenced
from gagar_mcore.records.store import RecordError
from gagar_mcore.rollout.collect import CollectionError
from gagar_mcore.tasks.task import TaskError
from gagar_sandbox.types import SandboxLost, SandboxUnavailable

EXPECTED = (
    RecipeError,
    RecordError,
    TaskError,
    Fenced,
    CollectionError,
    DiskFull,
    EngineError,
    ProcessFailed,
    SandboxLost,
    SandboxUnavailable,
    OSError,
)
