# Every target does its own set-up. `make` alone explains them.

PYTHON ?= python3
PRECISION ?= fp32
MODEL ?= smollm2
HTTP_PORT ?= 8000
GRPC_PORT ?= 8001
METRICS_PORT ?= 8002
SERVE_ARGS ?=
BENCH_ARGS ?= --concurrency 1,4,16
PYTEST_ARGS ?=
GPU_ARGS ?=

export HTTP_PORT GRPC_PORT METRICS_PORT

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-gpu lint bench clean
.DELETE_ON_ERROR:

help:
	@echo 'make serve   export SmolLM2-135M-Instruct and its head once, then serve it on 127.0.0.1'
	@echo 'make bench   measure speculation on the server that `make serve` started'
	@echo 'make test    lint, type check, all tests'
	@echo 'make test-gpu  what only an NVIDIA card can prove; says so where there is none'
	@echo 'make lint    ruff and mypy only'
	@echo 'make clean   remove the virtual environment, exported models and caches'
	@echo
	@echo 'Variables, as in `make serve PRECISION=int8 HTTP_PORT=9000`:'
	@echo '  PYTHON=$(PYTHON)  Python 3.10 to 3.13 for the virtual environment'
	@echo '  PRECISION=$(PRECISION)  of the exported target: fp32, int8, w8a8, int4'
	@echo '  MODEL=$(MODEL)  what is exported: a Hugging Face directory, a GGUF file'
	@echo '  HTTP_PORT=$(HTTP_PORT)  GRPC_PORT=$(GRPC_PORT)  METRICS_PORT=$(METRICS_PORT)'
	@echo '  SERVE_ARGS, BENCH_ARGS, PYTEST_ARGS, GPU_ARGS  more options of specdec serve, bench, pytest, test-gpu'

setup: $(READY)

# Repeated only when the dependencies may have changed; an interrupted one starts again.
$(READY): pyproject.toml
	@echo 'set-up: installing into $(VENV) (some minutes the first time)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

serve: $(READY)
	@$(BIN)/specdec export target --model $(MODEL) --precision $(PRECISION)
	@$(BIN)/specdec export head --if-shipped
	@exec $(BIN)/specdec serve $(SERVE_ARGS)

bench: $(READY)
	@exec $(BIN)/specdec bench $(BENCH_ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# tensorrt-rtx comes with the set-up; for a data-center card also: pip install tensorrt-cu13
test-gpu: $(READY)
	@PYTHONPATH=tests exec $(BIN)/python -m support.gpu_check $(GPU_ARGS)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf model_repository/target/1/* model_repository/draft/1/* model_repository/eagle/1/*
	find . -name __pycache__ -prune -exec rm -rf {} +
	find . -maxdepth 1 -name '*.egg-info' -exec rm -rf {} +
