#include "memory.h"

#include <sys/mman.h>

#include <new>

namespace penstock {

namespace {
// From here on, pages of 2 MiB: streaming weights through 4 KiB pages misses the TLB on every one.
constexpr size_t kHugePage = size_t(2) << 20;
}  // namespace

Memory::Memory(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(mapped);
#if defined(MADV_HUGEPAGE)
  if (bytes >= kHugePage) madvise(mapped, bytes, MADV_HUGEPAGE);  // advice: failure only costs time
#endif
}

Memory::~Memory() {
  if (data_) munmap(data_, bytes_);
}

}  // namespace penstock
