# The same few verbs at home and in CI. Each sets up what it needs on a machine that has only Python 3.11 or newer.
#   make test ARGS="-k transactions -x"     ARGS goes to the program that the verb runs; tests are then chosen from all of them
#   make test PYTHON=python3.12             PYTHON makes .venv, where the first suitable one found is not wanted

.DEFAULT_GOAL := help
.PHONY: help serve test test-all test-duckdb test-faults test-histories test-fuzz soak check bench clean venv java

ARGS ?=
PYTHON ?=
export PYTHON
PYTEST = .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

help: ## list the verbs
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' Makefile | while IFS='|' read -r verb does; do \
		printf '  %-20s %s\n' "$$verb" "$$does"; done

serve: venv java ## run the server on 127.0.0.1:50051
	@.venv/bin/sparkport serve $(ARGS)

test: venv java ## run the tests of every change, in minutes
	@$(PYTEST) $(or $(ARGS),--tier fast)

test-all: test ## run these and all others that CI runs
	@$(PYTEST) --tier thorough

test-duckdb: venv java ## run examples/duckdb/*.sql through a real DuckDB: CLIENT=its shell EXTENSION=airport's file
	@PYTHONPATH=. .venv/bin/python -m tests.sessions --client "$(CLIENT)" --extension "$(EXTENSION)" $(ARGS)

test-faults: venv java ## deaths, lost answers, a failing database, histories at two servers: SEED=1; started again it goes on
	@PYTHONPATH=. .venv/bin/python -m tests.faults --seed $(or $(SEED),1) $(ARGS)

test-histories: venv java ## only histories, of one server and for longer: thousands of transactions before the checker: ROUNDS=30
	@for isolation in snapshot serializable; do PYTHONPATH=. .venv/bin/python -m tests.consistency lists \
		--engine lakehouse --isolation $$isolation --rounds $(or $(ROUNDS),30) --seed $(or $(SEED),1) || exit 1; done

test-fuzz: venv ## mutated calls over the wire: MINUTES=5 SEED=1; started again it goes on
	@PYTHONPATH=. .venv/bin/python -m tests.fuzz --minutes $(or $(MINUTES),5) --seed $(or $(SEED),1) $(ARGS)

soak: venv java ## clients of every kind at two servers, kills, strangers and maintenance for HOURS=1 (or MINUTES=10): SEED=1
	@PYTHONPATH=. .venv/bin/python -m tests.soak --seed $(or $(SEED),1) \
		$(if $(MINUTES),--minutes $(MINUTES),--hours $(or $(HOURS),1)) $(ARGS)

check: venv ## lint, formatting and types
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy

bench: venv java ## run the benchmarks
	@.venv/bin/python -m benchmarks $(ARGS)

clean: ## remove .venv, caches and build output (never a warehouse)
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

venv: ## make .venv, or bring it up to date
	@scripts/setup-venv

java: ## find Java 17 or newer, or install it
	@scripts/setup-java
