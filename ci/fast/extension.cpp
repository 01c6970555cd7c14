// The extension of the fast wheel: the series' own capsule code, compiled by
// itself beside the released core.

#include "taichi/python/dlpack_capsule.h"

namespace {

namespace py = pybind11;
namespace dlpack = taichi::lang::dlpack;

// Keeps imported memory alive; its last holder calls the producer's deleter.
struct ImportedMemory {
  std::shared_ptr<void> owner;
};

}  // namespace

PYBIND11_MODULE(taichi_dlpack, m) {
  dlpack::export_dlpack(m);

  py::class_<ImportedMemory>(m, "ImportedMemory");
  m.def("take_over", [](dlpack::ImportedArray &array) {
    return ImportedMemory{array.take_over()};
  });
}
