# `make demo` and `make test` are all a new user needs; each creates .venv first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: install demo test test-slow test-all test-long lint format types check check-all lock protos clean

install: .venv/.installed

# Pinned versions with hashes. Byte code is compiled here because importing TensorFlow from
# source takes ten seconds in every process, and some environments forbid writing it later.
.venv/.installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv --clear .venv
	grep -A99 '^uv==' requirements.lock | sed '/^[a-z]/{/^uv==/!Q}' > .venv/uv.lock
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r .venv/uv.lock
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes --compile-bytecode requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

demo: install
	rm -rf demo-out
	$(BIN)/multigate demo --out demo-out

test: install
	$(BIN)/python -m pytest -n 2

test-slow: install
	$(BIN)/python -m pytest -n 2 -m 'slow and not long'

# Both at once: what tests share, such as trained models, is made once.
test-all: install
	$(BIN)/python -m pytest -n 2 -m "not long"

test-long: install
	$(BIN)/python -m pytest -n 2 -m long

lint: install
	$(BIN)/ruff check .

format: install
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

check: lint format types test

check-all: lint format types test-all

# Generate the messages' Python code from their definition.
protos: install
	$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src --grpc_python_out=src \
	    multigate/serving/protos/ranking.proto multigate/serving/protos/ssl_config.proto
	$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src \
	    multigate/serving/protos/health.proto

# Compile the lock files anew; they carry hashes and no addresses.
COMPILE := uv pip compile --quiet --python-version 3.11 --generate-hashes --no-emit-index-url \
    --custom-compile-command "make lock" pyproject.toml
NO_KERAS := --no-emit-package keras --no-emit-package namex --no-emit-package optree
lock:
	$(BIN)/$(COMPILE) --extra train --extra baseline --extra candidates --extra serving --extra traces --extra jax --extra dev -o requirements.lock
	# TensorFlow asks for Keras, which a server never imports.
	$(BIN)/$(COMPILE) $(NO_KERAS) --extra serving --extra traces -o requirements-serving.lock
	$(BIN)/$(COMPILE) --extra train --extra baseline --extra gpu -o requirements-gpu.lock

clean:
	rm -rf .venv demo-out
