/* The way the binary loads the device: the library's bytes in a memfd, opened before anybody asks for libcuda.so, which
 * then resolves to it by SONAME. No file of that name needs to exist.
 *   gcc driver_memfd.c -o driver_memfd -ldl && ./driver_memfd path/to/libcuda.so */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc != 2) return fprintf(stderr, "usage: driver_memfd libcuda.so\n"), 2;
  FILE* file = fopen(argv[1], "rb");
  int memory = memfd_create("libcuda.so", MFD_CLOEXEC);
  char buffer[65536];
  size_t n;
  if (!file || memory < 0) return perror(argv[1]), 2;
  while ((n = fread(buffer, 1, sizeof buffer, file)) > 0)
    if (write(memory, buffer, n) != (ssize_t)n) return perror("write"), 2;
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
  void* loaded = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!loaded) return fprintf(stderr, "%s\n", dlerror()), 1;
  close(memory);
  void* found = dlopen("libcuda.so", RTLD_NOW | RTLD_LOCAL); /* what cudarc does */
  if (!found) return fprintf(stderr, "libcuda.so: %s\n", dlerror()), 1;
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(found, "cuInit");
  int (*version)(void) = (int (*)(void))dlsym(found, "g4soft_version");
  if (!init || init != (int (*)(unsigned))dlsym(loaded, "cuInit") || !version || version() != 1 || init(0) != 0)
    return fprintf(stderr, "libcuda.so is another library\n"), 1;
  printf("libcuda.so resolves to the loaded device\n");
  return 0;
}
