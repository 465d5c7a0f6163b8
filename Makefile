# Needs python3 (3.11 or newer), python3-venv, make and git.
PYTHON ?= python3
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE  # all processes of the tests share what one has compiled
test check: export OMP_NUM_THREADS := 1  # a worker per core: a second thread only waits

.PHONY: install demo docs docs-serve test check audit fuzz learn lint gpu clean

install: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: install
	$(BIN)/selfsight pretrain shapes --recipe simclr.shapes --device cpu --out runs/demo --overwrite
	$(BIN)/selfsight evaluate runs/demo --labeled shapes
	@echo "Open runs/demo/report.html in a browser."

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: install
	$(BIN)/python -m pytest -n 2 --no-loadscope-reorder -m "not slow and not learning and not gpu"

check: install
	$(BIN)/python -m pytest -n 2 --no-loadscope-reorder --durations 20 -m "slow and not gpu"

fuzz: install
	SELFSIGHT_FUZZ=full $(BIN)/python -m pytest -n 2 --no-loadscope-reorder --durations 0 tests/fuzz

audit: install
	$(BIN)/python .ci/audit.py

docs: install
	$(BIN)/python -m docs.build site

docs-serve: docs
	@echo "Open http://localhost:8000 (Ctrl-C ends it), or site/index.html from the disk."
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory site 8000

learn: install
	$(BIN)/python -m pytest -m learning

gpu:
	$(PYTHON) -m pytest -m gpu --ignore tests/report_page --gpu-json gpu.json

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
