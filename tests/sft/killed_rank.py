"""A rank of fine-tuning that dies by SIGKILL before it takes the step that KILLED_BEFORE names, counted from 0."""

import os
import signal
from typing import Any

from gagar_mcore.sft import train

join = train.join


def doomed_join(*arguments: Any) -> Any:
    trainee = join(*arguments)
    take, last = trainee.train_step, int(os.environ["KILLED_BEFORE"])

    def train_step(data: Any, step: int, lr: float) -> Any:
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return take(data, step, lr)

    trainee.train_step = train_step
    return trainee


if __name__ == "__main__":
    train.join = doomed_join
    train.main()
