# Sourced before tests are run again: pytest and `go test` take another order from these, whoever starts them.
export PYTHONPATH="/guard/order${PYTHONPATH:+:$PYTHONPATH}"
export PYTEST_ADDOPTS="-p gagar_order${PYTEST_ADDOPTS:+ $PYTEST_ADDOPTS}"
export GOFLAGS="-shuffle=$GAGAR_SHUFFLE${GOFLAGS:+ $GOFLAGS}"
