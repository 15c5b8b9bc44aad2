"""See `gagar_mcore/bench/scheduler.py`."""

from gagar_mcore.bench.scheduler import main

if __name__ == "__main__":
    main()
