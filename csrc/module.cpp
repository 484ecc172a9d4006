// The extension module of one instruction set.

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "kernels/gemm_int_sparse.h"
#include "packed_layout.h"
#include "pool.h"

#if defined(__linux__) && defined(__AMX_TILE__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

// What this variant must ask of the system before its first kernel, once a process, before threads
// start. Tile registers: Linux grants their 8 KiB of state per process, on request. False: refused.
bool prepare() {
#if defined(__linux__) && defined(__AMX_TILE__)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return true;
#endif
}

}  // namespace

NB_MODULE(PENSTOCK_MODULE, m) {
  m.attr("isa") = PENSTOCK_ISA;
  m.def("prepare", &prepare);
  m.def("available_cpus", &penstock::available_cpus);
  m.attr("packed_layout") = penstock::kPackedLayout;
  m.attr("sparse_panels") = penstock::expands_sparse();
  penstock::bind_checksum(m);
  penstock::bind_encode(m);
  penstock::bind_executor(m);
  penstock::bind_gram(m);
  penstock::bind_kernels(m);
  penstock::bind_measure(m);
  penstock::bind_pool(m);
  penstock::bind_sample(m);
  penstock::bind_suffix(m);
}
