// Large memory: anonymous mappings, zero until touched, placed on the node of whoever touches first.
#pragma once

#include <cstddef>
#include <utility>

namespace penstock {

class Memory {
 public:
  Memory() = default;
  // Zero bytes, aligned to a page at least. Throws std::bad_alloc when the system refuses.
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace penstock
