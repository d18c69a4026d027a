# make help lists what there is. TF=2.18.1 chooses another TensorFlow, PYTHON=python3.12 another Python, HOROVOD=no does
# without Horovod. WHEELHOUSE=DIR installs from a folder that make wheelhouse has filled, without a network.

.DEFAULT_GOAL := help
.PHONY: help setup wheelhouse demo tune-demo test test-quick soak lint docs docs-api bench-quick clean

# horovodrun starts mpirun by name, and both may be those of .venv.
export PATH := $(CURDIR)/.venv/bin:$(PATH)

# What pip reads, and where the set-up finds the wheels that it would build (hpc_train/bootstrap/build.py).
HOUSE = $(abspath $(or $(WHEELHOUSE),build/wheelhouse))
OFFLINE = $(if $(WHEELHOUSE),PIP_NO_INDEX=1 PIP_FIND_LINKS="$(HOUSE)" HPC_TRAIN_CACHE="$(HOUSE)/built")

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(firstword $(MAKEFILE_LIST)) | expand -t 13

setup:  ## build .venv with TensorFlow, MPI and Horovod (TF=2.18.1, PYTHON=python3.12, HOROVOD=no)
	@$(OFFLINE) $(or $(shell command -v python3),$(PYTHON)) hpc_train/bootstrap $(if $(TF),--tf "$(TF)") $(if $(PYTHON),--python "$(PYTHON)") $(if $(HOROVOD),--horovod "$(HOROVOD)")

wheelhouse:  ## gather the wheels that .venv was made of in WHEELHOUSE=DIR, for make setup WHEELHOUSE=DIR elsewhere
	@$(MAKE) --no-print-directory setup WHEELHOUSE=
	@mkdir -p "$(HOUSE)/built"
	@.venv/bin/python -m pip freeze --all --exclude-editable >"$(HOUSE)/requirements.txt"
	@.venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir "$(HOUSE)" --requirement "$(HOUSE)/requirements.txt" .
	@.venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir "$(HOUSE)" 'setuptools>=68,<82' # to build with
	@if cd "$${HPC_TRAIN_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/hpc_train}" 2>/dev/null; then tar --exclude=./packs -cf - . | tar -C "$(HOUSE)/built" -xf -; fi
	@echo "$(HOUSE): $$(ls "$(HOUSE)" | grep -c '[.]whl$$') wheels, $$(du -sh "$(HOUSE)" | cut -f1)"

demo: setup  ## train, evaluate and export a small model (SOURCE=... chooses the data, STRATEGY=async the other way)
	@.venv/bin/python examples/fashion_mnist/demo.py $(if $(SOURCE),--source "$(SOURCE)") $(if $(STRATEGY),--strategy "$(STRATEGY)")

tune-demo: setup  ## search for good settings of that model: 12 trials, a minute or two
	@.venv/bin/python examples/fashion_mnist/prepare.py
	@.venv/bin/hpc-train tune examples/fashion_mnist/tune.yaml --study runs/tune_demo_$$(date +%Y%m%d_%H%M%S)

test: setup  ## run all tests (PYTEST_ARGS="tests/unit -k sampler" chooses some)
	@.venv/bin/python -m pytest $(PYTEST_ARGS)

test-quick: setup  ## run the tests that start no ranks, in less than 5 minutes
	@.venv/bin/python -m pytest tests/unit $(PYTEST_ARGS)

soak: setup  ## try 40 times as many examples in each random test, for an hour (SOAK=400 for a night)
	@SOAK=$(or $(SOAK),40) .venv/bin/python -m pytest -m random $(PYTEST_ARGS)

lint: setup  ## check style, types, layers and shell scripts
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy hpc_train
	.venv/bin/lint-imports
	.venv/bin/shellcheck slurm/*.sh .ci/*

docs: setup  ## build the documentation site, build/site/index.html (LINKS=1 asks the web for the links that lead out)
	@.venv/bin/sphinx-build -qW --keep-going -c docs/site -d build/doctrees -b html . build/site
	@echo "$(CURDIR)/build/site/index.html"
	@$(if $(LINKS),.venv/bin/sphinx-build -qW --keep-going -c docs/site -d build/doctrees -b linkcheck . build/links)

docs-api: setup  ## write docs/api.md from the docstrings
	@.venv/bin/python docs/make_api.py

bench-quick: setup  ## measure the promised ratios in 3 minutes, and name what falls short (BENCH_ARGS="--parts input")
	@.venv/bin/python benchmarks/quick.py $(BENCH_ARGS)

clean:  ## remove .venv and what tools leave behind (the wheels' cache in ~/.cache/hpc_train stays)
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
