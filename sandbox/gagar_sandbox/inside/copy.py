"""Copies a folder, leaving out the given paths: `copy.py SOURCE TARGET [SKIPPED...]`, for hosts without overlay mounts."""

import os
import shutil
import sys

if __name__ == "__main__":
    source, target, *skipped = sys.argv[1:]
    left_out = {os.path.join(source, path) for path in skipped}
    shutil.copytree(
        source,
        target,
        symlinks=True,
        dirs_exist_ok=True,
        ignore=lambda folder, names: [name for name in names if os.path.join(folder, name) in left_out],
    )
