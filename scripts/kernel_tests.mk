# The C++ test programs of csrc/tests, built by kernel_tests.sh and sanitize.sh. What a program is made of:
#
#   bare/NAME    csrc/tests/NAME_test.cpp on the bare fibre executor: one thread, no driver
#   bodies/NAME  the same with the GPU code of the kernels run on fibres, where a kernel has another body for the host
#   driver/NAME  the same through the driver API of the software device, linked in
#   device       csrc/tests/driver_*.cpp: the rules of the driver itself
#   planted      csrc/tests/planted_overrun.cpp, which a sanitizer must stop (sanitize.sh)
#   gpu          the folder gpu/: the programs of driver/ with no device in them, the benchmark kernel_bench, and a
#                fat binary a kernel file for the architectures ARCH (with commas); runs where there is a
#                libcuda.so.1 and a glibc, by gpu/run_tests.sh
#
# OUT is the folder of the objects, FLAGS are the compiler flags; a change of FLAGS rebuilds.
OUT ?= target/kernel-tests
FLAGS ?= -O2
CXX ?= g++
LANGUAGE := -std=c++17 -ffp-contract=off -g1 -Wall -Wextra -MMD -MP

# Kernels that only tests launch.
words := $(patsubst csrc/tests/%.cu,%,$(wildcard csrc/tests/*.cu))
kernels := $(patsubst csrc/kernels/%.cu,%,$(wildcard csrc/kernels/*.cu))
soft := $(patsubst csrc/soft/%.cpp,%,$(wildcard csrc/soft/*.cpp))
tests := $(patsubst csrc/tests/%_test.cpp,%,$(wildcard csrc/tests/*_test.cpp))
device := $(patsubst csrc/tests/%.cpp,%,$(wildcard csrc/tests/driver_*.cpp))
# The tests of kernels that have a body of their own for the host.
bodies := $(filter gemm attention expert widths,$(tests))

bare_flags :=
bodies_flags := -DG4_GEMM_BODIES -DG4_ATTN_BODIES
driver_flags := -DG4_TEST_DRIVER

.PHONY: bare bodies driver device gpu gpu_words gpu_files
bare: $(tests:%=$(OUT)/bare/%)
bodies: $(bodies:%=$(OUT)/bodies/%)
driver: $(tests:%=$(OUT)/driver/%) $(OUT)/driver-bench/kernel_bench
device: $(OUT)/device
.SECONDARY:

# One rule set a variant: its kernels, its tests, its programs.
define variant
$(OUT)/$(1)-o/kernels/%.o: csrc/kernels/%.cu $(OUT)/stamp
	@mkdir -p $$(@D)
	$(CXX) $(LANGUAGE) $(FLAGS) $($(1)_flags) -x c++ -c $$< -o $$@
$(OUT)/$(1)-o/tests/%.o: csrc/tests/%.cpp $(OUT)/stamp
	@mkdir -p $$(@D)
	$(CXX) $(LANGUAGE) $(FLAGS) $($(1)_flags) $$(own) -c $$< -o $$@
$(OUT)/$(1)-o/tests/%.o: csrc/tests/%.cu $(OUT)/stamp
	@mkdir -p $$(@D)
	$(CXX) $(LANGUAGE) $(FLAGS) $($(1)_flags) -x c++ -c $$< -o $$@
-include $(wildcard $(OUT)/$(1)-o/*/*.d)
endef
$(foreach v,bare bodies driver,$(eval $(call variant,$(v))))

$(OUT)/soft-o/%.o: csrc/soft/%.cpp $(OUT)/stamp
	@mkdir -p $(@D)
	$(CXX) $(LANGUAGE) $(FLAGS) -c $< -o $@
$(OUT)/soft-o/image.o: csrc/kernels/image.cpp $(OUT)/stamp
	@mkdir -p $(@D)
	$(CXX) $(LANGUAGE) $(FLAGS) -c $< -o $@
-include $(wildcard $(OUT)/soft-o/*.d)

# A store through a wild pointer stands there on purpose.
$(OUT)/bare-o/tests/driver_kernels.o: private own := -Wno-array-bounds

link = @mkdir -p $(@D) && $(CXX) $(FLAGS) $^ -pthread -ldl -o $@
$(OUT)/bare/%: $(OUT)/bare-o/tests/%_test.o $(OUT)/bare-o/tests/main.o $(kernels:%=$(OUT)/bare-o/kernels/%.o) \
  $(words:%=$(OUT)/bare-o/tests/%.o) $(OUT)/soft-o/fibre.o
	$(link)
$(OUT)/bodies/%: $(OUT)/bodies-o/tests/%_test.o $(OUT)/bodies-o/tests/main.o \
  $(kernels:%=$(OUT)/bodies-o/kernels/%.o) $(words:%=$(OUT)/bodies-o/tests/%.o) $(OUT)/soft-o/fibre.o
	$(link)
$(OUT)/driver/%: $(OUT)/driver-o/tests/%_test.o $(OUT)/driver-o/tests/main.o \
  $(kernels:%=$(OUT)/bare-o/kernels/%.o) $(words:%=$(OUT)/bare-o/tests/%.o) $(soft:%=$(OUT)/soft-o/%.o) \
  $(OUT)/soft-o/image.o
	$(link)
$(OUT)/driver-bench/kernel_bench: $(OUT)/driver-o/tests/kernel_bench.o $(kernels:%=$(OUT)/bare-o/kernels/%.o) \
  $(words:%=$(OUT)/bare-o/tests/%.o) $(soft:%=$(OUT)/soft-o/%.o) $(OUT)/soft-o/image.o
	$(link)
$(OUT)/device: $(device:%=$(OUT)/bare-o/tests/%.o) $(OUT)/bare-o/tests/main.o $(soft:%=$(OUT)/soft-o/%.o)
	$(link)

# Rewritten when the flags change, so that every object is.
$(OUT)/stamp: always
	@mkdir -p $(@D)
	@echo '$(CXX) $(LANGUAGE) $(FLAGS)' | cmp -s - $@ || echo '$(CXX) $(LANGUAGE) $(FLAGS)' > $@
.PHONY: always

$(OUT)/planted: $(OUT)/bare-o/tests/planted_overrun.o $(OUT)/soft-o/fibre.o
	$(link)

# ---- gpu ----

# The flags are those of build.rs: what is tested is what ships.
ARCH ?= 90a
NVCC ?= $(if $(CUDA_HOME),$(CUDA_HOME)/bin/nvcc,nvcc)
comma := ,
gencode = $(foreach arch,$(subst $(comma), ,$(ARCH)),-gencode=arch=compute_$(arch),code=sm_$(arch))
nvcc_flags := $(shell sed -n 's/^const NVCC_FLAGS: [^=]*= \[\(.*\)\];/\1/p' build.rs | tr -d '",')
fatbins := $(kernels:%=$(OUT)/gpu/%.fatbin) $(words:%=$(OUT)/gpu/%.fatbin)

# The GPU code of the tests alone, which no other build compiles.
gpu_words: $(words:%=$(OUT)/gpu/%.fatbin)
gpu_all := $(tests:%=$(OUT)/gpu/%_test) $(OUT)/gpu/kernel_bench $(fatbins) $(OUT)/gpu/run_tests.sh
gpu: $(gpu_all)
# The same, and their names: the folder may hold those of other days.
gpu_files: gpu
	@echo $(gpu_all)
# Rewritten when the architecture or nvcc's flags change, so that every image is made anew.
$(OUT)/gpu/stamp: always
	@mkdir -p $(@D)
	@echo '$(ARCH) $(nvcc_flags)' | cmp -s - $@ || echo '$(ARCH) $(nvcc_flags)' > $@
$(OUT)/gpu/%.fatbin: csrc/kernels/%.cu $(OUT)/gpu/stamp $(wildcard csrc/kernels/*.cuh csrc/common/*.h csrc/*.h)
	@mkdir -p $(@D)
	$(NVCC) $(nvcc_flags) -fatbin $(gencode) $< -o $@
$(OUT)/gpu/%.fatbin: csrc/tests/%.cu $(OUT)/gpu/stamp csrc/tests/words.h \
  $(wildcard csrc/tests/*.cuh csrc/kernels/*.cuh csrc/common/*.h csrc/*.h)
	@mkdir -p $(@D)
	$(NVCC) $(nvcc_flags) -fatbin $(gencode) $< -o $@
$(OUT)/gpu/run_tests.sh: scripts/kernel_tests_gpu.sh
	@mkdir -p $(@D)
	install -m 755 $< $@

# The host functions of the kernels stand in the programs for their names; nothing calls them.
link_gpu = @mkdir -p $(@D) && $(CXX) $(FLAGS) $^ -static-libstdc++ -static-libgcc -pthread -ldl -s -o $@
gpu_objects := $(OUT)/driver-o/tests/main.o $(kernels:%=$(OUT)/bare-o/kernels/%.o) \
  $(words:%=$(OUT)/bare-o/tests/%.o) $(OUT)/soft-o/image.o
$(OUT)/gpu/%_test: $(OUT)/driver-o/tests/%_test.o $(gpu_objects)
	$(link_gpu)
$(OUT)/gpu/kernel_bench: $(OUT)/driver-o/tests/kernel_bench.o $(filter-out %/main.o,$(gpu_objects))
	$(link_gpu)
