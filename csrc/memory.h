// Large memory: anonymous mappings, zero until touched, placed on the memory node of the thread that touches them first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace penstock {

// Pages of 2 MiB, for memory of at least as much: streaming weights through 4 KiB pages misses the
// TLB on every one.
constexpr size_t kHugePage = size_t(2) << 20;

// The bytes [begin, end) of Memory::touch. `page` is what the system gives at a time.
struct PageRange {
  size_t begin, end;
};
constexpr PageRange pages_of(size_t bytes, int id, int count, size_t page) {
  const auto edge = [=](int i) {
    if (i == count) return bytes;
    const size_t even = size_t(double(bytes) * i / count);
    return (even + page / 2) / page * page;
  };
  return {edge(id) < bytes ? edge(id) : bytes, edge(id + 1) < bytes ? edge(id + 1) : bytes};
}

class Memory {
 public:
  Memory() = default;
  // Zero bytes, aligned to a page at least, and large ones to a huge page. Throws std::bad_alloc
  // when the system refuses.
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  // Touches the pages that worker `id` of `count` reads when the memory is divided evenly between
  // them, so that they come to lie on its node: a page goes to whom most of it belongs to. For each
  // worker to call, before anything is written.
  void touch(int id, int count) const;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace penstock
