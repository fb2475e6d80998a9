# The C++ test programs of csrc/tests, built by kernel_tests.sh and sanitize.sh. What a program is made of:
#
#   bare/NAME    csrc/tests/NAME_test.cpp on the bare fibre executor: one thread, no driver
#   bodies/NAME  the same with the GPU code of the kernels run on fibres, where a kernel has another body for the host
#   driver/NAME  the same through the driver API of the software device, linked in
#   device       csrc/tests/driver_*.cpp: the rules of the driver itself
#   planted      csrc/tests/planted_overrun.cpp, which a sanitizer must stop (sanitize.sh)
#
# OUT is the folder of the objects, FLAGS are the compiler flags; a change of FLAGS rebuilds.
OUT ?= target/kernel-tests
FLAGS ?= -O2
CXX ?= g++
LANGUAGE := -std=c++17 -ffp-contract=off -g1 -Wall -Wextra -MMD -MP

kernels := $(patsubst csrc/kernels/%.cu,%,$(wildcard csrc/kernels/*.cu))
soft := $(patsubst csrc/soft/%.cpp,%,$(wildcard csrc/soft/*.cpp))
tests := $(patsubst csrc/tests/%_test.cpp,%,$(wildcard csrc/tests/*_test.cpp))
device := $(patsubst csrc/tests/%.cpp,%,$(wildcard csrc/tests/driver_*.cpp))
# The tests of kernels that have a body of their own for the host.
bodies := $(filter gemm attention,$(tests))

bare_flags :=
bodies_flags := -DG4_GEMM_BODIES -DG4_ATTN_BODIES
driver_flags := -DG4_TEST_DRIVER

.PHONY: bare bodies driver device
bare: $(tests:%=$(OUT)/bare/%)
bodies: $(bodies:%=$(OUT)/bodies/%)
driver: $(tests:%=$(OUT)/driver/%)
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
  $(OUT)/soft-o/fibre.o
	$(link)
$(OUT)/bodies/%: $(OUT)/bodies-o/tests/%_test.o $(OUT)/bodies-o/tests/main.o \
  $(kernels:%=$(OUT)/bodies-o/kernels/%.o) $(OUT)/soft-o/fibre.o
	$(link)
$(OUT)/driver/%: $(OUT)/driver-o/tests/%_test.o $(OUT)/driver-o/tests/main.o \
  $(kernels:%=$(OUT)/bare-o/kernels/%.o) $(soft:%=$(OUT)/soft-o/%.o) $(OUT)/soft-o/image.o
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
