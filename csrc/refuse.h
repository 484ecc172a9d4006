#pragma once

#include <stdexcept>
#include <string>

namespace penstock {

[[noreturn]] inline void refuse(const std::string& message) {
  throw std::invalid_argument(message);
}

}  // namespace penstock
