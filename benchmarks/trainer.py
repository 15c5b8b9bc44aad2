"""See `gagar_mcore/bench/trainer.py`."""

from gagar_mcore.bench.trainer import main

if __name__ == "__main__":
    main()
