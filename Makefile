# `make demo` and `make test` do everything from a bare checkout.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JUDGE ?= .venv-judge
JUDGE_STAMP := $(JUDGE)/.installed
CHUNKS ?= .venv-chunks
CHUNKS_STAMP := $(CHUNKS)/.installed
TRAINERS ?= .venv-trainers
TRAINERS_STAMP := $(TRAINERS)/.installed

.PHONY: demo test test-slow test-sanitized format lint types imports unit bench clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: lint types imports unit

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

# Hundreds of test programs import the package, also where Python is told to write no bytecode.
unit: $(STAMP)
	$(BIN)/python -m compileall -q energy_data
	$(BIN)/pytest -n 2 --dist worksteal

# The real Energon judges, and properties are tried on new examples. Energon is installed in an environment of its own, never in ours.
test-slow: $(STAMP) $(JUDGE_STAMP) $(CHUNKS_STAMP) $(TRAINERS_STAMP)
	ENERGY_DATA_ENERGON_PYTHON=$(abspath $(JUDGE)/bin/python) \
	  ENERGY_DATA_CHUNKS_PYTHON=$(abspath $(CHUNKS)/bin/python) \
	  ENERGY_DATA_TRAINERS_PYTHON=$(abspath $(TRAINERS)/bin/python) $(BIN)/pytest -n 2 --dist worksteal -m 'slow or hypothesis' --hypothesis-profile=new

# What is compiled, with gcc's AddressSanitizer and UndefinedBehaviorSanitizer, in a copy of the sources.
SANITIZED := build/sanitized
SANITIZING = gcc -O1 -g -Wall -Wextra -Wno-unused-parameter -Werror -shared -fPIC -fsanitize=address,undefined \
  -fno-sanitize-recover=undefined -I$$($(abspath $(BIN))/python -c 'import sysconfig; print(sysconfig.get_path("include"))')
test-sanitized: $(STAMP)
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	cp -r energy_data tests pyproject.toml $(SANITIZED)
	cd $(SANITIZED)/energy_data/data/tar && $(SANITIZING) _tar*.c -o _tar.abi3.so
	cd $(SANITIZED) && ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc PYTHONPATH=. \
	  LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	  $(abspath $(BIN))/python -m pytest -p no:cacheprovider $(patsubst %,tests/data/test_%.py,compiled reads_at_once fuzz_tars raw_tensors webdataset bad_samples together)

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Peers are installed in an environment of their own, never in ours.
bench: $(STAMP)
	benchmarks/run

$(STAMP): pyproject.toml constraints.txt $(wildcard energy_data/*/*.[ch] energy_data/*/*/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(JUDGE_STAMP): constraints-judge.txt
	$(PYTHON) -m venv $(JUDGE)
	$(JUDGE)/bin/pip install --quiet --requirement constraints-judge.txt
	touch $@

$(CHUNKS_STAMP): constraints-chunks.txt
	$(PYTHON) -m venv $(CHUNKS)
	$(CHUNKS)/bin/pip install --quiet --requirement constraints-chunks.txt
	touch $@

$(TRAINERS_STAMP): constraints-trainers.txt pyproject.toml
	$(PYTHON) -m venv $(TRAINERS)
	$(TRAINERS)/bin/pip install --quiet --requirement constraints-trainers.txt --editable .
	touch $@

clean:
	rm -rf $(VENV) $(JUDGE) $(CHUNKS) $(TRAINERS) .venv-peers demo-data bench-data
