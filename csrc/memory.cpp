#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "sanitize.h"

namespace penstock {

namespace {
size_t system_page() { return size_t(sysconf(_SC_PAGESIZE)); }
}  // namespace

Memory::Memory(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  if (bytes > size_t(PTRDIFF_MAX) - kHugePage) throw std::bad_alloc();
  if constexpr (kChecksAddresses) {  // which knows the heap, and not what mmap gives
    constexpr size_t kPage = 4096;
    void* memory = nullptr;
    if (posix_memalign(&memory, kPage, bytes) != 0) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(std::memset(memory, 0, bytes));
    return;
  }
  const bool large = bytes >= kHugePage;
  // A huge page lies on a multiple of its size: ask for more, and give back what is over.
  const size_t asked = large ? bytes + kHugePage : bytes;
  void* mapped = mmap(nullptr, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(mapped);
  if (!large) return;
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(mapped) % kHugePage) % kHugePage;
  const size_t kept = (bytes + system_page() - 1) / system_page() * system_page();
  data_ += before;
  if (before) munmap(mapped, before);
  if (asked > before + kept) munmap(data_ + kept, asked - before - kept);
#if defined(MADV_HUGEPAGE)
  madvise(data_, bytes, MADV_HUGEPAGE);  // advice: failure only costs time
#endif
}

void Memory::touch(int id, int count) const {
  const size_t page = system_page();
  const PageRange mine = pages_of(bytes_, id, count, bytes_ >= kHugePage ? kHugePage : page);
  // Written, not read: a page that is only read is the one of zeros, which lies anywhere.
  for (size_t at = mine.begin; at < mine.end; at += page)
    *const_cast<volatile std::byte*>(data_ + at) = std::byte{};
}

Memory::~Memory() {
  if (!data_) return;
  if constexpr (kChecksAddresses) std::free(data_);
  else munmap(data_, bytes_);
}

}  // namespace penstock
