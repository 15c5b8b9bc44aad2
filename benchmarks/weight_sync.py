"""See `gagar_mcore/bench/weight_sync.py`."""

from gagar_mcore.bench.weight_sync import main

if __name__ == "__main__":
    main()
