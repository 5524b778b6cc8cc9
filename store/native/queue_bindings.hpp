// Queues for Python: consumers, deliveries, and what a queue says of itself.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "consumer.hpp"
#include "table_bindings.hpp"

namespace conduit {
namespace {

QueueIndex& queue_of(TableCore& core) {
  if (core.queue() == nullptr) fail(ErrorCode::config, "table '%.63s' is no queue", core.shared().name);
  return *core.queue();
}

// Complete and incomplete groups as one consumer process sees them.
struct PyGroups {
  std::unique_ptr<GroupIndex> index;
};

class PyConsumer : public Handle<Consumer> {
 public:
  PyConsumer(const PyTable& table, std::uint32_t group) : Handle(make(table, group), table.store()) {}

  static std::shared_ptr<Consumer> make(const PyTable& table, std::uint32_t group) {
    const auto core = table.get();
    if (group >= queue_of(*core).state().groups) fail(ErrorCode::config, "consumer %u of %u", group, queue_of(*core).state().groups);
    return std::make_shared<Consumer>(core, group);
  }

  std::unique_ptr<GroupIndex> groups(std::uint32_t column, std::uint32_t size) const {
    TableCore& core = get()->table();
    if (column >= core.shared().n_columns || size == 0) fail(ErrorCode::config, "groups of %u rows by column %u", size, column);
    return std::make_unique<GroupIndex>(core, get()->group(), column, size);
  }

