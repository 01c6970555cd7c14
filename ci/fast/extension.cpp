// The extension of the fast wheel: the series' own capsule code, compiled by
// itself beside the released core, and what it takes to get memory out of that
// core.

#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "pybind11/stl.h"

#include "taichi/python/dlpack_exchange.h"
#include "taichi/python/export_cuda_interop.h"
#include "taichi/rhi/cuda/cuda_context.h"
#include "taichi/rhi/cuda/cuda_driver.h"
#include "taichi/rhi/cuda/cuda_interop.h"

namespace {

namespace py = pybind11;
namespace dlpack = taichi::lang::dlpack;

namespace cuda = taichi::lang::cuda;

// Keeps imported memory alive; its last holder calls the producer's deleter,
// on CUDA once Taichi's kernels are done.
class ImportedMemory {
 public:
  ImportedMemory(std::shared_ptr<void> owner, bool on_cuda)
      : owner_(std::move(owner)), on_cuda_(on_cuda) {
    if (on_cuda) {
      cuda::begin_releases();
    }
  }
  ImportedMemory(ImportedMemory &&) = default;
  ~ImportedMemory() {
    if (owner_ == nullptr || !on_cuda_) {
      return;
    }
    auto release = [owner = std::move(owner_)]() mutable {
      cuda::release_after_launches(std::move(owner));
    };
    if (on_any_stream_) {
      taichi::free_after_all_streams(std::move(release));
    } else {
      release();
    }
  }

  // A consumer uses the memory on a stream that is not Taichi's.
  void use_on_any_stream() {
    on_any_stream_ = true;
  }

 private:
  std::shared_ptr<void> owner_;
  bool on_cuda_;
  bool on_any_stream_{false};
};

// Calls `function` with Taichi's context current, whatever this thread's is.
void in_taichi_context(const py::object &function) {
  auto &driver = taichi::lang::CUDADriver::get_instance_without_context();
  void *callers = nullptr;
  driver.context_get_current.call(&callers);
  driver.context_set_current.call(
      taichi::lang::CUDAContext::get_instance().get_context());
  try {
    function();
  } catch (...) {
    driver.context_set_current.call(callers);
    throw;
  }
  driver.context_set_current.call(callers);
}

// Reserves addresses, at `address` or nowhere unless it is null.
void *reserve(void *address, std::size_t size) {
  const int at_address = address == nullptr ? 0 : MAP_FIXED_NOREPLACE;
  return mmap(address, size, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | at_address, -1, 0);
}

// Moves the pages of [from, from + size) to `to`, whose addresses are reserved.
// The old addresses stay mapped where the kernel can do so (Linux 5.7).
bool move_pages(void *from, void *to, std::size_t size) {
  const int fixed = MREMAP_MAYMOVE | MREMAP_FIXED;
  return mremap(from, size, size, fixed | MREMAP_DONTUNMAP, to) == to ||
         (errno == EINVAL && mremap(from, size, size, fixed, to) == to);
}

bool move_back(void *aside, void *block, std::size_t size) {
  return mremap(aside, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, block) ==
         block;
}

// Whole pages of host memory. They are the core's until they are carried out of
// it, and this object's from then on.
class Pages {
 public:
  Pages(uintptr_t address, std::size_t size)
      : block_(reinterpret_cast<void *>(address)), size_(size) {
  }
  Pages(const Pages &) = delete;
  Pages &operator=(const Pages &) = delete;
  ~Pages() {
    if (ours_) {
      munmap(block_, size_);
    }
  }

  // Was it tried to carry them out?
  bool tried() const {
    return tried_;
  }

  // Are they out, and forgotten by the core?
  bool kept() const {
    return ours_;
  }

  // The released core unmaps a block when it forgets it. Carries the pages
  // aside while `forget` makes it do so, and back to their addresses. Throws
  // what `forget` throws, or OSError, and the pages stay the core's.
  void carry_out(const py::object &forget) {
    tried_ = true;
    void *aside = reserve(nullptr, size_);
    if (aside == MAP_FAILED || !move_pages(block_, aside, size_)) {
      const int error = errno;
      if (aside != MAP_FAILED) {
        munmap(aside, size_);
      }
      errno = error;
      PyErr_SetFromErrno(PyExc_OSError);
      throw py::error_already_set();
    }
    try {
      forget();
    } catch (...) {
      move_back(aside, block_, size_);
      throw;
    }
    // Another thread may have mapped something here in between. Its memory must
    // not be overwritten, and views must not show it.
    if (reserve(block_, size_) != block_ || !move_back(aside, block_, size_)) {
      std::fprintf(stderr,
                   "taichi: memory shared with another library lost its "
                   "address while its program ended (%s); do not run "
                   "ti.reset() beside other threads\n",
                   std::strerror(errno));
      std::abort();
    }
    ours_ = true;
  }

