# Two commands do most of it: `make demo` and `make test`. `make help` lists the rest.

PYTHON ?= python3
TORCH ?= 2.13.0
SCENARIO ?= skip
# Most of a real test's time is waiting, so three files of tests run at a time, each as a whole.
TOGETHER ?= --numprocesses=3 --dist=loadfile --no-loadscope-reorder

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --no-input

.PHONY: help demo test test-frameworks accuracy replay situations figures fuzz lint screenshots captures lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/ready ## start a job that really hangs and open hangtop on it; SCENARIO=name for others
	@$(BIN)/hangtop demo $(SCENARIO)

test: $(VENV)/ready $(VENV)/system lint ## linters, types and all tests
	@$(BIN)/python tests/run.py $(TOGETHER) $(ARGS)

# Not a part of `make test`: the frameworks are large, and each of their jobs takes most of a minute.
test-frameworks: $(VENV)/ready $(if $(FRAMEWORKS),,.venv-frameworks/ready) ## jobs of real frameworks; FRAMEWORKS=VENV where one is ready
	@HANGTOP_FRAMEWORKS=$(or $(FRAMEWORKS),.venv-frameworks) $(BIN)/python -m pytest -n 0 tests/frameworks $(ARGS)
	@$(BIN)/python tests/support/launcherdocs.py

.venv-frameworks/ready: tests/frameworks/requirements.lock
	@echo "setting up .venv-frameworks; the first time this takes some minutes"
	@.ci/make-venv $(PYTHON) .venv-frameworks
	@.venv-frameworks/bin/python -m pip --disable-pip-version-check --quiet --no-input install \
		--no-deps 'torch==$(TORCH)+cpu' 2>/dev/null \
		|| .venv-frameworks/bin/python -m pip --quiet --no-input install 'torch==$(TORCH)'
	@.venv-frameworks/bin/python -m pip --disable-pip-version-check --quiet --no-input install \
		--no-deps --require-hashes -r tests/frameworks/requirements.lock
	@touch $@

lint: $(VENV)/ready ## linters, types and import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

accuracy: $(VENV)/ready $(VENV)/system ## run the jobs that accuracy is measured on; ARGS='JOB ...' for some
	@$(BIN)/python tests/accuracy/run.py $(if $(ARGS),$(ARGS),--write docs/accuracy.md)

replay: $(VENV)/ready ## judge again what was judged once, and list what differs; ARGS=--accept keeps the new answers
	@$(BIN)/python tests/replay/run.py $(ARGS)

situations: $(VENV)/ready ## record what the unit tests of rules judge for `make replay`
	@rm -rf $(VENV)/situations
	@PYTHONPATH=tests $(BIN)/python -m pytest -q -n 2 -p replay.plugin --situations $(VENV)/situations \
		tests/unit/core/analysis
	@$(BIN)/python tests/replay/corpus.py $(VENV)/situations tests/replay/corpus/unit.tar.xz

figures: $(VENV)/ready ## measure speed, memory and bytes, on a machine with nothing else to do; ARGS='NAME ...'
	@$(BIN)/python benchmarks/all.py $(ARGS)

fuzz: $(VENV)/ready ## fuzz what decodes bytes from outside; SECONDS=60 each, TARGET='node log' for some
	@$(PIP) install --require-hashes -r tests/fuzz/requirements.txt
	@$(BIN)/python tests/fuzz/run.py $(or $(SECONDS),60) $(TARGET)

screenshots: $(VENV)/ready ## make the screenshots again, from the captures in tests/recordings
	@$(BIN)/python screenshots/make.py $(ARGS)

captures: $(VENV)/ready $(VENV)/system ## record these captures again, of jobs that really hang; ARGS='skip ...'
	@$(BIN)/python screenshots/make.py --record $(ARGS)

# Everything but torch comes from the lock file, with its hashes. torch is installed for the CPU
# where the machine's package indexes have that build, else in the build they do have. PyTorch's
# own index of CPU builds can be added with PIP_EXTRA_INDEX_URL.
$(VENV)/ready: requirements.lock pyproject.toml .ci/make-venv
	@echo "setting up $(VENV); the first time this takes a minute or two"
	@.ci/make-venv $(PYTHON) $(VENV)
	@$(PIP) install --require-hashes -r requirements.lock
	@$(PIP) install --no-deps 'torch==$(TORCH)+cpu' 2>/dev/null \
		|| $(PIP) install 'torch==$(TORCH)'
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/system: .ci/system-packages | $(VENV)/ready
	@.ci/system-packages
	@touch $@

lock: ## choose versions again and write requirements.lock (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet \
		--extra dev --group setup pyproject.toml -o requirements.lock

clean: ## remove everything that make has made
	rm -rf $(VENV) .venv-frameworks .fuzz build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find core tui tests -name __pycache__ -type d -prune -exec rm -rf {} +
