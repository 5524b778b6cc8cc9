// A loader for Python: batches prepared ahead by threads of the core or by a producer in Python.
#pragma once

#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "loader.hpp"
#include "plan_bindings.hpp"

namespace conduit {
namespace {

// Calls that hold the interpreter's lock come in; waits and draws let go of it.
class PyLoader : public Handle<Loader> {
 public:
  PyLoader(const PyTable& table, const Plan& plan, const LoaderSettings& settings, std::shared_ptr<StagingPool> pool)
      : Handle(std::make_shared<Loader>(table.get(), CheckedPlan::of(*table.get(), plan), settings, pool ? std::move(pool) : staging_pool()), table.store()) {}

  // (buffer, token, tokens discarded, number of the next batch, None), or after the timeout
  // (None, 0, tokens discarded, 0, what a draw lacked or None where none has failed)
  std::tuple<std::shared_ptr<Staging>, std::uint64_t, std::vector<std::uint64_t>, std::uint64_t, std::optional<SampleState>> next(std::optional<double> timeout) {
    const auto loader = get();
    const std::uint64_t began = now_ns();
    const Deadline deadline(timeout);
    Prepared batch;
    std::vector<std::uint64_t> discarded;
    for (bool first = true;; first = false) {
      std::uint64_t slice;
      try {
        slice = deadline.slice();
      } catch (...) {
        loader->gave_up(began);
        throw;
      }
      if (slice == 0 && !first) break;
      nb::gil_scoped_release release;
      if (loader->next(began, slice, &batch, &discarded)) {
        loader->table().delivered(loader->plan().view, loader->settings().stream, batch.number + 1);
        nb::gil_scoped_acquire acquire;
        return {std::move(batch.staging), batch.token, std::move(discarded), batch.number + 1, std::nullopt};
      }
      if (loader->state().status == SampleStatus::never) break;
    }
    loader->gave_up(began);
    const SampleState state = loader->state();
    return {nullptr, 0, std::move(discarded), 0, state.status == SampleStatus::ok ? std::nullopt : std::optional(state)};
  }

  std::shared_ptr<Loader> get() const {
    if (closed()) fail(ErrorCode::closed, "this loader of store '%s' is closed: call table.loader() for a new one", store().c_str());
    return Handle::get();
  }

  // For a producer in Python. (status, batch): 0 = there is one, 1 = not yet, 2 = stop.
  std::tuple<int, std::shared_ptr<Prepared>> prepare(double seconds) {
    const auto loader = get();
    auto batch = std::make_shared<Prepared>();
    nb::gil_scoped_release release;
    const PrepareStatus status = loader->prepare(static_cast<std::uint64_t>(seconds * 1e9), batch.get());
    return {static_cast<int>(status), status == PrepareStatus::ready ? std::move(batch) : nullptr};
  }

  void close() {
    if (closed()) return;
    unlocked([](Loader& l) { l.close(); });
    if (closed()) return;  // another thread was here meanwhile
    release();
  }
};

// Pinned staging memory: `pin(address, bytes)` for each new buffer, `unpin(address, bytes)` before it is freed.
std::shared_ptr<StagingPool> pinned_pool(nb::object pin, nb::object unpin) {
  const auto hook = [](nb::object call, bool quiet) -> StagingPool::Hook {
    // Shared, and freed under the interpreter's lock, whichever thread is the last.
    std::shared_ptr<nb::object> held(new nb::object(std::move(call)), [](nb::object* object) {
      nb::gil_scoped_acquire acquire;
      delete object;
    });
    return [held, quiet](std::byte* at, std::size_t bytes) {
      nb::gil_scoped_acquire acquire;
      try {
        (*held)(reinterpret_cast<std::uint64_t>(at), bytes);
      } catch (nb::python_error& error) {
        if (!quiet) throw;
        error.discard_as_unraisable("unpinning a staging buffer");
      }
    };
  };
  return std::make_shared<StagingPool>(hook(std::move(pin), false), hook(std::move(unpin), true));
}

void bind_loader(nb::module_& m) {
  nb::class_<DrawMark>(m, "DrawMark").def_prop_ro("total", [](const DrawMark& mark) { return mark.total; });
  nb::class_<StagingPool>(m, "StagingPool")
      .def_prop_ro("kept", &StagingPool::kept);
  m.def("pinned_pool", &pinned_pool, "pin"_a, "unpin"_a);
  nb::class_<Prepared>(m, "Prepared")
      .def_prop_ro("staging", [](const Prepared& p) { return p.staging; })
      .def_prop_ro("token", [](const Prepared& p) { return p.token; })
      .def("discard", [](Prepared& p) { p.held = {}; });  // it counts as no sample from here on
  nb::class_<LoaderSettings>(m, "LoaderSettings")
      .def("__init__", [](LoaderSettings* self, std::uint32_t n, std::uint32_t stream, std::uint64_t first, std::uint32_t depth, std::uint32_t most, std::optional<double> max_drift, bool measured, bool own_thread, std::uint64_t most_bytes) {
        new (self) LoaderSettings{n, stream, first, depth, most, max_drift, measured, own_thread, most_bytes};
      }, "n"_a, "stream"_a, "first"_a, "depth"_a, "most"_a, "max_drift"_a.none(), "measured"_a, "own_thread"_a, "most_bytes"_a);
  nb::class_<PyLoader>(m, "Loader")
      .def(nb::init<const PyTable&, const Plan&, const LoaderSettings&, std::shared_ptr<StagingPool>>(), "table"_a, "plan"_a, "settings"_a, "pool"_a.none())
      .def("next", &PyLoader::next, "timeout"_a.none())
      .def("prepare", &PyLoader::prepare, "seconds"_a)
      .def("push", [](PyLoader& l, Prepared& batch) {
        const auto loader = l.get();
        return loader->push(std::move(batch));
      }, "batch"_a)
      .def("fail", [](PyLoader& l) {
        l.get()->producer_failed(std::make_exception_ptr(Error(ErrorCode::closed, "the preparation of this loader's batches has ended")));
      })
      .def("handed_later", [](PyLoader& l) { l.get()->handed_later(); })
      .def("check", [](PyLoader& l) { l.get()->check(); })
      .def("close", &PyLoader::close)
      .def_prop_ro("closed", [](PyLoader& l) { return l.closed() || l.get()->closed(); })
      .def_prop_ro("number", [](PyLoader& l) { return l.get()->number(); })
      .def("metrics", [](PyLoader& l) {
        const LoaderMetrics x = l.get()->metrics();
        return std::make_tuple(x.batches, x.redrawn, x.exposed_ns, x.hidden_ns, x.depth, x.ready, x.drift_last, x.drift_max, x.drift_sum);
      });
}

}  // namespace
}  // namespace conduit
