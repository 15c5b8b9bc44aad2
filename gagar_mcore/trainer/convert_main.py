"""One rank of a conversion: `torchrun ... -m gagar_mcore.trainer.convert_main JOB`, a conversion as JSON."""

import argparse

from torch.distributed.elastic.multiprocessing.errors import record

from gagar_mcore.config.conversion import Conversion
from gagar_mcore.lifetime import die_with_parent


@record  # the launcher's log then ends with what went wrong
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", help="a conversion as JSON")
    job = Conversion.model_validate_json(parser.parse_args().job)
    die_with_parent()

    from gagar_mcore.trainer.rank import start_rank

    start_rank(job.trainer)

    from gagar_mcore.trainer.convert import to_huggingface, to_megatron

    convert = to_megatron if job.direction == "hf-to-megatron" else to_huggingface
    convert(job)


if __name__ == "__main__":
    main()
