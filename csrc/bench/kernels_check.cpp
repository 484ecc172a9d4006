// Checks lanes and kernels against plain scalar code, without Python: for machines that are only
// emulated. Prints what differs; exits with 1 if anything does. Not installed.
//
//   aarch64-linux-gnu-g++ -std=c++20 -O2 -ffp-contract=off -Wno-psabi -static -pthread
//       -march=armv8.2-a+dotprod+fp16 -o check csrc/bench/kernels_check.cpp csrc/{caches,memory,pool,states}.cpp
//       $(ls csrc/kernels/*.cpp | grep -v -e _py -e _amx) && qemu-aarch64-static ./check
//
// tests/backends/test_cpu_cross.py does this for every variant of AArch64.
#include <cstdio>
#include <random>

#if defined(__AMX_TILE__) && !defined(PENSTOCK_SOFTWARE_TILES)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "check_adapters.h"
#include "check_attention.h"
#include "check_block_products.h"
#include "check_codebook_products.h"
#include "check_float_products.h"
#include "check_grid_products.h"
#include "check_int_products.h"
#include "check_lanes.h"
#include "check_order.h"
#include "check_rows.h"

using namespace penstock;
using namespace penstock::check;

int main() {
#if defined(__AMX_TILE__) && !defined(PENSTOCK_SOFTWARE_TILES)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) {
    std::perror("arch_prctl");
    return 1;
  }
#endif
  std::mt19937 rng(7);
  check_arithmetic(rng);
  check_conversion<bf16>("bfloat16", rng);
  check_conversion<f16>("float16", rng);
  check_functions();
  check_shuffled(rng);
  check_orders(10000, rng);
  for (const int threads : {1, 3}) {
    Pool pool(threads, false);
    for (const int64_t cols : {1, 16, 45, 200}) check_norm(cols, pool, rng);
    for (const int64_t cols : {1, 16, 45, 200}) check_columns(cols, pool, rng);
    check_float_products(pool, rng);
    check_int_products(pool, rng);
    check_grid_products(pool, rng);
    check_block_products(pool, rng);
    check_codebook_products(pool, rng);
    check_adapters(pool, rng);
    for (const Elem elem : {Elem::f32, Elem::f16, Elem::bf16}) {
      check_attention(elem, 4, 2, 64, 70, pool, rng);
      check_attention(elem, 3, 3, 20, 300, pool, rng);
    }
  }
  std::printf("%s: %d failures\n", failures ? "FAILED" : "passed", failures);
  return failures != 0;
}