  // `partial`: whether fewer rows will do: never (but after the queue's end), at the deadline, or at once.
  static constexpr int kAtDeadline = 1, kAtOnce = 2;
  // (status, buffer, delivery, rows, waiting, leased, complete groups, key, tokens); buffer and delivery are None unless
  // status is 0. 1: not enough rows in time, 2: the queue has ended, 3: the row of `key` is above max_tokens. `pool`: where the buffer
  // comes from, the process's own if null.
  using Taken = std::tuple<int, std::shared_ptr<Staging>, std::shared_ptr<Delivery>, std::uint32_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;
  Taken take(std::uint32_t rows, PyGroups* groups, std::uint64_t max_tokens, std::uint32_t token_column, std::uint32_t token_bytes, bool token_signed, int partial, std::optional<double> timeout, std::shared_ptr<StagingPool> pool) {
    const auto consumer = get();
    const Table& t = consumer->table().shared();
    if (max_tokens > 0 && (token_column >= t.n_columns || consumer->table().columns()[token_column].row_bytes != token_bytes || token_bytes > 8)) {
      fail(ErrorCode::config, "lengths of %u bytes do not fit column %u", token_bytes, token_column);
    }
    const Demand demand{rows, max_tokens, {token_column, token_bytes, token_signed}};
    Target target;
    if (pool) target.pool = std::move(pool);
    std::shared_ptr<Delivery> delivery;
    TakeState state;
    TakeStatus status = TakeStatus::too_few;
    std::uint64_t seen = 0;
    const auto attempt = [&](bool fewer) {
      for (;;) {
        seen = consumer->progress();
        status = consumer->take(demand, groups != nullptr ? groups->index.get() : nullptr, fewer, &delivery, &state);
        if (status != TakeStatus::ok) return status != TakeStatus::too_few;
        if (delivery->copy(consumer->offsets(delivery->rows()), &target)) return true;
        delivery->release();  // it has ended meanwhile: the bytes may be of other rows
        delivery.reset();
      }
    };
    const auto result = [&]() -> Taken {
      return {static_cast<int>(status), delivery ? std::move(target.staging) : nullptr, delivery, delivery ? delivery->rows() : 0, state.waiting, state.leased, state.groups, state.key, state.tokens};
    };
    bool done;
    {
      nb::gil_scoped_release release;
      done = attempt(partial == kAtOnce);
    }
    if (done) return result();
    const Deadline deadline(timeout);
    for (;;) {
      const std::uint64_t slice = deadline.slice();
      nb::gil_scoped_release release;
      if (slice == 0) {
        if (partial == kAtDeadline) attempt(true);
        break;
      }
      consumer->wait(seen, state, slice);
      if (attempt(partial == kAtOnce)) break;
    }
    return result();
  }
};

nb::dict queue_info(TableCore& core) {
  nb::dict d;
  QueueIndex& queue = queue_of(core);
  const QueueState& q = queue.state();
  std::vector<std::tuple<std::uint64_t, std::uint64_t, double>> groups(q.groups);  // waiting, leased, age of the oldest lease
  std::vector<QueueCounters> counters(q.groups);
  std::uint64_t rows, expired, released, orphaned, leases, appended;
  {
    nb::gil_scoped_release release;
    core.process().check();
    IndexLock lock(core);
    const std::uint64_t now = now_ns();
    rows = core.shared().live_steps;
    appended = core.shared().counters.steps_folded.load();
    for (std::uint32_t g = 0; g < q.groups; ++g) {
      groups[g] = {q.waiting[g], q.leased[g], 0.0};
      counters[g] = q.counters[g];
    }
    for (std::uint32_t i = 0; i < q.leases_used; ++i) {
      const Lease& lease = q.leases[i];
      if (lease.fence == 0) continue;
      double& age = std::get<2>(groups[lease.group]);
      age = std::max(age, static_cast<double>(now - std::min(now, lease.began_ns)) * 1e-9);
    }
    expired = q.expired_leases;
    released = q.released_leases;
    orphaned = q.orphaned_leases;
    leases = q.leases_active;
  }
  nb::list out;
  for (std::uint32_t g = 0; g < q.groups; ++g) {
    const auto& [waiting, leased, age] = groups[g];
    const QueueCounters& c = counters[g];
    out.append(nb::make_tuple(waiting, leased, age, c.delivered, c.acknowledged, c.redelivered, c.stale_rows, c.dropped_rows));
  }
  d["groups"] = out;
  d["unacknowledged"] = rows;
  d["appended"] = appended;
  d["expired_leases"] = expired;
  d["released_leases"] = released;
  d["orphaned_leases"] = orphaned;
  d["leases"] = leases;
  d["policy_version"] = q.policy_version.load();
  d["ended"] = q.ended.load() != 0;
  return d;
}

void bind_queues(nb::module_& m) {
  nb::class_<PyGroups>(m, "Groups");
  nb::class_<Delivery>(m, "Delivery")
      .def("acknowledge", [](Delivery& d, nb::object keys, std::uint64_t n) {
        if (keys.is_none()) {
          nb::gil_scoped_release release;
          return d.acknowledge(nullptr, 0);
        }
        const Bytes held(keys, n * sizeof(std::uint64_t), "keys");
        nb::gil_scoped_release release;
        return d.acknowledge(held.as<std::uint64_t>(), n);
      }, "keys"_a.none(), "n"_a)
      .def("release", &Delivery::release, nb::call_guard<nb::gil_scoped_release>())
      .def("renew", &Delivery::renew, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("left", &Delivery::left);
  nb::class_<PyConsumer>(m, "Consumer")
      .def(nb::init<const PyTable&, std::uint32_t>(), "table"_a, "group"_a)
      .def("close", &PyConsumer::release)
      .def("offsets", [](PyConsumer& c, std::uint64_t n) { return c.get()->offsets(n); }, "n"_a)
      // A buffer of no rows.
      .def("nothing", [](PyConsumer& c) {
        auto staging = std::make_shared<Staging>(c.get()->offsets(0).back());
        memset(staging->data(), 0, staging->bytes());  // offsets of rows that vary in length
        return staging;
      })
      .def("groups", [](PyConsumer& c, std::uint32_t column, std::uint32_t size) { return PyGroups{c.groups(column, size)}; }, "column"_a, "size"_a)
      .def("take", &PyConsumer::take, "rows"_a, "groups"_a.none(), "max_tokens"_a, "token_column"_a, "token_bytes"_a, "token_signed"_a, "partial"_a, "timeout"_a.none(), "pool"_a.none())
      .def("drop", [](PyConsumer& c, nb::object keys, std::uint64_t n) {
        const Bytes held(keys, n * sizeof(std::uint64_t), "keys");
        return c.unlocked([&](Consumer& consumer) { return consumer.drop(held.as<std::uint64_t>(), n); });
      }, "keys"_a, "n"_a)
      // (bytes of the value, rows, age in seconds), the oldest first
      .def("incomplete", [](PyConsumer& c, PyGroups& groups) {
        const auto found = c.unlocked([&](Consumer& consumer) { return consumer.incomplete(*groups.index); });
        const std::uint64_t now = now_ns();
        nb::list result;
        for (const GroupIndex::Incomplete& i : found) {
          result.append(nb::make_tuple(nb::bytes(i.value.data(), i.value.size()), i.rows, static_cast<double>(now - std::min(now, i.since_ns)) * 1e-9));
        }
        return result;
      }, "groups"_a)
      .def("drop_incomplete", [](PyConsumer& c, PyGroups& groups, double older_than) {
        return c.unlocked([&](Consumer& consumer) { return consumer.drop_incomplete(*groups.index, static_cast<std::uint64_t>(older_than * 1e9)); });
      }, "groups"_a, "older_than"_a);
}

// What a table that is a queue can do beside.
template <class Class>
void bind_queue_table(Class& table) {
  table.def("end", [](PyTable& t) { t.unlocked([](TableCore& c) { c.process().check(); queue_of(c).end(); }); })
      .def("end_leases", [](PyTable& t) { t.unlocked([](TableCore& c) { queue_of(c).end_own(); }); })
      .def("raise_version", [](PyTable& t, std::int64_t version) { t.unlocked([&](TableCore& c) { c.process().check(); queue_of(c).raise_version(version); }); }, "version"_a)
      .def_prop_ro("policy_version", [](PyTable& t) { return queue_of(*t.get()).state().policy_version.load(std::memory_order_acquire); })
      .def_prop_ro("ended", [](PyTable& t) { return queue_of(*t.get()).state().ended.load(std::memory_order_acquire) != 0; })
      .def("queue_info", [](PyTable& t) { return queue_info(*t.get()); })
      // (pid, rows) of each process that holds leases
      .def("lease_holders", [](PyTable& t) { return t.unlocked([](TableCore& c) { return queue_of(c).lease_holders(); }); });
}

}  // namespace
}  // namespace conduit
