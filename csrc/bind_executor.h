// The executor as a Python object, for the bindings that use it.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <stdexcept>

#include "executor.h"

namespace penstock {

// nanobind knows a type by its name, across modules: a namespace per variant keeps those that tests
// load into one process apart.
namespace PENSTOCK_MODULE {
struct PyExecutor {
  std::unique_ptr<Executor> native;

  Executor& get() const {
    if (!native) throw std::runtime_error("this executor is closed");
    return *native;
  }
};
}  // namespace PENSTOCK_MODULE

void bind_matrices(nanobind::class_<PENSTOCK_MODULE::PyExecutor>& executor);
void bind_ops(nanobind::class_<PENSTOCK_MODULE::PyExecutor>& executor);

}  // namespace penstock
