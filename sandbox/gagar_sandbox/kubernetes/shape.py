"""Which sandboxes can have the same pod."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from gagar_sandbox.bwrap import check_mounts
from gagar_sandbox.types import Limits, SandboxSpec

TAKEN = ("/gagar", "/tmp", "/var/tmp", "/logs", "/dev", "/proc", "/sys")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a pod is made for. `base_from_image`: the base is what the image has at `workdir`. `mounts` are the places of
    read-only folders, whose contents come with each sandbox."""

    image: str
    workdir: str
    base_from_image: bool
    mounts: tuple[str, ...]
    limits: Limits

    @classmethod
    def of(cls, spec: SandboxSpec, image: str) -> "Shape":
        """Raises ValueError where no pod can be what the spec asks for, FileNotFoundError where there is nothing to bring in."""
        check_mounts({spec.workdir: spec.base or Path("/"), **spec.read_only})
        for inside in (spec.workdir, *spec.read_only):
            if any(Path(inside).is_relative_to(taken) for taken in TAKEN):
                raise ValueError(f"{inside!r} hides a part of the pod: mount it elsewhere")
        for inside, outside in spec.read_only.items():
            if Path(inside).is_relative_to(spec.workdir):
                raise ValueError(f"{inside!r} is in the workdir, which pods empty and fill: mount it elsewhere")
            if not outside.is_dir():
                raise ValueError(f"read_only path {outside} is no folder: pods take folders alone")
        if spec.base is not None and not spec.base.is_dir():
            raise FileNotFoundError(f"base {spec.base} is no folder")
        return cls(spec.image or image, spec.workdir, spec.base is None, tuple(sorted(spec.read_only)), spec.limits)

    @property
    def id(self) -> str:
        """Ten characters that tell shapes apart; fit for a label or a part of a name."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:10]
