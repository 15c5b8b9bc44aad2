"""See `gagar_mcore/bench/batch_build.py`."""

from gagar_mcore.bench.batch_build import main

if __name__ == "__main__":
    main()
