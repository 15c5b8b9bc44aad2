"""SGLang's server: `python -m gagar_mcore.engine.sglang_launch FLAGS`, run by a Python that has SGLang.

It ends with the process that started it, and its own processes with it. Its keys come by environment: every user of the machine
can read a command line."""

import os
import sys
from importlib.util import find_spec

from transformers import AutoConfig, PretrainedConfig

from gagar_mcore.engine import sglang_cpu
from gagar_mcore.lifetime import die_with_parent

KEYS = {"GAGAR_ENGINE_KEY": "--api-key", "GAGAR_ENGINE_ADMIN_KEY": "--admin-api-key"}


class MiMoV2Config(PretrainedConfig):
    """The configuration of published MiMo-V2 checkpoints, which transformers would read with code of the checkpoint's own."""

    model_type = "mimo_v2"


# As the module is imported: each of SGLang's processes imports it before its own, which takes them long.
if __name__ in ("__main__", "__mp_main__"):
    die_with_parent()
if __name__ == "__mp_main__" and os.getppid() == 1:
    sys.exit("the server has ended while this process of it began")
AutoConfig.register(MiMoV2Config.model_type, MiMoV2Config)
if find_spec("sglang") is None:
    sys.exit(f"engine.server.python: {sys.executable}: has no SGLang; name a Python that has, such as .venv-sglang/bin/python")
if sglang_cpu.wanted():
    sglang_cpu.install()


def main() -> None:
    keys = [f"{flag}={os.environ.pop(name)}" for name, flag in KEYS.items() if name in os.environ]
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    _keep_settings()
    try:
        run_server(prepare_server_args([*sys.argv[1:], *keys]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def _keep_settings() -> None:
    """Settings, the keys among them, are told to whoever may generate, unless this is changed."""
    from sglang.srt.entrypoints.http_server import get_server_info, server_info
    from sglang.srt.utils.auth import AuthLevel, auth_level

    for endpoint in (server_info, get_server_info):
        auth_level(AuthLevel.ADMIN_OPTIONAL)(endpoint)


if __name__ == "__main__":
    main()
