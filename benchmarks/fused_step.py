"""See `gagar_mcore/bench/fused_step.py`."""

from gagar_mcore.bench.fused_step import main

if __name__ == "__main__":
    main()
