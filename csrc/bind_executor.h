// The executor as a Python object, for the bindings that use it.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <stdexcept>

#include "executor.h"

namespace penstock {

struct PyExecutor {
  std::unique_ptr<Executor> native;

  Executor& get() const {
    if (!native) throw std::runtime_error("this executor is closed");
    return *native;
  }
};

void bind_blocks(nanobind::class_<PyExecutor>& executor);
void bind_matrices(nanobind::class_<PyExecutor>& executor);
void bind_ops(nanobind::class_<PyExecutor>& executor);

}  // namespace penstock
