// Reading from a view of a table: a sampler for each thread that is inside, and how many batches each random stream has had. What is
// kept here is guarded by the interpreter's lock, which draws and copies let go of.
#pragma once

#include <unordered_map>

#include "batch_object.hpp"
#include "plan_bindings.hpp"
#include "sampler.hpp"

namespace conduit {
namespace {

class PyReader : public Handle<TableCore> {
 public:
  // `batch`: the class of what `sample` and `read` return.
  PyReader(const PyTable& table, const Plan& plan, nb::object batch)
      : Handle(table.get(), table.store()), plan_(CheckedPlan::of(*table.get(), plan)), batch_(std::move(batch)), forks_(get()->process().forks()) {}

  std::vector<std::uint64_t> offsets(std::uint64_t n) const { return plan_.offsets(n); }

  // The next batch of `stream`, or of the stream that is this process's own; `format`: of n rows. After the timeout what the draw
  // lacked, and the next call draws this batch.
  nb::object sample(std::uint32_t n, nb::handle format, std::optional<std::uint32_t> stream, std::optional<double> timeout) {
    Inside inside(*this);
    forget_parent();
    const std::uint32_t chosen = stream ? *stream : own_stream();
    std::uint64_t& next = next_batch(chosen);
    const std::uint64_t batch = next++;
    Target target;
    SampleState state;
    try {
      if (draw(*inside.sampler, n, &target, chosen, batch, timeout, &state)) return BatchObject::make(batch_, std::move(target.staging), format);
    } catch (...) {
      put_back(chosen, batch);
      throw;
    }
    put_back(chosen, batch);
    return nb::cast(state);
  }

  // (batch, None), or (None, position of the first key that is stale)
  std::tuple<nb::object, std::uint64_t> read(nb::object keys, std::uint32_t n, nb::handle format) {
    const Bytes held(keys, n * sizeof(std::uint64_t), "keys");
    Inside inside(*this);
    Target target;
    std::uint64_t stale_at = 0;
    bool whole;
    {
      nb::gil_scoped_release release;
      whole = inside.sampler->read(held.as<std::uint64_t>(), n, &target, &stale_at);
    }
    return {whole ? BatchObject::make(batch_, std::move(target.staging), format) : nb::none(), stale_at};
  }

  // For loaders, whose batches are counted here, so that a stream goes on whoever draws from it next: (stream, next batch of it).
  std::pair<std::uint32_t, std::uint64_t> reserve(std::optional<std::uint32_t> stream) {
    forget_parent();
    const std::uint32_t chosen = stream ? *stream : new_stream();
    const auto found = batches_.find(chosen);
    return {chosen, found == batches_.end() ? get()->stream_first(plan_.view, chosen) : found->second};
  }
  // The next batch of `stream` is `batch`, if nobody is further.
  void advance(std::uint32_t stream, std::uint64_t batch) {
    std::uint64_t& next = batches_[stream];
    next = std::max(next, batch);
  }

  void close() {
    idle_.clear();
    release();
  }

 private:
  // A sampler while a call uses it.
  struct Inside {
    explicit Inside(PyReader& r) : reader(r) {
      const auto core = r.get();
      if (r.idle_.empty()) {
        sampler = std::make_shared<Sampler>(core, r.plan_);
      } else {
        sampler = std::move(r.idle_.back());
        r.idle_.pop_back();
      }
    }
    ~Inside() {
      if (!reader.closed()) reader.idle_.push_back(std::move(sampler));
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    PyReader& reader;
    std::shared_ptr<Sampler> sampler;
  };

  // A forked child has streams of its own, so that it does not repeat its parent's draws.
  void forget_parent() {
    const std::uint32_t forks = get()->process().forks();
    if (forks == forks_) return;
    forks_ = forks;
    own_.reset();
    batches_.clear();
  }
  std::uint32_t own_stream() {
    if (!own_) own_ = new_stream();
    return *own_;
  }
  std::uint32_t new_stream() const { return static_cast<std::uint32_t>(get()->shared().streams.fetch_add(1)); }
  // Of a stream that is new here 0, or where a restored one goes on.
  std::uint64_t& next_batch(std::uint32_t stream) {
    const auto found = batches_.find(stream);
    return found != batches_.end() ? found->second : batches_[stream] = get()->stream_first(plan_.view, stream);
  }
  // Nothing was delivered.
  void put_back(std::uint32_t stream, std::uint64_t batch) {
    const auto found = batches_.find(stream);
    if (found != batches_.end() && found->second == batch + 1) found->second = batch;
  }

  static bool draw(Sampler& sampler, std::uint32_t n, Target* target, std::uint32_t stream, std::uint64_t batch, std::optional<double> timeout, SampleState* state) {
    Reservation held;
    const auto attempt = [&] {
      nb::gil_scoped_release release;
      if (sampler.sample(n, target, stream, batch, state, &held) != SampleStatus::ok) return false;
      held.delivered();
      sampler.table().delivered(sampler.plan().view, stream, batch + 1);
      return true;
    };
    if (attempt()) return true;
    const Deadline deadline(timeout);
    for (;;) {
      const std::uint32_t signal = sampler.begin_wait();
      if (attempt()) return true;
      const std::uint64_t slice = deadline.slice();
      if (slice == 0 || state->status == SampleStatus::never) return false;
      nb::gil_scoped_release release;
      sampler.wait(signal, slice, state->status);
    }
  }

  Plan plan_;
  nb::object batch_;
  std::uint32_t forks_;
  std::vector<std::shared_ptr<Sampler>> idle_;
  std::optional<std::uint32_t> own_;
  std::unordered_map<std::uint32_t, std::uint64_t> batches_;  // of each stream, the next
};

void bind_reader(nb::module_& m) {
  m.attr("BatchBase") = BatchObject::type();
  nb::class_<PyReader>(m, "Reader")
      .def(nb::init<const PyTable&, const Plan&, nb::object>(), "table"_a, "plan"_a, "batch"_a)
      .def("close", &PyReader::close)
      .def("offsets", &PyReader::offsets, "n"_a)
      .def("sample", &PyReader::sample, "n"_a, "layout"_a, "stream"_a.none(), "timeout"_a.none())
      .def("read", &PyReader::read, "keys"_a, "n"_a, "layout"_a)
      .def("reserve", &PyReader::reserve, "stream"_a.none())
      .def("advance", &PyReader::advance, "stream"_a, "batch"_a);
}

}  // namespace
}  // namespace conduit