 private:
  void *block_;
  std::size_t size_;
  bool tried_{false};
  bool ours_{false};
};

// Carries all of them out, each with the function that has the core forget it,
// and gives what went wrong with each, or None. Where these functions are C
// code, no Python code runs in between, so no signal handler does.
std::vector<py::object> carry_out(
    const std::vector<std::pair<Pages *, py::object>> &blocks) {
  std::vector<py::object> reasons;
  for (const auto &[pages, forget] : blocks) {
    py::object reason = py::none();
    try {
      pages->carry_out(forget);
    } catch (const std::exception &error) {
      reason = py::str(error.what());
    }
    reasons.push_back(std::move(reason));
  }
  return reasons;
}

// A method that calls `before`, `method`, and `after` with what `before` gave.
// An interrupt comes when `method` is done: `before` is called again until no
// interrupt ends it.
py::object uninterrupted(py::object before,
                         py::object method,
                         py::object after) {
  const py::cpp_function function([=](const py::object &self) {
    std::exception_ptr interrupt;
    py::object found = py::none();
    bool again = true;
    while (again) {
      try {
        found = before(self);
        again = false;
      } catch (const py::error_already_set &error) {
        again = !error.matches(PyExc_Exception);
        interrupt = std::current_exception();
      }
    }
    method(self);
    if (interrupt != nullptr) {
      std::rethrow_exception(interrupt);
    }
    after(found);
  });
  return py::reinterpret_steal<py::object>(
      PyInstanceMethod_New(function.ptr()));
}

// A view of memory that the object which `share` gives keeps alive.
py::object make_view(uintptr_t address,
                     const std::string &dtype,
                     const std::vector<int64_t> &shape,
                     const std::optional<std::vector<int64_t>> &strides,
                     std::pair<int, int> device,
                     uint64_t flags,
                     std::shared_ptr<dlpack::Lifetime> lifetime,
                     py::object share) {
  return dlpack::hold_view({{reinterpret_cast<void *>(address),
                             {device.first, device.second},
                             dlpack::to_element_type(dtype).dtype,
                             shape,
                             strides},
                            flags,
                            [share = std::move(share)](bool on_any_stream) {
                              return dlpack::hold_python_object(
                                  share(on_any_stream));
                            },
                            std::move(lifetime)});
}

}  // namespace

PYBIND11_MODULE(taichi_dlpack, m) {
  dlpack::export_dlpack(m);
  dlpack::export_dlpack_view(m);
  dlpack::export_dlpack_exchange(m);
  m.def("make_view", &make_view);

  py::class_<ImportedMemory>(m, "ImportedMemory")
      .def("use_on_any_stream", &ImportedMemory::use_on_any_stream);
  m.def(
      "take_over",
      [](dlpack::ImportedArray &array, bool on_cuda) {
        return ImportedMemory(array.take_over(), on_cuda);
      },
      py::arg("array"), py::arg("on_cuda") = false);

  taichi::export_cuda_interop(m);
  m.def("cuda_copy_to_device", [](uintptr_t device, uintptr_t host,
                                  std::size_t size) {
    auto &copy = taichi::lang::CUDADriver::get_instance_without_context()
                     .memcpy_host_to_device;
    const uint32_t error = copy.call(reinterpret_cast<void *>(device),
                                     reinterpret_cast<void *>(host), size);
    if (error != 0) {
      throw cuda::InteropError(copy.get_error_message(error));
    }
  });
  m.def("cuda_wait_for_device", &cuda::wait_for_device,
        py::call_guard<py::gil_scoped_release>());
  m.def("cuda_in_taichi_context", &in_taichi_context);
  m.def("cuda_release_finished", &cuda::release_finished);
  m.def("cuda_finish_releases", &cuda::finish_releases);

  py::class_<Pages>(m, "Pages")
      .def(py::init<uintptr_t, std::size_t>())
      .def_property_readonly("tried", &Pages::tried)
      .def_property_readonly("kept", &Pages::kept);
  m.def("carry_out", &carry_out);
  m.def("uninterrupted", &uninterrupted);
}
