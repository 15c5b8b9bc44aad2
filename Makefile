# Two commands for a first hour: `make smoke` and `make test`; with a GPU also `make smoke-gpu`. They install what they need into
# .venv once and then work offline.
PYTHON ?= python3
# Another package index for torch, for a CPU build where the default one carries CUDA (empty: the default index).
TORCH_INDEX ?=

VENV := .venv
VERL := .venv-verl
MCORE019 := .venv-mcore019
DEEPSPEED := .venv-deepspeed
SGLANG := .venv-sglang
AGENTS := .venv-agents
RUN := $(VENV)/bin/python
SITE := import sysconfig; print(sysconfig.get_path("purelib"))
TORCH := $(shell sed -n 's/^torch==/torch==/p' requirements.lock)
# Packages of .venv show through in another environment, beneath its own.
on_top_of_venv = @echo "import site; site.addsitedir('$$($(RUN) -c '$(SITE)')')" > "$$($(1)/bin/python -c '$(SITE)')/beneath.pth"
TEST_PROCESSES ?= 2
# Of tests: each of several processes takes a file at a time.
SHARED_OUT = --numprocesses $(TEST_PROCESSES)
SMOKE_OUTPUT ?= runs/smoke
SMOKE_ARGS ?=
SMOKE_GPU_OUTPUT ?= runs/smoke-gpu

.PHONY: smoke smoke-gpu deepspeed test test-hostile test-packages test-layouts test-kills test-verl test-mcore019 test-sglang test-agents test-deepspeed test-kube lint wheel clean

smoke: $(VENV)/.installed
	@rm -rf "$(SMOKE_OUTPUT)"
	$(RUN) -m gagar_mcore.cli train launch/recipes/tiny.yaml output="$(SMOKE_OUTPUT)" $(SMOKE_ARGS)

# The same loop on one GPU. `gagar doctor` goes first and says what is missing.
smoke-gpu: $(VENV)/.installed
	$(RUN) -m gagar_mcore.cli doctor
	@rm -rf "$(SMOKE_GPU_OUTPUT)"
	$(RUN) -m gagar_mcore.cli train launch/recipes/single-gpu.yaml output="$(SMOKE_GPU_OUTPUT)" $(SMOKE_ARGS)

test: $(VENV)/.installed-dev
	$(RUN) -m pytest $(SHARED_OUT)

# Every parallel layout that up to eight processes can have, and conversions of checkpoints; `make test` runs some of them.
test-layouts: $(VENV)/.installed-dev
	$(RUN) -m pytest -m layouts tests/trainer

# A whole run killed at five moments, and a trainer or a fine-tuning alone, whose weights are those of one left alone.
test-kills: $(VENV)/.installed-dev
	$(RUN) -m pytest $(SHARED_OUT) -m kills tests/controller tests/trainer tests/sft

# The tests that need verl, which wants another transformers than we do: an environment of its own on top of .venv.
test-verl: $(VERL)/.installed
	$(VERL)/bin/python -m pytest $(wildcard tests/integrations/test_verl*.py)

# The trainer under the Megatron-Core of the GPU lane, which declares Python 3.12 but runs on 3.11.
test-mcore019: $(MCORE019)/.installed
	$(MCORE019)/bin/python -m pytest $(SHARED_OUT) tests/models tests/trainer
	$(MCORE019)/bin/python -m pytest -m "layouts or kills" tests/trainer/test_execution.py tests/trainer/test_convert.py \
		tests/trainer/test_restart.py

# The engine on SGLang's real server, on this machine's CPU. The server wants other packages: an environment of its own.
test-sglang: $(SGLANG)/.installed
	$(RUN) -m pytest -m sglang tests/engine

# Agents that are not ours, in sandboxes that see their environment and nothing else of this machine.
test-agents: $(AGENTS)/.installed
	$(RUN) -m pytest -m agents tests/agent

# Fine-tuning of dense models by DeepSpeed, on two ranks of this machine's CPU.
test-deepspeed: $(VENV)/.installed-dev $(DEEPSPEED)/.installed
	$(RUN) -m pytest -m deepspeed tests/sft

