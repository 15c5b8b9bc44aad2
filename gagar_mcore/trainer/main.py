"""One rank of the trainer: `torchrun ... -m gagar_mcore.trainer.main RUN_DIR --epoch E`."""

import argparse
import os
from contextlib import nullcontext
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from gagar_mcore.config.load import load_recipe
from gagar_mcore.lifetime import die_with_parent
from gagar_mcore.records.epochs import Fence
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.trainer.lifetime import wait_for_record


@record  # the launcher's log then ends with what went wrong
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--epoch", type=int, required=True, help="epoch of the controller that started this trainer")
    arguments = parser.parse_args()
    die_with_parent()
    layout = RunLayout(arguments.run)
    recipe = load_recipe(str(layout.recipe))

    from gagar_mcore.trainer.rank import start_rank

    start_rank(recipe.trainer)

    from gagar_mcore.trainer.loop import train
    from gagar_mcore.weights.sender import sending

    sends = recipe.engine.update == "distributed" and os.environ["RANK"] == "0"
    with sending(layout.root) if sends else nullcontext():
        train(layout, recipe, Fence(layout, arguments.epoch))
        if sends:
            wait_for_record(layout.step_metrics(recipe.train.steps, "load"), recipe.engine.start_timeout_s)


if __name__ == "__main__":
    main()
