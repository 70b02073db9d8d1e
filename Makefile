# Causeway's one entry point for people and CI. `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup build causeway libcuda libnvml tools fleet fleet-images kube generate format lint check test test-programs demo bench deb rpm clean

VERSION := $(shell scripts/package/version.sh || echo unknown)
OUT     := $(abspath build)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what build, tests and demo need (QEMU 10, guest kernels, nvcc; idempotent)
	scripts/setup.sh all

build: causeway libcuda libnvml tools ## build build/bin/causeway, build/lib/libcuda.so.1 and build/lib/libnvidia-ml.so.1

causeway:
	@command -v go >/dev/null || { echo "Go is missing: install Go $$(awk '/^go /{print $$2}' go.mod) or newer"; exit 1; }
	@mkdir -p $(OUT)/bin
	go build -trimpath -ldflags "-X main.version=$(VERSION)" -o $(OUT)/bin/causeway ./host/causeway
	go build -tags libvirt_dlopen -trimpath -ldflags "-X main.version=$(VERSION)" -o $(OUT)/bin/causeway-libvirt ./host/causeway

libcuda:
	@mkdir -p $(OUT)/lib
	@$(MAKE) --no-print-directory -C guest/libcuda OUT=$(OUT)/lib

libnvml:
	@mkdir -p $(OUT)/lib
	@$(MAKE) --no-print-directory -C guest/libnvml OUT=$(OUT)/lib

tools:
	@$(MAKE) --no-print-directory -C guest/tools OUT=$(OUT)/lib

fleet: ## build build/bin/causeway-dra, Kubernetes' driver for vGPUs, and causeway-fleet for people, from a module of its own
	@mkdir -p $(OUT)/bin
	cd host/fleet && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $(OUT)/bin/ ./causeway-dra ./causeway-fleet

fleet-images: fleet ## build their container images, without a registry, to build/images-oci
	scripts/package/images.sh

kube: ## build Kubernetes for scripts/fleet.sh and make test's stage cluster, once per user (13 minutes of CPU time, 220 MB in ~/.cache/causeway)
	scripts/kube/setup.sh

generate: ## write generated code anew from the API description
	go generate ./...

format: ## format Go and C as lint wants it
	@gofmt -l -w $$(git ls-files '*.go')
	@bash -c '. scripts/lib/common.sh && . scripts/lib/stages.sh && c_sources | xargs -0 "$$CLANG_FORMAT" -i'

lint: ## check formatting, vet, staticcheck, the repository's own fences and that generated code is current
	scripts/test.sh lint

check: ## before a commit, in under 4 minutes: lint, build, unit tests of what changed, ten CUDA programs
	scripts/test.sh --quick

test: ## install what is needed and run every test (20 minutes on 2 cores; 30 the first time on a machine, which downloads and compiles more)
	scripts/test.sh

test-programs: build ## build the CUDA test programs and run them under causeway run
	scripts/build-tests.sh
	scripts/run-tests.sh --runner "$(OUT)/bin/causeway run --"

demo: ## boot a VM with a vGPU and run two CUDA programs in it
	@scripts/demo.sh

bench: build ## measure calls, launches and copies beside their baselines
	scripts/bench.sh

deb: ## build the Debian package: build/package/causeway_*.deb
	@scripts/package/build.sh deb

rpm: ## build the RPM package: build/package/causeway-*.rpm
	@scripts/package/build.sh rpm

clean: ## remove what was built; downloads stay (rm -r build removes them too)
	rm -rf $(OUT)/bin $(OUT)/lib $(OUT)/obj $(OUT)/tests $(OUT)/images $(OUT)/logs $(OUT)/test-logs $(OUT)/package $(OUT)/qb $(OUT)/*.tar.xz