# Pools of pods on a real API server and scheduler, where their programs are at hand; etcd is Debian's.
test-kube: $(VENV)/.installed-dev
	@command -v etcd >/dev/null || apt-get install -y -q etcd-server || true
	$(RUN) -m pytest -m kube tests/kubernetes

# Attacks on the verification of patches, each prevented or detected.
test-hostile: $(VENV)/.installed-dev
	$(RUN) -m pytest $(SHARED_OUT) -m hostile tests/hostile tests/verify

# Tasks from the code and tests of packages of the index; `PACKAGES="-k NAME"` takes one.
test-packages: $(VENV)/.installed-dev
	$(RUN) -m pytest -m packages $(PACKAGES) tests/tasks

# For `gagar sft` on dense models; also a peer of benchmarks/trainer.py.
deepspeed: $(DEEPSPEED)/.installed

lint: $(VENV)/.installed-dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

# Carries the compiled fused step: for the CPU, and for sm_90 and later GPUs where nvcc is at hand.
wheel: $(VENV)/bin/python
	GAGAR_COMPILE=1 $(RUN) -m pip wheel --no-deps --wheel-dir dist .

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'gagar needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo 'python3 -m venv failed: install your system'"'"'s python3-venv package' >&2; exit 1; }

$(VENV)/.installed: requirements.lock pyproject.toml | $(VENV)/bin/python
	$(if $(TORCH_INDEX),$(RUN) -m pip install --index-url "$(TORCH_INDEX)" "$(TORCH)")
	$(RUN) -m pip install -r requirements.lock
	$(RUN) -m pip install --no-deps -e .
	@touch $@

$(VENV)/.installed-dev: requirements-dev.lock requirements-swe.lock $(VENV)/.installed
	$(RUN) -m pip install -r requirements-dev.lock
	$(RUN) -m pip install --no-deps -r requirements-swe.lock
	@touch $@

$(VERL)/.installed: requirements-verl.lock $(VENV)/.installed-dev
	$(RUN) -m venv --clear $(VERL)
	$(VERL)/bin/python -m pip install --no-deps -r requirements-verl.lock
	$(call on_top_of_venv,$(VERL))
	@touch $@

$(DEEPSPEED)/.installed: requirements-deepspeed.lock $(VENV)/.installed
	$(RUN) -m venv --clear $(DEEPSPEED)
	$(DEEPSPEED)/bin/python -m pip install --no-deps -r requirements-deepspeed.lock
	$(call on_top_of_venv,$(DEEPSPEED))
	@touch $@

$(SGLANG)/.installed: requirements-sglang.lock $(VENV)/.installed-dev
	$(RUN) -m venv --clear $(SGLANG)
	$(SGLANG)/bin/python -m pip install --no-deps -r requirements-sglang.lock
	$(call on_top_of_venv,$(SGLANG))
	@touch $@

$(AGENTS)/.installed: requirements-agents.lock $(VENV)/.installed-dev
	$(RUN) -m venv --clear $(AGENTS)
	$(AGENTS)/bin/python -m pip install --no-deps -r requirements-agents.lock
	@touch $@

$(MCORE019)/.installed: requirements-mcore019.lock $(VENV)/.installed-dev
	$(RUN) -m venv --clear $(MCORE019)
	$(MCORE019)/bin/python -m pip install --no-deps --only-binary=:all: --ignore-requires-python --python-version 3.12 \
		--target "$$($(MCORE019)/bin/python -c '$(SITE)')" "$$(sed -n '/^megatron-core==/p' requirements-mcore019.lock)"
	$(MCORE019)/bin/python -m pip install --no-deps "$$(sed -n '/^triton==/p' requirements-mcore019.lock)"
	$(call on_top_of_venv,$(MCORE019))
	@touch $@

clean:
	rm -rf $(VENV) $(VERL) $(DEEPSPEED) $(MCORE019) $(SGLANG) $(AGENTS) build dist .pytest_cache .mypy_cache .ruff_cache
