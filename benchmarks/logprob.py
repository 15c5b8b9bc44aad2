"""See `gagar_mcore/bench/logprob.py`."""

from gagar_mcore.bench.logprob import main

if __name__ == "__main__":
    main()
